"""Steps of the wall clock for the processes of a test: a small library in their environment adds what a file says.

Needs a C compiler. Clocks that only measure time are not touched, as with a step of a node's clock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *shift_s;

__attribute__((constructor)) static void find_shift(void) {
    const char *path = getenv("BATON_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *page = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) shift_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (!result && shift_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift_s;
    return result;
}

time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}
"""


class ShiftedClock:
    """`environment` is for the processes; `shifted` steps the clock of all processes."""

    def __init__(self, folder: Path) -> None:
        """Raises FileNotFoundError where there is no C compiler."""
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise FileNotFoundError("no C compiler: clocks cannot be stepped")
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(SOURCE)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._shift_s = 0
        self._file = folder / "clock.shift"
        self._file.write_bytes(struct.pack("l", 0))
        self.environment = {"LD_PRELOAD": str(library), "BATON_TEST_CLOCK": str(self._file)}

    @contextlib.contextmanager
    def shifted(self, seconds: int) -> Iterator[None]:
        """Meanwhile all clocks are ahead by this much, in one step. Steps at the same time add up."""
        self._step(seconds)
        try:
            yield
        finally:
            self._step(-seconds)

    def _step(self, seconds: int) -> None:
        self._shift_s += seconds
        with self._file.open("r+b") as file:
            os.pwrite(file.fileno(), struct.pack("l", self._shift_s), 0)
