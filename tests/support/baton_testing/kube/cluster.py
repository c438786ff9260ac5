"""A cluster that works by itself on virtual time: Deployments make Pods, Pods start, fail, drain and go, orphans go.

All state is in the store's objects and in the times at which Pods change next. Pods are taken away in the order of a
ReplicaSet: those that are not ready, then those that cost least, then the youngest.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from baton_control.hashes import content_hash
from baton_operator.kube.kinds import EVENTS, JOBS, NODES, PODS, WORKERS
from baton_operator.kube.kube_api import Change, Resource
from baton_operator.kube.labels import COST_ANNOTATION
from baton_operator.objects.metadata import ROLE_LABEL
from baton_testing.kube.clock import stamp
from baton_testing.kube.store import Json, Store

LEAST_S, MOST_S = 2.0, 6.0
"""How long a Pod starts, and how long it drains."""
LATENCY_S = 0.3
LATE_S = 120.0
"""After so long without a Pod getting ready, a Deployment says that it makes no progress."""
WORKER_ROLES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Affliction:
    """A fault of a Pod or a Job."""

    status: Json
    event: tuple[str, str] | None = None
    """Reason and message of the Warning about it."""
    warns: bool = True


@dataclass(slots=True)
class Weather:
    """The faults of a cluster."""

    fails: Callable[[Json], bool] = lambda pod: False
    """Tells for a template if its Pods crash."""
    room: int | None = None
    """Workers that nodes have room for; None: as many as wanted."""
    quota: int | None = None
    """Pods that may exist."""
    afflicts: Callable[[Json], Affliction | None] = lambda pod: None
    """The fault that keeps a Pod from starting; None: there is none."""
    refuses: Callable[[Json], str] = lambda deployment: ""
    """Why Pods of a Deployment cannot be made; empty: they can."""
    job: Affliction | None = None
    """The fault that keeps fetch Jobs from ending."""


@dataclass(slots=True)
class Times:
    """When Pods change next, by name; survives in copies of a world."""

    ready_at: dict[str, float] = field(default_factory=dict)
    gone_at: dict[str, float] = field(default_factory=dict)
    progress_at: dict[str, float] = field(default_factory=dict)
    """When a Deployment, by uid, last saw a Pod get ready."""
    pods: int = 0
    """Pods ever made."""
    afflicted: set[str] = field(default_factory=set)


class Cluster:
    def __init__(
        self, store: Store, rng: random.Random, clock: Callable[[], float], times: Times | None = None
    ) -> None:
        self.weather, self.times = Weather(), times or Times()
        self._store, self._rng, self._clock = store, rng, clock
        self._news = asyncio.Event()
        store.on_commit.append(self._react)

    def _react(self, resource: Resource, change: Change, before: Json | None, after: Json) -> None:
        self._news.set()

    def nudge(self) -> None:
        """The weather has changed."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._until_next()):
                    await self._news.wait()
                await asyncio.sleep(self._rng.uniform(0.0, LATENCY_S))
            except TimeoutError:
                pass
            self._news.clear()
            self.step()

    def _until_next(self) -> float | None:
        due = [*self.times.ready_at.values(), *self.times.gone_at.values()]
        late = [at + LATE_S for at in self.times.progress_at.values() if at + LATE_S > self._clock()]
        return max(min([*due, *late]) - self._clock(), 0.0) if due or late else None

    def step(self) -> None:
        """Everything that is due now."""
        self._collect_orphans()
        now = self._clock()
        for name, at in list(self.times.gone_at.items()):
            if at <= now:
                del self.times.gone_at[name]
                self._remove(name)
        for pod in list(self._store.all(PODS)):
            self._advance(pod, now)
        for deployment in list(self._store.all(WORKERS)):
            self._run_deployment(deployment)
        for job in list(self._store.all(JOBS)):
            if any(entry["type"] in ("Complete", "Failed") for entry in job.get("status", {}).get("conditions", ())):
                continue  # a Job that has ended stays as it is
            if self.weather.job is not None:
                self._tell(job, self.weather.job)
                self._set(JOBS, job, self.weather.job.status)
            else:
                done = {"type": "Complete", "status": "True"}
                self._set(JOBS, job, {"succeeded": 1, "conditions": [done]})

    def _collect_orphans(self) -> None:
        live = {body["metadata"]["uid"] for _, body in self._store.everything()}
        for resource, body in list(self._store.everything()):
            metadata = body["metadata"]
            owners = [owner["uid"].removeprefix("rs-") for owner in metadata.get("ownerReferences", ())]
            if owners and not live & set(owners) and "deletionTimestamp" not in metadata:
                self._store.delete(resource, metadata["namespace"], metadata["name"])

    def _advance(self, pod: Json, now: float) -> None:
        metadata, name = pod["metadata"], pod["metadata"]["name"]
        if "deletionTimestamp" in metadata:
            self.times.ready_at.pop(name, None)
            if name not in self.times.gone_at:
                is_up = pod["status"].get("phase") == "Running"
                self.times.gone_at[name] = now + (self._rng.uniform(LEAST_S, MOST_S) if is_up else 0.5)
            return
        if name in self.times.afflicted:
            if self.weather.afflicts(pod) is None:
                self.times.afflicted.discard(name)
                self._set(PODS, pod, _status("Pending", False))
                self.times.ready_at[name] = now + self._rng.uniform(LEAST_S, MOST_S)
        elif name in self.times.ready_at and self.times.ready_at[name] <= now:
            del self.times.ready_at[name]
            if self.weather.fails(pod):
                self._set(PODS, pod, _crashing())
            else:
                self._set(PODS, pod, _status("Running", True) | {"podIP": _address(metadata["uid"])})
                self.times.progress_at[metadata["ownerReferences"][0]["uid"].removeprefix("rs-")] = now
        elif _is_unplaced(pod) and self._has_room(pod):
            self._set(PODS, pod, _status("Pending", False))
            self.times.ready_at[name] = now + self._rng.uniform(LEAST_S, MOST_S)

    def _run_deployment(self, deployment: Json) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        if "deletionTimestamp" in metadata:
            return
        self.times.progress_at.setdefault(metadata["uid"], self._clock())
        made_of = content_hash(spec["template"])
        staying = [pod for pod in self._pods(metadata["uid"]) if "deletionTimestamp" not in pod["metadata"]]
        current = [pod for pod in staying if pod["metadata"]["annotations"]["template"] == made_of]
        old = [pod for pod in staying if pod not in current]
        refusal = ""
        for _ in range(spec["replicas"] - len(current)):
            refusal = refusal or self._refusal() or self.weather.refuses(deployment)
            if not refusal:
                self._make(deployment, made_of)
        surplus = len(current) - spec["replicas"]
        for pod in sorted(current, key=lambda pod: (is_ready(pod), _cost(pod), -_age(pod)))[: max(surplus, 0)]:
            self._delete(pod)
        ready = sum(is_ready(pod) for pod in current)
        for pod in old[: len(old) if ready >= spec["replicas"] else 0]:
            self._delete(pod)
        self._report(deployment, refusal)

    def _report(self, deployment: Json, refusal: str) -> None:
        metadata, spec = deployment["metadata"], deployment["spec"]
        pods = [pod for pod in self._pods(metadata["uid"]) if "deletionTimestamp" not in pod["metadata"]]
        ready = sum(is_ready(pod) for pod in pods)
        late = ready < spec["replicas"] and self._clock() - self.times.progress_at[metadata["uid"]] >= LATE_S
        reason = "ProgressDeadlineExceeded" if late else "NewReplicaSetAvailable"
        conditions = [{"type": "Progressing", "status": "False" if late else "True", "reason": reason}]
        if refusal:
            conditions.append(
                {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": refusal}
            )
        counts = {
            "replicas": len(pods),
            "updatedReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        status = {name: count for name, count in counts.items() if count}
        self._set(
            WORKERS, deployment, {"observedGeneration": metadata["generation"], "conditions": conditions} | status
        )

    def _refusal(self) -> str:
        quota = self.weather.quota
        if quota is not None and sum(1 for _ in self._store.all(PODS)) >= quota:
            return "pods is forbidden: exceeded quota: pods"
        return ""

    def _make(self, deployment: Json, made_of: str) -> None:
        metadata, template = deployment["metadata"], deployment["spec"]["template"]
        self.times.pods += 1
        owner: Json = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{metadata['name']}-{made_of}"}
        owner |= {"uid": f"rs-{metadata['uid']}", "controller": True}
        node = self._node()
        placed = template["spec"] | ({"nodeName": node} if node else {})
        body: Json = {"apiVersion": "v1", "kind": "Pod", "spec": placed}
        body["metadata"] = {
            "name": f"{metadata['name']}-{self.times.pods:06x}",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": {"template": made_of, "number": str(self.times.pods)},
            "ownerReferences": [owner],
        }
        created = self._store.create(PODS, body, "kcm")
        self._set(PODS, created, _unplaced())
        pod = self._store.peek(PODS, metadata["namespace"], body["metadata"]["name"])
        affliction = None if pod is None else self.weather.afflicts(pod)
        if pod is not None and affliction is not None:
            self.times.afflicted.add(pod["metadata"]["name"])
            self._tell(pod, affliction)
            self._set(PODS, pod, affliction.status)
        elif pod is not None and self._has_room(pod):
            self._set(PODS, pod, _status("Pending", False))
            self.times.ready_at[pod["metadata"]["name"]] = self._clock() + self._rng.uniform(LEAST_S, MOST_S)

    def _node(self) -> str | None:
        """The next node that takes Pods; None: the cluster has no nodes, and Pods need none."""
        free = [node["metadata"]["name"] for node in self._store.all(NODES) if not node["spec"].get("unschedulable")]
        return str(free[self.times.pods % len(free)]) if free else None

    def _tell(self, about: Json, affliction: Affliction) -> None:
        """The Event that a kubelet or a controller writes, once."""
        metadata = about["metadata"]
        name = f"{metadata['name']}.{metadata['uid']}"
        if affliction.event is None or self._store.peek(EVENTS, metadata["namespace"], name) is not None:
            return
        reason, message = affliction.event
        event: Json = {"apiVersion": "v1", "kind": "Event", "reason": reason, "message": message}
        event["metadata"] = {"name": name, "namespace": metadata["namespace"]}
        event["involvedObject"] = {"kind": about["kind"], "name": metadata["name"], "uid": metadata["uid"]}
        event["type"], event["lastTimestamp"] = "Warning" if affliction.warns else "Normal", stamp(self._clock())
        self._store.create(EVENTS, event, "kubelet")

    def _has_room(self, pod: Json) -> bool:
        if self.weather.room is None or not is_worker(pod):
            return True
        placed = [pod for pod in self._store.all(PODS) if is_worker(pod) and not _is_unplaced(pod)]
        return len(placed) < self.weather.room

    def _pods(self, uid: str) -> list[Json]:
        return [pod for pod in self._store.all(PODS) if pod["metadata"]["ownerReferences"][0]["uid"] == f"rs-{uid}"]

    def _delete(self, pod: Json) -> None:
        self._store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _remove(self, name: str) -> None:
        matches = [pod for pod in self._store.all(PODS) if pod["metadata"]["name"] == name]
        for pod in matches:
            self._store.remove(PODS, pod["metadata"]["namespace"], name)

    def _set(self, resource: Resource, body: Json, status: Json) -> None:
        self._store.set_status(resource, body["metadata"]["namespace"], body["metadata"]["name"], status)


def is_ready(pod: Json) -> bool:
    """True if the Pod can serve: it is ready and not stopping."""
    conditions = pod.get("status", {}).get("conditions", ())
    return "deletionTimestamp" not in pod["metadata"] and any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def is_worker(pod: Json) -> bool:
    return pod["metadata"]["labels"].get(ROLE_LABEL) in WORKER_ROLES


def _age(pod: Json) -> int:
    return int(pod["metadata"]["annotations"]["number"])


def _address(uid: str) -> str:
    return str(ipaddress.ip_address(int(uid.rpartition("-")[2], 16)))


def _cost(pod: Json) -> int:
    return int(pod["metadata"]["annotations"].get(COST_ANNOTATION, 0))


def _status(phase: str, ready: bool) -> Json:
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {"phase": phase, "conditions": conditions}


def _unplaced() -> Json:
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/1 nodes are available",
    }
    return {"phase": "Pending", "conditions": [unplaced]}


def _is_unplaced(pod: Json) -> bool:
    conditions: Iterator[Json] = iter(pod.get("status", {}).get("conditions", ()))
    return any(condition["type"] == "PodScheduled" and condition["status"] == "False" for condition in conditions)


def _crashing() -> Json:
    state: Json = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    container: Json = {"name": "worker", "restartCount": 3, "state": state, "ready": False}
    return _status("Running", False) | {"containerStatuses": [container]}


def moment(clock: Callable[[], float]) -> Callable[[], str]:
    """The wall clock as text, for a store."""
    return lambda: stamp(clock())
