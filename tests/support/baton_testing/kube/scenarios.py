"""Scripts of users and clusters for one deployment on a `World`, each with what must hold meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from baton_operator.kube.kinds import DEPLOYMENTS, MONITORS, PODS, POLICIES, POOLS, RECORDS, SERVICES, WORKERS
from baton_operator.kube.kube_api import Change, Resource
from baton_operator.objects.metadata import ROLE_LABEL
from baton_operator.objects.network_settings import NetworkSettings, WorkloadPolicies
from baton_testing.kube.store import Json
from baton_testing.kube.world import EMBEDS, NAME, SPACE, Promise, World, newer
from baton_wire.messages.values import Role

Script = Callable[[World], Awaitable[None]]
OTHER_MODEL = {"model__source": "pvc://models/b"}
MORE_MEMORY = {"prefill__resources": {"memory": "2Gi"}, "decode__resources": {"memory": "2Gi"}}
MIDWAY_S = 12.0
"""Into a rollout, while the first new workers start."""
KEPT = Promise()


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    script: Script
    promise: Promise = KEPT
    is_fresh: bool = False
    """Begins with an empty cluster, not with a deployment that serves."""
    has_links: bool = False
    """Gateways tell the operator who serves, and pass on what it orders."""


async def create(world: World) -> None:
    world.user_applies()


async def create_with_canary_limits(world: World) -> None:
    world.user_applies(rollout={"canary": 50, "maxSurge": 2})


async def one_pool_is_created_edited_and_put_to_sleep(world: World) -> None:
    world.user_applies(model__tasks=EMBEDS)
    await asyncio.sleep(60)
    more: dict[str, object] = {"model__tasks": EMBEDS, "prefill__resources": MORE_MEMORY["prefill__resources"]}
    world.user_applies(**more)
    await asyncio.sleep(MIDWAY_S)
    world.user_applies(**more, prefill__replicas={"min": 0, "max": 2}, autoscaling__mode="Off")
    for count in (0, 2):
        await asyncio.sleep(60)
        world.user_scales(POOLS, "chat-prefill", count)


async def edit_a_template(world: World) -> None:
    world.user_applies(**MORE_MEMORY)


async def edit_one_pool(world: World) -> None:
    world.user_applies(decode__resources={"memory": "2Gi"})


async def edit_the_model(world: World) -> None:
    world.user_applies(**OTHER_MODEL)


async def edit_the_gateway(world: World) -> None:
    world.user_applies(gateway={"processes": 2, "replicas": 2})


async def edit_what_moves_no_pod(world: World) -> None:
    world.user_applies(slo={"ttft": {"target": "300ms"}})


async def scale_up(world: World) -> None:
    world.user_edits("decode.replicas", {"min": 3, "max": 4})


async def scale_down(world: World) -> None:
    world.user_edits("prefill.replicas", {"min": 1, "max": 1})
    world.user_edits("decode.replicas", {"min": 1, "max": 1})


async def sleep_and_wake(world: World) -> None:
    for low in (0, 2):
        replicas = {"min": low, "max": max(low, 1)}
        world.user_applies(prefill__replicas=replicas, decode__replicas=replicas)
        await asyncio.sleep(60)


async def revert_midway(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    world.user_applies()


async def edit_twice_quickly(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    world.user_applies(model__source="pvc://models/c")
    await asyncio.sleep(3.0)
    world.user_applies(model__source="pvc://models/c", **MORE_MEMORY)


async def edit_without_surge(world: World) -> None:
    world.user_applies(rollout={"maxSurge": 0, "maxUnavailable": 1}, **OTHER_MODEL)


async def delete(world: World) -> None:
    world.user_deletes(DEPLOYMENTS, NAME)


async def delete_midway(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    world.user_deletes(DEPLOYMENTS, NAME)


async def delete_and_create_again(world: World) -> None:
    world.user_deletes(DEPLOYMENTS, NAME)
    world.user_applies(**MORE_MEMORY)


async def a_pool_is_deleted_by_hand(world: World) -> None:
    world.user_deletes(POOLS, f"{NAME}-decode")


async def the_workers_are_deleted_by_hand(world: World) -> None:
    world.user_deletes(WORKERS, world.worker_sets(Role.DECODE)[0]["metadata"]["name"])


async def the_workers_are_deleted_midway(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    for worker_set in world.worker_sets(Role.PREFILL):
        world.user_deletes(WORKERS, worker_set["metadata"]["name"])


async def a_service_is_deleted_by_hand(world: World) -> None:
    world.user_deletes(SERVICES, f"{NAME}-gateway")


async def the_records_are_deleted_midway(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    for record in list(world.store.all(RECORDS, SPACE)):
        world.user_deletes(RECORDS, record["metadata"]["name"])


async def the_workers_are_scaled_by_hand(world: World) -> None:
    world.user_scales(WORKERS, world.worker_sets(Role.DECODE)[0]["metadata"]["name"], 5)


async def the_gateway_is_edited_by_hand(world: World) -> None:
    body = world.store.read(WORKERS, SPACE, f"{NAME}-gateway")
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "somebody/else:1"
    world.by_hand = True
    world.store.replace(WORKERS, body, "kubectl-edit")
    world.by_hand = False


async def a_pod_is_deleted(world: World) -> None:
    pod = next(candidate for candidate in world.store.all(PODS, SPACE) if _label(candidate, ROLE_LABEL) == Role.DECODE)
    world.user_deletes(PODS, pod["metadata"]["name"])


def _label(body: Json, name: str) -> str:
    return str(body["metadata"].get("labels", {}).get(name, ""))


async def switch_off_and_scale(world: World) -> None:
    world.user_edits("autoscaling.mode", "Off")
    await asyncio.sleep(20)
    world.user_edits("decode.replicas.max", 4)
    world.user_scales(POOLS, f"{NAME}-decode", 4)


async def switch_to_an_autoscaler_and_back(world: World) -> None:
    world.user_edits("autoscaling.mode", "External")
    world.user_edits("decode.replicas.max", 4)
    await asyncio.sleep(20)
    world.user_scales(POOLS, f"{NAME}-decode", 3, "hpa")
    await asyncio.sleep(60)
    world.user_edits("autoscaling.mode", "SLO")


async def switch_midway(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    world.user_edits("autoscaling.mode", "Off")


async def scale_midway(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    world.user_edits("decode.replicas", {"min": 4, "max": 4})


async def rotate_the_keys(world: World) -> None:
    world.masters["second"] = b"n" * 32
    world.keys_changed()
    await asyncio.sleep(60)
    del world.masters["first"]
    world.keys_changed()


async def upgrade_the_operator(world: World) -> None:
    world.platform = newer(world.platform)
    await world.restart()


async def upgrade_the_operator_midway(world: World) -> None:
    """The operator that begins a rollout gives it its images: the old one, however late it sees the edit."""
    old = len(world.worker_sets(Role.DECODE))
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    for _ in range(300):
        if len(world.worker_sets(Role.DECODE)) > old:
            break
        await asyncio.sleep(1.0)
    world.platform = newer(world.platform)
    await world.restart()


async def upgrade_the_images(world: World) -> None:
    world.platform = newer(world.platform)
    await world.restart()
    await asyncio.sleep(30)
    body = world.store.read(DEPLOYMENTS, SPACE, NAME)
    body["metadata"]["annotations"] = {"baton.dev/upgrade": "1"}
    world.store.replace(DEPLOYMENTS, body, "kubectl-edit")


async def a_canary_and_then_all(world: World) -> None:
    world.user_applies(rollout={"canary": 50}, **OTHER_MODEL)
    await asyncio.sleep(150)
    world.user_edits("rollout.canary", 0)


async def a_canary_and_back(world: World) -> None:
    world.user_applies(rollout={"canary": 50}, **MORE_MEMORY)
    await asyncio.sleep(150)
    world.user_applies(rollout={"canary": 50})


async def pause_midway_and_go_on(world: World) -> None:
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(MIDWAY_S)
    world.user_edits("rollout.paused", True)
    await asyncio.sleep(90)
    world.user_edits("rollout.paused", False)


async def sleep_and_wake_while_paused(world: World) -> None:
    world.user_applies(rollout={"paused": True}, **OTHER_MODEL)
    for low in (0, 2):
        replicas = {"min": low, "max": max(low, 1)}
        world.user_applies(
            rollout={"paused": True}, prefill__replicas=replicas, decode__replicas=replicas, **OTHER_MODEL
        )
        await asyncio.sleep(60)


async def a_template_that_crashes(world: World) -> None:
    world.cluster.weather.fails = lambda pod: "2Gi" in str(pod["spec"])
    world.user_applies(**MORE_MEMORY)
    await asyncio.sleep(200)
    world.user_applies(**OTHER_MODEL)


async def a_surge_without_room(world: World) -> None:
    world.cluster.weather.room = 4
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(200)
    world.cluster.weather.room = None
    world.cluster.nudge()


async def a_quota_in_the_way(world: World) -> None:
    world.cluster.weather.quota = 5
    world.user_applies(**OTHER_MODEL)
    await asyncio.sleep(100)
    world.cluster.weather.quota = None
    world.cluster.nudge()


async def a_name_that_is_taken(world: World) -> None:
    service: Json = {"apiVersion": "v1", "kind": "Service", "spec": {"clusterIP": "None", "ports": [{"port": 1}]}}
    service["metadata"] = {"name": f"{NAME}-gateway", "namespace": SPACE, "labels": {"mine": "yes"}}
    world.store.create(SERVICES, service, "somebody")
    world.user_applies()
    await asyncio.sleep(60)
    assert world.store.read(SERVICES, SPACE, f"{NAME}-gateway")["metadata"]["labels"] == {"mine": "yes"}
    world.user_deletes(SERVICES, f"{NAME}-gateway")


async def optional_objects_come_and_go(world: World) -> None:
    plain = world.platform
    no_policies = NetworkSettings(workloads=WorkloadPolicies.OFF)
    world.platform = replace(plain, monitors=True, alerts=True, network=no_policies)
    await world.restart()
    world.user_applies(gateway={"route": {"parent": "edge"}, "openAccess": True, "autoscaling": {"min": 2, "max": 4}})
    await asyncio.sleep(30)
    world.user_applies(gateway={"route": {"parent": "other"}, "openAccess": True, "autoscaling": {"max": 4}})
    await asyncio.sleep(30)
    assert len(list(world.store.all(MONITORS, SPACE))) == 3
    assert list(world.store.all(POLICIES, SPACE)) == []
    world.platform = plain
    await world.restart()
    world.user_edits("gateway", {})
    await asyncio.sleep(30)
    assert len(list(world.store.all(POLICIES, SPACE))) == 4


async def an_autoscaler_sizes_the_gateway(world: World) -> None:
    """From three gateways on there are never fewer, whichever writer sets the number at that moment."""
    gateway = f"{NAME}-gateway"

    def seen(resource: Resource, change: Change, before: Json | None, after: Json) -> None:
        if resource == WORKERS and after["metadata"]["name"] == gateway and after["spec"]["replicas"] < 3:
            world.broken.append(f"{after['spec']['replicas']} gateways")

    world.user_edits("gateway.replicas", 3)
    await asyncio.sleep(90)
    world.store.on_commit.append(seen)
    world.user_edits("gateway", {"autoscaling": {"min": 2, "max": 6}})
    await asyncio.sleep(90)
    world.user_scales(WORKERS, gateway, 5, "kube-controller-manager")
    await asyncio.sleep(30)
    world.user_edits("gateway.processes", 2)


async def a_spec_that_slipped_through(world: World) -> None:
    """A rule that an older definition did not have."""
    world.store.kinds.is_strict = False
    world.user_edits("rollout", {"maxSurge": 0, "maxUnavailable": 0, "canary": 0, "paused": False})
    world.store.kinds.is_strict = True
    await asyncio.sleep(30)
    world.user_edits("rollout", {"maxSurge": 1, "maxUnavailable": 0, "canary": 0, "paused": False})
    world.user_applies(**OTHER_MODEL)


def flexible(prefill: int, decode: int) -> dict[str, object]:
    """Fields of a deployment whose workers flip, with the sizes of its pools."""
    pools = {"prefill__replicas": prefill, "decode__replicas": decode}
    sizes: dict[str, object] = {name: {"min": count, "max": count} for name, count in pools.items()}
    return {"autoscaling": {"mode": "Off", "flips": True}, **sizes}


def pods_of(world: World, role: Role) -> list[Json]:
    return [pod for pod in world.store.all(PODS, SPACE) if pod["metadata"]["labels"].get(ROLE_LABEL) == role]


async def flip_there_and_back(world: World) -> None:
    """No Pod is made for it, and none goes."""
    world.user_applies(**flexible(2, 2))
    await asyncio.sleep(60)
    before = world.cluster.times.pods
    for prefill, decode in ((1, 3), (3, 1), (2, 2)):
        world.user_applies(**flexible(prefill, decode))
        await asyncio.sleep(30)
    if world.cluster.times.pods != before and not world.kube.is_done:
        world.broken.append(f"{world.cluster.times.pods - before} Pods were made for flips")


async def flip_and_lose_the_pod(world: World) -> None:
    world.user_applies(**flexible(2, 2))
    await asyncio.sleep(60)
    before = {pod["metadata"]["name"] for pod in pods_of(world, Role.DECODE)}
    world.user_applies(**flexible(1, 3))
    await asyncio.sleep(10)
    gone = [pod for pod in pods_of(world, Role.DECODE) if pod["metadata"]["name"] not in before]
    world.user_deletes(PODS, (gone or pods_of(world, Role.DECODE))[0]["metadata"]["name"])
    await asyncio.sleep(30)
    world.user_applies(**flexible(1, 2))
    await asyncio.sleep(30)
    world.user_applies(**flexible(3, 1))


async def flip_in_the_middle_of_a_rollout(world: World) -> None:
    world.user_applies(**flexible(2, 2))
    await asyncio.sleep(60)
    world.user_applies(**flexible(2, 2), **MORE_MEMORY)
    await asyncio.sleep(MIDWAY_S)
    world.user_applies(**flexible(3, 1), **MORE_MEMORY)


async def begin_and_end_to_flip(world: World) -> None:
    """Pools of one role each become one of both, and come apart again."""
    world.user_applies(**(flexible(2, 2) | {"autoscaling": {"mode": "Off"}}))
    await asyncio.sleep(60)
    world.user_applies(**flexible(2, 2))
    await asyncio.sleep(90)
    world.user_applies(**(flexible(2, 2) | {"autoscaling": {"mode": "Off"}}))


LOW = Promise(floor=1, most=3)
SCENARIOS = (
    Scenario("create", create, is_fresh=True),
    Scenario("create with canary limits", create_with_canary_limits, Promise(most=4), is_fresh=True),
    Scenario(
        "one pool is created, edited and put to sleep",
        one_pool_is_created_edited_and_put_to_sleep,
        Promise(floor=0),
        is_fresh=True,
    ),
    Scenario("a name that is taken", a_name_that_is_taken, is_fresh=True),
    Scenario("edit a template", edit_a_template),
    Scenario("edit one pool", edit_one_pool),
    Scenario("edit the model", edit_the_model),
    Scenario("edit the gateway", edit_the_gateway),
    Scenario("edit what moves no Pod", edit_what_moves_no_pod),
    Scenario("edit without surge", edit_without_surge, Promise(floor=1, most=2)),
    Scenario("edit twice quickly", edit_twice_quickly),
    Scenario("scale up", scale_up),
    Scenario("scale down", scale_down, LOW),
    Scenario("scale midway", scale_midway, Promise(most=5)),
    Scenario("sleep and wake", sleep_and_wake, Promise(floor=0)),
    Scenario("revert midway", revert_midway),
    Scenario("delete", delete),
    Scenario("delete midway", delete_midway),
    Scenario("delete and create again", delete_and_create_again, Promise(floor=0)),
    Scenario("a pool is deleted by hand", a_pool_is_deleted_by_hand),
    Scenario("the workers are deleted by hand", the_workers_are_deleted_by_hand, Promise(floor=0)),
    Scenario("the workers are deleted midway", the_workers_are_deleted_midway, Promise(floor=0)),
    Scenario("the workers are scaled by hand", the_workers_are_scaled_by_hand, Promise(most=5)),
    Scenario("a service is deleted by hand", a_service_is_deleted_by_hand),
    Scenario("the records are deleted midway", the_records_are_deleted_midway),
    Scenario("the gateway is edited by hand", the_gateway_is_edited_by_hand),
    Scenario("a Pod is deleted", a_pod_is_deleted, LOW),
    Scenario("switch off and scale", switch_off_and_scale, Promise(most=4)),
    Scenario("switch to an autoscaler and back", switch_to_an_autoscaler_and_back, Promise(most=4)),
    Scenario("switch midway", switch_midway),
    Scenario("rotate the keys", rotate_the_keys),
    Scenario("upgrade the operator", upgrade_the_operator),
    Scenario("upgrade the operator midway", upgrade_the_operator_midway),
    Scenario("upgrade the images", upgrade_the_images),
    Scenario("a canary and then all", a_canary_and_then_all),
    Scenario("a canary and back", a_canary_and_back),
    Scenario("pause midway and go on", pause_midway_and_go_on),
    Scenario("sleep and wake while paused", sleep_and_wake_while_paused, Promise(floor=0)),
    Scenario("a template that crashes", a_template_that_crashes),
    Scenario("a surge without room", a_surge_without_room),
    Scenario("a quota in the way", a_quota_in_the_way),
    Scenario("optional objects come and go", optional_objects_come_and_go),
    Scenario("an autoscaler sizes the gateway", an_autoscaler_sizes_the_gateway),
    Scenario("a spec that slipped through", a_spec_that_slipped_through),
    Scenario("flip there and back", flip_there_and_back, LOW, is_fresh=True, has_links=True),
    Scenario("flip and lose the Pod", flip_and_lose_the_pod, LOW, is_fresh=True, has_links=True),
    Scenario(
        "flip in the middle of a rollout", flip_in_the_middle_of_a_rollout, Promise(1, 4), is_fresh=True, has_links=True
    ),
    Scenario("begin and end to flip", begin_and_end_to_flip, Promise(2, 3), is_fresh=True, has_links=True),
)
