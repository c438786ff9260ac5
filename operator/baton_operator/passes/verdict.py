"""What a pass says about a deployment: conditions and counts from what it saw and did. Pure; the same view, the same
status, but for the times at which conditions turned.

Reasons are a closed set and stable: alerts may be written on them. A count that is not known is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.errors import FieldProblem
from baton_control.hashes import Revision
from baton_control.rollout import Group, RolloutPhase, Step, usable
from baton_control.sizing.scaling import Sized
from baton_control.spec.api import LLMDeployment
from baton_operator.passes.conditions import Finding, Truth, merged, timestamp
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pool_size import Plan
from baton_operator.passes.worker_pods import Crew
from baton_operator.schema.status import (
    ConditionType,
    DeploymentStatus,
    PoolStatus,
    RevisionStatus,
    ScalingDecision,
)
from baton_operator.telemetry import Heard
from baton_wire.messages.values import POOL_ROLES, Role

MAX_REVISIONS = 16
_STUCK = (RolloutPhase.UNSCHEDULABLE, RolloutPhase.FAILING)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that a pass wanted and did not get."""

    reason: str
    """One of the reasons of condition Degraded."""
    message: str


@dataclass(frozen=True, slots=True)
class View:
    """Everything that the status is computed from."""

    deployment: LLMDeployment
    generation: int
    wanted: Mapping[Role, Revision]
    plans: Mapping[Role, Plan]
    sized: Sized | None
    sets: tuple[WorkerSet, ...]
    groups: tuple[Group, ...]
    crews: Mapping[tuple[Role, str], Crew]
    step: Step
    gateways_ready: int | None
    """Gateway Pods that can answer; None: unknown."""
    heard: Heard | None
    troubles: tuple[Trouble, ...]
    notes: tuple[str, ...] = ()
    """What is left out and harmless: optional APIs that are not served, fields that are not known."""


def status_of(view: View, before: DeploymentStatus, now: datetime.datetime) -> DeploymentStatus:
    """The status after a pass. Raises ValidationError only for what bounds should have kept out."""
    decision = _decision(view, before, now)
    heard = view.heard
    raw = {
        "observedGeneration": view.generation,
        "conditions": merged(before.conditions, _findings(view), view.generation, now),
        "prefill": _pool(view, Role.PREFILL),
        "decode": _pool(view, Role.DECODE),
        "slo": heard.slo if heard is not None else None,
        "kvTransfer": heard.lane if heard is not None else None,
        "lastScaling": decision or before.last_scaling,
        "revision": " ".join(f"{role.value}:{view.wanted[role].template}" for role in POOL_ROLES),
        "sizingMemory": view.sized.memory if view.sized is not None else before.sizing_memory,
    }
    return DeploymentStatus.model_validate(raw)


def refused(
    problems: tuple[FieldProblem, ...], reason: str, before: DeploymentStatus, generation: int, now: datetime.datetime
) -> DeploymentStatus:
    """The status of a spec that cannot be carried out: what ran before keeps running, and all else stays as it was."""
    finding = Finding(ConditionType.DEGRADED, Truth.TRUE, reason, "; ".join(str(each) for each in problems))
    findings = [finding, Finding(ConditionType.PROGRESSING, Truth.FALSE, reason, "the last good spec keeps serving")]
    if not before.conditions:
        findings.append(Finding(ConditionType.AVAILABLE, Truth.FALSE, reason, "nothing has been started"))
    changed = {
        "observed_generation": generation,
        "conditions": merged(before.conditions, findings, generation, now),
    }
    return before.model_copy(update=changed)


def _pool(view: View, role: Role) -> PoolStatus:
    sets = [each for each in view.sets if each.role is role]
    routable = [group.routable for group in view.groups if group.role is role]
    known = [count for count in routable if count is not None]
    ready = sum(each.ready for each in sets)
    desired = view.plans[role].workers
    revisions = [_revision(view, each) for each in sets if each.wanted or each.existing]
    return PoolStatus(
        desired=desired,
        ready=ready,
        routable=sum(known) if len(known) == len(routable) else None,
        summary=f"{ready}/{desired}",
        revisions=tuple(revisions[:MAX_REVISIONS]),
    )


def _revision(view: View, each: WorkerSet) -> RevisionStatus:
    routable = {(group.role, group.revision): group.routable for group in view.groups}
    return RevisionStatus(
        revision=each.revision.template,
        workers=each.wanted,
        ready=each.ready,
        routable=routable.get((each.role, each.revision)),
    )


def _decision(view: View, before: DeploymentStatus, now: datetime.datetime) -> ScalingDecision | None:
    """The size of a pool that changed; where both did, prefill's, with both reasons."""
    published = {Role.PREFILL: before.prefill, Role.DECODE: before.decode}
    changed: list[tuple[Role, int, int]] = []
    for role in POOL_ROLES:
        pool, workers = published[role], view.plans[role].workers
        if pool is not None and pool.desired is not None and pool.desired != workers:
            changed.append((role, pool.desired, workers))
    if not changed:
        return None
    mode = view.deployment.spec.autoscaling.mode
    reasons = [view.sized.reasons[role] if view.sized else f"{role.value} {a}→{b}: {mode}" for role, a, b in changed]
    role, old, new = changed[0]
    raw = {
        "time": timestamp(now),
        "pool": role.value,
        "from": old,
        "to": new,
        "reason": "; ".join(reasons)[:256],
        "inputs": view.sized.inputs if view.sized else None,
    }
    return ScalingDecision.model_validate(raw)


def _findings(view: View) -> tuple[Finding, ...]:
    return (
        _available(view),
        _progressing(view),
        _degraded(view),
        _slo(view.heard),
        _transport(view.heard),
        _limited(view),
    )


def _available(view: View) -> Finding:
    kind = ConditionType.AVAILABLE
    if all(view.plans[role].workers == 0 for role in POOL_ROLES):
        return Finding(kind, Truth.TRUE, "ScaledToZero", "both pools sleep until a request comes")
    if view.gateways_ready == 0:
        return Finding(kind, Truth.FALSE, "NoGateway", "no gateway Pod is ready")
    if any(group.routable is None for group in view.groups):
        return Finding(kind, Truth.UNKNOWN, "RoutableUnknown", "no gateway has told which workers it can use")
    serving = usable(view.groups)
    missing = [role.value for role in POOL_ROLES if serving[role] == 0]
    if missing:
        return Finding(kind, Truth.FALSE, "NoRoutableWorkers", f"no routable worker that fits a partner: {missing}")
    return Finding(kind, Truth.TRUE, "Serving", "")


def _progressing(view: View) -> Finding:
    kind, phase, message = ConditionType.PROGRESSING, view.step.phase, view.step.reason
    if phase is not RolloutPhase.COMPLETE:
        stands = phase in (*_STUCK, RolloutPhase.PAUSED, RolloutPhase.CANARY)
        return Finding(kind, Truth.FALSE if stands else Truth.TRUE, phase.value, message)
    missing = {role: view.plans[role].workers - _routable(view, role) for role in POOL_ROLES}
    if any(count > 0 for count in missing.values()):
        waiting = ", ".join(f"{count} {role.value}" for role, count in missing.items() if count > 0)
        return Finding(kind, Truth.TRUE, RolloutPhase.WAITING.value, f"not routable yet: {waiting}")
    return Finding(kind, Truth.FALSE, phase.value, "")


def _routable(view: View, role: Role) -> int:
    return sum(group.routable or 0 for group in view.groups if group.role is role)


def _degraded(view: View) -> Finding:
    kind = ConditionType.DEGRADED
    if view.troubles:
        reason = view.troubles[0].reason
        return Finding(kind, Truth.TRUE, reason, "; ".join(trouble.message for trouble in view.troubles))
    if view.step.phase is RolloutPhase.UNSCHEDULABLE or any(crew.unschedulable for crew in view.crews.values()):
        return Finding(kind, Truth.TRUE, RolloutPhase.UNSCHEDULABLE.value, _first(view, "unschedulable"))
    if view.step.phase is RolloutPhase.FAILING:
        return Finding(kind, Truth.TRUE, RolloutPhase.FAILING.value, _first(view, "failing"))
    if any(crew.failing for crew in view.crews.values()):
        return Finding(kind, Truth.TRUE, "WorkersFail", _first(view, "failing"))
    return Finding(kind, Truth.FALSE, "SkippedOptional" if view.notes else "AsExpected", "; ".join(view.notes))


def _first(view: View, count: str) -> str:
    for (role, template), crew in sorted(view.crews.items()):
        if getattr(crew, count):
            return f"{getattr(crew, count)} of {role.value} {template}: {crew.message}"
    return view.step.reason


def _slo(heard: Heard | None) -> Finding:
    met = None if heard is None else heard.slo_met
    if met is None:
        return Finding(ConditionType.SLO_MET, Truth.UNKNOWN, "NotMeasured", "no gateway has told latencies")
    truth, reason = (Truth.TRUE, "Met") if met else (Truth.FALSE, "Missed")
    return Finding(ConditionType.SLO_MET, truth, reason, "")


def _transport(heard: Heard | None) -> Finding:
    verified = None if heard is None else heard.transport_verified
    kind = ConditionType.TRANSPORT_VERIFIED
    if heard is None or verified is None:
        return Finding(kind, Truth.UNKNOWN, "NotMeasured", "no transfer has been measured")
    truth, reason = (Truth.TRUE, "Verified") if verified else (Truth.FALSE, "TooSlow")
    return Finding(kind, truth, reason, heard.transport_message)


def _limited(view: View) -> Finding:
    kind = ConditionType.SCALING_LIMITED
    foreign = {role: plan.foreign for role, plan in view.plans.items() if plan.foreign}
    if foreign:
        writers = "; ".join(f"{role.value}: {', '.join(sorted(names))}" for role, names in foreign.items())
        message = f"in mode SLO only Baton sizes the pools, but spec.replicas of the LLMPool is written by {writers}"
        return Finding(kind, Truth.TRUE, "ForeignWriter", message)
    limits = "; ".join(plan.limit for plan in view.plans.values() if plan.limit)
    if limits:
        return Finding(kind, Truth.TRUE, "OverBudget" if "budget" in limits else "OutOfBounds", limits)
    if view.sized is not None and view.sized.holds:
        reasons = "; ".join(view.sized.reasons[role] for role in POOL_ROLES)
        return Finding(kind, Truth.UNKNOWN, "Holding", reasons)
    return Finding(kind, Truth.FALSE, "WithinBounds", "")
