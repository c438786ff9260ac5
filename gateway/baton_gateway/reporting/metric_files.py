"""The files in which a gateway's processes share their metrics: with room from the start, and a bounded number.

The library maps files that have no disk space allocated. On a full disk the kernel would kill a process that writes to
one. So the parent allocates them before anything starts, and a process takes over the files of its dead predecessor.
The predecessor's counts are added to one file, because otherwise each dead process would leave two files.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable with the folder of the files."""
COUNTING = ("counter", "histogram")
"""Kinds of files whose numbers outlive their process."""
KINDS = (*COUNTING, "gauge_livesum")
FILE_BYTES = 64 << 10
"""Every series exists from the start, and all of one kind take less than half of it."""
FORMER = "former"
"""The owner's name for all dead processes together."""
_SPARE = "spare_"
"""The prefix of files that no process has; the library does not read them."""


def reserve(folder: str, processes: int) -> None:
    """Allocate the files of this many processes before they start. Raises OSError that names a file."""
    for kind in KINDS:
        for place in range(processes):
            _allocate(_spare(folder, kind, place))
    for kind in COUNTING:
        _allocate(_file(folder, kind, FORMER))


def claim(folder: str, pid: int) -> None:
    """Take files for a process that is about to count. Raises OSError where none is left and there is no room."""
    for kind in KINDS:
        target = _file(folder, kind, pid)
        if not any(_rename(spare, target) for spare in Path(folder).glob(f"{_SPARE}{kind}_*")):
            _allocate(target)


def absorb(folder: str, pid: int) -> None:
    """Add what a dead process counted to what others did before it, and keep its files for its successor."""
    for kind in KINDS:
        path = _file(folder, kind, pid)
        if not path.exists():
            continue
        if kind in COUNTING:
            _add(path, _file(folder, kind, FORMER))
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))  # in place, which needs no room
        path.rename(_spare(folder, kind, pid))


def _allocate(path: Path) -> None:
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, FILE_BYTES)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _rename(spare: Path, target: Path) -> bool:
    """Take a spare file; False: another process was faster."""
    try:
        spare.rename(target)
    except FileNotFoundError:
        return False
    return True


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


def _spare(folder: str, kind: str, place: int) -> Path:
    return Path(folder, f"{_SPARE}{kind}_{place}")


def _file(folder: str, kind: str, owner: int | str) -> Path:
    return Path(folder, f"{kind}_{owner}.db")
