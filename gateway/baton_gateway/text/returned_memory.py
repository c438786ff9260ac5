"""Returns memory that large requests used to the operating system (glibc)."""

from __future__ import annotations

import asyncio
import ctypes

LARGE_BYTES = 1 << 20
LATER_S = 0.5
"""The delay after a large request: its memory is free by then, and one return serves many requests."""
_MMAP_THRESHOLD, _ARENA_MAX = -3, -8
_MAPPED_FROM_BYTES = 256 << 10
_ARENAS = 2

_library = ctypes.CDLL(None)


def limit_malloc() -> None:
    """Configure malloc once, before threads start: large blocks are mapped, so freeing returns them; arenas are few.

    Otherwise the C library raises its threshold with every large block that is freed, and keeps later blocks.
    """
    if hasattr(_library, "mallopt"):
        _library.mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        _library.mallopt(_ARENA_MAX, _ARENAS)


def return_memory() -> None:
    """Return free memory. Takes some milliseconds; other threads run meanwhile."""
    if hasattr(_library, "malloc_trim"):
        _library.malloc_trim(0)


class MemoryReturn:
    """Returns memory shortly after large requests, in a thread."""

    def __init__(self) -> None:
        self._is_due = False

    def request_ended(self, size: int) -> None:
        """Schedule a return if the request that has ended was large; `size`: its bytes."""
        if size < LARGE_BYTES or self._is_due:
            return
        self._is_due = True
        loop = asyncio.get_running_loop()
        loop.call_later(LATER_S, self._return, loop)

    def _return(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_due = False
        loop.run_in_executor(None, return_memory)
