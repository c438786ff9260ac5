"""The pools in the status: counts of workers, accelerator types, and the last changes of sizes. Pure."""

from __future__ import annotations

import datetime

from baton_control.accelerator_types import types_of
from baton_control.worker_specs import pool_spec
from baton_operator.passes.conditions import timestamp
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pass_result import PassResult
from baton_operator.schema.status import DeploymentStatus, PoolStatus, RevisionStatus, ScalingDecision
from baton_wire.messages.values import POOL_ROLES, Role

MAX_REVISIONS = 16
MAX_TEXT = 256
"""Most characters of a `Text` in the status."""


def pool_status(result: PassResult, role: Role, before: PoolStatus | None) -> PoolStatus:
    """The state of one pool. `before`: its last status."""
    sets = [worker_set for worker_set in result.sets if worker_set.role is role]
    routable = [group.routable for group in result.groups if group.role is role]
    known = [count for count in routable if count is not None]
    ready = sum(worker_set.ready for worker_set in sets)
    desired = result.plans[role].workers
    revisions = [_revision(result, worker_set) for worker_set in sets if worker_set.wanted or worker_set.existing]
    accelerator, why = _accelerator(result, role, before)
    return PoolStatus(
        desired=desired,
        ready=ready,
        routable=sum(known) if len(known) == len(routable) else None,
        summary=f"{ready}/{desired}",
        accelerator=accelerator,
        choice=why,
        revisions=tuple(revisions[:MAX_REVISIONS]),
    )


def _accelerator(result: PassResult, role: Role, before: PoolStatus | None) -> tuple[str | None, str | None]:
    """The type that a pool should have and why: sizing's choice, else the type in force."""
    types = types_of(pool_spec(result.deployment, role))
    if not types:
        return None, None
    choice = None if result.sized is None else result.sized.types.get(role)
    if choice is not None:
        return choice.type, choice.why
    in_force = types[0].type.value
    return in_force, before.choice if before is not None and before.accelerator == in_force else None


def _revision(result: PassResult, worker_set: WorkerSet) -> RevisionStatus:
    routable = {(group.role, group.revision): group.routable for group in result.groups}
    return RevisionStatus(
        revision=worker_set.revision.template,
        workers=worker_set.wanted,
        ready=worker_set.ready,
        routable=routable.get((worker_set.role, worker_set.revision)),
    )


def scaling_decisions(result: PassResult, before: DeploymentStatus, now: datetime.datetime) -> list[ScalingDecision]:
    """The changes of pools' sizes, each with its reason."""
    published = {Role.PREFILL: before.prefill, Role.DECODE: before.decode}
    changes = []
    for role in POOL_ROLES:
        pool, workers = published[role], result.plans[role].workers
        if pool is None or pool.desired is None or pool.desired == workers:
            continue
        mode = result.deployment.spec.autoscaling.mode
        reason = result.sized.reasons[role] if result.sized else f"{role.value} {pool.desired}→{workers}: {mode}"
        if result.plans[role].limit:
            reason = f"{reason}; {result.plans[role].limit}"
        raw = {
            "time": timestamp(now),
            "pool": role.value,
            "from": pool.desired,
            "to": workers,
            "reason": _shortened(reason),
        }
        changes.append(ScalingDecision.model_validate(raw))
    return changes


def last_decision(result: PassResult, decisions: list[ScalingDecision]) -> ScalingDecision | None:
    """The last decision with its inputs; where both pools changed, prefill's decision with both reasons."""
    if not decisions:
        return None
    reason = _shortened("; ".join(decision.reason for decision in decisions))
    inputs = result.sized.inputs if result.sized else None
    return decisions[0].model_copy(update={"reason": reason, "inputs": inputs})


def _shortened(reason: str) -> str:
    """A reason that fits into its field: as many whole clauses as do, at least the beginning of the first."""
    if len(reason) <= MAX_TEXT:
        return reason
    whole = reason[: MAX_TEXT + 1].rpartition("; ")[0]
    return whole or reason[:MAX_TEXT]
