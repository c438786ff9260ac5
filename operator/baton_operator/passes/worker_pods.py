"""The workers of a deployment by their Pods: which are ready, fail or have no node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from baton_control.sizing.inputs.observations import slow_start_s
from baton_operator.kube.labels import ASSIGNED_ANNOTATION, COST_ANNOTATION
from baton_operator.kube.object_fields import (
    Manifest,
    annotations_of,
    condition_of,
    integer,
    is_leaving,
    mapping,
    mappings,
    metadata_of,
    uid_of,
)
from baton_operator.objects.metadata import ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.passes.pod_problems import find_container_problem, is_creating, is_ours, is_ready
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class WorkerPod:
    """One worker's Pod."""

    uid: str
    role: Role
    template: str
    ready: bool
    leaving: bool
    failure: str = ""
    """Why it will not start by itself; empty: it may."""
    unschedulable: str = ""
    """Why no node takes it; empty: one did, or none was tried."""
    placing: bool = False
    """True: its process has not begun, because of a gate, no node, or containers in creation."""
    created: str = ""
    """Its creation time as the API server wrote it: texts in the order of time."""
    name: str = ""
    address: str = ""
    """The address of a flexible worker with an assigned role; empty: none yet, or not kept."""
    is_assigned: bool = False
    """True: the operator assigned the role of this flexible worker."""
    is_spare: bool = False
    """True: it is marked to go first."""
    placed_s: float | None = None
    """Seconds from its creation until its container ran: a node, the image. None: it does not run, or was restarted."""


@dataclass(frozen=True, slots=True)
class PodCounts:
    """The Pods of one template together."""

    existing: int = 0
    """All Pods, including stopping ones."""
    leaving: int = 0
    ready: int = 0
    failing: int = 0
    unschedulable: int = 0
    placing: int = 0
    """Pods whose processes have not begun: they show nothing about the template."""
    message: str = ""
    """The message of a Pod that fails or has no node."""


def worker_pods(pods: Iterable[Manifest], deployment: str) -> tuple[WorkerPod, ...]:
    """The workers among the Pods with the deployment's label. A Pod that the deployment's own Deployments did not make
    is left out, whatever its labels."""
    workers = (_worker_pod(pod, deployment) for pod in pods)
    return tuple(sorted((worker for worker in workers if worker is not None), key=lambda worker: worker.uid))


def placement_s(pods: Iterable[WorkerPod], role: Role) -> float | None:
    """Seconds that the newest workers of a pool waited before their processes started; None: none runs."""
    newest = sorted((pod for pod in pods if pod.role is role), key=lambda pod: pod.created)
    return slow_start_s([pod.placed_s for pod in newest if pod.placed_s is not None])


def count_pods(pods: Iterable[WorkerPod]) -> dict[tuple[Role, str], PodCounts]:
    """Count Pods by role and template hash."""
    grouped: dict[tuple[Role, str], list[WorkerPod]] = {}
    for pod in pods:
        grouped.setdefault((pod.role, pod.template), []).append(pod)
    return {key: _pod_counts(members) for key, members in grouped.items()}


def _pod_counts(members: list[WorkerPod]) -> PodCounts:
    staying = [pod for pod in members if not pod.leaving]
    messages = [pod.failure for pod in staying if pod.failure] + [p.unschedulable for p in staying if p.unschedulable]
    return PodCounts(
        existing=len(members),
        leaving=len(members) - len(staying),
        ready=sum(pod.ready for pod in staying),
        failing=sum(bool(pod.failure) for pod in staying),
        unschedulable=sum(bool(pod.unschedulable) for pod in staying),
        placing=sum(pod.placing for pod in staying),
        message=messages[0] if messages else "",
    )


def _worker_pod(pod: Manifest, deployment: str) -> WorkerPod | None:
    metadata, status = metadata_of(pod), mapping(pod.get("status"))
    labels = mapping(metadata.get("labels"))
    role, template = labels.get(ROLE_LABEL), labels.get(TEMPLATE_LABEL)
    if role not in set(POOL_ROLES) or not isinstance(template, str) or not is_ours(metadata, deployment):
        return None
    if status.get("phase") in ("Succeeded", "Failed"):
        return None
    marks, ready, placed = annotations_of(pod), is_ready(status), condition_of(status, "PodScheduled")
    is_refused = placed.get("status") == "False" and placed.get("reason") == "Unschedulable"
    failure = None if ready else find_container_problem(status, str(role))
    return WorkerPod(
        uid=uid_of(pod),
        role=Role(str(role)),
        template=template,
        ready=ready,
        leaving=is_leaving(pod),
        failure="" if failure is None else failure.message,
        unschedulable=str(placed.get("message", "no node")) if is_refused else "",
        placing=not ready and (placed.get("status") == "False" or is_creating(status)),
        created=str(metadata.get("creationTimestamp", "")),
        name=str(metadata.get("name", "")),
        address=str(status.get("podIP", "")),
        is_assigned=ASSIGNED_ANNOTATION in marks,
        is_spare=COST_ANNOTATION in marks,
        placed_s=_placed_s(metadata, status),
    )


def _placed_s(metadata: Manifest, status: Manifest) -> float | None:
    containers = mappings(status.get("containerStatuses"))
    times = [mapping(mapping(container.get("state")).get("running")).get("startedAt") for container in containers]
    if not times or any(integer(container.get("restartCount")) for container in containers):
        return None
    try:
        created, *started = (
            datetime.fromisoformat(str(moment)) for moment in (metadata.get("creationTimestamp"), *times)
        )
        return max(0.0, (max(started) - created).total_seconds())
    except (ValueError, TypeError):
        return None  # it does not run yet, or its times have another form


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions about routing that follow from readiness."""

    routable: Mapping[tuple[Role, str], int]
    """By role and template hash."""
    doubtful: frozenset[tuple[Role, str]]
    """Templates with a worker that served a moment ago and is not ready now: it may only be slow to answer."""
    again_at: float | None
    """When the next worker has settled, or the next doubt ends; None: none is pending."""


class Readiness:
    """Replaces the reports of gateways: a worker counts as routable once it has been ready for `settle_s`, the time in
    which gateways find and link it. Ready is not routable, but nothing better is known without gateways. All times are
    of the operator's own monotonic clock."""

    def __init__(self, settle_s: float = 15.0, doubt_s: float = 60.0) -> None:
        self._settle_s, self._doubt_s = settle_s, doubt_s
        self._ready_since: dict[str, float] = {}
        self._lost_at: dict[str, float] = {}
        self._pods: dict[str, frozenset[str]] = {}
        """Uids of the Pods of each deployment at its last pass."""

    def routable(
        self, owner: str, pods: Iterable[WorkerPod], published: Mapping[tuple[Role, str], int], now: float
    ) -> Assumed:
        """The routable workers now. When this process first sees a deployment, as many workers as its status called
        routable count as settled."""
        pods = tuple(pods)
        credit = {} if owner in self._pods else dict(published)
        self._keep(owner, frozenset(pod.uid for pod in pods))
        counts: dict[tuple[Role, str], int] = {}
        doubtful: set[tuple[Role, str]] = set()
        later: list[float] = []
        for pod in pods:
            key = (pod.role, pod.template)
            if pod.leaving:
                self._ready_since.pop(pod.uid, None)
                self._lost_at.pop(pod.uid, None)
                continue
            if pod.uid not in self._ready_since and credit.get(key, 0) > 0:
                credit[key] -= 1
                self._ready_since[pod.uid] = now - self._settle_s
            if not pod.ready:
                if self._ready_since.pop(pod.uid, now) + self._settle_s <= now:
                    self._lost_at[pod.uid] = now
                if (doubt_ends := self._lost_at.get(pod.uid, now - self._doubt_s) + self._doubt_s) > now:
                    doubtful.add(key)
                    later.append(doubt_ends)
                continue
            settled = self._ready_since.setdefault(pod.uid, now) + self._settle_s
            if settled <= now:
                self._lost_at.pop(pod.uid, None)
                counts[key] = counts.get(key, 0) + 1
            else:
                later.append(settled)
        return Assumed(counts, frozenset(doubtful), min(later, default=None))

    def forget(self, owner: str) -> None:
        """Drop what is known of a deployment that is gone."""
        self._keep(owner, frozenset())
        del self._pods[owner]

    def _keep(self, owner: str, uids: frozenset[str]) -> None:
        """Forget Pods that are gone."""
        for uid in self._pods.get(owner, frozenset()) - uids:
            self._ready_since.pop(uid, None)
            self._lost_at.pop(uid, None)
        self._pods[owner] = uids
