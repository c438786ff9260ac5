"""Log rotation, so that logs cannot fill the disk: a large log is copied aside and truncated, replacing the older copy.

Processes append to files that they never reopen, so a log is truncated in place. Lines written between the copy and the
truncation are lost.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 16 << 20
"""Largest size of one file; each process has at most two, the current one and the former one."""
FORMER = ".former"


def rotate_logs(logs: Path, max_bytes: int = MAX_LOG_BYTES) -> list[Path]:
    """Rotate every log of a directory that is larger; returns their paths. On a full disk no copy is kept."""
    rotated = []
    for path in logs.glob("*.log"):
        with suppress(OSError):
            if path.stat().st_size > max_bytes:
                _copy_aside(path)
                os.truncate(path, 0)
                rotated.append(path)
    return rotated


def _copy_aside(path: Path) -> None:
    former = path.with_name(path.name + FORMER)
    try:
        former.unlink(missing_ok=True)
        shutil.copyfile(path, former)
    except OSError:
        former.unlink(missing_ok=True)
