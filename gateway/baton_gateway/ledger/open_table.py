"""The table of open requests: a file in shared memory, in which counts survive a kill of the process.

A slot belongs to one request from its opening until its closing line was written. A count is one aligned store of eight
bytes, so a killed process leaves the old one or the new one. The file has its full size from the beginning: a full disk
is noticed on start, and never by a store.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
import struct
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from baton_wire.ledger_line import MAX_LINE_BYTES

NUM_SLOTS = 8_192
"""Requests until their clients have the answer and their closing lines are written: 16 MiB, of which used pages alone
are held in memory."""
SLOT_BYTES = 2_048
_MAGIC = b"baton-ledger-1\0\0"
_WORD = 8
_WORDS = SLOT_BYTES // _WORD
_STATE, _OUTPUT, _CACHED, _OPENED_BYTES, _CLOSED_BYTES, _DEVICES = range(6)
_DEVICE_UNIT_S = 1e-5
_MOST_UNITS = (1 << 32) - 2
"""The greatest time of devices in a slot: 11 hours."""
_OPENED_AT = 48
_CLOSED_AT = _OPENED_AT + MAX_LINE_BYTES


class EntryState(enum.IntEnum):
    """The state of a slot, which is stored last."""

    FREE = 0
    OPEN = 1
    CLOSED = 2
    """Its closing line is in the slot, and perhaps written."""


@dataclass(frozen=True, slots=True)
class LeftSlot:
    """A slot that a process left when it was killed."""

    state: EntryState
    opened: bytes
    closed: bytes
    output_tokens: int
    cached_tokens: int | None
    prefill_s: float | None = None
    """The time that devices of prefill workers spent, as far as it was reported; None: it is not known."""
    decode_s: float | None = None


class OpenTable:
    """The table of this process, which holds a lock on its file until `close`."""

    def __init__(self, descriptor: int, path: Path | None, slots: int = NUM_SLOTS) -> None:
        """`descriptor`: of the locked file, which is emptied; -1: memory alone, which a kill does not leave. Raises
        OSError where the file has no room."""
        self.path, self.num_slots = path, slots
        self._descriptor = descriptor
        size = (slots + 1) * SLOT_BYTES
        if descriptor >= 0:
            os.ftruncate(descriptor, 0)
            _allocate(descriptor, size)
        self._memory = mmap.mmap(descriptor, size)
        self._memory[: len(_MAGIC)] = _MAGIC
        self._words = memoryview(self._memory).cast("Q")
        self._free = deque(range(slots, 0, -1))

    @classmethod
    def in_memory(cls, slots: int = NUM_SLOTS) -> Self:
        """A table that nothing survives."""
        return cls(-1, None, slots)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, opened: bytes) -> int | None:
        """Open a slot with this line; None: none is free."""
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        at, words = slot * SLOT_BYTES + _OPENED_AT, slot * _WORDS
        self._memory[at : at + len(opened)] = opened
        self._words[words + _OPENED_BYTES] = len(opened)
        self._words[words + _OUTPUT] = self._words[words + _CACHED] = self._words[words + _DEVICES] = 0
        self._words[words + _STATE] = EntryState.OPEN
        return slot

    def count(self, slot: int, tokens: int) -> None:
        """Set the number of tokens that will have been delivered in a moment."""
        self._words[slot * _WORDS + _OUTPUT] = tokens

    def note_cached(self, slot: int, tokens: int) -> None:
        """Note how many input tokens were cached."""
        self._words[slot * _WORDS + _CACHED] = tokens + 1

    def note_devices(self, slot: int, prefill_s: float | None, decode_s: float | None) -> None:
        """Note the time that devices spent so far: both in one word, so that a kill leaves no half of it."""
        self._words[slot * _WORDS + _DEVICES] = _units(prefill_s) << 32 | _units(decode_s)

    def finish(self, slot: int, closed: bytes) -> None:
        """Put the closing line into the slot."""
        at, words = slot * SLOT_BYTES + _CLOSED_AT, slot * _WORDS
        self._memory[at : at + len(closed)] = closed
        self._words[words + _CLOSED_BYTES] = len(closed)
        self._words[words + _STATE] = EntryState.CLOSED

    def release(self, slot: int) -> None:
        """Free a slot whose closing line was written. May be called in another thread."""
        self._words[slot * _WORDS + _STATE] = EntryState.FREE
        self._free.append(slot)

    def touch(self) -> None:
        """Show other processes that this one lives, where locks do not reach them. Raises OSError."""
        if self._descriptor >= 0:
            os.utime(self._descriptor)

    def close(self) -> None:
        """Remove the file if nothing is left in it, and free the lock."""
        is_empty = not any(self._words[slot] for slot in range(_WORDS, len(self._words), _WORDS))
        self._words.release()
        self._memory.close()
        if self._descriptor >= 0:
            if is_empty and self.path is not None:
                self.path.unlink(missing_ok=True)
            os.close(self._descriptor)


def _units(seconds: float | None) -> int:
    return 0 if seconds is None else 1 + min(_MOST_UNITS, round(seconds / _DEVICE_UNIT_S))


def _seconds(units: int) -> float | None:
    return round((units - 1) * _DEVICE_UNIT_S, 5) if units else None


def _allocate(descriptor: int, size: int) -> None:
    """Give a file its size and its room. Raises OSError."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def lock_table(path: Path, *, creates: bool = False) -> int | None:
    """Lock a table's file and return its descriptor; None: another process has it, or it is gone. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if creates else 0), 0o640)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == os.stat(path).st_ino:  # else it was removed before it was locked
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def left_slots(descriptor: int) -> Iterator[LeftSlot]:
    """Read the slots that a killed process left. A file that is no whole table has none. Raises OSError."""
    size = os.fstat(descriptor).st_size
    if os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
        return
    for at in range(SLOT_BYTES, size - SLOT_BYTES + 1, SLOT_BYTES):
        slot = os.pread(descriptor, SLOT_BYTES, at)
        state, output, cached, opened_bytes, closed_bytes, devices = struct.unpack_from("=6Q", slot)
        if state not in (EntryState.OPEN, EntryState.CLOSED):
            continue
        opened = slot[_OPENED_AT : _OPENED_AT + min(opened_bytes, MAX_LINE_BYTES)]
        closed = slot[_CLOSED_AT : _CLOSED_AT + min(closed_bytes, MAX_LINE_BYTES)]
        prefill_s, decode_s = _seconds(devices >> 32), _seconds(devices & 0xFFFF_FFFF)
        yield LeftSlot(EntryState(state), opened, closed, output, cached - 1 if cached else None, prefill_s, decode_s)
