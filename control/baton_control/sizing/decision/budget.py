"""The budget of accelerators that both pools share. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec
from baton_wire.messages.values import POOL_ROLES, Role


def cut_to_budget(
    budget: int | None,
    wanted: Mapping[Role, int],
    least: Mapping[Role, int],
    accelerators: Mapping[Role, int],
    cost: Callable[[Role, int], tuple[float, ...]],
) -> dict[Role, int]:
    """`wanted` cut until its accelerators (`accelerators`: per worker) fit; no pool is cut below `least`.

    `cost` of a pool with that many workers left: the pool for which it is least gives, prefill where both are equal.
    """
    workers = dict(wanted)
    if budget is None:
        return workers
    while sum(workers[role] * accelerators[role] for role in POOL_ROLES) > budget:
        givers = [role for role in POOL_ROLES if accelerators[role] and workers[role] > least[role]]
        if not givers:
            break
        giver = min(givers, key=lambda role: cost(role, workers[role] - 1))
        workers[giver] -= 1
    return workers


def affordable_bounds(spec: SizingSpec, role: Role, partners: int) -> Bounds:
    """The bounds of a pool next to what its partner's workers take of the budget: more workers of a slower type would
    be cut."""
    bounds = spec.bounds_of[role]
    if spec.max_accelerators is None or not bounds.accelerators:
        return bounds
    left = spec.max_accelerators - partners * spec.bounds_of[role.partner].accelerators
    return replace(bounds, maximum=min(bounds.maximum, max(bounds.minimum, left // bounds.accelerators)))
