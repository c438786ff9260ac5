"""What a pass says about a deployment: conditions and counts from what it saw and did. Pure; the same view, the same
status, but for the times at which conditions turned.

Reasons are a closed set and stable: alerts may be written on them. A count that is not known is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from baton_control.accelerator_types import types_of
from baton_control.hashes import Revision
from baton_control.rollout import Group, RolloutPhase, Step, usable
from baton_control.sizing.decision.scaling import Sized
from baton_control.spec.api import IGNORED_SCALE_TO_ZERO, LLMDeployment, ScalingMode
from baton_control.telemetry.pairs import Pairs
from baton_control.worker_specs import pool_spec
from baton_operator.objects.metadata import FETCH_ROLE, RESTART_ANNOTATION
from baton_operator.passes.conditions import Finding, Truth, merged, said, timestamp
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pool_size import Plan
from baton_operator.passes.problems import Trouble, listed, worst_first
from baton_operator.schema.status import (
    ConditionType,
    DeploymentStatus,
    PoolStatus,
    RevisionStatus,
    ScalingDecision,
    SloStatus,
)
from baton_operator.telemetry import GatewayReport
from baton_wire.messages.values import POOL_ROLES, Role

MAX_REVISIONS, MAX_DECISIONS = 16, 20
ENV_REFUSED = "EnvRefused"
_STUCK = (RolloutPhase.UNSCHEDULABLE, RolloutPhase.FAILING)


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
    step: Step
    gateways_ready: int | None
    """Gateway Pods that can answer; None: unknown."""
    heard: GatewayReport | None
    troubles: tuple[Trouble, ...]
    notes: tuple[str, ...] = ()
    """What is left out and harmless: optional APIs that are not served, fields that are not known."""
    leaving_gateways: frozenset[str] = frozenset()
    """Names of gateway Pods that were told to stop."""
    is_reachable: bool | None = True
    """Whether the Service that clients ask is there and leads to the gateways; None: a NetworkPolicy that lets requests
    through is not there, and nobody knows whether the cluster enforces policies."""
    wakes: bool | None = True
    """Whether a request can wake pools that sleep in mode SLO: gateways tell the operator that one waits. None: no
    gateway has told anything lately."""
    refused_env: tuple[str, ...] = ()
    """Variables that are refused by now and stand in templates in use, with their fields."""


def status_of(view: View, before: DeploymentStatus, now: datetime.datetime) -> DeploymentStatus:
    """The status after a pass. Raises ValidationError only for what bounds should have kept out."""
    decisions = _decisions(view, before, now)
    heard, findings = view.heard, _findings(view)
    worst = _worst(findings)
    raw = {
        "observedGeneration": view.generation,
        "summary": worst.reason,
        "message": said(worst),
        "conditions": merged(before.conditions, findings, view.generation, now),
        "prefill": _pool(view, Role.PREFILL, before.prefill),
        "decode": _pool(view, Role.DECODE, before.decode),
        "slo": heard.slo if heard is not None else None,
        "kvTransfer": heard.lane if heard is not None else None,
        "lastScaling": _last(view, decisions) or before.last_scaling,
        "scalingDecisions": (*before.scaling_decisions, *decisions)[-MAX_DECISIONS:],
        "revision": " ".join(f"{role.value}:{view.wanted[role].template}" for role in POOL_ROLES),
        "sizingMemory": view.sized.memory if view.sized is not None else before.sizing_memory,
    }
    return DeploymentStatus.model_validate(raw)


def _pool(view: View, role: Role, before: PoolStatus | None) -> PoolStatus:
    sets = [each for each in view.sets if each.role is role]
    routable = [group.routable for group in view.groups if group.role is role]
    known = [count for count in routable if count is not None]
    ready = sum(each.ready for each in sets)
    desired = view.plans[role].workers
    revisions = [_revision(view, each) for each in sets if each.wanted or each.existing]
    accelerator, why = _accelerator(view, role, before)
    return PoolStatus(
        desired=desired,
        ready=ready,
        routable=sum(known) if len(known) == len(routable) else None,
        summary=f"{ready}/{desired}",
        accelerator=accelerator,
        choice=why,
        revisions=tuple(revisions[:MAX_REVISIONS]),
    )


def _accelerator(view: View, role: Role, before: PoolStatus | None) -> tuple[str | None, str | None]:
    """The type to have and why: as sizing chose, else the one in force."""
    types = types_of(pool_spec(view.deployment, role))
    if not types:
        return None, None
    choice = None if view.sized is None else view.sized.types.get(role)
    if choice is not None:
        return choice.type, choice.why
    in_force = types[0].type.value
    return in_force, before.choice if before is not None and before.accelerator == in_force else None


def _revision(view: View, each: WorkerSet) -> RevisionStatus:
    routable = {(group.role, group.revision): group.routable for group in view.groups}
    return RevisionStatus(
        revision=each.revision.template,
        workers=each.wanted,
        ready=each.ready,
        routable=routable.get((each.role, each.revision)),
    )


def _decisions(view: View, before: DeploymentStatus, now: datetime.datetime) -> list[ScalingDecision]:
    """The sizes of pools that changed, each with its reason."""
    published = {Role.PREFILL: before.prefill, Role.DECODE: before.decode}
    found = []
    for role in POOL_ROLES:
        pool, workers = published[role], view.plans[role].workers
        if pool is None or pool.desired is None or pool.desired == workers:
            continue
        mode = view.deployment.spec.autoscaling.mode
        reason = view.sized.reasons[role] if view.sized else f"{role.value} {pool.desired}→{workers}: {mode}"
        if view.plans[role].limit:
            reason = f"{reason}; {view.plans[role].limit}"
        raw = {"time": timestamp(now), "pool": role.value, "from": pool.desired, "to": workers, "reason": reason[:256]}
        found.append(ScalingDecision.model_validate(raw))
    return found


def _last(view: View, decisions: list[ScalingDecision]) -> ScalingDecision | None:
    """The last decision with what was weighed; where both pools changed, prefill's, with both reasons."""
    if not decisions:
        return None
    reason = "; ".join(each.reason for each in decisions)[:256]
    inputs = view.sized.inputs if view.sized else None
    return decisions[0].model_copy(update={"reason": reason, "inputs": inputs})


def _findings(view: View) -> tuple[Finding, ...]:
    """Every condition but those of readers such as kstatus, and then these, which follow from them."""
    told = _told(view)
    available, progressing = _available(view, told), _progressing(view, told)
    stalled = _stalled(told)
    return (
        _ready(available, told),
        _reconciling(view, available, progressing, stalled, told),
        stalled,
        available,
        progressing,
        _degraded(view, told),
        _slo(view),
        _transport(view.heard),
        _limited(view),
    )


def _told(view: View) -> tuple[Trouble, ...]:
    """The troubles, the worst first: of those that last, what keeps requests back before what does not."""
    found = [_named(view, each) for each in view.troubles]
    if not any(each.lasts for each in found) and view.step.phase in _STUCK:
        found.append(Trouble(view.step.phase.value, view.step.reason))
    missing = {role.value for role in _missing(view)} | {"", FETCH_ROLE}
    missing |= {Role.GATEWAY.value} if view.gateways_ready == 0 else set()
    ranked = worst_first(found)
    return tuple(sorted(ranked, key=lambda each: (not each.lasts, each.of not in missing)))


def _named(view: View, trouble: Trouble) -> Trouble:
    """Workers that crash in a rollout are its new template's fault."""
    is_new = view.step.phase is RolloutPhase.FAILING and trouble.reason == "WorkersFail"
    return replace(trouble, reason=RolloutPhase.FAILING.value) if is_new else trouble


def _missing(view: View) -> tuple[Role, ...]:
    """Pools without a worker that fits a partner, where a request would not be answered; none while it is not known.
    Where gateways tell which of them have a pair, that alone says whether one would be: in a drain no worker may be
    routable everywhere while each gateway has a pair of its own."""
    pairs = _pairs(view)
    if pairs is not None and not pairs.lacking:
        return ()
    if any(group.routable is None for group in view.groups):
        return () if pairs is None else POOL_ROLES
    serving = usable(view.groups)
    missing = tuple(role for role in POOL_ROLES if serving[role] == 0)
    return missing or (() if pairs is None else POOL_ROLES)


def _pairs(view: View) -> Pairs | None:
    """Without the gateways that are leaving: requests come to them no more."""
    pairs = None if view.heard is None else view.heard.pairs
    if pairs is None or len(pairs.lacking) == pairs.gateways:
        return pairs
    return replace(pairs, lacking=tuple(each for each in pairs.lacking if each not in view.leaving_gateways))


def _available(view: View, told: tuple[Trouble, ...]) -> Finding:
    """Whether a request would be answered: a gateway is ready, and each one has a pair of workers that fit each other,
    or had one a moment ago. Pools that sleep count where Baton wakes them, in mode SLO."""
    kind = ConditionType.AVAILABLE
    if view.gateways_ready == 0:
        cause = next((each for each in told if each.of in (Role.GATEWAY, "")), None)
        because = "" if cause is None else f", because {cause.message}"
        return Finding(kind, Truth.FALSE, "NoGateway", f"no gateway Pod is ready{because}")
    if view.is_reachable is False:
        cause = next((each for each in told if each.of == ""), None)
        because = "" if cause is None else f", because {cause.message}"
        return Finding(kind, Truth.FALSE, "NoService", f"no Service leads to the gateways{because}")
    if all(view.plans[role].workers == 0 for role in POOL_ROLES):
        return _asleep(view)
    if _pairs(view) is None and any(group.routable is None for group in view.groups):
        return Finding(kind, Truth.UNKNOWN, "RoutableUnknown", "no gateway has told which workers it can use")
    missing = _missing(view)
    if missing:
        cause = next((each for each in told if each.of not in (Role.GATEWAY, *(set(POOL_ROLES) - set(missing)))), None)
        because = "" if cause is None else f", because {cause.message}"
        return Finding(kind, Truth.FALSE, "NoRoutableWorkers", f"{_no_workers(view, missing)}{because}")
    if view.is_reachable is None:
        message = "a NetworkPolicy that lets requests through is not there: where policies are enforced, none comes in"
        return Finding(kind, Truth.UNKNOWN, "NoPolicy", message)
    return Finding(kind, Truth.TRUE, "Serving", "requests are served")


def _asleep(view: View) -> Finding:
    kind, mode = ConditionType.AVAILABLE, view.deployment.spec.autoscaling.mode
    if mode is not ScalingMode.SLO:
        message = f"both pools are at zero, and in mode {mode} a request wakes nobody"
        return Finding(kind, Truth.FALSE, "ScaledToZero", message)
    if view.wakes is None:
        message = "both pools sleep, and no gateway has told lately that it could wake them"
        return Finding(kind, Truth.UNKNOWN, "RoutableUnknown", message)
    if not view.wakes:
        message = "both pools are at zero, and without links to gateways a request wakes nobody"
        return Finding(kind, Truth.FALSE, "ScaledToZero", message)
    return Finding(kind, Truth.TRUE, "ScaledToZero", "both pools sleep until a request comes")


def _no_workers(view: View, missing: tuple[Role, ...]) -> str:
    """Which pool has nobody; where both have somebody, these do not fit each other. Some of several gateways may be cut
    off from workers that others have."""
    pairs = _pairs(view)
    if pairs is not None and 0 < len(pairs.lacking) < pairs.gateways:
        return f"gateways that have no pair of workers, of {pairs.gateways}: {listed(pairs.lacking)}"
    empty = [role.value for role in missing if _routable(view, role) == 0]
    if not empty:
        return "no routable prefill worker fits a routable decode worker"
    return f"no {' and no '.join(empty)} worker is routable"


def _ready(available: Finding, told: tuple[Trouble, ...]) -> Finding:
    """As Available, and where that is False its reason is the cause."""
    if available.truth is Truth.FALSE and told:
        return Finding(ConditionType.READY, Truth.FALSE, told[0].reason, told[0].message)
    return replace(available, type=ConditionType.READY)


def _stalled(told: tuple[Trouble, ...]) -> Finding:
    """What is wanted will not be reached until somebody does something."""
    lasting = [each for each in told if each.lasts]
    if not lasting:
        return Finding(ConditionType.STALLED, Truth.FALSE, "AsExpected", "")
    return Finding(ConditionType.STALLED, Truth.TRUE, lasting[0].reason, _messages(lasting))


def _reconciling(
    view: View, available: Finding, progressing: Finding, stalled: Finding, told: tuple[Trouble, ...]
) -> Finding:
    """What is wanted is not reached, and waiting is enough. Never together with Stalled."""
    kind = ConditionType.RECONCILING
    if stalled.truth is Truth.TRUE:
        return Finding(kind, Truth.FALSE, "Stalled", "somebody has to do something first")
    if told:
        return Finding(kind, Truth.TRUE, told[0].reason, told[0].message)
    if progressing.truth is Truth.TRUE:
        return Finding(kind, Truth.TRUE, progressing.reason, progressing.message)
    if view.step.phase in (RolloutPhase.PAUSED, RolloutPhase.CANARY) or available.reason == "ScaledToZero":
        return Finding(kind, Truth.FALSE, progressing.reason, progressing.message)
    if available.truth is not Truth.TRUE:
        return Finding(kind, Truth.TRUE, available.reason, available.message)
    return Finding(kind, Truth.FALSE, "AsExpected", "")


def _progressing(view: View, told: tuple[Trouble, ...]) -> Finding:
    kind, phase, message = ConditionType.PROGRESSING, view.step.phase, view.step.reason
    waits = next((each for each in told if not each.lasts), None)
    if phase is not RolloutPhase.COMPLETE:
        if phase in (*_STUCK, RolloutPhase.PAUSED, RolloutPhase.CANARY):
            return Finding(kind, Truth.FALSE, phase.value, message)
        if waits is not None:
            return Finding(kind, Truth.TRUE, waits.reason, waits.message)
        return Finding(kind, Truth.TRUE, phase.value, message)
    missing = {role: view.plans[role].workers - _routable(view, role) for role in POOL_ROLES}
    if any(count > 0 for count in missing.values()):
        if waits is not None:
            return Finding(kind, Truth.TRUE, waits.reason, waits.message)
        waiting = listed(f"{count} {role.value}" for role, count in missing.items() if count > 0)
        return Finding(kind, Truth.TRUE, RolloutPhase.WAITING.value, f"not routable yet: {waiting}")
    return Finding(kind, Truth.FALSE, phase.value, "")


def _routable(view: View, role: Role) -> int:
    return sum(group.routable or 0 for group in view.groups if group.role is role)


def _degraded(view: View, told: tuple[Trouble, ...]) -> Finding:
    kind = ConditionType.DEGRADED
    lasting = [each for each in told if each.lasts]
    if lasting or view.refused_env:
        reason = lasting[0].reason if lasting else ENV_REFUSED
        parts = [text for text in (_messages(lasting), _refused_env(view)) if text]
        return Finding(kind, Truth.TRUE, reason, "; ".join(parts))
    return Finding(kind, Truth.FALSE, "SkippedOptional" if view.notes else "AsExpected", "; ".join(view.notes))


def _refused_env(view: View) -> str:
    """What runs keeps its template, so that this alone keeps nothing back: no trouble, and nothing stalls."""
    if not view.refused_env:
        return ""
    names = f"workers that run have variables that are refused by now: {listed(view.refused_env)}"
    return f"{names}; take them out of the spec, or restart the workers with the annotation {RESTART_ANNOTATION}"


def _messages(troubles: Iterable[Trouble]) -> str:
    return "; ".join(dict.fromkeys(each.message for each in troubles))


def _worst(findings: Iterable[Finding]) -> Finding:
    """The worst that is true, for the columns."""
    by_type = {each.type: each for each in findings}
    ready, reconciling = by_type[ConditionType.READY], by_type[ConditionType.RECONCILING]
    if by_type[ConditionType.STALLED].truth is Truth.TRUE:
        return by_type[ConditionType.STALLED]
    if ready.truth is Truth.TRUE and ready.reason == "Serving" and reconciling.truth is Truth.TRUE:
        return reconciling
    return ready


def _slo(view: View) -> Finding:
    """With the numbers; where a target is missed, also what sizing makes of it."""
    heard = view.heard
    met = None if heard is None else heard.slo_met
    if heard is None or met is None:
        message = "too few requests lately to judge latencies"
        return Finding(ConditionType.SLO_MET, Truth.UNKNOWN, "NotMeasured", message)
    slo = heard.slo or SloStatus()
    parts = [f"{name} {text}" for name, text in (("TTFT", slo.ttft), ("TPOT", slo.tpot)) if text is not None]
    if not met:
        parts += [view.sized.reasons[role] for role in POOL_ROLES] if view.sized is not None else []
    truth, reason = (Truth.TRUE, "Met") if met else (Truth.FALSE, "Missed")
    return Finding(ConditionType.SLO_MET, truth, reason, "; ".join(parts))


def _transport(heard: GatewayReport | None) -> Finding:
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
    if view.deployment.spec.autoscaling.is_kept_awake:
        return Finding(kind, Truth.TRUE, "ScaleToZeroIgnored", IGNORED_SCALE_TO_ZERO)
    if view.sized is not None:
        reasons = "; ".join(view.sized.reasons[role] for role in POOL_ROLES)
        truth, reason = (Truth.UNKNOWN, "Holding") if view.sized.holds else (Truth.FALSE, "WithinBounds")
        return Finding(kind, truth, reason, reasons)
    return Finding(kind, Truth.FALSE, "WithinBounds", "")
