"""The operator on a real control plane: what users and colleagues do to a deployment, and what becomes of it.

No node runs Pods here: the test plays the kubelet, and a fake of the gateways calls every ready worker routable.
"""

from __future__ import annotations

import asyncio
import copy
import functools
from collections import Counter
from dataclasses import replace
from typing import Any

from baton_operator.kube.kinds import DEPLOYMENTS, EVENTS, PODS, POOLS, RECORDS, SECRETS, SERVICES, WORKERS
from baton_operator.objects.cluster import Platform
from baton_operator.objects.metadata import ROLE_LABEL
from baton_testing.kube import external_metrics
from baton_testing.kube.stage import DIGEST, PLATFORM, Stage

Json = dict[str, Any]


def records(stage: Stage) -> list[str]:
    return [record["metadata"]["name"] for record in stage.all(RECORDS)]


def owned(stage: Stage) -> list[str]:
    """Names of everything that carries the deployment's name, by kind."""
    names = []
    for resource in (SERVICES, SECRETS, WORKERS, RECORDS, POOLS, PODS):
        names += [f"{resource.kind} {e['metadata']['name']}" for e in stage.all(resource)]
    for path in ("/apis/networking.k8s.io/v1", "/api/v1"):
        plural = "networkpolicies" if "networking" in path else "serviceaccounts"
        items = stage.api.send("GET", f"{path}/namespaces/{stage.space}/{plural}").body["items"]
        names += [f"{plural} {item['metadata']['name']}" for item in items]  # type: ignore[attr-defined]
    return sorted(name for name in names if name.split()[1].startswith("chat") and "-token-" not in name)


async def test_apply_makes_everything_a_restart_writes_nothing_and_delete_leaves_nothing(stage: Stage) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        created = owned(stage)
        for name in ("Service chat-gateway", "Secret chat-keys", "LLMPool chat-decode", "networkpolicies chat-default"):
            assert name in created
        first = dict(stage.writes())
        # Usually two; six where Pods get ready one by one, seconds apart.
        assert first["patch", "llmdeployments"] <= 12, "status writes"
        await stage.settled()
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
                condition["type"] == "Ready" and condition["status"] == "True"
                for condition in pod["status"].get("conditions", ())
            )
        ]

    def are_others(role: str, count: int, before: set[str]) -> bool:
        for pool in fewest:
            fewest[pool] = min(fewest[pool], len(ready(pool)))
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
        assert min(fewest.values()) >= 1, "looks are samples: a worker may have been missing between two of them"
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
        assert min(fewest.values()) >= 1, "looks are samples: a worker may have been missing between two of them"


async def test_what_others_change_or_delete_is_put_back(stage: Stage) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        before, created = stage.workers(), owned(stage)
        stage.patch(SERVICES, "chat-decode", "spec.selector", {"baton.dev/deployment": "other"})
        stage.patch(WORKERS, next(iter(before)), "spec.replicas", 0)
        stage.delete(POOLS, "chat-prefill")
        stage.delete(RECORDS, next(name for name in records(stage) if "-templates-" in name))
        stage.delete(WORKERS, list(before)[1])
        keys = stage.read(SECRETS, "chat-keys")
        stage.delete(SECRETS, "chat-keys")
        await stage.until("the keys again", lambda: stage.read(SECRETS, "chat-keys")["data"] == keys["data"])
        await stage.until(
            "all there again", lambda: stage.workers() == before and len(owned(stage)) >= len(created) - 2
        )
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
        await stage.until("NameTaken", lambda: stage.condition("Degraded")[:2] == ("True", "NameTaken"))
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
        await stage.until("ForeignWriter", lambda: stage.condition("ScalingLimited")[:2] == ("True", "ForeignWriter"))
        await asyncio.sleep(3.0)
        assert stage.read(POOLS, "chat-decode")["spec"]["replicas"] == 1, "the operator does not fight over it"
        await stage.serves(3, 2)


async def test_workers_flip_by_their_pods_labels_and_services_follow(stage: Stage) -> None:
    """No worker is started or stopped for a flip; a Pod that is lost comes back in the role that it had."""

    def sizes(prefill: int, decode: int) -> dict[str, object]:
        pools = {"prefill__replicas": prefill, "decode__replicas": decode}
        return {name: {"min": count, "max": count} for name, count in pools.items()}

    def roles() -> dict[str, str]:
        staying = [pod for pod in stage.all(PODS) if "-flexible-" in pod["metadata"]["name"]]
        staying = [pod for pod in staying if "deletionTimestamp" not in pod["metadata"]]
        return {pod["metadata"]["uid"]: pod["metadata"]["labels"][ROLE_LABEL] for pod in staying}

    def are(prefill: int, decode: int) -> bool:
        status = stage.read(DEPLOYMENTS, "chat").get("status", {})
        routable = tuple(status.get(role, {}).get("routable") for role in ("prefill", "decode"))
        selected_pods = []
        for role in ("prefill", "decode"):
            selected = stage.read(SERVICES, f"chat-{role}")["spec"]["selector"].items()
            selected_pods.append(sum(selected <= pod["metadata"]["labels"].items() for pod in stage.all(PODS)))
        labelled = Counter(roles().values())
        counts = (labelled["prefill"], labelled["decode"])
        return counts == routable == tuple(selected_pods) == (prefill, decode) and list(stage.workers().values()) == [
            prefill + decode
        ]

    flexible = {"autoscaling__flips": True}
    platform = replace(PLATFORM, operator_service="baton-operator")
    async with stage.operator(platform):
        stage.apply(**flexible, **sizes(2, 2))
        await stage.until("two of each", lambda: are(2, 2))
        before, deployment = roles(), stage.workers()
        for prefill, decode in ((1, 3), (3, 1), (2, 2)):
            stage.apply(**flexible, **sizes(prefill, decode))
            await stage.until(f"{prefill} and {decode}", functools.partial(are, prefill, decode))
            assert roles().keys() == before.keys()
        stage.apply(**flexible, **sizes(1, 3))
        await stage.until("one and three", lambda: are(1, 3))
        flipped = next(uid for uid, role in roles().items() if role == "decode" != before[uid])
        stage.delete(PODS, next(p["metadata"]["name"] for p in stage.all(PODS) if p["metadata"]["uid"] == flipped))
        await stage.until("another one in its place", lambda: flipped not in roles() and are(1, 3))
        stage.apply(**flexible, **sizes(1, 1))
        await stage.until("one of each", lambda: are(1, 1))
        assert stage.workers().keys() == deployment.keys()
        await stage.settled()
    async with stage.operator(platform):
        await asyncio.sleep(4.0)
        late = {("patch", "controllerrevisions"): 1}  # the last minute of the history
        assert stage.writes() in ({}, late), "an operator that comes after it finds nothing to do"
        stage.apply(**flexible, **sizes(1, 1), decode__engine={"maxSequences": 9})
        await stage.until("Unsupported", lambda: stage.condition("Degraded")[:2] == ("True", "Unsupported"))
        assert "spec.autoscaling.flips: prefill and decode have unequal `engine`" in stage.condition("Degraded")[2]


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


async def test_what_was_deleted_without_its_objects_is_reported_and_taken_over(stage: Stage) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        pods = {pod["metadata"]["uid"] for pod in stage.all(PODS)}
        orphan = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan"}
        assert stage.api.send("DELETE", stage.path(DEPLOYMENTS, "chat"), orphan).status == 200
        await stage.until("gone", lambda: stage.api.send("GET", stage.path(DEPLOYMENTS, "chat")).status == 404)
        stage.apply()
        await stage.until("NameTaken", lambda: stage.condition("Degraded")[:2] == ("True", "NameTaken"))
        # An Event follows the status that it belongs to.
        await stage.until("an Event", lambda: "NameTaken" in {event["reason"] for event in stage.all(EVENTS)})
        stage.patch(DEPLOYMENTS, "chat", "metadata.annotations", {"baton.dev/adopt": "true"})
        await stage.serves()
        assert {pod["metadata"]["uid"] for pod in stage.all(PODS)} == pods, "nothing restarted"
