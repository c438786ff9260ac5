"""Fits both pools into the accelerators there are. Pure: what is given up is what costs the fewest requests their
target.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton_control.sizing.capacity import Mix, Sizer
from baton_control.sizing.spec import SizingSpec
from baton_wire.messages.values import POOL_ROLES, Role


def fitted(
    spec: SizingSpec,
    wanted: Mapping[Role, int],
    floors: Mapping[Role, int],
    rates: Mapping[Role, float],
    mix: Mix | None,
    sizer: Sizer | None,
) -> dict[Role, int]:
    """`wanted` cut until it fits `spec.max_accelerators`; a pool is never cut under its floor, or under one.

    Workers go where the predicted loss is least. Without a mix, the larger pool gives.
    """
    workers = dict(wanted)
    budget = spec.max_accelerators
    if budget is None:
        return workers
    while _taken(spec, workers) > budget:
        givers = [role for role in POOL_ROLES if workers[role] > max(1, floors[role])]
        if not givers:
            break
        giver = min(givers, key=lambda role: _loss(role, workers[role] - 1, wanted[role], rates, mix, sizer))
        excess = _taken(spec, workers) - budget
        least = max(1, floors[giver])
        step = max(1, min(excess // (8 * spec.bounds_of[giver].accelerators), workers[giver] - least))
        workers[giver] -= step
    return workers


def _taken(spec: SizingSpec, workers: Mapping[Role, int]) -> int:
    return sum(workers[role] * spec.bounds_of[role].accelerators for role in POOL_ROLES)


def _loss(
    role: Role, workers: int, wanted: int, rates: Mapping[Role, float], mix: Mix | None, sizer: Sizer | None
) -> tuple[float, float]:
    """Predicted share of requests that miss the pool's target; between equal losses, the fuller pool gives."""
    fullness = -workers / max(1, wanted)
    if mix is None or sizer is None or role not in rates:
        return 0.0, fullness
    return round(1.0 - sizer.share_met(role, mix, rates[role], workers), 3), fullness
