"""Which size is enough for the last half hour and for what comes until a worker that is started now can serve. Pure.

The percentile is one of all requests. So a pool may be too small for a burst if the rest of the time it is not, and it
stays large enough for one that it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton_control.sizing.capacity import Mix, Sizer
from baton_wire.messages.values import Role


def enough(role: Role, rates_per_s: Sequence[float], least: int, most: int, mix: Mix, sizer: Sizer) -> int:
    """The fewest workers from `least` to `most` that keep the percentile over all of these intervals; else `most`.

    `rates_per_s`: requests of this mix in each of them.
    """
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if _keeps(role, rates_per_s, middle, mix, sizer) else (middle + 1, most)
    return least


def share_met(role: Role, rates_per_s: Sequence[float], workers: int, mix: Mix, sizer: Sizer) -> float:
    """Predicted share within the target of the requests of all these intervals."""
    met = sum(rate * sizer.share_met(role, mix, rate, workers) for rate in rates_per_s)
    return met / max(1e-9, sum(rates_per_s))


def _keeps(role: Role, rates_per_s: Sequence[float], workers: int, mix: Mix, sizer: Sizer) -> bool:
    left = sum(rates_per_s)
    budget = (1.0 - sizer.reachable_share(role, mix)) * left
    for rate in sorted(rates_per_s, reverse=True):
        late = 1.0 - sizer.share_met(role, mix, rate, workers)
        budget, left = budget - rate * late, left - rate
        if budget < 0.0 or left * late <= budget:  # at less load no more are late
            break
    return budget >= 0.0
