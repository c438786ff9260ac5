"""While a spec is refused, what was carried out last goes on unchanged: repaired, sized, reported."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from baton_operator.kube.kinds import ACCOUNTS, DEPLOYMENTS, POOLS, RECORDS, SECRETS, SERVICES, WORKERS
from baton_operator.passes.template_records import GOOD_ANNOTATION
from baton_testing.kube.calm_world import ANY, play
from baton_testing.kube.world import NAME, SPACE, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import Role

Json = dict[str, Any]
REFUSED = [("model.source", "file://relative", "Unsupported"), ("routing.disaggregation", "Newer", "InvalidSpec")]


def conditions(world: World) -> dict[str, tuple[str, str]]:
    conditions = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["conditions"]
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in conditions}


def refuse(world: World, path: str, value: str) -> None:
    """As it gets past a server whose definitions are newer or older than the operator."""
    world.store.kinds.is_strict = False
    world.user_edits(path, value)


@pytest.mark.parametrize(("path", "value", "reason"), REFUSED)
def test_what_is_deleted_comes_back_under_a_refused_spec_and_the_status_tells_what_is(
    path: str, value: str, reason: str
) -> None:
    async def script(world: World) -> None:
        before = {worker_set["metadata"]["name"] for worker_set in world.store.all(WORKERS, SPACE)}
        refuse(world, path, value)
        await world.settle()
        assert conditions(world)["Available"] == ("True", "Serving")
        assert conditions(world)["Degraded"] == ("True", reason)
        assert conditions(world)["Stalled"] == ("True", reason)
        for kind in (WORKERS, SERVICES, ACCOUNTS, RECORDS):
            for name in [manifest["metadata"]["name"] for manifest in world.store.all(kind, SPACE)]:
                world.user_deletes(kind, name)
        seen = set()
        for _ in range(60):
            await asyncio.sleep(1.0)
            seen.add(conditions(world)["Available"][0])
        await world.settle()
        assert "False" in seen or "Unknown" in seen, "nothing ran for a while, and the status said so"
        assert {worker_set["metadata"]["name"] for worker_set in world.store.all(WORKERS, SPACE)} == before
        records = [record["metadata"]["name"] for record in world.store.all(RECORDS, SPACE)]
        assert len(records) == 3, "the templates, the keys' marker, and the history"
        assert f"{NAME}-history" in records
        assert len(list(world.store.all(SERVICES, SPACE))) == 3
        assert conditions(world)["Available"] == ("True", "Serving")
        status = world.store.read(DEPLOYMENTS, SPACE, NAME)
        assert status["status"]["observedGeneration"] == status["metadata"]["generation"]

    play(script)


def test_sizes_and_keys_go_on_under_a_refused_spec_also_after_a_restart_and_the_next_good_one_is_taken() -> None:
    async def script(world: World) -> None:
        refuse(world, "model.source", "file://relative")
        await world.settle()
        await world.restart()
        await world.settle()
        world.user_scales(POOLS, "chat-decode", 3)
        await world.settle()
        assert [worker_set["spec"]["replicas"] for worker_set in world.worker_sets(Role.DECODE)] == [3]
        assert conditions(world)["Available"] == ("True", "Serving")
        world.masters = {**world.masters, "second": b"n" * 32}
        world.keys_changed()
        await world.settle()
        assert set(world.store.read(SECRETS, SPACE, "chat-keys")["data"]) == {"first", "second"}
        world.user_edits("model.source", "pvc://models/b")
        await world.settle()
        assert conditions(world)["Degraded"][0] == "False"
        assert len(world.worker_sets(Role.DECODE)) == 1

    bounds = {"min": 2, "max": 4}
    play(script, autoscaling={"mode": "External"}, prefill__replicas=bounds, decode__replicas=bounds)


def test_what_an_operator_of_another_api_version_noted_is_gone_on_from() -> None:
    async def script(world: World) -> None:
        await world.stop()
        record = next(
            manifest for manifest in world.store.all(RECORDS, SPACE) if "-templates-" in manifest["metadata"]["name"]
        )
        edited: Json = copy.deepcopy(record)
        noted = edited["metadata"]["annotations"]
        assert "baton.dev/v1alpha1" in noted[GOOD_ANNOTATION]
        noted[GOOD_ANNOTATION] = noted[GOOD_ANNOTATION].replace("baton.dev/v1alpha1", "baton.dev/v1beta1")
        world.store.replace(RECORDS, edited, "another-operator")
        refuse(world, "model.source", "file://relative")
        world.user_deletes(SERVICES, "chat-decode")
        world.start()
        await world.settle()
        assert len(list(world.store.all(SERVICES, SPACE))) == 3
        assert conditions(world)["Available"] == ("True", "Serving")
        assert conditions(world)["Stalled"] == ("True", "Unsupported")

    play(script)


def test_a_spec_that_was_never_good_starts_nothing() -> None:
    async def main() -> None:
        world = World(promise=ANY)
        world.start()
        try:
            world.user_applies(model__source="file://relative")
            await world.settle()
            assert list(world.store.all(WORKERS, SPACE)) == []
            assert conditions(world)["Available"] == ("False", "Unsupported")
        finally:
            await world.end()

    run_virtual(main())
