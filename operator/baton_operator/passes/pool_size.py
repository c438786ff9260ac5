"""The size of each pool and its source: modes SLO, External and Off over the LLMPool facades. Pure.

`LLMPool.spec.replicas` has one writer: field manager `baton-scaler` in mode SLO, an autoscaler in External, anybody in
Off. In the latter two the operator writes it only when it makes the facade. The pool runs that number within the bounds
and the budget; the clamped number is never written back. Switching modes changes no number: each mode starts from what
the former one left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.sizing.decision.budget import cut_to_budget
from baton_control.sizing.decision.scaling import Sized
from baton_control.sizing.inputs.deployment import pool_bounds
from baton_control.spec.api import LLMDeployment, ScalingMode
from baton_control.worker_specs import pool_spec
from baton_wire.messages.values import POOL_ROLES, Role

SCALER = "baton-scaler"
WRITTEN = "baton.dev/replicas"
"""Annotation of an LLMPool: the number that Baton wrote last. Old servers do not say who wrote through `/scale`."""


@dataclass(frozen=True, slots=True)
class Facade:
    """The live LLMPool of a role."""

    replicas: int
    owners: frozenset[str] | None
    """Field managers that own `spec.replicas`; None: the server does not say."""
    mode: str | None
    """The mode that a pass last recorded in its status; None: none yet."""
    written: int | None = None
    """The number that Baton wrote last, by its annotation; None: it never wrote one."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The planned size of one pool."""

    workers: int
    """Workers wanted now, within the bounds."""
    replicas: int | None
    """The number that the scaler has to write into the facade; None: it writes nothing."""
    limit: str = ""
    """Why `workers` differs from the size that was asked for; empty: it does not."""
    foreign: frozenset[str] = frozenset()
    """Other writers of the number while Baton should be the only one."""


def last_sizes(
    deployment: LLMDeployment,
    facades: Mapping[Role, Facade],
    published: Mapping[Role, int | None],
    running: Mapping[Role, int],
) -> dict[Role, int]:
    """The last size of each pool, before anything new is decided: from the facade; if that is lost, or written by a
    foreign writer, from the status, then from what runs; at first the minimum."""
    return {
        role: _last_size(deployment, role, facades.get(role), published[role], running[role]) for role in POOL_ROLES
    }


def plan_pools(
    deployment: LLMDeployment, facades: Mapping[Role, Facade], before: Mapping[Role, int], sized: Sized | None
) -> dict[Role, PoolPlan]:
    """The planned size of each pool. `sized`: the answer of sizing in mode SLO; None in the other modes."""
    asked = dict(before) if sized is None else {role: sized.workers[role] for role in POOL_ROLES}
    bounded = {role: pool_bounds(deployment, role).clamp(asked[role]) for role in POOL_ROLES}
    fitting = _fitting(deployment, bounded)
    return {
        role: _plan(deployment, role, facades.get(role), asked[role], bounded[role], fitting[role])
        for role in POOL_ROLES
    }


def is_foreign(mode: ScalingMode, facade: Facade | None) -> bool:
    """True if another writer changed the facade since Baton did, in the mode in which it is Baton's."""
    if mode is not ScalingMode.SLO or facade is None or facade.mode != ScalingMode.SLO:
        return False
    return facade.written is not None and facade.replicas != facade.written


def _last_size(
    deployment: LLMDeployment, role: Role, facade: Facade | None, published: int | None, running: int
) -> int:
    if facade is not None and not is_foreign(deployment.spec.autoscaling.mode, facade):
        return facade.replicas
    if published is not None:
        return published
    return running or pool_spec(deployment, role).replicas.min


def _fitting(deployment: LLMDeployment, workers: Mapping[Role, int]) -> dict[Role, int]:
    """Sizes within the budget; the pool that is further above its minimum gives workers up."""
    bounds = {role: pool_bounds(deployment, role) for role in POOL_ROLES}
    least = {role: bounds[role].minimum for role in POOL_ROLES}
    accelerators = {role: bounds[role].accelerators for role in POOL_ROLES}
    budget = deployment.spec.autoscaling.budget.max_accelerators
    return cut_to_budget(budget, workers, least, accelerators, lambda role, left: (least[role] - left,))


def _plan(
    deployment: LLMDeployment, role: Role, facade: Facade | None, asked: int, bounded: int, fitting: int
) -> PoolPlan:
    bounds, mode = pool_spec(deployment, role).replicas, deployment.spec.autoscaling.mode
    limit = ""
    if fitting != bounded:
        budget = deployment.spec.autoscaling.budget.max_accelerators
        limit = f"{role}: {fitting} instead of {asked} by autoscaling.budget.maxAccelerators {budget}"
    elif bounded != asked:
        edge = f"replicas.max {bounds.max}" if asked > bounded else f"replicas.min {bounds.min}"
        limit = f"{role}: {bounded} instead of {asked} by {edge}"
    if facade is None:
        return PoolPlan(fitting, fitting if mode is ScalingMode.SLO else asked, limit)
    if mode is not ScalingMode.SLO:
        return PoolPlan(fitting, None, limit)
    if is_foreign(mode, facade):
        return PoolPlan(fitting, None, limit, (facade.owners or frozenset()) - {SCALER} or frozenset({"somebody"}))
    is_ours = (facade.owners is None or SCALER in facade.owners) and facade.written == fitting
    return PoolPlan(fitting, None if facade.replicas == fitting and is_ours else fitting, limit)
