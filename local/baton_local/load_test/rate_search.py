"""Which rate to try next, to find the highest at which targets are kept."""

from __future__ import annotations

from collections.abc import Mapping

WIDTH = 0.05
"""Of the rate: a bracket this narrow is found. Seeds differ by as much."""


def next_rate(kept: Mapping[float, bool], low: float, high: float) -> float | None:
    """The next rate in [low, high] by bisection of what is known; None: the highest kept rate is found.

    `kept`: by rate, whether the targets were kept. Below a rate that fails nothing above it is tried again.
    """
    if low not in kept:
        return low
    fails = min((rate for rate, is_kept in kept.items() if not is_kept), default=None)
    if fails is None:
        return high if high not in kept else None
    holds = max((rate for rate, is_kept in kept.items() if is_kept and rate < fails), default=None)
    if holds is None or fails - holds <= WIDTH * fails:
        return None
    return round((holds + fails) / 2, 3)
