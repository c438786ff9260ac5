"""The operator on a real control plane: what users and colleagues do to a deployment, and what becomes of it.

No node runs Pods here: the test plays the kubelet, and a stand-in for gateways calls every ready worker routable.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import functools
import http.client
import importlib.util
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_control.names import Key
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POOLS, RECORDS, SECRETS, SERVICES, WORKERS
from baton_operator.kube.kopf_stream import KopfStream
from baton_operator.kube.kube_api import KubeApi, Resource
from baton_operator.kube.kubeconfig import from_kubeconfig
from baton_operator.objects.cluster import Platform
from baton_operator.objects.metadata import ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.passes.reconcile import Installation
from baton_operator.runtime import Pace, Runtime
from baton_operator.telemetry import Heard
from baton_testing.kube import external_metrics
from baton_testing.kube.api_server import ApiServer
from baton_testing.kube.control_plane import HOW, ControlPlane, control_plane, find_programs
from baton_testing.kube.manifests import manifest, set_at
from baton_wire.messages.values import Role

Json = dict[str, Any]
CRDS = sorted((Path(__file__).parents[1] / "crds").glob("*.yaml"))
DIGEST = "registry.example.com/baton@sha256:"
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64)
LONG_S = 120.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    programs = find_programs()
    if programs is None and os.environ.get("BATON_REQUIRE_K8S"):
        pytest.fail(HOW)
    if programs is None:
        pytest.skip(HOW)
    with control_plane(programs, tmp_path_factory.mktemp("plane")) as made:
        for path in CRDS:
            body = yaml.safe_load(path.read_text(encoding="utf-8"))
            reply = made.api.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
            assert reply.status == 201, reply.message
        made.api.until("GET", "/apis/baton.dev/v1alpha1/namespaces/default/llmpools", deadline_s=LONG_S)
        yield made


def for_old_server(api: KubeApi) -> KubeApi:
    """`e2e/old_server.py`, which stands alone as it is mounted into Pods."""
    spec = importlib.util.spec_from_file_location("old_server", Path(__file__).with_name("old_server.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    adapted: KubeApi = module.OldServer(api)
    return adapted


class ReadyIsRoutable:
    """Gateways that link every worker at once."""

    def __init__(self, runtime: Callable[[], Runtime]) -> None:
        self._runtime = runtime

    def heard(self, key: Key, uid: str, deployment: LLMDeployment) -> Heard | None:
        counts: dict[tuple[Role, str], int] = {}
        for pod in self._runtime().caches[PODS].of(key):
            metadata: Json = pod["metadata"]  # type: ignore[assignment]
            labels, status = metadata["labels"], pod["status"]
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))  # type: ignore[attr-defined]
            if ready and "deletionTimestamp" not in metadata and TEMPLATE_LABEL in labels:
                place = (Role(labels[ROLE_LABEL]), labels[TEMPLATE_LABEL])
                counts[place] = counts.get(place, 0) + 1
        return Heard(counts)


class Stage:
    """A namespace with an operator for it."""

    def __init__(self, plane: ControlPlane, space: str) -> None:
        self.plane, self.space = plane, space
        self.api: ApiServer = plane.api
        self.calls: dict[tuple[str, str], int] = {}
        self.runtime: Runtime | None = None

    @contextlib.asynccontextmanager
    async def operator(self, platform: Platform = PLATFORM) -> AsyncIterator[Runtime]:
        """A whole life of an operator's process."""
        async with HttpKubeApi(from_kubeconfig()) as session:
            self.calls = session.calls
            api, custom = for_old_server(session), CustomResources((self.space,))
            runtime = Runtime(
                api,
                custom,
                Installation(lambda: platform, lambda: {"first": b"m" * 32}),
                telemetry=ReadyIsRoutable(lambda: runtime),
                pace=Pace(resync_s=3.0),
            )
            self.runtime = runtime
            stream = KopfStream(api, session, custom)
            tasks = [asyncio.create_task(each) for each in (runtime.run(), stream.run(), self._play_kubelet())]
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
                            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                            ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
                            status = {"phase": "Running", "conditions": [ready]}
                            api.send("PATCH", f"{path}/status", {"status": status}, kind="merge-patch+json")

    def path(self, resource: Resource, name: str = "") -> str:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        return f"{root}/{resource.version}/namespaces/{self.space}/{resource.plural}" + (f"/{name}" if name else "")

    def all(self, resource: Resource) -> list[Json]:
        found: list[Json] = self.api.send("GET", self.path(resource)).body.get("items", [])  # type: ignore[assignment]
        return found

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

    def condition(self, kind: str) -> tuple[str, str, str]:
        conditions = self.read(DEPLOYMENTS, "chat")["status"]["conditions"]
        found = next(each for each in conditions if each["type"] == kind)
        return found["status"], found["reason"], found["message"]

    def workers(self) -> dict[str, int]:
        found = [each for each in self.all(WORKERS) if TEMPLATE_LABEL in each["metadata"]["labels"]]
        return {each["metadata"]["name"]: each["spec"]["replicas"] for each in found}

    def writes(self) -> dict[tuple[str, str], int]:
        return {call: count for call, count in self.calls.items() if call[0] in ("patch", "create", "update", "delete")}


@pytest.fixture
def stage(plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    made = Stage(plane, f"t{secrets.token_hex(4)}")
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.space}}
    assert plane.api.send("POST", "/api/v1/namespaces", body).status == 201
    yield made
    plane.api.send("DELETE", f"/api/v1/namespaces/{made.space}")


def owned(stage: Stage) -> list[str]:
    """Names of everything that carries the deployment's name, by kind."""
    found = []
    for resource in (SERVICES, SECRETS, WORKERS, RECORDS, POOLS, PODS):
        found += [f"{resource.kind} {e['metadata']['name']}" for e in stage.all(resource)]
    for path in ("/apis/networking.k8s.io/v1", "/api/v1"):
        plural = "networkpolicies" if "networking" in path else "serviceaccounts"
        items = stage.api.send("GET", f"{path}/namespaces/{stage.space}/{plural}").body["items"]
        found += [f"{plural} {each['metadata']['name']}" for each in items]  # type: ignore[attr-defined]
    return sorted(each for each in found if each.split()[1].startswith("chat") and "-token-" not in each)


async def test_apply_makes_everything_a_restart_writes_nothing_and_delete_leaves_nothing(stage: Stage) -> None:
    async with stage.operator() as runtime:
        stage.apply()
        await stage.serves()
        made = owned(stage)
        for each in ("Service chat-gateway", "Secret chat-keys", "LLMPool chat-decode", "networkpolicies chat-default"):
            assert each in made
        first = dict(stage.writes())
        assert first["patch", "llmdeployments"] <= 6, "status writes"
        await stage.until("idle", lambda: runtime.is_idle)
        before = dict(stage.writes())
        await asyncio.sleep(8.0)
        assert stage.writes() == before, "resyncs make no request"
    async with stage.operator():
        await asyncio.sleep(8.0)
        assert stage.writes() == {}
        stage.delete(DEPLOYMENTS, "chat")
        await stage.until("all gone", lambda: owned(stage) == [])


async def test_an_edit_rolls_a_revert_rolls_back_and_an_upgrade_restarts_nothing(stage: Stage) -> None:
    two = {"prefill__replicas": {"min": 2, "max": 3}, "decode__replicas": {"min": 2, "max": 3}}
    async with stage.operator():
        stage.apply(**two)
        await stage.serves(2, 2)
        first = stage.workers()
        stage.apply(**two, decode__resources={"memory": "2Gi"})
        await stage.until("another template", lambda: len(stage.workers()) == 3)
        assert sum(count for name, count in stage.workers().items() if "-decode-" in name) >= 2
        stage.apply(**two)
        await stage.serves(2, 2)
        assert stage.workers() == first
        pods = {pod["metadata"]["uid"] for pod in stage.all(PODS)}
    newer = Platform(DIGEST + "c" * 64, DIGEST + "d" * 64, python="python3")
    async with stage.operator(newer):
        await asyncio.sleep(8.0)
        assert stage.workers() == first
        assert {pod["metadata"]["uid"] for pod in stage.all(PODS)} == pods
        stage.patch(DEPLOYMENTS, "chat", "metadata.annotations", {"baton.dev/upgrade": "now"})
        await stage.until("new templates", lambda: set(stage.workers()).isdisjoint(first))
        await stage.serves(2, 2)


async def test_a_restart_of_a_deployment_and_a_foreign_edit_of_its_template_never_take_all_its_workers(
    stage: Stage,
) -> None:
    two = {"prefill__replicas": {"min": 1, "max": 1}, "decode__replicas": {"min": 2, "max": 2}}
    fewest = {"prefill": 9, "decode": 9}

    def ready(role: str) -> list[str]:
        pods = [pod for pod in stage.all(PODS) if pod["metadata"]["labels"].get(ROLE_LABEL) == role]
        return [
            pod["metadata"]["uid"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
            and any(
                each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ())
            )
        ]

    def are_others(role: str, count: int, before: set[str]) -> bool:
        for each in fewest:
            fewest[each] = min(fewest[each], len(ready(each)))
        return len(ready(role)) == count and before.isdisjoint(ready(role))

    async with stage.operator():
        stage.apply(**two)
        await stage.serves(1, 2)
        decode, prefill = (next(name for name in stage.workers() if role in name) for role in ("decode", "prefill"))
        for name, role, count in ((decode, "decode", 2), (prefill, "prefill", 1)):
            before = set(ready(role))
            at = "spec.template.metadata.annotations"
            stage.patch(WORKERS, name, at, {"kubectl.kubernetes.io/restartedAt": "now"})  # as `kubectl rollout restart`
            await stage.until("restarted", functools.partial(are_others, role, count, before))
        assert fewest == {"prefill": 1, "decode": 1}
        image = stage.read(WORKERS, decode)["spec"]["template"]["spec"]["containers"][0]
        stage.patch(WORKERS, decode, "spec.template.spec.containers", [{**image, "image": "other"}])
        await stage.until(
            "the image again",
            lambda: (
                stage.read(WORKERS, decode)["spec"]["template"]["spec"]["containers"][0]["image"] != "other"
                and are_others("decode", 2, set())
            ),
        )
        await stage.serves(1, 2)
        assert fewest == {"prefill": 1, "decode": 1}


async def test_what_others_change_or_delete_is_put_back(stage: Stage) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        before, made = stage.workers(), owned(stage)
        stage.patch(SERVICES, "chat-decode", "spec.selector", {"baton.dev/deployment": "other"})
        stage.patch(WORKERS, next(iter(before)), "spec.replicas", 0)
        stage.delete(POOLS, "chat-prefill")
        stage.delete(RECORDS, stage.all(RECORDS)[0]["metadata"]["name"])
        stage.delete(WORKERS, list(before)[1])
        await stage.until("all there again", lambda: stage.workers() == before and len(owned(stage)) >= len(made) - 2)
        await stage.until(
            "the selector again",
            lambda: stage.read(SERVICES, "chat-decode")["spec"]["selector"]["baton.dev/deployment"] == "chat",
        )
        await stage.serves()


async def test_somebody_elses_objects_are_left_alone(stage: Stage) -> None:
    theirs: Json = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-keys"}, "data": {"a": "eHg="}}
    assert stage.api.send("POST", stage.path(SECRETS), theirs).status == 201
    before = copy.deepcopy(stage.read(SECRETS, "chat-keys"))
    async with stage.operator():
        stage.apply()
        await stage.until("told", lambda: stage.condition("Degraded")[:2] == ("True", "NameTaken"))
        assert "chat-keys" in stage.condition("Degraded")[2]
        assert stage.read(SECRETS, "chat-keys") == before
        assert stage.workers() == {}, "no Pod without its keys"
        stage.delete(SECRETS, "chat-keys")
        stage.apply(podMetadata={"labels": {"again": "now"}})
        await stage.serves()


async def test_pools_are_scaled_by_whom_the_mode_says(stage: Stage) -> None:
    bounds = {"prefill__replicas": {"min": 1, "max": 3}, "decode__replicas": {"min": 1, "max": 3}}
    async with stage.operator():
        stage.apply(**bounds)
        await stage.serves()
        stage.patch(POOLS, "chat-decode", "spec.replicas", 2, "/scale")
        await stage.serves(1, 2)
        stage.patch(POOLS, "chat-prefill", "spec.replicas", 50, "/scale")
        await stage.serves(3, 2)
        assert stage.condition("ScalingLimited")[1] == "OutOfBounds"
        assert stage.read(POOLS, "chat-prefill")["spec"]["replicas"] == 50
        stage.apply(**bounds, autoscaling__mode="SLO")
        await stage.until("taken over", lambda: stage.read(POOLS, "chat-prefill")["spec"]["replicas"] == 3)
        await stage.serves(3, 2)
        stage.patch(POOLS, "chat-decode", "spec.replicas", 1, "/scale")
        await stage.until("told", lambda: stage.condition("ScalingLimited")[:2] == ("True", "ForeignWriter"))
        await asyncio.sleep(3.0)
        assert stage.read(POOLS, "chat-decode")["spec"]["replicas"] == 1, "nobody fights over it"
        await stage.serves(3, 2)


async def test_a_real_autoscaler_owns_the_pool_in_mode_external(stage: Stage) -> None:
    """A HorizontalPodAutoscaler with a metric from outside: it scales the LLMPool, and the operator follows it within
    the bounds, up and down, and writes nothing there itself."""
    bounds = {"prefill__replicas": {"min": 1, "max": 3}, "decode__replicas": {"min": 1, "max": 3}}
    target = {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMPool", "name": "chat-decode"}
    queued = {"metric": {"name": external_metrics.METRIC}, "target": {"type": "AverageValue", "averageValue": "5"}}
    scaler: Json = {
        "apiVersion": "autoscaling/v2beta2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "chat-decode"},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 4,
            "metrics": [{"type": "External", "external": queued}],
        },
    }
    path = f"/apis/autoscaling/v2beta2/namespaces/{stage.space}/horizontalpodautoscalers"
    with external_metrics.serving(stage.api, stage.plane.folder) as metrics:
        metrics.value = 5
        async with stage.operator():
            stage.apply(**bounds, autoscaling__mode="External")
            await stage.serves()
            assert stage.api.send("POST", path, scaler).status == 201
            metrics.value = 10
            await stage.serves(1, 2)
            metrics.value = 100
            await stage.serves(1, 3)
            assert stage.read(POOLS, "chat-decode")["spec"]["replicas"] == 4
            assert stage.condition("ScalingLimited")[1] == "OutOfBounds"
            metrics.value = 1
            await stage.serves()
            written = stage.read(POOLS, "chat-decode")["metadata"]["annotations"]["baton.dev/replicas"]
            assert written == "1", "the operator wrote when it made the pool, and not again"
            assert stage.api.send("DELETE", f"{path}/chat-decode").status == 200
