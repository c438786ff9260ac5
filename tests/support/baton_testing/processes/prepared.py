"""Processes that need not import anything: forks of one that has (`fork_server`).

A fork is a process of its own, with its own signals, files and status, and runs the same `__main__` as `python -m`.
Importing PyTorch takes 2.7 s of processor time, which every worker of a test would spend anew. Starts themselves are
tested without this.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from baton_testing.processes import fork_server
from baton_testing.processes.child_process import Ended, environment, run_to_end

SERVICE = (
    "baton_decode_worker",
    "baton_prefill_worker",
    "baton_flexible_worker",
    "baton_gateway",
    "baton_testing.processes.forked_posts",
)
START_S = 120.0
"""Until the fork server has its imports done and the first child has a number."""
POLL_S = (0.001, 0.05)
"""While one thread waits for a child, others may ask for it: from the first pause to the longest."""


class Forked:
    """One child, as `subprocess.Popen` has it. Threads may ask at the same time."""

    def __init__(self, pipe: int) -> None:
        self._reading = threading.Lock()
        self._pipe = os.fdopen(pipe, "rb", buffering=0)
        self._lines = b""
        self.returncode: int | None = None
        if not self._read_until(1, START_S):
            raise TimeoutError(f"the fork server named no process within {START_S:g} s")
        self.pid = int(self._lines.split(b"\n")[0])

    def _read_until(self, lines: int, timeout_s: float | None) -> bool:
        """True once `lines` lines arrived."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._lines.count(b"\n") < lines:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._pipe], [], [], left_s)[0]:
                return False
            more = self._pipe.read(64)
            assert more, "the fork server ended"
            self._lines += more
        return True

    def poll(self) -> int | None:
        with self._reading:
            if self.returncode is None and self._read_until(2, 0.0):
                self.returncode = int(self._lines.split(b"\n")[1])
                self._pipe.close()
            return self.returncode

    def close(self) -> None:
        """Close the pipe of a process whose server has ended: it was killed if its status was not read."""
        with self._reading:
            if self.returncode is None:
                self.returncode = -signal.SIGKILL
                self._pipe.close()

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        until_s, pause_s = None if timeout is None else time.monotonic() + timeout, POLL_S[0]
        while (code := self.poll()) is None:
            if until_s is not None and time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S[1])
        return code

    def send_signal(self, sig: int) -> None:
        """Nothing is sent to one that has ended; its server knows that a moment before its status is read here."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def service() -> Prepared:
    """For the processes of a service, also where `baton up` is to start them."""
    support = str(Path(__file__).parents[2])
    paths = os.pathsep.join([support, *filter(None, [os.environ.get("PYTHONPATH")])])
    return Prepared(SERVICE, extra={"PYTHONPATH": paths})


def compiling() -> Prepared:
    """For programs that compile kernels where no GPU is."""
    modules = ("torch", "torch._dynamo", "triton", "baton_worker.compile_ahead")
    return Prepared(modules, is_for_programs=True, extra={"TRITON_INTERPRET": "0"})


class Prepared:
    """The process that forks them; started with the first."""

    def __init__(
        self, modules: Sequence[str], is_for_programs: bool = False, extra: Mapping[str, str] | None = None
    ) -> None:
        """Forks run these modules or, `is_for_programs`, the program after `-c`. `extra` is the server's environment
        on top of this process's; it counts for settings that are read when modules are imported."""
        self._modules = tuple(modules)
        self._is_for_programs = is_for_programs
        self._extra = extra
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._forked: list[Forked] = []
        """Children that were not seen to end: their callers may forget them, and their pipes have to be closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Children that are left are killed."""
        if self._requests is not None and self._server is not None:
            self._requests.close()
            self._server.wait(60)
        for forked in self._forked:
            forked.close()

    @property
    def pid(self) -> int | None:
        """None: it was not needed yet."""
        return None if self._server is None else self._server.pid

    def can_start(self, argv: Sequence[str]) -> bool:
        """True if `python argv…` can be forked. CUDA does not survive a fork once a process looked for GPUs."""
        option, what = argv[0], argv[1] if len(argv) > 1 else ""
        is_known = what in self._modules if option == "-m" else option == "-c" and self._is_for_programs
        return is_known and not Path("/dev/nvidiactl").exists()

    def start(
        self,
        argv: Sequence[str],
        output: int,
        errors: int,
        extra: Mapping[str, str] | None = None,
        given: int | None = None,
    ) -> Forked:
        """As `python argv…` with these descriptors for what it says and, unless it is given nothing, what it reads."""
        reader, writer = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        request = {"argv": list(argv), "environment": environment(extra)}
        streams = [nothing if given is None else given, output, errors]
        try:
            with self._lock:
                socket.send_fds(self._connected(), [json.dumps(request).encode()], [*streams, writer])
        finally:
            os.close(writer)
            os.close(nothing)
        forked = Forked(reader)
        with self._lock:
            self._forked = [child for child in self._forked if child.poll() is None] + [forked]
        return forked

    def run_to_end(self, argv: Sequence[str], timeout_s: float, extra: Mapping[str, str] | None = None) -> Ended:
        """As `child_process.run_to_end`, which does it where this cannot."""
        if not self.can_start(argv):
            return run_to_end(argv, timeout_s, extra)
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            child = self.start(argv, output.fileno(), errors.fileno(), extra)
            try:
                code = child.wait(timeout_s)
            finally:
                child.kill()
            output.seek(0)
            errors.seek(0)
            return Ended(code, output.read().decode(), errors.read().decode())

    def _connected(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                command = [sys.executable, str(Path(fork_server.__file__)), str(number)]
                self._server = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, env=environment(self._extra), pass_fds=[number]
                )
                self._requests.send(json.dumps(self._modules).encode())
        return self._requests
