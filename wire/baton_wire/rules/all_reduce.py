"""How long the ranks of one worker take to add up a tensor, by ranks and bytes. Pure.

A few points are measured, the others estimated from them: each table says which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class AllReduceTimes:
    """The times of one all-reduce inside a captured step."""

    by_ranks: tuple[tuple[int, tuple[tuple[float, float], ...]], ...]
    """(ranks, ((bytes, seconds), …)), both ascending; at least two sizes for each number of ranks."""

    def seconds(self, ranks: int, size: float) -> float:
        """The time for `size` bytes: straight lines between measured sizes, the last line beyond them. A number of
        ranks that was not measured takes as long as the next larger one, or as the largest."""
        if ranks == 1:
            return 0.0
        points = next((points for known, points in self.by_ranks if known >= ranks), self.by_ranks[-1][1])
        place = min(max(1, bisect_left([known for known, _ in points], size)), len(points) - 1)
        (low, low_s), (high, high_s) = points[place - 1], points[place]
        return max(low_s + (high_s - low_s) * (size - low) / (high - low), points[0][1])

    def line(self, ranks: int, sizes: tuple[float, float]) -> tuple[float, float]:
        """(seconds, seconds per byte) of the straight line through the times of these two sizes."""
        low_s, high_s = (self.seconds(ranks, size) for size in sizes)
        per_byte_s = (high_s - low_s) / (sizes[1] - sizes[0])
        return max(0.0, low_s - per_byte_s * sizes[0]), per_byte_s


def _table(rows: Sequence[tuple[int, Sequence[float]]]) -> AllReduceTimes:
    """A table of microseconds for the sizes below."""
    points = [(ranks, tuple(zip(_SIZES, (1e-6 * time for time in times), strict=True))) for ranks, times in rows]
    return AllReduceTimes(tuple(points))


_SIZES: Final = (8e3, 256e3, 1e6, 8e6, 33.5e6)
NVLINK_4: Final = _table(
    [(2, (6.3, 7.8, 10.3, 31.0, 109.0)), (4, (7.1, 11.9, 18.2, 45.6, 139.0)), (8, (9, 15, 22, 56, 161))]
)
"""H100 and H200. Two ranks were measured on H200s in a graph, two-shot over symmetric memory without multicast; 8 MB is
interpolated. Four ranks are those times scaled as SGLang's grow from two to four; eight are estimated."""
NVLINK_3: Final = _table([(2, (7.5, 9.4, 13.5, 46, 164)), (4, (8.5, 14.3, 25, 68, 209)), (8, (11, 18, 31, 84, 242))])
"""A100: estimated from the table above with 1.2 times the latency and 1.5 times the time of the bytes."""
_SUMS: Final = ((8e3, 32e-6), (1e6, 189e-6), (16e6, 12.8e-3))
SHARED_MEMORY: Final = AllReduceTimes(
    tuple((ranks, tuple((size, seconds * ranks / 2) for size, seconds in _SUMS)) for ranks in (2, 4, 8))
)
"""Processes of one machine that add up in its memory. Two ranks were measured; each reads what all others wrote, so
more ranks are taken to need more time in proportion."""
