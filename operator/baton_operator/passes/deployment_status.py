"""The status of a deployment: conditions and counts from the result of a pass. Pure: equal results give equal statuses,
except for the times at which conditions changed.

Reasons are a closed, stable set, so that alerts can use them. An unknown count is left out.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import replace

from baton_control.rollout import RolloutPhase, usable
from baton_control.spec.api import IGNORED_SCALE_TO_ZERO, ScalingMode
from baton_control.telemetry.pairs import Pairs
from baton_control.worker_specs import pool_roles
from baton_operator.objects.metadata import FETCH_ROLE, RESTART_ANNOTATION
from baton_operator.passes.conditions import Finding, merge_conditions, message_of
from baton_operator.passes.pass_result import PassResult
from baton_operator.passes.pool_status import last_decision, pool_status, scaling_decisions
from baton_operator.passes.problems import PassProblem, join_names, rank_problems
from baton_operator.schema.status import (
    ConditionType,
    DeploymentStatus,
    SloStatus,
    Truth,
)
from baton_operator.telemetry import GatewayReport
from baton_wire.messages.values import POOL_ROLES, Role

MAX_DECISIONS = 20
ENV_REFUSED = "EnvRefused"
_STUCK = (RolloutPhase.UNSCHEDULABLE, RolloutPhase.FAILING)


def status_of(result: PassResult, before: DeploymentStatus, now: datetime.datetime) -> DeploymentStatus:
    """The status after a pass. Raises ValidationError only for what bounds should have kept out."""
    decisions, roles = scaling_decisions(result, before, now), pool_roles(result.deployment)
    report, findings = result.report, _findings(result)
    worst = _worst(findings)
    raw = {
        "observedGeneration": result.generation,
        "summary": worst.reason,
        "message": message_of(worst),
        "conditions": merge_conditions(before.conditions, findings, result.generation, now),
        "prefill": pool_status(result, Role.PREFILL, before.prefill),
        "decode": pool_status(result, Role.DECODE, before.decode) if Role.DECODE in roles else None,
        "slo": report.slo if report is not None else None,
        "kvTransfer": report.lane if report is not None else None,
        "lastScaling": last_decision(result, decisions) or before.last_scaling,
        "scalingDecisions": (*before.scaling_decisions, *decisions)[-MAX_DECISIONS:],
        "revision": " ".join(f"{role.value}:{result.wanted[role].template}" for role in roles),
        "sizingMemory": result.sized.memory if result.sized is not None else before.sizing_memory,
    }
    return DeploymentStatus.model_validate(raw)


def _findings(result: PassResult) -> tuple[Finding, ...]:
    """The findings of all conditions. Those for readers such as kstatus follow from the others."""
    problems = _ranked_problems(result)
    available, progressing = _available(result, problems), _progressing(result, problems)
    stalled = _stalled(problems)
    return (
        _ready(available, problems),
        _reconciling(result, available, progressing, stalled, problems),
        stalled,
        available,
        progressing,
        _degraded(result, problems),
        _slo(result),
        _transport(result.report),
        _limited(result),
    )


def _ranked_problems(result: PassResult) -> tuple[PassProblem, ...]:
    """The problems, the worst first: lasting problems before others, and problems that block requests before others."""
    problems = [_blame_template(result, problem) for problem in result.problems]
    if not any(problem.lasts for problem in problems) and result.step.phase in _STUCK:
        problems.append(PassProblem(result.step.phase.value, result.step.reason))
    missing = {role.value for role in _missing(result)} | {"", FETCH_ROLE}
    missing |= {Role.GATEWAY.value} if result.gateways_ready == 0 else set()
    ranked = rank_problems(problems)
    return tuple(sorted(ranked, key=lambda problem: (not problem.lasts, problem.of not in missing)))


def _blame_template(result: PassResult, problem: PassProblem) -> PassProblem:
    """The problem, blamed on the new template where workers crash in a rollout."""
    is_new = result.step.phase is RolloutPhase.FAILING and problem.reason == "WorkersFail"
    return replace(problem, reason=RolloutPhase.FAILING.value) if is_new else problem


def _missing(result: PassResult) -> tuple[Role, ...]:
    """Pools without a worker that fits a partner, if requests would not be answered; none while that is unknown. If
    gateways report their pairs of workers, the pairs alone decide: in a drain no worker may be routable for every
    gateway while each gateway has a pair of its own."""
    pairs = _pairs(result)
    if pairs is not None and not pairs.lacking:
        return ()
    needed = pool_roles(result.deployment)
    if any(group.routable is None for group in result.groups):
        return () if pairs is None else needed
    serving = usable(result.groups, frozenset(needed) if len(needed) > 1 else frozenset())
    missing = tuple(role for role in needed if serving[role] == 0)
    return missing or (() if pairs is None else needed)


def _pairs(result: PassResult) -> Pairs | None:
    """The reported pairs without the gateways that are stopping, which get no new requests."""
    pairs = None if result.report is None else result.report.pairs
    if pairs is None or len(pairs.lacking) == pairs.gateways:
        return pairs
    return replace(pairs, lacking=tuple(gateway for gateway in pairs.lacking if gateway not in result.leaving_gateways))


def _available(result: PassResult, problems: tuple[PassProblem, ...]) -> Finding:
    """The condition that a request would be answered: a gateway is ready, and each one has a pair of workers that fit
    each other, or had one a moment ago. Pools that sleep count as available in mode SLO, where Baton wakes them."""
    kind = ConditionType.AVAILABLE
    if result.gateways_ready == 0:
        cause = next((problem for problem in problems if problem.of in (Role.GATEWAY, "")), None)
        because = "" if cause is None else f", because {cause.message}"
        return Finding(kind, Truth.FALSE, "NoGateway", f"no gateway Pod is ready{because}")
    if result.is_reachable is False:
        cause = next((problem for problem in problems if problem.of == ""), None)
        because = "" if cause is None else f", because {cause.message}"
        return Finding(kind, Truth.FALSE, "NoService", f"no Service leads to the gateways{because}")
    if all(result.plans[role].workers == 0 for role in pool_roles(result.deployment)):
        return _asleep(result)
    if _pairs(result) is None and any(group.routable is None for group in result.groups):
        return Finding(kind, Truth.UNKNOWN, "RoutableUnknown", "no gateway has reported which workers it can use")
    missing = _missing(result)
    if missing:
        cause = next(
            (problem for problem in problems if problem.of not in (Role.GATEWAY, *(set(POOL_ROLES) - set(missing)))),
            None,
        )
        because = "" if cause is None else f", because {cause.message}"
        return Finding(kind, Truth.FALSE, "NoRoutableWorkers", f"{_no_workers(result, missing)}{because}")
    if result.is_reachable is None:
        message = "a NetworkPolicy that lets requests through is not there: where policies are enforced, none comes in"
        return Finding(kind, Truth.UNKNOWN, "NoPolicy", message)
    return Finding(kind, Truth.TRUE, "Serving", "requests are served")


def _asleep(result: PassResult) -> Finding:
    kind, mode = ConditionType.AVAILABLE, result.deployment.spec.autoscaling.mode
    has_pair = len(pool_roles(result.deployment)) > 1
    sleep, are = ("both pools sleep", "both pools are") if has_pair else ("the pool sleeps", "the pool is")
    if mode is not ScalingMode.SLO:
        message = f"{are} at zero, and in mode {mode} a request wakes no worker"
        return Finding(kind, Truth.FALSE, "ScaledToZero", message)
    if result.wakes is None:
        message = f"{sleep}, and no gateway has reported lately that it could wake them"
        return Finding(kind, Truth.UNKNOWN, "RoutableUnknown", message)
    if not result.wakes:
        message = f"{are} at zero, and without links to gateways a request wakes no worker"
        return Finding(kind, Truth.FALSE, "ScaledToZero", message)
    return Finding(kind, Truth.TRUE, "ScaledToZero", f"{sleep} until a request comes")


def _no_workers(result: PassResult, missing: tuple[Role, ...]) -> str:
    """The pools without a routable worker, in words; where both have one, they do not fit each other. Some gateways may
    be cut off from workers that others can use."""
    pairs = _pairs(result)
    if pairs is not None and 0 < len(pairs.lacking) < pairs.gateways:
        return f"gateways that have no pair of workers, of {pairs.gateways}: {join_names(pairs.lacking)}"
    empty = [role.value for role in missing if _routable(result, role) == 0]
    if not empty:
        return "no routable prefill worker fits a routable decode worker"
    return f"no {' and no '.join(empty)} worker is routable"


def _ready(available: Finding, problems: tuple[PassProblem, ...]) -> Finding:
    """The condition Ready: as Available, but where that is False, with the cause as its reason."""
    if available.truth is Truth.FALSE and problems:
        return Finding(ConditionType.READY, Truth.FALSE, problems[0].reason, problems[0].message)
    return replace(available, type=ConditionType.READY)


def _stalled(problems: tuple[PassProblem, ...]) -> Finding:
    """The condition Stalled: the wanted state is not reached until somebody acts."""
    lasting = [problem for problem in problems if problem.lasts]
    if not lasting:
        return Finding(ConditionType.STALLED, Truth.FALSE, "AsExpected", "")
    return Finding(ConditionType.STALLED, Truth.TRUE, lasting[0].reason, _messages(lasting))


def _reconciling(
    result: PassResult, available: Finding, progressing: Finding, stalled: Finding, problems: tuple[PassProblem, ...]
) -> Finding:
    """The condition Reconciling: the wanted state is not reached, and waiting is enough. Never together with
    Stalled."""
    kind = ConditionType.RECONCILING
    if stalled.truth is Truth.TRUE:
        return Finding(kind, Truth.FALSE, "Stalled", "somebody has to act first")
    if problems:
        return Finding(kind, Truth.TRUE, problems[0].reason, problems[0].message)
    if progressing.truth is Truth.TRUE:
        return Finding(kind, Truth.TRUE, progressing.reason, progressing.message)
    if result.step.phase in (RolloutPhase.PAUSED, RolloutPhase.CANARY) or available.reason == "ScaledToZero":
        return Finding(kind, Truth.FALSE, progressing.reason, progressing.message)
    if available.truth is not Truth.TRUE:
        return Finding(kind, Truth.TRUE, available.reason, available.message)
    return Finding(kind, Truth.FALSE, "AsExpected", "")


def _progressing(result: PassResult, problems: tuple[PassProblem, ...]) -> Finding:
    kind, phase, message = ConditionType.PROGRESSING, result.step.phase, result.step.reason
    if phase in (*_STUCK, RolloutPhase.PAUSED, RolloutPhase.CANARY):
        return Finding(kind, Truth.FALSE, phase.value, message)
    if phase is RolloutPhase.COMPLETE:
        roles = pool_roles(result.deployment)
        missing = {role: result.plans[role].workers - _routable(result, role) for role in roles}
        waiting = [f"{count} {role.value}" for role, count in missing.items() if count > 0]
        if not waiting:
            return Finding(kind, Truth.FALSE, phase.value, "")
        phase, message = RolloutPhase.WAITING, f"not routable yet: {join_names(waiting)}"
    waits = next((problem for problem in problems if not problem.lasts), None)
    if waits is not None:
        return Finding(kind, Truth.TRUE, waits.reason, waits.message)
    return Finding(kind, Truth.TRUE, phase.value, message)


def _routable(result: PassResult, role: Role) -> int:
    return sum(group.routable or 0 for group in result.groups if group.role is role)


def _degraded(result: PassResult, problems: tuple[PassProblem, ...]) -> Finding:
    kind = ConditionType.DEGRADED
    lasting = [problem for problem in problems if problem.lasts]
    if lasting or result.refused_env:
        reason = lasting[0].reason if lasting else ENV_REFUSED
        parts = [text for text in (_messages(lasting), _refused_env(result)) if text]
        return Finding(kind, Truth.TRUE, reason, "; ".join(parts))
    return Finding(kind, Truth.FALSE, "SkippedOptional" if result.notes else "AsExpected", "; ".join(result.notes))


def _refused_env(result: PassResult) -> str:
    """The refused variables of running workers, in words. The workers keep their templates, so that this blocks
    nothing."""
    if not result.refused_env:
        return ""
    names = f"running workers have variables that the installation refuses by now: {join_names(result.refused_env)}"
    return f"{names}; take them out of the spec, or restart the workers with the annotation {RESTART_ANNOTATION}"


def _messages(problems: Iterable[PassProblem]) -> str:
    return "; ".join(dict.fromkeys(problem.message for problem in problems))


def _worst(findings: Iterable[Finding]) -> Finding:
    """The worst finding, for the columns."""
    by_type = {finding.type: finding for finding in findings}
    ready, reconciling = by_type[ConditionType.READY], by_type[ConditionType.RECONCILING]
    if by_type[ConditionType.STALLED].truth is Truth.TRUE:
        return by_type[ConditionType.STALLED]
    if ready.truth is Truth.TRUE and ready.reason == "Serving" and reconciling.truth is Truth.TRUE:
        return reconciling
    return ready


def _slo(result: PassResult) -> Finding:
    """The condition SLOMet with the measured latencies; if a target is missed, also with sizing's reasons."""
    report = result.report
    met = None if report is None else report.slo_met
    if report is None or met is None:
        message = "too few requests lately to judge latencies"
        return Finding(ConditionType.SLO_MET, Truth.UNKNOWN, "NotMeasured", message)
    slo = report.slo or SloStatus()
    parts = [f"{name} {text}" for name, text in (("TTFT", slo.ttft), ("TPOT", slo.tpot)) if text is not None]
    if not met:
        parts += _sizing_reasons(result)
    truth, reason = (Truth.TRUE, "Met") if met else (Truth.FALSE, "Missed")
    return Finding(ConditionType.SLO_MET, truth, reason, "; ".join(parts))


def _sizing_reasons(result: PassResult) -> list[str]:
    """The reasons that sizing gives for each pool; empty: sizing has no say."""
    return [] if result.sized is None else [result.sized.reasons[role] for role in pool_roles(result.deployment)]


def _transport(report: GatewayReport | None) -> Finding:
    verified = None if report is None else report.transport_verified
    kind = ConditionType.TRANSPORT_VERIFIED
    if report is None or verified is None:
        return Finding(kind, Truth.UNKNOWN, "NotMeasured", "no transfer has been measured")
    truth, reason = (Truth.TRUE, "Verified") if verified else (Truth.FALSE, "TooSlow")
    return Finding(kind, truth, reason, report.transport_message)


def _limited(result: PassResult) -> Finding:
    kind = ConditionType.SCALING_LIMITED
    foreign = {role: plan.foreign for role, plan in result.plans.items() if plan.foreign}
    if foreign:
        writers = "; ".join(f"{role.value}: {', '.join(sorted(names))}" for role, names in foreign.items())
        message = f"in mode SLO only Baton sizes the pools, but spec.replicas of the LLMPool is written by {writers}"
        return Finding(kind, Truth.TRUE, "ForeignWriter", message)
    limits = "; ".join(plan.limit for plan in result.plans.values() if plan.limit)
    if limits:
        return Finding(kind, Truth.TRUE, "OverBudget" if "budget" in limits else "OutOfBounds", limits)
    if result.deployment.spec.autoscaling.is_kept_awake:
        return Finding(kind, Truth.TRUE, "ScaleToZeroIgnored", IGNORED_SCALE_TO_ZERO)
    if result.sized is not None:
        reasons = "; ".join(_sizing_reasons(result))
        truth, reason = (Truth.UNKNOWN, "Holding") if result.sized.holds else (Truth.FALSE, "WithinBounds")
        return Finding(kind, truth, reason, reasons)
    return Finding(kind, Truth.FALSE, "WithinBounds", "")
