"""Files that other processes read, kept up to date even while the disk is full.

A failed write is reported once and retried; readers see the previous content until then. A reserve file of a few pages
is deleted when the disk is full, so that the addresses of restarted workers can still be written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from baton_local.fleet.run_dir import write_json

RETRY_S: Final = 1.0
RESERVE_BYTES: Final = 64 << 10
"""Room for the addresses and announcements of some hundred workers."""
ROOMY: Final = 2
"""The reserve is made again when this many times its size is free."""


class Bookkeeping:
    """The files on disk, and the values that could not be written yet. `say` prints a line for the user."""

    def __init__(self, reserve: Path, say: Callable[[str], None]) -> None:
        self._reserve, self._say = reserve, say
        self._missing: dict[Path, object] = {}
        self._retry_at = 0.0
        self._make_reserve()

    def keep(self, path: Path, value: object, now: float) -> None:
        """Write plain data, now or as soon as that is possible."""
        problem = self._write(path, value)
        if problem is None:
            self._missing.pop(path, None)
            return
        if not self._missing:
            self._say(f"{path}: {problem}; going on and retrying")
            self._retry_at = now + RETRY_S
        self._missing[path] = value

    def retry(self, now: float) -> None:
        """Retry failed writes, once per RETRY_S."""
        if now < self._retry_at:
            return
        self._retry_at = now + RETRY_S
        if not self._missing:
            self._make_reserve()
            return
        for path, value in list(self._missing.items()):
            if self._write(path, value) is None:
                del self._missing[path]
        if not self._missing:
            self._say("all files are written again")

    def _write(self, path: Path, value: object) -> str | None:
        """Write a file; returns why that failed, None when it did not."""
        try:
            write_json(path, value)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            try:
                write_json(path, value)
            except OSError as error:
                return os.strerror(error.errno or 0)
        return None

    def _make_reserve(self) -> None:
        """Make the reserve if it is gone and the disk has space again."""
        if self._reserve.exists():
            return
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._reserve.parent).free >= ROOMY * RESERVE_BYTES:
                self._reserve.write_bytes(bytes(RESERVE_BYTES))
