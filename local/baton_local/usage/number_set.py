"""A set of numbers that are mostly consecutive, as intervals: the numbers of the requests of one process. Pure.

Requests end out of order, so there are gaps, which later requests fill. The memory follows the gaps, not the requests.
"""

from __future__ import annotations

from bisect import bisect_right


class NumberSet:
    """The set. Intervals include their first number and not their end."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._starts, number) - 1
        return place >= 0 and number < self._ends[place]

    @property
    def num_intervals(self) -> int:
        return len(self._starts)

    def add(self, number: int) -> bool:
        """Add a number; False: it is in the set already."""
        place = bisect_right(self._starts, number)
        touches_before = place > 0 and self._ends[place - 1] >= number
        if touches_before and self._ends[place - 1] > number:
            return False
        touches_after = place < len(self._starts) and self._starts[place] == number + 1
        if touches_before and touches_after:
            self._ends[place - 1] = self._ends.pop(place)
            del self._starts[place]
        elif touches_before:
            self._ends[place - 1] = number + 1
        elif touches_after:
            self._starts[place] = number
        else:
            self._starts.insert(place, number)
            self._ends.insert(place, number + 1)
        return True
