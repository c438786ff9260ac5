"""The search for the highest rate at which targets are met."""

from __future__ import annotations

from collections.abc import Mapping

WIDTH = 0.05
"""Relative width of the bracket at which the search ends. Seeds differ by as much."""


def next_rate(met: Mapping[float, bool], low: float, high: float) -> float | None:
    """The next rate to try in [low, high], by bisection; None: the search has ended.

    `met`: True for each tried rate at which the targets were met. Rates above a failing one are not tried again.

    >>> next_rate({}, 1, 8), next_rate({1: True}, 1, 8), next_rate({1: True, 8: False}, 1, 8)
    (1, 8, 4.5)
    """
    if low not in met:
        return low
    fails = min((rate for rate, is_met in met.items() if not is_met), default=None)
    if fails is None:
        return high if high not in met else None
    passes = max((rate for rate, is_met in met.items() if is_met and rate < fails), default=None)
    if passes is None or fails - passes <= WIDTH * fails:
        return None
    return round((passes + fails) / 2, 3)
