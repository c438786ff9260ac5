"""Why the Pods of a deployment are not ready: gateways, workers and fetch Jobs alike. Pure.

A Pod's own status names most causes. What only the kubelet's Events name (a Secret that is not there) comes in as
`said`, the newest Warning about a Pod by its uid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from baton_control.names import flexible_name, gateway_name, workers_name
from baton_operator.kube.object_fields import Manifest, integer, is_leaving, mapping, mappings, metadata_of, uid_of
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.passes.problems import PassProblem, explain_unplaced, find_missing_object, shorten
from baton_wire.messages.values import POOL_ROLES, Role

CREATING_S = 8.0
"""A container that is being created for longer makes the operator ask for Events about its Pod."""
SLOW_S = 60.0
"""After so long without an Event that says why, it is told that containers are still being created."""
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
_STUCK = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_CREATING = frozenset({"ContainerCreating", "PodInitializing"})
_REFUSED_BY_NODE = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodeShutdown", "Evicted", "Preempting")
_CRASH = {Role.GATEWAY.value: "GatewayFails", FETCH_ROLE: "ModelFetchFailed"}


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """What an Event says about an object."""

    reason: str
    message: str
    warns: bool


@dataclass(frozen=True, slots=True)
class PodNeeds:
    """What Pods of a deployment wait for, which the caches do not keep of them."""

    queue: Mapping[str, str | None]
    """Kueue's queue, by role."""
    claims: Mapping[str, tuple[str, ...]]
    """Volume claims, by role."""


def our_pods(pods: Iterable[Manifest], deployment: str, jobs: frozenset[str]) -> tuple[Manifest, ...]:
    """The Pods that Deployments of ours made, or one of the fetch `jobs`: whatever labels a Pod carries, another's
    problems are not told."""
    return tuple(pod for pod in pods if _is_ours(metadata_of(pod), deployment, jobs))


def _is_ours(metadata: Manifest, deployment: str, jobs: frozenset[str]) -> bool:
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
    """Why this Pod is not ready; None: it is, it leaves, or it only takes its time. `age_s`: since it was made."""
    metadata, status = metadata_of(pod), mapping(pod.get("status"))
    if is_leaving(pod) or is_ready(status) or status.get("phase") == "Succeeded":
        return None
    role = str(mapping(metadata.get("labels")).get(ROLE_LABEL))
    problem = _found(status, role, needs, event, age_s)
    return (
        None
        if problem is None
        else PassProblem(problem.reason, f"{_whose(role)}: {problem.message}", problem.lasts, role)
    )


def _whose(role: str) -> str:
    return {FETCH_ROLE: "the fetch of the model", Role.GATEWAY.value: "gateway"}.get(role, f"{role} worker")


def _found(
    status: Manifest, role: str, needs: PodNeeds, event: ObjectEvent | None, age_s: float | None
) -> PassProblem | None:
    if status.get("phase") == "Failed":
        return _failed(status, role)
    placed = _condition(status, "PodScheduled")
    if placed.get("status") == "False":
        return _unplaced(placed, role, needs)
    problem = find_container_problem(status, role) or _ended_once(status, role)
    if problem is None and is_creating(status):
        return _creating(event, age_s)
    # The probe of a fetch fails to tell how far it is.
    return _unready(event) if problem is None and is_unready(status) and role != FETCH_ROLE else problem


def _failed(status: Manifest, role: str) -> PassProblem | None:
    """Of a Pod that ended: a node refused it or sent it away; what a program says when it ends is told elsewhere."""
    reason = str(status.get("reason") or "")
    if not reason.startswith(_REFUSED_BY_NODE):
        return None
    return PassProblem("NodeRefuses", f"{reason}: {shorten(status.get('message'))}")


def _unplaced(placed: Manifest, role: str, needs: PodNeeds) -> PassProblem | None:
    if placed.get("reason") == "SchedulingGated":
        queue = needs.queue.get(role)
        if queue is None:
            return PassProblem("SchedulingGated", "a scheduling gate keeps it from a node", lasts=False)
        return PassProblem("QueuedByKueue", f"it waits in the queue {queue}", lasts=False)
    if placed.get("reason") == "Unschedulable":
        return explain_unplaced(str(placed.get("message") or ""), needs.claims.get(role, ()))
    return None


def find_container_problem(status: Manifest, role: str) -> PassProblem | None:
    """Why a container does not come up by itself; None: it may."""
    for container in mappings(status.get("containerStatuses")):
        waiting = mapping(mapping(container.get("state")).get("waiting"))
        reason = str(waiting.get("reason"))
        if reason in _NO_IMAGE:
            return PassProblem("ImagePull", f"the image {container.get('image')} cannot be pulled")
        if reason in _STUCK:
            message = shorten(waiting.get("message"))
            return find_missing_object(message) or PassProblem("ContainerConfig", f"{reason}: {message}")
        if reason == "CrashLoopBackOff" or (integer(container.get("restartCount")) or 0) >= MANY_RESTARTS:
            return PassProblem(_CRASH.get(role, "WorkersFail"), last_words(container))
    return None


def _ended_once(status: Manifest, role: str) -> PassProblem | None:
    """Of a process that has failed and is tried again: it may pass, and until then its last words are all that is
    known. It fails no template yet."""
    for container in mappings(status.get("containerStatuses")):
        code = integer(_last_end(container).get("exitCode"))
        if code and role != FETCH_ROLE:
            return PassProblem(_CRASH.get(role, "WorkersFail"), last_words(container), lasts=False)
    return None


def _creating(event: ObjectEvent | None, age_s: float | None) -> PassProblem | None:
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
        "ContainerCreating", f"its containers have been created for over {SLOW_S:.0f} s{hint}", lasts=False
    )


def _unready(event: ObjectEvent | None) -> PassProblem | None:
    """Of a process that started and is not Ready, which may pass."""
    if event is not None and event.reason == "NodeNotReady":
        return PassProblem("NodeNotReady", "its node does not answer", lasts=False)
    if event is not None and event.reason in ("Unhealthy", "ProbeWarning"):
        return PassProblem("ProbeFails", shorten(event.message), lasts=False)
    return None


def last_words(container: Manifest) -> str:
    """How a container that crashes ended last. The same while it goes back and forth between trying and waiting."""
    ended = _last_end(container)
    last = " ".join(str(ended.get("message") or "").split())[-300:]
    how = f"{ended.get('reason', 'crashes')}, exit code {ended.get('exitCode', 'unknown')}"
    return f"{how}: {last}" if last else how


def _last_end(container: Manifest) -> Manifest:
    """How it ended: just now, or before the present try."""
    now, before = (mapping(mapping(container.get(name)).get("terminated")) for name in ("state", "lastState"))
    return now or before


def is_ready(status: Manifest) -> bool:
    return _condition(status, "Ready").get("status") == "True"


def is_creating(status: Manifest) -> bool:
    """On a node, and its containers are not made yet."""
    if _condition(status, "PodScheduled").get("status") == "False" or status.get("phase") in ("Running", "Failed"):
        return False
    containers = mappings(status.get("containerStatuses"))
    reasons = [str(mapping(mapping(container.get("state")).get("waiting")).get("reason")) for container in containers]
    return all(reason in _CREATING for reason in reasons)


def is_unready(status: Manifest) -> bool:
    """Its containers run and have started, and it is not Ready: only an Event says why."""
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
    """Seconds since it was made; None: that is not known."""
    return seconds_since(metadata_of(pod).get("creationTimestamp"), now)


def seconds_since(moment: object, now: datetime) -> float | None:
    """Seconds since a moment as objects write it; None: that is not known."""
    try:
        return (now - datetime.fromisoformat(str(moment))).total_seconds()
    except (ValueError, TypeError):
        return None


def _condition(status: Manifest, kind: str) -> Manifest:
    return next((condition for condition in mappings(status.get("conditions")) if condition.get("type") == kind), {})
