"""Mergeable summaries of many numbers: a histogram with logarithmic bins, small enough for a message every 5 s.

Adding and merging are exact on counts; a quantile is right within `RELATIVE_ERROR` (DDSketch, Masson et al. 2019).
Sketches of disjoint requests merge into the sketch of all of them in any order: several gateway processes need that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, isfinite, log

from baton_wire.messages.measures import SKETCH_RATIO, SketchData

RELATIVE_ERROR = (SKETCH_RATIO - 1) / (SKETCH_RATIO + 1)
SMALLEST, LARGEST = 1e-6, 1e7
"""Values outside count in the outermost bins, so that there are never more than `measures.MAX_BINS`."""
_LOG_RATIO = log(SKETCH_RATIO)


@dataclass(slots=True)
class Sketch:
    """Counts of values by bin, and the values' sum.

    >>> first, second = Sketch(), Sketch()
    >>> for seconds in (0.1, 0.2, 0.4):
    ...     first.add(seconds)
    >>> second.add(3.0)
    >>> both = merged([first, second.data()])
    >>> both.count, round(both.total, 3), round(both.quantile(0.5), 1)
    (4, 3.7, 0.2)
    >>> both.share_within(1.0)
    0.75
    """

    total: float = 0.0
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Raises ValueError for a value that is not finite or is negative: it never counts as zero."""
        if not isfinite(value) or value < 0:
            raise ValueError(f"{value!r} is not allowed: a sketch holds finite values from 0")
        number = _bin(value)
        self.bins[number] = self.bins.get(number, 0) + 1
        self.total += value

    def merge(self, other: Sketch | SketchData) -> None:
        """Count the other's values, too. Raises ValueError for bins of another ratio."""
        if isinstance(other, SketchData) and other.ratio != SKETCH_RATIO:
            raise ValueError(f"ratio: {other.ratio} is not {SKETCH_RATIO}")
        for number, count in dict(other.bins).items():
            self.bins[number] = self.bins.get(number, 0) + count
        self.total += other.total

    def data(self) -> SketchData:
        return SketchData(SKETCH_RATIO, self.total, tuple(sorted(self.bins.items())))

    def take(self) -> SketchData:
        """The counts so far; counting begins anew."""
        data = self.data()
        self.total, self.bins = 0.0, {}
        return data

    @property
    def count(self) -> int:
        return sum(self.bins.values())

    def quantile(self, share: float) -> float | None:
        """The value that `share` of all values do not exceed; None when there are none."""
        rank = max(1, ceil(share * self.count))
        for number in sorted(self.bins):
            rank -= self.bins[number]
            if rank <= 0:
                return 2.0 * SKETCH_RATIO**number / (1.0 + SKETCH_RATIO)
        return None

    def share_within(self, limit: float) -> float | None:
        """Share of the values at or under `limit`; None when there are none."""
        last, total = _bin(limit), self.count
        return sum(count for number, count in self.bins.items() if number <= last) / total if total else None


def merged(parts: Iterable[Sketch | SketchData]) -> Sketch:
    """One sketch of all values. Raises ValueError for bins of another ratio."""
    whole = Sketch()
    for part in parts:
        whole.merge(part)
    return whole


def _bin(value: float) -> int:
    return ceil(log(min(max(value, SMALLEST), LARGEST)) / _LOG_RATIO)
