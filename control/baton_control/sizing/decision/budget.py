"""Bounds and budget: what of the workers that pools should have there is room for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from baton_control.spec.api import LLMDeployment
from baton_control.worker_specs import pool_spec
from baton_wire.messages.values import POOL_ROLES, Role


def within_bounds(deployment: LLMDeployment, role: Role, workers: int) -> int:
    """The nearest number that `replicas` of the pool allows."""
    bounds = pool_spec(deployment, role).replicas
    return min(max(workers, bounds.min), bounds.max)


def accelerators(deployment: LLMDeployment, role: Role) -> int:
    """What one worker of the pool takes of `autoscaling.budget.maxAccelerators`."""
    pool = pool_spec(deployment, role)
    return pool.tensor_parallel if pool.accelerator else 0


def within_budget(
    budget: int | None,
    wanted: Mapping[Role, int],
    least: Mapping[Role, int],
    each: Mapping[Role, int],
    cost: Callable[[Role, int], tuple[float, ...]],
) -> dict[Role, int]:
    """`wanted` cut until its accelerators (`each`: of one worker) fit; no pool is cut under `least`.

    `cost` of a pool with so many workers left: the pool for which it is least gives, and prefill when both are equal.
    """
    workers = dict(wanted)
    if budget is None:
        return workers
    while sum(workers[role] * each[role] for role in POOL_ROLES) > budget:
        givers = [role for role in POOL_ROLES if each[role] and workers[role] > least[role]]
        if not givers:
            break
        giver = min(givers, key=lambda role: cost(role, workers[role] - 1))
        workers[giver] -= 1
    return workers
