"""The only worker of a pool, and the only gateway, are not evicted before their successors serve."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from baton_operator.kube.kinds import BUDGETS, EVENTS, PODS, WORKERS
from baton_operator.kube.kube_api import Change, Resource
from baton_operator.objects.metadata import ROLE_LABEL
from baton_operator.passes.drain_replacement import GIVE_UP, DrainReplacement, PodPlace, plan_replacement
from baton_testing.kube.calm_world import play
from baton_testing.kube.cluster import is_ready
from baton_testing.kube.world import SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import Role

Json = dict[str, Any]
ONE = {"min": 1, "max": 1}
SINGLE: Any = {"prefill__replicas": ONE, "decode__replicas": ONE}
NOW = datetime(2026, 11, 23, tzinfo=UTC)
OLD, NEW = NOW - 2 * GIVE_UP, NOW - timedelta(minutes=1)
DECODE, HELD = frozenset({Role.DECODE}), {Role.DECODE: 1}


@pytest.mark.parametrize(
    ("count", "places", "emptying", "expected"),
    [
        (1, (PodPlace("a", True, OLD),), None, DrainReplacement()),
        (2, (PodPlace("a", True, OLD), PodPlace("b", True, OLD)), frozenset("a"), DrainReplacement()),
        (0, (PodPlace("a", True, OLD),), frozenset("a"), DrainReplacement()),
        (1, (PodPlace("a", True, OLD),), frozenset("b"), DrainReplacement(HELD)),
        (1, (), frozenset("b"), DrainReplacement(HELD)),
        (1, (PodPlace("a", True, OLD),), frozenset("a"), DrainReplacement(HELD, DECODE)),
        (1, (PodPlace("a", True, OLD), PodPlace("", False, NEW)), frozenset("a"), DrainReplacement(HELD, DECODE)),
        (1, (PodPlace("a", True, OLD), PodPlace("b", True, NEW)), frozenset("a"), DrainReplacement(HELD, DECODE)),
        (
            1,
            (PodPlace("a", True, OLD), PodPlace("", False, OLD)),
            frozenset("a"),
            DrainReplacement({Role.DECODE: 0}, DECODE),
        ),
        (1, (PodPlace("a", True, OLD), PodPlace("b", False, None)), frozenset("a"), DrainReplacement(HELD, DECODE)),
        (1, (PodPlace("b", True, NEW),), frozenset("a"), DrainReplacement(HELD)),
    ],
)
def test_what_is_done_follows_from_places_and_nodes(
    count: int, places: tuple[PodPlace, ...], emptying: frozenset[str] | None, expected: DrainReplacement
) -> None:
    assert plan_replacement({Role.DECODE: count}, {Role.DECODE: places}, emptying, NOW) == expected


def pods_of(world: World, role: Role) -> list[Json]:
    pods = [pod for pod in world.store.all(PODS, SPACE) if pod["metadata"]["labels"].get(ROLE_LABEL) == role]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def budget(world: World, role: Role) -> Json:
    [budget] = [e for e in world.store.all(BUDGETS, SPACE) if e["metadata"]["labels"].get(ROLE_LABEL) == role]
    spec: Json = budget["spec"]
    return spec


async def drained(world: World, node: str) -> int:
    """`kubectl drain`: cordon, then ask every five seconds until every Pod was let go. How often it was refused."""
    world.cordon(node)
    refused = 0
    for _ in range(400):
        left = [pod for role in Role for pod in pods_of(world, role) if pod["spec"].get("nodeName") == node]
        if not left:
            return refused
        refused += sum(not world.evict(pod["metadata"]["name"]) for pod in left)
        await asyncio.sleep(5.0)
    raise AssertionError("the node is never empty")


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_drain_of_every_node_never_takes_the_last_worker_or_gateway(replicas: int) -> None:
    async def script(world: World) -> None:
        ready: list[int] = []
        world.store.on_commit.append(
            lambda *_: ready.append(min(sum(is_ready(pod) for pod in pods_of(world, role)) for role in Role))
        )
        for node in ("node-0", "node-1", "node-2"):
            before = {pod["metadata"]["name"] for role in Role for pod in pods_of(world, role)}
            refused = await drained(world, node)
            moved = before - {pod["metadata"]["name"] for role in Role for pod in pods_of(world, role)}
            assert not moved or refused or replicas == 2
            await world.settle()
            world.cordon(node, is_cordoned=False)
            await world.settle()
            assert [len(pods_of(world, role)) for role in Role] == [replicas] * 3
        assert min(ready) >= 1
        sets = [worker_set["spec"]["replicas"] for worker_set in world.store.all(WORKERS, SPACE)]
        assert sorted(sets) == [replicas] * 3

    bounds = {"min": replicas, "max": replicas}
    play(
        script,
        Promise(floor=1, most=replicas + 1),
        nodes=3,
        prefill__replicas=bounds,
        decode__replicas=bounds,
        gateway__replicas=replicas,
    )


def test_one_worker_more_is_told_and_a_cordon_alone_costs_no_more_than_that() -> None:
    async def script(world: World) -> None:
        assert budget(world, Role.DECODE)["minAvailable"] == 1
        assert "maxUnavailable" not in budget(world, Role.DECODE)
        [pod] = pods_of(world, Role.DECODE)
        world.cordon(pod["spec"]["nodeName"])
        await world.settle()
        assert len(pods_of(world, Role.DECODE)) == 2
        writes = sum(world.writes.values())
        await asyncio.sleep(7200.0)
        assert sum(world.writes.values()) == writes, "hours of a cordon change nothing"
        events = [event for event in world.store.all(EVENTS, SPACE) if event["reason"] == "SuccessorStarted"]
        assert any("the only decode is being emptied" in event["message"] for event in events)
        assert {event["type"] for event in events} == {"Normal"}, "a drain is no fault"
        world.cordon(pod["spec"]["nodeName"], is_cordoned=False)
        await world.settle()
        assert len(pods_of(world, Role.DECODE)) == 1

    play(script, nodes=2, **SINGLE)


def test_a_successor_that_finds_no_node_gives_the_eviction_free_in_the_end() -> None:
    async def script(world: World) -> None:
        world.cordon("node-0")
        world.cluster.weather.room = 2
        await asyncio.sleep(600.0)
        [old, *_] = [pod for pod in pods_of(world, Role.DECODE) if is_ready(pod)]
        assert not world.evict(old["metadata"]["name"])
        await asyncio.sleep(GIVE_UP.total_seconds() + 400.0)
        assert budget(world, Role.DECODE)["minAvailable"] == 0
        assert world.evict(old["metadata"]["name"])

    play(script, nodes=1, **SINGLE)


def test_without_the_right_to_read_nodes_one_may_go() -> None:
    async def script(world: World) -> None:
        assert budget(world, Role.DECODE)["maxUnavailable"] == 1

    play(script, **SINGLE)


def test_pools_whose_workers_change_role_keep_all_but_one_until_the_last_such_worker_is_gone() -> None:
    """Kubernetes counts the Pods of both pools, so that "one may go" would let one pool give all of its own."""

    async def main() -> None:
        world = World(promise=Promise(floor=0, most=9), has_links=True)
        world.start()
        sizes: Any = {"prefill__replicas": {"min": 3, "max": 3}, "decode__replicas": ONE}
        kept = {Role.PREFILL: 2, Role.DECODE: 0}
        try:
            world.user_applies(**sizes, autoscaling__flips=True)
            for _ in range(2):
                await world.settle()
                assert {role: budget(world, role).get("minAvailable") for role in kept} == kept
                world.user_applies(**sizes, autoscaling__flips=False, rollout__paused=True)
            world.user_applies(**sizes, autoscaling__flips=False)
            await world.settle()
            assert [budget(world, role)["maxUnavailable"] for role in kept] == [1, 1]
        finally:
            await world.end()

    run_virtual(main())


def test_pools_that_are_to_flip_keep_all_but_one_from_the_first_pass_on() -> None:
    async def main() -> None:
        world = World(promise=Promise(floor=0, most=9), has_links=True)
        budgets: dict[str, list[Json]] = {role.value: [] for role in Role}

        def note(resource: Resource, change: Change, before: Json | None, after: Json | None) -> None:
            if resource == BUDGETS and after is not None:
                budgets[after["metadata"]["labels"][ROLE_LABEL]].append(after["spec"])

        world.store.on_commit.append(note)
        world.start()
        try:
            world.user_applies(prefill__replicas={"min": 3, "max": 3}, autoscaling__flips=True)
            await world.settle()
        finally:
            await world.end()
        assert [spec.get("minAvailable") for spec in budgets["prefill"]] == [2]
        assert [spec.get("minAvailable") for spec in budgets["decode"]] == [1]

    run_virtual(main())
