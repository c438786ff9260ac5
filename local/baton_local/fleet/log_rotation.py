"""Log files that cannot fill the disk: each is moved aside once it is large, and what was moved aside before it goes.

Processes append to files that they never open again, so a log is copied and emptied in place. What is written between
the two is lost: a few lines of a flood.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

MAX_LOG_BYTES = 16 << 20
"""Of one file; a process has two at most, the one it writes to and the former one."""
FORMER = ".former"


def rotate_logs(logs: Path, max_bytes: int = MAX_LOG_BYTES) -> list[Path]:
    """Empty every log of a directory that is larger; returns them. On a full disk nothing is kept of it."""
    rotated = []
    for path in logs.glob("*.log"):
        with suppress(OSError):
            if path.stat().st_size > max_bytes:
                _move_aside(path)
                os.truncate(path, 0)
                rotated.append(path)
    return rotated


def _move_aside(path: Path) -> None:
    former = path.with_name(path.name + FORMER)
    try:
        former.unlink(missing_ok=True)
        shutil.copyfile(path, former)
    except OSError:
        former.unlink(missing_ok=True)
