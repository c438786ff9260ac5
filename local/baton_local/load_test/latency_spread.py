"""The spread of a latency: its mean and percentiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LatencySpread:
    """Mean and percentiles of a latency in seconds, by the nearest rank."""

    mean: float
    p50: float
    p95: float
    p99: float


def latency(seconds: Sequence[float]) -> LatencySpread | None:
    """The spread of some latencies; None for no values."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(percent: float) -> float:
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    return LatencySpread(sum(ordered) / len(ordered), rank(50), rank(95), rank(99))
