"""A mergeable sketch of durations: counts in buckets of a fixed ratio, so that percentiles of several processes can be
had together.

Any percentile is within 1 % of a value that was seen (DDSketch, Masson et al. 2019, with ratio 1.02). Between a
microsecond and an hour there are 1,111 buckets; what lies outside counts in the outermost ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

RATIO = 1.02
_LOG_RATIO = math.log(RATIO)
_SMALLEST = math.ceil(math.log(1e-6) / _LOG_RATIO)
_LARGEST = math.ceil(math.log(3_600) / _LOG_RATIO)


class SketchData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sketch as it travels: buckets as (number, count); number i holds (RATIO^(i-1), RATIO^i] seconds."""

    ratio: float
    count: int
    sum_s: float
    buckets: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class LatencySketch:
    """Durations in seconds."""

    count: int = 0
    sum_s: float = 0.0
    _buckets: dict[int, int] = field(default_factory=dict)

    def add(self, seconds: float) -> None:
        number = _SMALLEST if seconds <= 1e-6 else min(_LARGEST, math.ceil(math.log(seconds) / _LOG_RATIO))
        self._buckets[number] = self._buckets.get(number, 0) + 1
        self.count += 1
        self.sum_s += seconds

    def percentile(self, percent: float) -> float | None:
        """Seconds that `percent` of the durations do not exceed; None without any."""
        rank = max(1, math.ceil(self.count * percent / 100))
        for number in sorted(self._buckets):
            rank -= self._buckets[number]
            if rank <= 0:
                return 2.0 * RATIO**number / (1.0 + RATIO)
        return None

    def data(self) -> SketchData:
        return SketchData(RATIO, self.count, self.sum_s, tuple(sorted(self._buckets.items())))


def merged(parts: Iterable[SketchData]) -> LatencySketch:
    """One sketch of all durations. Raises ValueError for a sketch of another ratio."""
    whole = LatencySketch()
    for part in parts:
        if part.ratio != RATIO:
            raise ValueError(f"ratio: {part.ratio} is not {RATIO}")
        whole.count += part.count
        whole.sum_s += part.sum_s
        for number, count in part.buckets:
            whole._buckets[number] = whole._buckets.get(number, 0) + count
    return whole
