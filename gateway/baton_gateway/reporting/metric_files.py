"""The files in which a gateway's processes share their metrics: with room from the start, and a bounded number.

The library maps files that have no room yet. On a full disk the kernel would kill whoever writes into one. And what a
dead process counted stays in its files, which would be two more with every process that dies.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

COUNTING = ("counter", "histogram")
"""Kinds of files whose numbers outlive their process."""
KINDS = (*COUNTING, "gauge_livesum")
FILE_BYTES = 64 << 10
"""Every series exists from the start, and all of one kind take less than half of it."""
FORMER = "former"
"""Stands for all processes that are dead."""


def reserve(folder: str, owner: int | str) -> None:
    """Give a process's files their room before it writes to them. Raises OSError that names the file."""
    for kind in KINDS:
        path = _file(folder, kind, owner)
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error


def absorb(folder: str, pid: int) -> None:
    """Add what a dead process counted to what others did before it, and remove its files."""
    for kind in COUNTING:
        path = _file(folder, kind, pid)
        if path.exists():
            _add(path, _file(folder, kind, FORMER))
            path.unlink()
    for path in Path(folder).glob(f"gauge_live*_{pid}.db"):
        path.unlink()


def _add(source: Path, target: Path) -> None:
    try:
        counts = [(key, value) for key, value, *_ in MmapedDict.read_all_values_from_file(str(source))]  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError, ValueError, struct.error):  # it died in the middle of writing one
        return
    former = MmapedDict(str(target))  # type: ignore[no-untyped-call]
    try:
        for key, value in counts:
            before, _ = former.read_value(key)  # type: ignore[no-untyped-call]
            former.write_value(key, before + value, 0.0)  # type: ignore[no-untyped-call]
    finally:
        former.close()  # type: ignore[no-untyped-call]


def _file(folder: str, kind: str, owner: int | str) -> Path:
    return Path(folder, f"{kind}_{owner}.db")
