"""Files that other processes read, kept at what was last wanted. A disk that is full ends nothing.

What cannot be written is said once and tried again; readers find the former content until then. A reserve of a few
pages lies beside the files. It is given up when there is no room, so that addresses of restarted workers get through.
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
"""The reserve is made again when so many of its size are free."""


class Bookkeeping:
    """What is on the disk, and what should be. `say` tells the user."""

    def __init__(self, reserve: Path, say: Callable[[str], None]) -> None:
        self._reserve, self._say = reserve, say
        self._missing: dict[Path, object] = {}
        self._retry_at = 0.0
        self._set_aside()

    def keep(self, path: Path, value: object, now: float) -> None:
        """Write plain data, now or as soon as that is possible."""
        problem = self._write(path, value)
        if problem is None:
            self._missing.pop(path, None)
            return
        if not self._missing:
            self._say(f"{path}: {problem}; going on, and trying again")
            self._retry_at = now + RETRY_S
        self._missing[path] = value

    def retry(self, now: float) -> None:
        """Write what is still missing, once in a while."""
        if now < self._retry_at:
            return
        self._retry_at = now + RETRY_S
        if not self._missing:
            self._set_aside()
            return
        for path, value in list(self._missing.items()):
            if self._write(path, value) is None:
                del self._missing[path]
        if not self._missing:
            self._say("what could not be written is written now")

    def _write(self, path: Path, value: object) -> str | None:
        """Why it cannot be written; None: it is."""
        try:
            write_json(path, value)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            try:
                write_json(path, value)
            except OSError as error:
                return os.strerror(error.errno or 0)
        return None

    def _set_aside(self) -> None:
        """Make the reserve where it is gone and there is room."""
        if self._reserve.exists():
            return
        with contextlib.suppress(OSError):
            if shutil.disk_usage(self._reserve.parent).free >= ROOMY * RESERVE_BYTES:
                self._reserve.write_bytes(bytes(RESERVE_BYTES))
