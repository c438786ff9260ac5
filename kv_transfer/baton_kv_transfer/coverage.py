"""Which bytes of a hand-over's stream have been claimed and have arrived: disjoint, ordered intervals. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MAX_INTERVALS = 4_096
"""A writer that leaves more gaps than this is refused: bounds the memory that a peer can make us use."""


class Coverage:
    """A set of byte intervals inside [0, length)."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.total = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    @property
    def is_complete(self) -> bool:
        return self.total == self.length

    def covered_to(self, start: int) -> int:
        """End of the bytes covered from `start` on without a gap; `start` itself when it is not covered."""
        at = bisect_right(self._starts, start) - 1
        return max(start, self._ends[at]) if at >= 0 else start

    def intervals(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def first_gap(self) -> tuple[int, int] | None:
        """[start, end) of the first bytes that are missing; None when complete."""
        if self.is_complete:
            return None
        start = self.covered_to(0)
        later = [begin for begin in self._starts if begin > start]
        return start, later[0] if later else self.length

    def add(self, start: int, end: int) -> bool:
        """Add [start, end). False, and no change, when it is empty, outside, overlapping, or makes too many gaps."""
        if not 0 <= start < end <= self.length:
            return False
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] < end:
            return False
        if at > 0 and self._ends[at - 1] > start:
            return False
        joins_left = at > 0 and self._ends[at - 1] == start
        joins_right = at < len(self._starts) and self._starts[at] == end
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends.pop(at)
            self._starts.pop(at)
        elif joins_left:
            self._ends[at - 1] = end
        elif joins_right:
            self._starts[at] = start
        elif len(self._starts) >= MAX_INTERVALS:
            return False
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)
        self.total += end - start
        return True
