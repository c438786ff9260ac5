"""The problems of a deployment, from the state of its objects: one list, each cause once. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping

from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import Scheme, parse_source
from baton_control.worker_specs import pool_spec
from baton_operator.kube.kinds import AUTOSCALERS
from baton_operator.kube.object_fields import Manifest, condition_of, labels_of, mapping, metadata_of, uid_of
from baton_operator.objects.cluster import needs_fetch
from baton_operator.objects.fetch_state import FetchState
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL
from baton_operator.objects.model_cache import fetch_claim, worker_claims
from baton_operator.passes.fetch_failures import FetchFailure
from baton_operator.passes.fetch_problems import (
    claim_problem,
    explain_single_node,
    failed_fetch,
    find_fetch_problems,
    sidecar_problem,
    waiting_claim,
)
from baton_operator.passes.ingress import find_ingress_problems
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pod_problems import ObjectEvent, PodNeeds, age_s, find_pod_problem, is_ready, seconds_since
from baton_operator.passes.problems import PassProblem, reason_of_refusal, shorten
from baton_operator.passes.snapshot import Snapshot
from baton_wire.messages.values import POOL_ROLES, Role

MEASURED_WITHIN_S = 120.0
"""Seconds without a measurement after which an autoscaler is a problem."""


def diagnose(
    seen: Snapshot,
    sets: Iterable[WorkerSet],
    deployment: LLMDeployment,
    fetch: FetchState,
    events: Mapping[str, ObjectEvent],
    now: datetime.datetime,
    former_failure: FetchFailure | None = None,
) -> tuple[PassProblem, ...]:
    """The problems of a deployment. `sets`: its worker sets with the sizes of this pass. `events`: the newest Events
    about stuck Pods, Jobs and claims, by uid. `former_failure`: how the former Job of the same fetch failed."""
    needs = _needs(deployment)
    found_problems = [
        explain_single_node(find_pod_problem(pod, needs, events.get(uid_of(pod)), age_s(pod, now)), deployment)
        for pod in _select_current(seen.live_pods)
    ]
    problems = [problem for problem in found_problems if problem is not None]
    problems += _find_refused_pods(seen)
    held = sidecar_problem(seen, fetch, now)
    if fetch.failure:
        problems = [problem for problem in problems if problem.of != FETCH_ROLE]
        problems.append(failed_fetch(seen, fetch))
    elif held is not None and held[1] <= 0:
        problems.append(held[0])
    elif not fetch.is_done:
        problems += find_fetch_problems(seen, deployment, fetch, events, former_failure)
    claim = waiting_claim(seen, deployment)
    unbound = None if claim is None else claim_problem(claim, events.get(uid_of(claim)))
    if unbound is not None:  # the scheduler only knows that it is not bound
        problems = [problem for problem in problems if problem.reason != "MissingClaim"]
        problems.append(unbound)
    if seen.gateway_lateness and not any(problem.of == Role.GATEWAY for problem in problems):
        problems.append(PassProblem("GatewayFails", f"gateway: {seen.gateway_lateness}", of=Role.GATEWAY.value))
    scaler = idle_scaler(seen, now)
    if scaler is not None and scaler[1] <= 0:
        problems.append(scaler[0])
    problems += [problem for problem, left_s in find_ingress_problems(seen, now) if left_s <= 0]
    for worker_set in sets:
        is_quiet = not any(problem.of == worker_set.role for problem in problems)
        if worker_set.is_late and not worker_set.is_leaving and worker_set.ready < worker_set.wanted and is_quiet:
            message = f"{worker_set.role} worker: not ready within the time for loading"
            problems.append(PassProblem("WorkersFail", message, of=worker_set.role.value))
    return tuple(dict.fromkeys(problems))


def _select_current(pods: Iterable[Manifest]) -> Iterable[Manifest]:
    """The Pods that count. Of a role's failed Pods only the newest counts, and only while no Pod of the role is
    ready. Of a fetch only the newest Pod counts: its Pods follow each other and are never ready."""
    ended: dict[str, Manifest] = {}
    ready: set[str] = set()
    for pod in sorted(pods, key=lambda pod: str(metadata_of(pod).get("creationTimestamp"))):
        role, status = str(labels_of(pod).get(ROLE_LABEL)), mapping(pod.get("status"))
        if role == FETCH_ROLE:
            ended[role] = pod
        elif is_ready(status):
            ready.add(role)
        elif status.get("phase") == "Failed":
            ended[role] = pod
        else:
            yield pod
    yield from (pod for role, pod in ended.items() if role not in ready)


def _needs(deployment: LLMDeployment) -> PodNeeds:
    source = parse_source(deployment.spec.model.source)
    claims: tuple[str, ...] = ()
    if source.scheme is Scheme.PVC:
        claims = (str(source.place),)
    elif needs_fetch(deployment):
        claims = worker_claims(deployment)
    mounts = {role.value: claims for role in POOL_ROLES}
    mounts |= {FETCH_ROLE: (fetch_claim(deployment),)} if needs_fetch(deployment) else {}
    return PodNeeds({role.value: pool_spec(deployment, role).queue for role in POOL_ROLES}, mounts)


def idle_scaler(seen: Snapshot, now: datetime.datetime) -> tuple[PassProblem, float] | None:
    """The problem of an autoscaler that cannot measure, and so keeps the number of gateways, with the seconds until it
    counts: a new autoscaler needs a moment. None: it measures, or there is no autoscaler."""
    for resource, scaler in seen.withdrawable:
        active = condition_of(mapping(scaler.get("status")), "ScalingActive") if resource == AUTOSCALERS else {}
        since_s = seconds_since(active.get("lastTransitionTime"), now)
        if active.get("status") == "False" and since_s is not None:
            message = f"gateway: its autoscaler does nothing: {active.get('reason')}: {shorten(active.get('message'))}"
            return PassProblem("GatewayNotScaled", message, of=Role.GATEWAY.value), MEASURED_WITHIN_S - since_s
    return None


def _find_refused_pods(seen: Snapshot) -> list[PassProblem]:
    """The problems of Pods that cannot be made, by the conditions of their Deployments."""
    refusals = [
        (worker_set.role.value, worker_set.refusal)
        for worker_set in seen.sets
        if worker_set.refusal and not worker_set.is_leaving
    ]
    refusals += [(Role.GATEWAY.value, seen.gateway_refusal)] if seen.gateway_refusal else []
    return [
        PassProblem(reason_of_refusal(text, "FailedCreate"), f"{role}: {shorten(text)}", of=role)
        for role, text in refusals
    ]
