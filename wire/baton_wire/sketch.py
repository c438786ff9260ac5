"""Mergeable summaries of many numbers: a histogram with logarithmic bins, small enough for a message every 5 s.

Adding and merging are exact on counts; a quantile is right within `RELATIVE_ERROR`. Two sketches of disjoint
requests merge into the sketch of all of them in any order, which is what several gateway processes need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, isfinite, log

RATIO = 1.02
"""Bin k holds values in (RATIO^(k-1), RATIO^k], as the gateways count them."""
RELATIVE_ERROR = (RATIO - 1) / (RATIO + 1)
SMALLEST = 1e-6
LARGEST = 1e12


@dataclass(frozen=True, slots=True)
class Sketch:
    """How many values fell into each bin."""

    bins: Mapping[int, int]

    @property
    def count(self) -> int:
        return sum(self.bins.values())

    def merged(self, other: Sketch) -> Sketch:
        bins = dict(self.bins)
        for key, count in other.bins.items():
            bins[key] = bins.get(key, 0) + count
        return Sketch(bins)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of all values do not exceed; None when there are none."""
        total = self.count
        if total == 0:
            return None
        rank, seen = max(1, ceil(share * total)), 0
        for key in sorted(self.bins):
            seen += self.bins[key]
            if seen >= rank:
                return 2.0 * RATIO**key / (1.0 + RATIO)
        raise AssertionError("counts add up to the total")

    def share_within(self, limit: float) -> float | None:
        """Share of the values at or under `limit`; None when there are none."""
        total = self.count
        if total == 0:
            return None
        last = _bin(limit)
        return sum(count for key, count in self.bins.items() if key <= last) / total


NOTHING = Sketch({})


def sketch_of(values: Iterable[float]) -> Sketch:
    """A sketch of finite, non-negative values; others are refused with ValueError, never counted as zero."""
    bins: dict[int, int] = {}
    for value in values:
        if not isfinite(value) or value < 0:
            raise ValueError(f"{value!r} is not allowed: a sketch holds finite values from 0")
        key = _bin(value)
        bins[key] = bins.get(key, 0) + 1
    return Sketch(bins)


def _bin(value: float) -> int:
    return ceil(log(min(max(value, SMALLEST), LARGEST)) / log(RATIO))
