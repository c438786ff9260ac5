"""With images of another release, gateways wait for workers that they can use: a whole rollout on virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from baton_control.names import Key, gateway_name
from baton_control.rollout import Limits, Wanted
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POOLS, WORKERS
from baton_operator.objects.cluster import Platform
from baton_operator.objects.metadata import ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.passes.held_gateway import find_held_gateway
from baton_operator.passes.snapshot import take_snapshot
from baton_operator.passes.template_records import Stored
from baton_operator.telemetry import GatewayReport
from baton_testing.kube.calm_world import play
from baton_testing.kube.cluster import is_ready
from baton_testing.kube.planted_causes import until
from baton_testing.kube.store import Json
from baton_testing.kube.world import DIGEST, LINKED, NAME, PLATFORM, SPACE, World
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES, Role

OLD = {PLATFORM.worker_image: "old", PLATFORM.gateway_image: "old"}
LINGERS_S = 60.0
"""For this long after a refused link, the operator counts the gateway that dialled as one of another release."""
TWO: dict[str, Any] = {"prefill__replicas": {"min": 1, "max": 2}, "decode__replicas": {"min": 2, "max": 3}}


def newer(platform: Platform) -> Platform:
    """The installation with the images of the next release."""
    return replace(platform, worker_image=DIGEST + "c" * 64, gateway_image=DIGEST + "d" * 64)


def release_of(pod: Json) -> str:
    return OLD.get(pod["spec"]["containers"][0]["image"], "new")


class Releases:
    """Gateways that link workers of their own release alone, and the refusal of each that is not of the operator's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._refused_s = -LINGERS_S
        self.lost: list[str] = []
        """Moments at which a ready gateway had no pair of workers."""
        self.is_watched = False
        self.operator_release = "new"
        world.store.on_commit.append(lambda resource, change, before, after: self._watch())

    def ready(self, role: Role) -> Counter[str]:
        """Ready Pods of a role by release."""
        pods = [pod for pod in self._world.store.all(PODS, SPACE) if pod["metadata"]["labels"].get(ROLE_LABEL) == role]
        return Counter(release_of(pod) for pod in pods if is_ready(pod))

    def _watch(self) -> None:
        if not self.is_watched:
            return
        for release in self.ready(Role.GATEWAY):
            lacking = [role.value for role in POOL_ROLES if not self.ready(role)[release]]
            if lacking:
                self.lost.append(f"{self._world.clock():.0f} s: a gateway of the {release} release has no {lacking}")
        if not self.ready(Role.GATEWAY):
            self.lost.append(f"{self._world.clock():.0f} s: no gateway")

    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport | None:
        now = self._world.clock()
        gateways = self.ready(Role.GATEWAY)
        if gateways.total() > gateways[self.operator_release]:
            self._refused_s = now
        if now - self._refused_s < LINGERS_S:
            return GatewayReport(None, other_version="version: 11..11 here, 3..3 there")
        counts: Counter[tuple[Role, str]] = Counter()
        for pod in self._world.store.all(PODS, SPACE):
            labels = pod["metadata"]["labels"]
            if is_ready(pod) and TEMPLATE_LABEL in labels and release_of(pod) == self.operator_release:
                counts[Role(labels[ROLE_LABEL]), labels[TEMPLATE_LABEL]] += 1
        return GatewayReport(counts, linked=frozenset(counts))

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        assert flips == (), "nobody flips here"


async def upgrade(world: World, platform: Platform = LINKED) -> None:
    """Start the operator of the next release, and ask for its images."""
    world.platform = newer(platform)
    await world.restart()
    await asyncio.sleep(20.0)
    annotate(world, "1")


def annotate(world: World, value: str) -> None:
    body = world.store.read(DEPLOYMENTS, SPACE, NAME)
    body["metadata"]["annotations"] = {"baton.dev/upgrade": value}
    world.store.replace(DEPLOYMENTS, body, "kubectl-annotate")


def restart_new(world: World) -> None:
    """Crashed Pods of the new release are made anew."""
    for pod in [pod for pod in world.store.all(PODS, SPACE) if release_of(pod) == "new"]:
        world.store.delete(PODS, SPACE, pod["metadata"]["name"])


def gateway_image(world: World) -> str:
    template = world.store.read(WORKERS, SPACE, gateway_name(NAME))["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


def progress(world: World) -> tuple[str, str]:
    conditions = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["conditions"]
    return next((entry["reason"], entry["message"]) for entry in conditions if entry["type"] == "Progressing")


def all_new(releases: Releases) -> bool:
    return all(set(releases.ready(role)) == {"new"} for role in (*POOL_ROLES, Role.GATEWAY))


@pytest.mark.parametrize("surge", [1, "100%"])
def test_an_upgrade_over_a_change_of_the_wire_leaves_no_ready_gateway_without_workers_that_it_can_use(
    surge: int | str,
) -> None:
    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        releases.is_watched = True
        await upgrade(world)
        await until(lambda: bool(releases.ready(Role.GATEWAY)["new"]), 600.0)
        expected = {role: 1 if surge == 1 else wanted for role, wanted in ((Role.PREFILL, 1), (Role.DECODE, 2))}
        assert {role: releases.ready(role)["new"] for role in POOL_ROLES} == expected
        await until(lambda: all_new(releases) and progress(world)[0] == "RolloutComplete", 900.0)
        assert progress(world)[0] == "RolloutComplete"
        assert {role: releases.ready(role)["new"] for role in POOL_ROLES} == {Role.PREFILL: 1, Role.DECODE: 2}
        assert releases.lost == []

    play(script, platform=LINKED, rollout__maxSurge=surge, **TWO)


def test_a_rollback_needs_the_former_operator_and_another_value_and_goes_as_an_upgrade_does() -> None:
    """As docs/install.md says: the annotation asks for the images of the operator that runs, whatever its value."""

    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        releases.is_watched = True
        annotate(world, "0")
        await asyncio.sleep(60.0)
        await upgrade(world)
        await until(lambda: all_new(releases), 900.0)
        annotate(world, "0")
        await asyncio.sleep(300.0)
        assert all_new(releases), "the former value does not bring the former images back"
        world.platform, releases.operator_release = LINKED, "old"
        await world.restart()
        await asyncio.sleep(300.0)
        assert all_new(releases), "the former operator restarts nothing by itself"
        annotate(world, "2")
        await asyncio.sleep(20.0)
        await until(lambda: progress(world)[0] == "RolloutComplete", 900.0)
        assert not any(releases.ready(role)["new"] for role in (*POOL_ROLES, Role.GATEWAY))
        assert {role: releases.ready(role)["old"] for role in POOL_ROLES} == {Role.PREFILL: 1, Role.DECODE: 2}
        assert gateway_image(world) == PLATFORM.gateway_image
        assert releases.lost == []

    play(script, platform=LINKED, **TWO)


@pytest.mark.parametrize("reason", ["Paused", "NewTemplateFails", "Unschedulable"])
def test_gateways_keep_their_images_as_long_as_the_rollout_of_their_workers_stands_still(reason: str) -> None:
    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        releases.is_watched = True
        if reason == "NewTemplateFails":
            world.cluster.weather.fails = lambda pod: release_of(pod) == "new"
        elif reason == "Unschedulable":
            world.cluster.weather.room = 3
        await upgrade(world)
        await asyncio.sleep(1800.0)
        assert reason in (progress(world)[0], world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["summary"])
        assert "gateways keep their images until workers of the new ones are ready" in progress(world)[1]
        assert gateway_image(world) == PLATFORM.gateway_image
        world.cluster.weather.fails, world.cluster.weather.room = (lambda pod: False), None
        world.user_edits("rollout.paused", value=False)
        if reason == "NewTemplateFails":
            restart_new(world)
        world.cluster.nudge()
        await until(lambda: all_new(releases), 900.0)
        assert all_new(releases)
        assert releases.lost == []

    play(script, platform=LINKED, rollout__paused=reason == "Paused", **TWO)


def test_without_room_for_a_surge_nothing_is_waited_for_and_the_rollout_comes_to_its_end() -> None:
    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        await upgrade(world)
        await until(lambda: all_new(releases), 900.0)
        assert all_new(releases)

    play(script, platform=LINKED, rollout__maxSurge=0, rollout__maxUnavailable=1, **TWO)


def test_edits_of_the_gateway_and_another_upgrade_wait_as_well_while_the_former_template_is_held() -> None:
    """The record of the former gateways stays, though no worker runs from it any more."""

    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        releases.is_watched = True
        await upgrade(world)
        world.cluster.weather.fails = lambda pod: release_of(pod) == "new"
        await asyncio.sleep(300.0)
        held = world.store.read(WORKERS, SPACE, gateway_name(NAME))["spec"]["template"]
        world.user_edits("gateway.limits", value={"maxInFlight": 77})
        world.user_edits("decode.resources", value={"memory": "3Gi"})
        await asyncio.sleep(300.0)
        assert world.store.read(WORKERS, SPACE, gateway_name(NAME))["spec"]["template"] == held
        world.platform = replace(world.platform, gateway_image=DIGEST + "e" * 64, worker_image=DIGEST + "f" * 64)
        await world.restart()
        annotate(world, "2")
        await asyncio.sleep(300.0)
        assert world.store.read(WORKERS, SPACE, gateway_name(NAME))["spec"]["template"] == held
        world.cluster.weather.fails = lambda pod: DIGEST + "c" * 64 in str(pod)
        restart_new(world)
        await until(lambda: gateway_image(world) == DIGEST + "e" * 64, 600.0)
        assert gateway_image(world) == DIGEST + "e" * 64
        await until(lambda: all_new(releases) and progress(world)[0] == "RolloutComplete", 900.0)
        assert progress(world)[0] == "RolloutComplete"
        assert releases.lost == []

    play(script, platform=LINKED, **TWO)


def test_gateways_without_a_link_to_the_operator_wait_too_and_are_named() -> None:
    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        releases.is_watched = True
        await upgrade(world, LINKED)
        await until(lambda: progress(world)[1] != "", 60.0)
        body = world.store.read(DEPLOYMENTS, SPACE, NAME)
        assert {entry["status"] for entry in body["status"]["conditions"] if entry["type"] == "Ready"} == {"True"}
        await until(lambda: all_new(releases) and progress(world)[0] == "RolloutComplete", 900.0)
        assert progress(world)[0] == "RolloutComplete"
        assert releases.lost == []

    play(script, **TWO)


def test_pools_that_sleep_let_gateways_have_their_new_images_at_once() -> None:
    async def script(world: World) -> None:
        releases = world.telemetry = Releases(world)
        world.user_scales(POOLS, "chat-prefill", 0)
        world.user_scales(POOLS, "chat-decode", 0)
        await world.settle()
        await upgrade(world)
        await until(lambda: gateway_image(world) == DIGEST + "d" * 64, 30.0)
        assert gateway_image(world) == DIGEST + "d" * 64
        assert releases.ready(Role.PREFILL) == Counter()

    play(
        script,
        prefill__replicas={"min": 0, "max": 2},
        decode__replicas={"min": 0, "max": 2},
        autoscaling__mode="External",
    )


def test_former_workers_that_all_crash_hold_no_gateway_where_nodes_have_no_room_for_more() -> None:
    """The former pair serves nothing, and its workers have the room of those that mend it."""

    async def script(world: World) -> None:
        def is_former_worker(pod: Json) -> bool:
            return release_of(pod) == "old" and TEMPLATE_LABEL in pod["metadata"]["labels"]

        releases = world.telemetry = Releases(world)
        world.cluster.weather.fails, world.cluster.weather.room = is_former_worker, 4
        for pod in filter(is_former_worker, list(world.store.all(PODS, SPACE))):
            world.store.delete(PODS, SPACE, pod["metadata"]["name"])
        await asyncio.sleep(600.0)
        assert releases.ready(Role.PREFILL) == releases.ready(Role.DECODE) == Counter()
        await upgrade(world)
        await until(lambda: all_new(releases), 900.0)
        assert all_new(releases), progress(world)

    play(script, platform=LINKED, **TWO)


def test_gateways_whose_images_a_webhook_rewrites_wait_too() -> None:
    """No record has the image of the live gateways."""

    async def script(world: World) -> None:
        world.telemetry = Releases(world)
        world.cluster.weather.fails = lambda pod: release_of(pod) == "new"
        await upgrade(world)
        await asyncio.sleep(60.0)
        assert world.runtime is not None
        snapshot = take_snapshot(Key(SPACE, NAME), world.runtime.caches)
        assert snapshot is not None
        former, current = sorted(snapshot.records, key=lambda stored: stored.number)
        wanted = {role: Wanted(current.record.rendered[role].revision, 1) for role in POOL_ROLES}

        def held(image: str) -> Stored | None:
            body = world.store.read(WORKERS, SPACE, gateway_name(NAME))
            body["spec"]["template"]["spec"]["containers"][0]["image"] = image
            seen = replace(snapshot, live_sets={**snapshot.live_sets, gateway_name(NAME): body})
            none: frozenset[Role] = frozenset()
            return find_held_gateway(seen, current.record, snapshot.sets, wanted, Limits(1, 0), none, paused=False)

        assert held("mirror.example.com/baton@sha256:0") == former
        assert held(former.record.gateway_image) == former
        assert held(current.record.gateway_image) is None

    play(script, platform=LINKED, **TWO)
