"""What can happen in the twin, and which of its pools take part."""

from __future__ import annotations

import enum


class Stage(enum.Enum):
    """Which pools take part. One alone is sized with the other taken as free."""

    BOTH = enum.auto()
    PREFILL = enum.auto()
    DECODE = enum.auto()


class Kind(enum.IntEnum):
    """Of an event on the heap."""

    PREFILLED = 0
    LANDED = 1
    BORDER = 2
    READY = 3
