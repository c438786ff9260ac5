"""Frames from one process to another through a ring of shared memory, in pieces where the ring is smaller.

Two counters carry how many bytes were written and how many were read again, so that the ring's memory holds nothing
but content and the kernel orders what is written before what is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from baton_engine.collectives.collective import RankLostError
from baton_engine.collectives.event_counter import EventCounter
from baton_engine.memory.shared_memory import SharedMemory

RING_BYTES: Final = 4 << 20
MAX_FRAME_BYTES: Final = 1 << 31
"""Far more than any plan: a longer length was never written by the other side."""
LOOK_S: Final = 0.1
"""A writer that waits for room asks so often whether its reader still lives."""
_LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class RingParts:
    """The memory of one ring, the counter of bytes written and the counter of bytes read."""

    memory: SharedMemory
    written: EventCounter
    read: EventCounter

    @classmethod
    def create(cls, size: int = RING_BYTES) -> Self:
        return cls(SharedMemory.create("baton-ring", size), EventCounter.create(), EventCounter.create())

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.memory.descriptor, self.written.descriptor, self.read.descriptor

    @classmethod
    def attach(cls, descriptors: Sequence[int], size: int = RING_BYTES) -> Self:
        """Map the parts that another process created, from its `descriptors`."""
        memory, written, read = descriptors
        return cls(SharedMemory(memory, size), EventCounter(written), EventCounter(read))

    def close(self) -> None:
        self.memory.close_descriptor()
        self.written.close()
        self.read.close()


class RingWriter:
    """The writing end; one thread uses it."""

    def __init__(self, parts: RingParts) -> None:
        self._parts = parts
        self._bytes = memoryview(parts.memory.bytes)
        self._place = 0
        self._free = parts.memory.size

    def send(self, frame: bytes, deadline_s: float, check: Callable[[], None] = lambda: None) -> None:
        """Write a frame, waiting for room while the reader is slower. `check` raises when the reader is gone. Raises
        RankLostError when there is no room for `deadline_s`."""
        rest = memoryview(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)
        while rest:
            self._await_room(deadline_s, check)
            count = min(len(rest), self._free, len(self._bytes) - self._place)
            self._bytes[self._place : self._place + count] = rest[:count]
            self._place = (self._place + count) % len(self._bytes)
            self._free -= count
            rest = rest[count:]
            self._parts.written.add(count)

    def _await_room(self, deadline_s: float, check: Callable[[], None]) -> None:
        until_s = time.monotonic() + deadline_s
        self._free += self._parts.read.take()
        while not self._free:
            check()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise RankLostError(f"a frame was not read for {deadline_s:g} s")
            self._free += self._parts.read.wait(min(left_s, LOOK_S))


class RingReader:
    """The reading end; one thread uses it."""

    def __init__(self, parts: RingParts) -> None:
        self._parts = parts
        self._bytes = memoryview(parts.memory.bytes)
        self._place = 0
        self._held = 0
        """Bytes that were written and are not copied out yet."""
        self._partial = bytearray()
        self._wanted: int | None = None
        """Length of the frame that is being read; None: its length is still to come."""

    @property
    def descriptor(self) -> int:
        """Readable when more was written."""
        return self._parts.written.descriptor

    def take(self) -> bytes | None:
        """The next frame that has arrived whole; None without waiting when there is none."""
        self._held += self._parts.written.take()
        return self._next()

    def receive(self, deadline_s: float) -> bytes | None:
        """The next frame, waiting for it; None when it has not arrived after `deadline_s`."""
        until_s = time.monotonic() + deadline_s
        frame = self.take()
        while frame is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            self._held += self._parts.written.wait(left_s)
            frame = self._next()
        return frame

    def _next(self) -> bytes | None:
        if self._wanted is None:
            if not self._fill(_LENGTH_BYTES):
                return None
            self._wanted = int.from_bytes(self._partial, "little")
            self._partial = bytearray()
            if self._wanted > MAX_FRAME_BYTES:
                raise RankLostError(f"a frame of {self._wanted} bytes: the ring was overwritten")
        if not self._fill(self._wanted):
            return None
        frame, self._partial, self._wanted = bytes(self._partial), bytearray(), None
        return frame

    def _fill(self, length: int) -> bool:
        """Copy what is there until `length` bytes are read, and make room for more. False: some are still missing."""
        while self._held and len(self._partial) < length:
            count = min(length - len(self._partial), self._held, len(self._bytes) - self._place)
            self._partial += self._bytes[self._place : self._place + count]
            self._place = (self._place + count) % len(self._bytes)
            self._held -= count
            self._parts.read.add(count)
        return len(self._partial) == length
