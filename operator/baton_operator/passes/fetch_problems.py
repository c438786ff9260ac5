"""The problems of a fetch: why it is slow, what failed last, and when a person has to act. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace

from baton_control.spec.api import LLMDeployment
from baton_control.spec.served_model import AccessMode, CacheType
from baton_operator.kube.object_fields import Manifest, integer, labels_of, mapping, metadata_of, name_of, uid_of
from baton_operator.objects.cluster import needs_fetch
from baton_operator.objects.fetch import TRIES
from baton_operator.objects.fetch_progress import progress_words
from baton_operator.objects.fetch_state import RETRY_S, FetchState
from baton_operator.objects.metadata import FETCH_ROLE, REFETCH_ANNOTATION, ROLE_LABEL
from baton_operator.objects.model_cache import claim_specs, fetch_claim
from baton_operator.passes.fetch_failures import FetchFailure, failures_of, fetch_pods, held_pod
from baton_operator.passes.pod_problems import ObjectEvent, seconds_since
from baton_operator.passes.problems import PassProblem, join_names, reason_of_refusal, shorten
from baton_operator.passes.snapshot import Snapshot

SIDECAR_S = 10.0
"""Seconds that other containers of a fetch Pod get to end after the program."""
_WIDE = ("MULTI_NODE_MULTI_WRITER", "ReadWriteMany", "multi-node", "RWX", "access mode")
_ONE_NODE = ("Multi-Attach", "pod affinity rules", "topology spread", "volume node affinity", "Insufficient")
_AGAIN = (
    f"it begins anew {RETRY_S / 60:.0f} min after that, or with another value of the annotation {REFETCH_ANNOTATION}"
)


def waiting_job(seen: Snapshot, fetch: FetchState) -> Manifest | None:
    """The fetch Job that has no Pod although it should; only its Events give the reason. None: there is no such Job."""
    if fetch.is_done or fetch.failure or fetch_pods(seen.live_pods, fetch.job):
        return None
    active = [job for job in _jobs(seen, fetch) if not mapping(job.get("status")).get("conditions")]
    return active[-1] if active else None


def waiting_claim(seen: Snapshot, deployment: LLMDeployment) -> Manifest | None:
    """The claim of the model that has no volume; its Events give the reason. None: all have one, or none is needed."""
    pending = [claim for claim in _wanted_claims(seen, deployment) if _phase(claim) == "Pending"]
    return pending[-1] if pending else None


def _wanted_claims(seen: Snapshot, deployment: LLMDeployment) -> list[Manifest]:
    """The live claims that the deployment uses now; claims of former settings stay, and nothing waits for them."""
    wanted = claim_specs(deployment) if needs_fetch(deployment) else {}
    return [claim for claim in seen.claims if name_of(claim) in wanted]


def _phase(claim: Manifest) -> str:
    return str(mapping(claim.get("status")).get("phase"))


def fetching_pods(seen: Snapshot) -> tuple[Manifest, ...]:
    """Pods that fetch the model now, the oldest first."""
    running = [
        pod
        for pod in seen.live_pods
        if labels_of(pod).get(ROLE_LABEL) == FETCH_ROLE and mapping(pod.get("status")).get("phase") == "Running"
    ]
    return tuple(sorted(running, key=lambda pod: str(metadata_of(pod).get("creationTimestamp"))))


def last_failure(seen: Snapshot, fetch: FetchState) -> FetchFailure | None:
    """How the last try of the present Job failed; None: none did."""
    failures = failures_of(fetch_pods(seen.live_pods, fetch.job))
    return failures[-1] if failures else None


def failed_fetch(seen: Snapshot, fetch: FetchState) -> PassProblem:
    """The problem of a fetch that was given up."""
    last = last_failure(seen, fetch)
    why = fetch.failure if last is None else f"{last.text} ({shorten(fetch.failure.partition(':')[0])})"
    return PassProblem("ModelFetchFailed", f"the fetch of the model failed: {why}; {_AGAIN}", of=FETCH_ROLE)


def sidecar_problem(seen: Snapshot, fetch: FetchState, now: datetime.datetime) -> tuple[PassProblem, float] | None:
    """The problem of containers that outlive the program of a fetch, with the seconds until it counts."""
    held = None if fetch.is_done or fetch.failure else held_pod(fetch_pods(seen.live_pods, fetch.job))
    if held is None:
        return None
    since_s = seconds_since(held.at, now)
    how = "has the model" if held.code == 0 else f"ended with exit code {held.code} ({held.text})"
    message = (
        f"the fetch of the model {how}, and does not end while {join_names(held.sidecars)} runs in its Pod: keep "
        "injected containers out of it (fetch.podLabels and fetch.podAnnotations of the chart)"
    )
    return PassProblem("SidecarRunning", message, of=FETCH_ROLE), 0.0 if since_s is None else SIDECAR_S - since_s


def find_fetch_problems(
    seen: Snapshot,
    deployment: LLMDeployment,
    fetch: FetchState,
    events: Mapping[str, ObjectEvent],
    before: FetchFailure | None,
) -> list[PassProblem]:
    """The problems of a fetch that goes on. `before`: how the former Job of the same fetch failed; None: unknown, or
    there was none."""
    jobs = _jobs(seen, fetch)
    refused = [events[uid_of(job)] for job in jobs if uid_of(job) in events]
    refused = [event for event in refused if event.reason == "FailedCreate"]
    if refused:
        words = refused[0].message
        return [
            PassProblem(
                reason_of_refusal(words, "FailedCreate"), f"fetch of the model: {shorten(words)}", of=FETCH_ROLE
            )
        ]
    if any(mapping(job.get("spec")).get("suspend") is True for job in jobs):
        return [PassProblem("QueuedByKueue", "the fetch of the model is suspended", lasts=False, of=FETCH_ROLE)]
    unbound = [
        f"; the claim {name_of(claim)} is {_phase(claim)}"
        for claim in _wanted_claims(seen, deployment)
        if _phase(claim) in ("Pending", "Lost")
    ]
    failures = failures_of(fetch_pods(seen.live_pods, fetch.job))
    known = (*(() if before is None else (before,)), *failures)
    counted = max((integer(mapping(job.get("status")).get("failed")) or 0 for job in jobs), default=0)
    failed = max(counted, sum(failure.code is not None for failure in failures))
    tries = f", try {min(failed + 1, TRIES + 1)} of {TRIES + 1}" if failed else ""
    last = f"; last: {known[-1].text}" if known else ""
    running = [events[uid_of(pod)].message for pod in fetching_pods(seen) if uid_of(pod) in events]
    far = progress_words(running[-1]) if running else ""
    message = f"the model is being fetched{far}{tries}{''.join(unbound)}{last}"
    return [PassProblem("FetchingModel", message, lasts=not far and _is_stuck(known, before), of=FETCH_ROLE)]


def claim_problem(claim: Manifest, event: ObjectEvent | None) -> PassProblem | None:
    """Why a claim gets no volume, by the newest Event about it; None: nothing is wrong with it yet."""
    if event is None or not event.warns:
        return None
    wide = any(word in event.message for word in _WIDE)
    hint = "; where no class offers it, set spec.model.cache.accessMode to ReadWriteOnce" if wide else ""
    message = f"the claim {name_of(claim)} gets no volume: {event.reason}: {shorten(event.message)}{hint}"
    return PassProblem("MissingClaim", message, of=FETCH_ROLE)


def explain_single_node(problem: PassProblem | None, deployment: LLMDeployment) -> PassProblem | None:
    """The problem, with the reason where a claim that only one node can mount keeps a Pod back."""
    cache = deployment.spec.model.cache
    is_once = cache.type is CacheType.SHARED and cache.access_mode is AccessMode.READ_WRITE_ONCE
    if problem is None or not is_once or not any(word in problem.message for word in _ONE_NODE):
        return problem
    why = "with cache.accessMode ReadWriteOnce all workers have to be on the node of the claim"
    return replace(problem, message=f"{problem.message}; {why} {fetch_claim(deployment)}")


def _is_stuck(known: tuple[FetchFailure, ...], before: FetchFailure | None) -> bool:
    """True from the second equal failure on. A Job that was given up counts as several."""
    if len(known) < 2:
        return before is not None
    return known[-1].equals(known[-2])


def _jobs(seen: Snapshot, fetch: FetchState) -> list[Manifest]:
    return [job for job in seen.fetches if name_of(job) == fetch.job]
