"""Files of lines: the file that is written now, its rotation by size and day, and recovery after a kill.

A torn last line, which a kill or a full disk may leave, is ended by a line feed: readers skip it, and the whole line is
written again from its slot.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from baton_gateway.ledger.open_table import EntryState, LeftSlot, left_slots, lock_table
from baton_wire.ledger_line import (
    INTERRUPTED,
    LINES_SUFFIX,
    TABLE_SUFFIX,
    LineEvent,
    decode_line,
    encode_line,
    time_text,
)
from baton_wire.messages.values import Role

_log = logging.getLogger("baton.gateway.ledger")
ROTATED_BYTES = 64 << 20
TAIL_BYTES = 8 << 20
"""The end of a file in which a left slot's closing line may be: several times what is written at once."""
ABANDONED_S = 120.0
"""A table of another gateway that was not touched for this long, and is not locked, is recovered."""
MAX_PLACES = 1_024
AppendLeft = Callable[[Path, list[LeftSlot]], None]
"""Writes the closing lines of slots that a killed process left; the path is that of the process's file."""
_NAME = re.compile(r"[^A-Za-z0-9._-]")


class FolderFullError(OSError):
    """Every place of this gateway's name is taken."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a file of lines is closed and another one begun."""

    most_bytes: int = ROTATED_BYTES
    by_day: bool = True


class LineFile:
    """The file that one process appends to. Used by one thread."""

    def __init__(self, path: Path, rotation: Rotation = Rotation()) -> None:
        self.path = path
        self._rotation = rotation
        self._descriptor = -1
        self._day = ""
        self._size = 0
        self._rest = b""
        """The part of the lines that a failed write left over."""

    def write(self, content: bytes, now_s: float) -> None:
        """Append whole lines. Raises OSError; after that only a call with the same content goes on where this one
        stopped."""
        if self._descriptor < 0:
            self._open(now_s)
        rest = self._rest or content
        try:
            while rest:
                written = os.write(self._descriptor, rest)
                rest, self._size = rest[written:], self._size + written
        finally:
            self._rest = rest if len(rest) < len(content) else b""

    def rotate_if_due(self, now_s: float) -> None:
        """Rename the file once it is large, or of another day than now. Raises OSError."""
        if self._descriptor < 0 or not self._size:
            return
        if not self._is_in_place():
            self.close()  # another program renamed or deleted it: the next line begins a new one
            return
        is_old = self._rotation.by_day and _day(now_s) != self._day
        if is_old or self._size >= self._rotation.most_bytes:
            self.path.rename(_free_name(self.path, now_s))
            self.close()

    def sync(self) -> None:
        """Have the disk keep what was written. Raises OSError."""
        if self._descriptor >= 0:
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_in_place(self) -> bool:
        try:
            return self.path.stat().st_ino == os.fstat(self._descriptor).st_ino
        except FileNotFoundError:
            return False

    def _open(self, now_s: float) -> None:
        self._descriptor = open_lines(self.path)
        status = os.fstat(self._descriptor)
        self._size = status.st_size
        self._day = _day(status.st_mtime if self._size else now_s)


def open_lines(path: Path) -> int:
    """Open a file to append lines, after a torn last line was ended. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor


def place_stem(name: str) -> str:
    """The beginning of the names of a gateway's files."""
    return _NAME.sub("_", name)[:128]


def check_folder(folder: Path) -> None:
    """Raises OSError unless files can be made in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def claim_place(folder: Path, name: str, append: AppendLeft) -> tuple[int, Path]:
    """Recover what killed processes left in a folder, and claim a place of this gateway's name: returns the descriptor
    of its locked table and the path of it. Raises OSError."""
    check_folder(folder)
    recover_left(folder, name, 0.0, append)
    stem = place_stem(name)
    for place in range(MAX_PLACES):
        path = folder / f"{stem}-{place}{TABLE_SUFFIX}"
        descriptor = lock_table(path, creates=True)
        if descriptor is not None:
            if os.fstat(descriptor).st_size == 0:
                return descriptor, path
            os.close(descriptor)  # what it has could not be written yet: it stays for later
    raise FolderFullError(f"{folder}: every place of {name} is taken")


def recover_left(folder: Path, name: str, now_s: float, append: AppendLeft) -> int:
    """Close the requests of killed processes as interrupted; returns how many. `now_s`: the wall clock, for tables of
    other names; 0: those are left. A table that cannot be recovered now stays for the next time."""
    own = place_stem(name)
    recovered = 0
    for path in sorted(folder.glob(f"*{TABLE_SUFFIX}")):
        is_own = path.name.rpartition("-")[0] == own
        try:
            if not is_own and (not now_s or abs(now_s - path.stat().st_mtime) < ABANDONED_S):
                continue
            recovered += _recover(path, append)
        except OSError as error:
            _log.error("the ledger of a killed process is not recovered yet: %s: %s", path, error.strerror or error)
    return recovered


def _recover(table: Path, append: AppendLeft) -> int:
    descriptor = lock_table(table)
    if descriptor is None:
        return 0
    try:
        left = list(left_slots(descriptor))
        if left:
            append(table.with_suffix(LINES_SUFFIX), left)
            _log.warning("%d requests of a killed process are in the ledger: %s", len(left), table.name)
        table.unlink(missing_ok=True)
        return len(left)
    finally:
        os.close(descriptor)


def append_left(path: Path, left: list[LeftSlot]) -> None:
    """Append the closing lines of left slots, unless the file has them. Raises OSError."""
    descriptor = open_lines(path)
    try:
        size = os.fstat(descriptor).st_size
        written = closed_ids(os.pread(descriptor, TAIL_BYTES, max(0, size - TAIL_BYTES)))
        content = b"".join(line for line in closing_lines(left, written))
        while content:
            content = content[os.write(descriptor, content) :]
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def closed_ids(tail: bytes) -> set[str]:
    """The ids of the closing lines in the end of a file."""
    ids = set()
    for content in tail.split(b"\n"):
        try:
            line = decode_line(content)
        except ValueError:
            continue
        if line.event is LineEvent.CLOSED:
            ids.add(line.id)
    return ids


def _known_seconds(slot: LeftSlot) -> dict[str, float] | None:
    by_pool = {Role.PREFILL.value: slot.prefill_s, Role.DECODE.value: slot.decode_s}
    return {pool: seconds for pool, seconds in by_pool.items() if seconds is not None} or None


def closing_lines(left: list[LeftSlot], written: set[str]) -> Iterator[bytes]:
    """The closing lines of left slots that are not among the written ones. Pure."""
    for slot in left:
        try:
            line = decode_line(slot.closed if slot.state is EntryState.CLOSED else slot.opened)
        except ValueError:
            continue  # a damaged disk: there is nothing to bill by
        if line.id in written:
            continue
        if slot.state is EntryState.OPEN:
            line = msgspec.structs.replace(
                line,
                event=LineEvent.CLOSED,
                output_tokens=slot.output_tokens,
                cached_tokens=slot.cached_tokens,
                accelerator_seconds=_known_seconds(slot),
                status=INTERRUPTED,
                interrupted=True,
            )
        yield encode_line(line)


def _day(now_s: float) -> str:
    return time_text(now_s)[:10]


def _free_name(path: Path, now_s: float) -> Path:
    """A name for a rotated file that no file has, whatever the clock does."""
    stamp = datetime.fromisoformat(time_text(now_s)).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    for number in range(100_000):
        name = path.with_name(f"{path.stem}.{stamp}.{number:05d}{LINES_SUFFIX}")
        if not name.exists() and not name.with_name(name.name + ".gz").exists():
            return name
    raise FolderFullError(f"{path}: no name is left for a rotated file")
