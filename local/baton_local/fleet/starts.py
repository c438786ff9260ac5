"""Starts of `baton up` on this machine: a command that comes early finds one under way, also while it still checks or
downloads its model and has no run directory yet.

Each `baton up` holds the lock of a file with its process id for as long as it lives; the kernel releases it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = ".starting"


@contextmanager
def announced_start(base: Path) -> Iterator[None]:
    """Let other commands see this process as a `baton up` that starts. A full disk is no reason not to start."""
    path = base / FOLDER / str(os.getpid())
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        file = path.open("w")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield
        return
    with file:
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def living_starts(base: Path) -> list[int]:
    """The process ids of every `baton up` that lives, those that have long been up too. Files of killed ones go."""
    pids = []
    with suppress(FileNotFoundError):
        for path in sorted((base / FOLDER).iterdir()):
            if path.name.isdecimal() and _is_locked(path):
                pids.append(int(path.name))
    return pids


def _is_locked(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
