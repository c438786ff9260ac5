"""The problems of Pods that are not ready: gateways, workers and fetch Jobs alike. Pure.

A Pod's own status names most causes. Causes that only the kubelet's Events name, such as a missing Secret, come from
the newest Event about the Pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from baton_control.names import flexible_name, gateway_name, workers_name
from baton_operator.kube.object_fields import (
    Manifest,
    condition_of,
    integer,
    is_leaving,
    mapping,
    mappings,
    metadata_of,
    uid_of,
)
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.passes.problems import PassProblem, explain_unplaced, find_missing_object, shorten
from baton_wire.log_format import as_text
from baton_wire.messages.values import POOL_ROLES, Role

CREATING_S = 8.0
"""Seconds of creating a container after which the operator reads Events about its Pod."""
SLOW_S = 60.0
"""Seconds after which creating containers is reported even without an Event that gives a reason."""
MANY_RESTARTS = 2
_NO_IMAGE = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
FIELDS_OF_FLAGS = {
    "tensor-parallel": "tensorParallel",
    "kv-cache-bytes": "engine.kvCacheMemory",
    "block-tokens": "engine.blockTokens",
    "max-sequences": "engine.maxSequences",
    "max-step-tokens": "engine.maxStepTokens",
    "chunk-tokens": "engine.chunkTokens",
    "max-waiting": "engine.maxWaiting",
    "offloaded-layers": "engine.offloadedLayers",
    "offload-decode": "engine.offloadDecode",
}
"""Flags of workers, by which they refuse to start, and the fields of a pool that set them."""
_FLAG = re.compile(f"argument --({'|'.join(FIELDS_OF_FLAGS)}):")
_POOLS = frozenset(role.value for role in POOL_ROLES)
_STUCK = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CREATING = frozenset({"ContainerCreating", "PodInitializing"})
_REFUSED_BY_NODE = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeShutdown", "Evicted", "Preempting")
_CRASH = {Role.GATEWAY.value: "GatewayFails", FETCH_ROLE: "ModelFetchFailed"}


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """The content of an Event about an object."""

    reason: str
    message: str
    warns: bool


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """Objects that the Pods of a deployment may wait for. The caches do not keep these fields of Pods."""

    queue: Mapping[str, str | None]
    """Kueue's queue, by role."""
    claims: Mapping[str, tuple[str, ...]]
    """Volume claims, by role."""


def our_pods(pods: Iterable[Manifest], deployment: str, jobs: frozenset[str]) -> tuple[Manifest, ...]:
    """The Pods of a deployment; Pods of other owners are left out, whatever their labels."""
    return tuple(pod for pod in pods if is_ours(metadata_of(pod), deployment, jobs))


def is_ours(metadata: Manifest, deployment: str, jobs: frozenset[str] = frozenset()) -> bool:
    """True if a deployment's own Deployments, or its fetch `jobs`, made the Pod with this metadata."""
    labels = mapping(metadata.get("labels"))
    role, template = labels.get(ROLE_LABEL), str(labels.get(TEMPLATE_LABEL))
    made_by: tuple[str, ...] = (f"{gateway_name(deployment)}-",) if role == Role.GATEWAY else ()
    if role in set(POOL_ROLES):
        made_by = (f"{workers_name(deployment, Role(str(role)), template)}-", f"{flexible_name(deployment, template)}-")
    for owner in mappings(metadata.get("ownerReferences")):
        name = str(owner.get("name"))
        if role == FETCH_ROLE and owner.get("kind") == "Job" and name in jobs:
            return True
        if made_by and owner.get("kind") == "ReplicaSet" and name.startswith(made_by):
            return True
    return False


def find_pod_problem(
    pod: Manifest, needs: PodNeeds, event: ObjectEvent | None, age_s: float | None
) -> PassProblem | None:
    """Why this Pod is not ready; None: it is ready, it is stopping, or it is only starting. `age_s`: the Pod's age."""
    metadata, status = metadata_of(pod), mapping(pod.get("status"))
    if is_leaving(pod) or is_ready(status) or status.get("phase") == "Succeeded":
        return None
    role = str(mapping(metadata.get("labels")).get(ROLE_LABEL))
    problem = _problem_of(status, role, needs, event, age_s)
    return (
        None
        if problem is None
        else PassProblem(problem.reason, f"{_subject(role)}: {problem.message}", problem.lasts, role)
    )


def _subject(role: str) -> str:
    return {FETCH_ROLE: "the fetch of the model", Role.GATEWAY.value: "gateway"}.get(role, f"{role} worker")


def _problem_of(
    status: Manifest, role: str, needs: PodNeeds, event: ObjectEvent | None, age_s: float | None
) -> PassProblem | None:
    if status.get("phase") == "Failed":
        return _node_problem(status, role)
    placed = condition_of(status, "PodScheduled")
    if placed.get("status") == "False":
        return _placement_problem(placed, role, needs)
    problem = find_container_problem(status, role) or _restart_problem(status, role)
    if problem is None and is_creating(status):
        return _creation_problem(event, age_s)
    # The probe of a fetch always fails, with the progress as its message.
    return _readiness_problem(event) if problem is None and is_unready(status) and role != FETCH_ROLE else problem


def _node_problem(status: Manifest, role: str) -> PassProblem | None:
    """The problem of a Pod that a node refused or evicted; failures of its program are reported by other functions."""
    reason = str(status.get("reason") or "")
    if not reason.startswith(_REFUSED_BY_NODE):
        return None
    return PassProblem("NodeRefuses", f"{reason}: {shorten(status.get('message'))}")


def _placement_problem(placed: Manifest, role: str, needs: PodNeeds) -> PassProblem | None:
    if placed.get("reason") == "SchedulingGated":
        queue = needs.queue.get(role)
        if queue is None:
            return PassProblem("SchedulingGated", "a scheduling gate keeps it from a node", lasts=False)
        return PassProblem("QueuedByKueue", f"it waits in the queue {queue}", lasts=False)
    if placed.get("reason") == "Unschedulable":
        return explain_unplaced(str(placed.get("message") or ""), needs.claims.get(role, ()))
    return None


def find_container_problem(status: Manifest, role: str) -> PassProblem | None:
    """Why a container will not start by itself; None: it may."""
    for container in mappings(status.get("containerStatuses")):
        waiting = mapping(mapping(container.get("state")).get("waiting"))
        reason = str(waiting.get("reason"))
        if reason in _NO_IMAGE:
            return PassProblem("ImagePull", f"the image {container.get('image')} cannot be pulled")
        if reason in _STUCK:
            message = shorten(waiting.get("message"))
            return find_missing_object(message) or PassProblem("ContainerConfig", f"{reason}: {message}")
        if reason == "CrashLoopBackOff" or (integer(container.get("restartCount")) or 0) >= MANY_RESTARTS:
            return PassProblem(_CRASH.get(role, "WorkersFail"), last_end(container, role))
    return None


def _restart_problem(status: Manifest, role: str) -> PassProblem | None:
    """The problem of a process that failed once and is being restarted. It may pass, and does not fail its template
    yet; until then its last message is all that is known."""
    for container in mappings(status.get("containerStatuses")):
        code = integer(_last_end(container).get("exitCode"))
        if code and role != FETCH_ROLE:
            return PassProblem(_CRASH.get(role, "WorkersFail"), last_end(container, role), lasts=False)
    return None


def _creation_problem(event: ObjectEvent | None, age_s: float | None) -> PassProblem | None:
    if event is not None and event.warns:
        missing = find_missing_object(event.message)
        if missing is not None:
            return missing
        if event.reason in ("FailedMount", "FailedAttachVolume", "FailedMapVolume"):
            return PassProblem("VolumeFails", shorten(event.message))
        if event.reason == "FailedCreatePodSandBox":
            return PassProblem("SandboxFails", shorten(event.message))
    if event is not None and event.reason == "Pulling":
        return PassProblem("PullingImage", shorten(event.message), lasts=False)
    if age_s is None or age_s < SLOW_S:
        return None
    hint = f": {event.reason}: {shorten(event.message)}" if event is not None else ", and no Event says why"
    return PassProblem(
        "ContainerCreating", f"its containers have been in creation for over {SLOW_S:.0f} s{hint}", lasts=False
    )


def _readiness_problem(event: ObjectEvent | None) -> PassProblem | None:
    """The problem of a process that has started and is not Ready, which may pass."""
    if event is not None and event.reason == "NodeNotReady":
        return PassProblem("NodeNotReady", "its node does not answer", lasts=False)
    if event is not None and event.reason in ("Unhealthy", "ProbeWarning"):
        return PassProblem("ProbeFails", shorten(event.message), lasts=False)
    return None


def last_end(container: Manifest, role: str) -> str:
    """How a crashing container ended last; the same text while the container alternates between running and waiting.
    A worker's message about a flag names the field that the flag comes from."""
    ended = _last_end(container)
    last = " ".join(as_text(str(ended.get("message") or "")).split())
    if role in _POOLS:
        last = _FLAG.sub(lambda flag: f"spec.{role}.{FIELDS_OF_FLAGS[flag[1]]}:", last)
    last = last[-300:]
    how = f"{ended.get('reason', 'crashes')}, exit code {ended.get('exitCode', 'unknown')}"
    return f"{how}: {last}" if last else how


def _last_end(container: Manifest) -> Manifest:
    """The last end of a container: its present state, or the state before its restart."""
    now, before = (mapping(mapping(container.get(name)).get("terminated")) for name in ("state", "lastState"))
    return now or before


def is_ready(status: Manifest) -> bool:
    return condition_of(status, "Ready").get("status") == "True"


def is_creating(status: Manifest) -> bool:
    """True if the Pod has a node and its containers are not created yet."""
    if condition_of(status, "PodScheduled").get("status") == "False" or status.get("phase") in ("Running", "Failed"):
        return False
    containers = mappings(status.get("containerStatuses"))
    reasons = [str(mapping(mapping(container.get("state")).get("waiting")).get("reason")) for container in containers]
    return all(reason in _CREATING for reason in reasons)


def is_unready(status: Manifest) -> bool:
    """True if the Pod's containers run and have started, but it is not Ready; only an Event gives the reason."""
    containers = mappings(status.get("containerStatuses"))
    runs = all("running" in mapping(container.get("state")) for container in containers)
    has_started = any(container.get("started") is True for container in containers)
    return status.get("phase") == "Running" and runs and has_started and not is_ready(status)


def waiting_pods(pods: Iterable[Manifest], now: datetime) -> tuple[tuple[Manifest, float], ...]:
    """Pods whose containers are being created, or run without being Ready, with their ages in seconds, the oldest
    first."""
    aged = []
    for pod in pods:
        status = mapping(pod.get("status"))
        if not is_leaving(pod) and (is_creating(status) or is_unready(status)):
            age = age_s(pod, now)
            if age is not None:
                aged.append((pod, age))
    return tuple(sorted(aged, key=lambda item: (-item[1], uid_of(item[0]))))


def age_s(pod: Manifest, now: datetime) -> float | None:
    """The age of a Pod in seconds; None: unknown."""
    return seconds_since(metadata_of(pod).get("creationTimestamp"), now)


def seconds_since(moment: object, now: datetime) -> float | None:
    """Seconds since a time in an object; None: the time is unknown."""
    try:
        return (now - datetime.fromisoformat(str(moment))).total_seconds()
    except (ValueError, TypeError):
        return None
