"""An operator, its API server and its cluster together on virtual time, and everything that must hold while they run.

`World` is one run. It can start from the state that another run came to rest in, so that thousands of runs do not each
begin with an empty cluster. What must hold is checked at every change of any object, not at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections import Counter
from dataclasses import dataclass, replace

from baton_control.names import Key, history_name
from baton_control.sizing.decision.scaling import Sizing
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.kinds import BUDGETS, DEPLOYMENTS, EVENTS, JOBS, NODES, PODS, POOLS, RECORDS, WORKERS
from baton_operator.kube.kube_api import Change, Resource
from baton_operator.objects.cluster import Platform
from baton_operator.objects.metadata import FIT_LABEL, ROLE_LABEL, ROLES_ANNOTATION, TEMPLATE_LABEL, roles_of
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.passes.reconcile import Installation
from baton_operator.runtime import Pace, Runtime
from baton_operator.telemetry import Telemetry
from baton_testing.kube import own_kinds
from baton_testing.kube.clock import stamp, wall
from baton_testing.kube.cluster import Affliction, Cluster, Times, is_ready, is_worker, moment
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.faults import CALM, NO_FAULT, FaultyKube, Plan, Streams
from baton_testing.kube.linked_workers import LinkedWorkers
from baton_testing.kube.manifests import manifest, set_at
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Json, Store
from baton_testing.virtual_time.loop import VirtualLoop
from baton_wire.messages.values import POOL_ROLES, Role

SPACE, NAME = "team", "chat"
QUIET_S, LONGEST_S = 75.0, 7200.0
RELIST_S, HEALING_S = 600.0, 50.0
"""How often everything is listed again; where events are lost, or change places with one that may never come, often
enough to heal before quiet is believed."""
DIGEST = "registry.example.com/baton@sha256:"
ALL: PodPolicy = PodPolicy(**dict.fromkeys(PodPolicy.__struct_fields__, ("*",)))
"""Allows everything on Pods that the schema accepts."""
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64, pod_policy=ALL)
LINKED = replace(PLATFORM, operator_service="baton-operator")
"""An installation with reports of gateways."""
MASTERS = {"first": b"m" * 32}
VOLATILE = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "deletionTimestamp")


HISTORY = ("lastScaling", "scalingDecisions", "observedGeneration")
"""Fields of a status that depend on the way and not on the outcome."""


class BrokenPromiseError(AssertionError):
    """Something that must always hold does not."""


EMBEDS = ["Embed"]
"""The tasks of a deployment without a decode pool."""


@dataclass(frozen=True, slots=True)
class Promise:
    """The conditions that must hold in a run, for each pool."""

    floor: int = 2
    """Routable workers with a fitting partner, once there were first that many."""
    most: int = 3
    """Replicas of all worker Deployments together."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A state to begin from."""

    store: Store
    times: Times
    at_s: float


class World:
    def __init__(
        self,
        *,
        promise: Promise,
        plan: Plan = NO_FAULT,
        streams: Streams = CALM,
        rest: Rest | None = None,
        seed: int = 0,
        nodes: int = 0,
        has_links: bool = False,
    ) -> None:
        """`nodes`: how many the operator can read; 0: it cannot read any. `has_links`: gateways tell it of workers."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if rest is not None:
            loop.skip(rest.at_s - loop.time())
        self.clock = loop.time
        self.rng = random.Random(seed)
        self.store = Store(Kinds(), moment(self.clock))
        if rest is not None:
            self.store.adopt(rest.store)
        self.cluster = Cluster(self.store, self.rng, self.clock, copy.deepcopy(rest.times) if rest else None)
        self.platform, self.masters, self.promise = PLATFORM, dict(MASTERS), promise
        self.links = LinkedWorkers(self.store, self.rng, self._note_report) if has_links else None
        if has_links:
            self.platform = LINKED
        self.kube = FaultyKube(MemoryKube(self.store), plan, self._stopped, streams, self.rng)
        self._relist_s = HEALING_S if streams.lost or streams.swapped else RELIST_S
        self.reads_nodes = nodes > 0
        for number in range(nodes):
            node: Json = {"apiVersion": "v1", "kind": "Node", "spec": {}}
            node["metadata"] = {"name": f"node-{number}", "namespace": ""}
            self.store.create(NODES, node, "kubelet")
        self.runtime: Runtime | None = None
        self.telemetry: Telemetry | None = self.links
        """The reports of gateways to operators that start from now on; None: operators use readiness."""
        self.sizing: Sizing | None = None
        """The sizing of operators that start from now on, in mode SLO."""
        self.starts = 0
        self._operator: asyncio.Task[None] | None = None
        self._nature = asyncio.create_task(self.cluster.run())
        self._changed_at = self.clock()
        self._served = dict.fromkeys(POOL_ROLES, False)
        self.by_hand = False
        """The next changes are the user's own: what he does to worker Deployments is no fault of the operator."""
        self.broken: list[str] = []
        self.writes: Counter[str] = Counter()
        self.store.on_commit.append(self._changed)

    # The operator

    def start(self) -> None:
        """Start an operator's process."""
        self.starts += 1
        custom, rng = CustomResources((SPACE,)), random.Random(self.rng.random())
        self.runtime = Runtime(
            self.kube,
            custom,
            Installation(lambda: self.platform, lambda: self.masters),
            sizing=self.sizing,
            telemetry=self.telemetry,
            reads_nodes=self.reads_nodes,
            pace=Pace(workers=2, relist_s=self._relist_s),
            now=lambda: wall(self.clock()),
            rng=rng,
        )
        self._operator = asyncio.create_task(
            own_kinds.run(self.runtime, custom, self.kube, relist_s=self._relist_s, rng=rng)
        )

    def _note_report(self, key: Key) -> None:
        self._changed_at = self.clock()
        if self.runtime is not None:
            self.runtime.offer(key)

    async def stop(self) -> None:
        if self._operator is not None:
            self._operator.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._operator
        self._operator = self.runtime = None

    async def restart(self, away_s: float = 5.0) -> None:
        await self.stop()
        await asyncio.sleep(away_s)
        self.start()

    def _stopped(self) -> None:
        """The fault ends the process; another one comes after a while."""
        operator = self._operator
        assert operator is not None
        operator.cancel()
        self._restarting = asyncio.create_task(self._again(operator))

    async def _again(self, operator: asyncio.Task[None]) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await operator
        self.runtime = None
        await asyncio.sleep(self.rng.uniform(1.0, 20.0))
        self.start()

    async def end(self) -> None:
        """Stop everything. Raises what ended the operator, or BrokenPromiseError."""
        for task in (self._nature, getattr(self, "_restarting", None)):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self.stop()
        if self.broken:
            raise BrokenPromiseError(self.broken[0])

    async def settle(self) -> None:
        """Until nothing has changed and nothing has been due for a while. Raises BrokenPromiseError if it never is."""
        until, self._changed_at = self.clock() + LONGEST_S, self.clock()
        while self.clock() - self._changed_at < QUIET_S or self.runtime is None or not self.runtime.is_idle:
            if self.clock() > until:
                raise BrokenPromiseError(f"no rest within {LONGEST_S:.0f} s")
            if self._operator is not None and self._operator.done() and not self._operator.cancelled():
                self._operator.result()
            await asyncio.sleep(5.0)
        if self.links is not None:
            for pod in filter(is_ready, filter(is_worker, self.store.all(PODS, SPACE))):
                if self.links.role(pod) != _label(pod, ROLE_LABEL):
                    self._break(f"{pod['metadata']['name']} serves as {self.links.role(pod)} and is labelled otherwise")

    def rest(self) -> Rest:
        return Rest(self.store, copy.deepcopy(self.cluster.times), self.clock())

    def keys_changed(self) -> None:
        """Queue every deployment, as the operator's process does when it finds other master keys."""
        if self.runtime is not None:
            self.runtime.offer_all()

    def controllers_stand_still(self) -> None:
        """The controller manager and the kubelets do nothing any more."""
        self._nature.cancel()

    # The user

    def user_applies(self, **fields: object) -> None:
        """`kubectl apply` of the deployment with these fields (`manifest` says how)."""
        self.store.apply(DEPLOYMENTS, deployment_body(**fields), "kubectl", force=True)

    def user_edits(self, path: str, value: object) -> None:
        """`kubectl edit` of one field, `rollout.paused` for instance."""
        body = self.store.read(DEPLOYMENTS, SPACE, NAME)
        set_at(body, ("spec", *path.split(".")), value)
        self.store.replace(DEPLOYMENTS, body, "kubectl-edit")

    def user_deletes(self, resource: Resource, name: str) -> None:
        self.by_hand = True
        self.store.delete(resource, SPACE, name)
        self.by_hand = False

    def user_scales(self, resource: Resource, name: str, replicas: int, manager: str = "kubectl") -> None:
        self.by_hand = True
        self.store.scale(resource, SPACE, name, replicas, manager)
        self.by_hand = False

    def fetch_tells(self, progress: str) -> None:
        """Write the Event of a kubelet for a probe of the Job's Pod that fails with these words."""
        running: Json = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        self.fetch_pod_is(Affliction(running, ("Unhealthy", f"Readiness probe failed: {progress}")))

    def fetch_pod_is(self, affliction: Affliction, pod_name: str = "x") -> None:
        """The newest fetch Job has a Pod in this state, with an Event about it."""
        job = max(self.store.all(JOBS, SPACE), key=lambda job: int(job["metadata"]["resourceVersion"]))
        metadata = job["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
        name = f"{metadata['name']}-{pod_name}"
        if self.store.peek(PODS, SPACE, name) is None:
            template = job["spec"]["template"]
            pod: Json = {
                "apiVersion": "v1",
                "kind": "Pod",
                "spec": template["spec"],
                "metadata": {
                    "name": name,
                    "namespace": SPACE,
                    "labels": template["metadata"]["labels"],
                    "ownerReferences": [owner],
                },
            }
            self.store.create(PODS, pod, "kube-controller-manager")
            self.store.set_status(PODS, SPACE, name, affliction.status)
            self.cluster.times.afflicted |= {name} if self.cluster.weather.afflicts(pod) is not None else set()
        if affliction.event is not None:
            reason, message = affliction.event
            uid = self.store.read(PODS, SPACE, name)["metadata"]["uid"]
            event: Json = {"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": reason, "message": message}
            event["metadata"] = {"name": f"{name}.{self.store.version}", "namespace": SPACE}
            event["involvedObject"] = {"kind": "Pod", "name": name, "uid": uid}
            event["lastTimestamp"] = stamp(self.clock())
            self.store.create(EVENTS, event, "kubelet")

    def cordon(self, name: str, *, is_cordoned: bool = True) -> None:
        """`kubectl cordon`, or `uncordon`."""
        node = self.store.read(NODES, "", name)
        node["spec"] = {"unschedulable": True} if is_cordoned else {}
        self.store.replace(NODES, node, "kubectl")

    def evict(self, name: str) -> bool:
        """Evict a Pod as `kubectl drain` does; False: a budget forbids it now."""
        pod = self.store.read(PODS, SPACE, name)
        labels = pod["metadata"]["labels"]
        for budget in self.store.all(BUDGETS, SPACE):
            spec = budget["spec"]
            if not spec["selector"]["matchLabels"].items() <= labels.items():
                continue
            same = [pod for pod in self.store.all(PODS, SPACE) if _is_selected(pod, spec)]
            healthy = sum(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in same)
            sets = [worker_set for worker_set in self.store.all(WORKERS, SPACE) if _is_selected(worker_set, spec)]
            expected = sum(worker_set["spec"]["replicas"] for worker_set in sets)
            least = spec["minAvailable"] if "minAvailable" in spec else expected - spec["maxUnavailable"]
            if is_ready(pod) and healthy - 1 < least:
                return False
        self.store.delete(PODS, SPACE, name)
        return True

    def worker_sets(self, role: Role) -> list[Json]:
        """The pool's worker Deployments, the oldest first."""
        return [worker_set for worker_set in self.store.all(WORKERS, SPACE) if _label(worker_set, ROLE_LABEL) == role]

    # What must hold

    def _changed(self, resource: Resource, change: Change, before: Json | None, after: Json) -> None:
        if resource != RECORDS or after["metadata"]["name"] != history_name(NAME):  # which follows up to a minute later
            self._changed_at = self.clock()
        self.writes[f"{change} {resource.plural}"] += 1
        if self.by_hand:
            return
        is_workers = resource == WORKERS and bool(_label(after, TEMPLATE_LABEL))
        if is_workers and before is not None and before["spec"]["template"] != after["spec"]["template"]:
            self._break(f"the template of {after['metadata']['name']} was edited")
        if is_workers and change is not Change.DELETED:
            for role in POOL_ROLES:
                total = sum(_workers_of(worker_set, role) for worker_set in self.store.all(WORKERS, SPACE))
                was = _workers_of(before, role) if before else 0
                if total > self.promise.most and _workers_of(after, role) > was:
                    self._break(f"{total} {role} workers, more than {self.promise.most}")
        if resource in (PODS, WORKERS):
            self._check_floor()

    def _check_floor(self) -> None:
        usable = self.usable()
        deployment = self.store.peek(DEPLOYMENTS, SPACE, NAME)
        if deployment is None or "deletionTimestamp" in deployment["metadata"]:
            self._served = dict.fromkeys(POOL_ROLES, False)
            return
        for role in POOL_ROLES:
            if usable[role] < self.promise.floor and self._served[role]:
                self._break(f"{usable[role]} usable {role} workers, under the floor of {self.promise.floor}")
        if all(usable[role] >= self.promise.floor for role in POOL_ROLES):
            self._served = dict.fromkeys(POOL_ROLES, True)

    def usable(self) -> dict[Role, int]:
        """Ready workers with a ready partner that fits, counted Pod by Pod."""
        ready: Counter[tuple[Role, str]] = Counter()
        fits = {
            _label(worker_set, TEMPLATE_LABEL): _label(worker_set, FIT_LABEL)
            for worker_set in self.store.all(WORKERS, SPACE)
        }
        for pod in self.store.all(PODS, SPACE):
            if is_ready(pod) and _label(pod, ROLE_LABEL) in list(POOL_ROLES):
                template = _label(pod, TEMPLATE_LABEL)
                role = Role(_label(pod, ROLE_LABEL)) if self.links is None else self.links.role(pod)
                ready[role, fits.get(template, template)] += 1
        return {
            role: sum(n for (pool, fit), n in ready.items() if pool is role and ready[role.partner, fit])
            for role in POOL_ROLES
        }

    def _break(self, what: str) -> None:
        deployments = [
            f"{worker_set['metadata']['name']}={worker_set['spec']['replicas']}"
            for worker_set in self.store.all(WORKERS)
        ]
        calls = "; ".join(self.kube.made[-6:])
        self.broken.append(f"{what}, at {self.clock():.1f} s; {deployments}; last calls: {calls}")

    def outcome(self) -> Json:
        """The whole end state without what differs between any two runs: identities, times, Events."""
        outcome_found: Json = {}
        pods: Counter[str] = Counter()
        for resource, body in self.store.everything():
            if resource == PODS:
                pods[f"{_label(body, ROLE_LABEL)} ready={is_ready(body)} {_label(body, TEMPLATE_LABEL)}"] += 1
            elif resource != EVENTS:
                outcome_found[f"{resource.plural}/{body['metadata']['name']}"] = _essence(resource, body)
        return outcome_found | {"pods": dict(pods)}


def deployment_body(**fields: object) -> Json:
    """The deployment that scenarios start from: two workers in each pool that it has."""
    two = {"min": 2, "max": 2}
    pools = ("prefill", "decode") if fields.get("model__tasks") != EMBEDS else ("prefill",)
    sizes = {f"{pool}__replicas": two for pool in pools}
    body = manifest(**{"model__source": "pvc://models/a", **sizes, **fields})
    body["metadata"] = {"name": NAME, "namespace": SPACE}
    return body


def newer(platform: Platform) -> Platform:
    """The platform of a later version of the operator."""
    return replace(platform, worker_image=DIGEST + "c" * 64, gateway_image=DIGEST + "d" * 64, python="python3")


def _is_selected(body: Json, spec: Json) -> bool:
    return bool(spec["selector"]["matchLabels"].items() <= body["metadata"].get("labels", {}).items())


def _workers_of(body: Json, role: Role) -> int:
    """How many workers of a role a Deployment asks for."""
    roles = roles_of(body["metadata"].get("annotations", {}).get(ROLES_ANNOTATION))
    if roles is not None:
        return roles[role]
    return int(body["spec"]["replicas"]) if _label(body, ROLE_LABEL) == role else 0


def _label(body: Json, name: str) -> str:
    return str(body["metadata"].get("labels", {}).get(name, ""))


def _essence(resource: Resource, body: Json) -> Json:
    metadata = {name: value for name, value in body["metadata"].items() if name not in VOLATILE}
    metadata["ownerReferences"] = [
        {name: value for name, value in reference.items() if name != "uid"}
        for reference in metadata.get("ownerReferences", ())
    ]
    metadata.pop("annotations", None)
    essence: Json = {name: value for name, value in body.items() if name not in ("metadata", "status", "revision")}
    status = body.get("status", {})
    if resource in (DEPLOYMENTS, POOLS):
        steady = {name: value for name, value in status.items() if name not in HISTORY}
        steady["conditions"] = {
            condition["type"]: (condition["status"], condition["reason"]) for condition in status.get("conditions", ())
        }
        essence["status"] = steady
        essence["is observed"] = status.get("observedGeneration") == body["metadata"]["generation"]
    if resource == WORKERS:
        essence["status"] = {name: status.get(name, 0) for name in ("replicas", "readyReplicas")}
    return {"metadata": metadata, **essence}
