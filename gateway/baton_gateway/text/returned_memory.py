"""Memory that was used once and is not needed again goes back to the operating system (glibc)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def _trimmer() -> Callable[[int], int]:
    library = ctypes.CDLL(None)
    return library.malloc_trim if hasattr(library, "malloc_trim") else lambda _: 0


_trim = _trimmer()


def return_memory() -> None:
    """Give free memory back. Takes some milliseconds; other threads run meanwhile."""
    _trim(0)
