"""Memory that was used once and is not needed again goes back to the operating system (glibc)."""

from __future__ import annotations

import asyncio
import ctypes

LARGE_BYTES = 1 << 20
LATER_S = 0.5
"""After a large request: until what it had is free, and so that many of them count as one."""
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
_MAPPED_FROM_BYTES = 256 << 10
_ARENAS = 2

_library = ctypes.CDLL(None)


def keep_little_memory() -> None:
    """Call once, before threads start: large blocks are mapped and so returned when freed, and threads share arenas.

    Else the C library raises its own bound with every large block that is freed, and keeps what comes after.
    """
    if hasattr(_library, "mallopt"):
        _library.mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        _library.mallopt(_ARENA_MAX, _ARENAS)


def return_memory() -> None:
    """Give free memory back. Takes some milliseconds; other threads run meanwhile."""
    if hasattr(_library, "malloc_trim"):
        _library.malloc_trim(0)


class MemoryReturn:
    """Gives memory back a while after large requests, in a thread."""

    def __init__(self) -> None:
        self._is_due = False

    def used(self, size: int) -> None:
        """A request of so many bytes has ended."""
        if size < LARGE_BYTES or self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        loop.call_later(LATER_S, self._give_back, loop)

    def _give_back(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        loop.run_in_executor(None, return_memory)
