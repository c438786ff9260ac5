"""Latency histograms of the gateway's processes, merged, and the percentiles they hold. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations by bucket."""

    buckets: tuple[tuple[float, float], ...]
    """(upper bound in seconds, observations at or under it), by rising bound; the last bound is infinite."""

    @property
    def count(self) -> int:
        return int(self.buckets[-1][1]) if self.buckets else 0

    def percentile(self, percent: float) -> float | None:
        """Seconds under which `percent` of the observations stay, interpolated in its bucket; None without any.

        In the last, unbounded bucket the largest finite bound stands for all: a lower bound of the truth.
        """
        rank = self.count * percent / 100
        low, below = 0.0, 0.0
        for bound, total in self.buckets if self.count else ():
            if total >= rank and total > below:
                return low if bound == float("inf") else low + (bound - low) * (rank - below) / (total - below)
            low, below = bound, total
        return None


def merged(pages: Iterable[str], name: str) -> Histogram:
    """One histogram summed over the metrics pages of several processes; pages without it add nothing."""
    totals: defaultdict[float, float] = defaultdict(float)
    for page in pages:
        for family in text_string_to_metric_families(page):
            if family.name != name:
                continue
            for sample in family.samples:
                if sample.name == f"{name}_bucket":
                    totals[float(sample.labels["le"])] += sample.value
    return Histogram(tuple(sorted(totals.items())))
