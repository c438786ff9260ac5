"""An operator on a real control plane without nodes: a namespace, its operator, and the test as scheduler and kubelet.

A stand-in for gateways calls every ready worker routable.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import importlib.util
import random
import secrets
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from baton_control.names import Key
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import FlexibleWorker
from baton_operator.kube.claims import Claims, claim_name
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import DEPLOYMENTS, EVENTS, PODS, WORKERS
from baton_operator.kube.kopf.watch_stream import KopfStream
from baton_operator.kube.kube_api import KubeApi, Resource
from baton_operator.kube.kubeconfig import from_kubeconfig
from baton_operator.objects.cluster import Platform
from baton_operator.objects.metadata import ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.passes.reconcile import Installation
from baton_operator.runtime import Pace, Runtime
from baton_operator.telemetry import GatewayReport
from baton_testing.kube import own_kinds
from baton_testing.kube.api_server import ApiServer
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.control_plane import ControlPlane
from baton_testing.kube.manifests import manifest, set_at
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Role

Json = dict[str, Any]
DIGEST = "registry.example.com/baton@sha256:"
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64)
LONG_S = 240.0
"""For what takes a few seconds on a machine with nothing else to do."""


def for_old_server(api: KubeApi) -> KubeApi:
    """`e2e/old_server.py`, which imports no other test file because it is mounted into Pods."""
    spec = importlib.util.spec_from_file_location("old_server", Path(__file__).parents[4] / "e2e" / "old_server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapted: KubeApi = module.OldServer(api)
    return adapted


class ReadyIsRoutable:
    """Gateways that link every worker at once, and flexible workers that flip at once."""

    def __init__(self, runtime: Callable[[], Runtime], flipped: dict[bytes, FlipOrder]) -> None:
        """`flipped`: the last flip of each worker, by the epoch that follows from its Pod's uid."""
        self._runtime, self._flipped = runtime, flipped

    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport | None:
        counts: dict[tuple[Role, str], int] = {}
        flexible: list[FlexibleWorker] = []
        for pod in self._runtime().caches[PODS].of(key):
            metadata: Json = pod["metadata"]  # type: ignore[assignment]
            labels, status = metadata["labels"], pod["status"]
            role, epoch = Role(labels[ROLE_LABEL]), uuid.UUID(metadata["uid"]).bytes
            if "-flexible-" in metadata["name"]:
                flip = self._flipped.get(epoch, FlipOrder(epoch, 0, Role.PREFILL))
                role = flip.role
                flexible.append(FlexibleWorker(str(status.get("podIP")), epoch, role, flip.number))  # type: ignore[attr-defined]
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))  # type: ignore[attr-defined]
            if ready and "deletionTimestamp" not in metadata and TEMPLATE_LABEL in labels:
                place = (role, labels[TEMPLATE_LABEL])
                counts[place] = counts.get(place, 0) + 1
        return GatewayReport(counts, flexible=tuple(flexible))

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        if flips:
            self._flipped.update({flip.worker: flip for flip in flips})
            self._runtime().offer(key)


def ready_now() -> Affliction:
    """The status of a Pod that has started, as a kubelet writes it."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
    address = f"10.{secrets.randbelow(256)}.{secrets.randbelow(256)}.{secrets.randbelow(256)}"
    return Affliction({"phase": "Running", "startTime": now, "conditions": [ready], "podIP": address})


def event_of(pod: Json, affliction: Affliction) -> Json:
    """The Event that a kubelet writes."""
    assert affliction.event is not None
    metadata, (reason, message) = pod["metadata"], affliction.event
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "namespace": metadata["namespace"]}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(4)}"},
        "involvedObject": about | {"uid": metadata["uid"]},
        "type": "Warning" if affliction.warns else "Normal",
        "reason": reason,
        "message": message,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "kubelet"},
    }


class Stage:
    """A namespace with an operator for it."""

    def __init__(self, plane: ControlPlane, space: str) -> None:
        self.plane, self.space = plane, space
        self.api: ApiServer = plane.api
        self.calls: dict[tuple[str, str], int] = {}
        self.runtime: Runtime | None = None
        self._flipped: dict[bytes, FlipOrder] = {}
        self.afflicts: Callable[[Json], Affliction | None] = lambda pod: None
        """The words of the scheduler or the kubelet about a new Pod; None: it gets ready."""

    @contextlib.asynccontextmanager
    async def operator(
        self,
        platform: Platform = PLATFORM,
        *,
        by_kopf: bool = True,
        identity: str = "",
        operator_class: str | None = None,
        with_kubelet: bool = True,
        clock_off_s: float = 0.0,
    ) -> AsyncIterator[Runtime]:
        """A whole life of an operator's process. Without kopf, which can run only once in a process, informers watch
        Baton's own kinds. With an `identity` it claims its namespace. `clock_off_s`: how far ahead its clock is."""

        def own() -> datetime.datetime:
            return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=clock_off_s)

        async with HttpKubeApi(from_kubeconfig(), now=own) as session:
            self.calls = session.calls
            api, custom = for_old_server(session), CustomResources((self.space,), operator_class=operator_class)
            runtime = Runtime(
                api,
                custom,
                Installation(lambda: platform, lambda: {"first": b"m" * 32}),
                telemetry=ReadyIsRoutable(lambda: runtime, self._flipped),
                claims=Claims(api, claim_name(operator_class), identity) if identity else None,
                pace=Pace(resync_s=3.0),
                now=session.clock.now,
            )
            self.runtime = runtime
            if by_kopf:
                work = [runtime.run(), KopfStream(api, session, custom).run()]
            else:
                work = [own_kinds.run(runtime, custom, api, rng=random.Random(1))]
            work += [self._play_kubelet()] if with_kubelet else []
            tasks = [asyncio.create_task(coroutine) for coroutine in work]
            try:
                await asyncio.wait_for(runtime.synced.wait(), LONG_S)
                yield runtime
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _play_kubelet(self) -> None:
        """Make Pods ready; end those that are deleted."""
        with contextlib.closing(self.plane.client()) as api:
            while True:
                await asyncio.sleep(0.3)
                with contextlib.suppress(OSError, http.client.HTTPException):
                    pods: list[Json] = api.send("GET", self.path(PODS)).body.get("items", [])  # type: ignore[assignment]
                    for pod in pods:
                        path = self.path(PODS, pod["metadata"]["name"])
                        if "deletionTimestamp" in pod["metadata"]:
                            api.send("DELETE", path, {"gracePeriodSeconds": 0})
                        elif not pod["status"].get("conditions"):
                            affliction = self.afflicts(pod) or ready_now()
                            status = {"status": affliction.status}
                            api.send("PATCH", f"{path}/status", status, kind="merge-patch+json")
                            if affliction.event is not None:
                                api.send("POST", self.path(EVENTS), event_of(pod, affliction))

    def path(self, resource: Resource, name: str = "") -> str:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        return f"{root}/{resource.version}/namespaces/{self.space}/{resource.plural}" + (f"/{name}" if name else "")

    def all(self, resource: Resource) -> list[Json]:
        items: list[Json] = self.api.send("GET", self.path(resource)).body.get("items", [])  # type: ignore[assignment]
        return items

    def read(self, resource: Resource, name: str) -> Json:
        return self.api.send("GET", self.path(resource, name)).body

    def apply(self, **fields: object) -> None:
        body = manifest(**{"model__source": "pvc://models/a", "autoscaling__mode": "Off", **fields})
        body["metadata"] = {"name": "chat", "namespace": self.space}
        path = self.path(DEPLOYMENTS, "chat") + "?fieldManager=kubectl&force=true"
        reply = self.api.send("PATCH", path, body, kind="apply-patch+yaml")
        assert reply.status in (200, 201), reply.message

    def patch(self, resource: Resource, name: str, path: str, value: object, subresource: str = "") -> None:
        body: Json = {}
        set_at(body, tuple(path.split(".")), value)
        reply = self.api.send("PATCH", self.path(resource, name) + subresource, body, kind="merge-patch+json")
        assert reply.status == 200, reply.message

    def delete(self, resource: Resource, name: str) -> None:
        assert self.api.send("DELETE", self.path(resource, name)).status == 200

    async def until(self, what: str, holds: Callable[[], bool]) -> None:
        for _ in range(int(LONG_S / 0.2)):
            with contextlib.suppress(KeyError, IndexError, StopIteration):
                if holds():
                    return
            await asyncio.sleep(0.2)
        raise AssertionError(f"never: {what}; {self.workers()}; {self.read(DEPLOYMENTS, 'chat').get('status')}")

    async def refuses(self, resource: Resource, body: Json, why: str) -> None:
        """Wait until the API server refuses such an object for this reason, a moment after it was configured to."""

        def is_refused() -> bool:
            reply = self.api.send("POST", self.path(resource) + "?dryRun=All", body)
            return reply.status >= 400 and why in reply.message

        await self.until(f"refused: {why}", is_refused)

    async def serves(self, prefill: int = 1, decode: int = 1) -> None:
        """Until the status says that the present spec is carried out."""

        def is_done() -> bool:
            live = self.read(DEPLOYMENTS, "chat")
            status, generation = live["status"], live["metadata"]["generation"]
            ready = (status["prefill"]["summary"], status["decode"]["summary"])
            is_rolled = self.condition("Progressing")[1] == "RolloutComplete" and len(self.workers()) == 2
            is_current = status["observedGeneration"] == generation and self.condition("Available")[1] == "Serving"
            return is_rolled and is_current and ready == (f"{prefill}/{prefill}", f"{decode}/{decode}")

        await self.until("served", is_done)
        assert self.condition("Available")[:2] == ("True", "Serving")

    async def settled(self) -> None:
        """Until the operator has nothing to do and has written nothing for a second. A pass writes the deployment's
        status before those of its pools: a test that has read the one may not yet end the operator."""
        runtime, calm, before = self.runtime, 0, self.writes()
        assert runtime is not None, "no operator runs"

        def is_calm() -> bool:
            nonlocal calm, before
            now = self.writes()
            calm = calm + 1 if runtime.is_idle and now == before else 0
            before = now
            return calm >= 5

        await self.until("settled", is_calm)

    def condition(self, kind: str) -> tuple[str, str, str]:
        conditions = self.read(DEPLOYMENTS, "chat")["status"]["conditions"]
        match = next(condition for condition in conditions if condition["type"] == kind)
        return match["status"], match["reason"], match["message"]

    def workers(self) -> dict[str, int]:
        worker_sets = [
            worker_set for worker_set in self.all(WORKERS) if TEMPLATE_LABEL in worker_set["metadata"]["labels"]
        ]
        return {worker_set["metadata"]["name"]: worker_set["spec"]["replicas"] for worker_set in worker_sets}

    def writes(self) -> dict[tuple[str, str], int]:
        return {call: count for call, count in self.calls.items() if call[0] in ("patch", "create", "update", "delete")}
