"""An object that is absent takes one request; one that somebody else has is left alone; nothing that is not wanted any
more stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from baton_operator.kube.cache import Cache
from baton_operator.kube.field_owners import is_created_by
from baton_operator.kube.kinds import SERVICES
from baton_operator.kube.kube_api import Conflict
from baton_operator.kube.labels import FIELD_MANAGER
from baton_operator.objects.cluster import Owner
from baton_operator.objects.metadata import labels, object_head
from baton_operator.passes.apply import Applied, Applier, DesiredObject, NameTaken, desired_object
from baton_testing.kube.clock import stamp
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.manifests import deployment
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual

SPACE, NAME = "space", "chat-gateway"
OWNER = Owner("6f1c2f0e")
OURS = labels(deployment())


class Stage:
    """An API server in memory and an applier whose caches hear of its own writes alone."""

    def __init__(self) -> None:
        clock = asyncio.get_running_loop().time
        self.store = Store(Kinds(), lambda: stamp(clock()))
        self.api = MemoryKube(self.store)
        self.restart()

    def restart(self, *knows: str) -> None:
        """Another process; it has heard of the Services in `knows`."""
        self.cache = Cache(SERVICES, lambda key: None)
        self.applier = Applier(self.api, {SERVICES: self.cache})
        for name in knows:
            self.cache.store(self.store.read(SERVICES, SPACE, name))

    def live(self) -> dict[str, Any]:
        return self.store.read(SERVICES, SPACE, NAME)

    def calls(self) -> list[str]:
        """The calls since the last look, writes by their verb."""
        verbs = [verb for (verb, _), count in self.api.calls.items() for _ in range(count)]
        self.api.calls.clear()
        return sorted(verbs)


def wanted(**more: str) -> DesiredObject:
    body = object_head("v1", "Service", NAME, deployment(), OWNER)
    metadata = {"name": NAME, "namespace": SPACE, "labels": OURS | more, "ownerReferences": _owners(body)}
    return desired_object(
        {**body, "metadata": metadata, "spec": {"ports": [{"name": "http", "port": 80}], "selector": {"a": "b"}}}
    )


def _owners(body: Any) -> Any:
    return body["metadata"]["ownerReferences"]


def play(script: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        await script(Stage())

    run_virtual(run())


def test_what_is_absent_takes_one_request_and_then_none() -> None:
    async def script(stage: Stage) -> None:
        assert await stage.applier.ensure(wanted(), OWNER) is Applied.WRITTEN
        assert stage.calls() == ["create"]
        assert await stage.applier.ensure(wanted(), OWNER) is Applied.UNCHANGED
        stage.restart(NAME)
        assert await stage.applier.ensure(wanted(), OWNER) is Applied.UNCHANGED
        assert stage.calls() == []

    play(script)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_is_not_wanted_any_more_goes_though_it_was_created(is_restarted: bool) -> None:
    async def script(stage: Stage) -> None:
        await stage.applier.ensure(wanted(old="1"), OWNER)
        if is_restarted:
            stage.restart(NAME)
        stage.calls()
        assert await stage.applier.ensure(wanted(new="2"), OWNER) is Applied.WRITTEN
        assert stage.calls() == ["apply", "get", "own"]
        assert stage.live()["metadata"]["labels"] == OURS | {"new": "2"}
        assert not is_created_by(stage.live(), FIELD_MANAGER)
        assert await stage.applier.ensure(wanted(newer="3"), OWNER) is Applied.WRITTEN
        assert stage.calls() == ["apply"], "it was created only once"
        assert stage.live()["metadata"]["labels"] == OURS | {"newer": "3"}

    play(script)


def test_one_that_the_cache_has_not_heard_of_is_found_and_not_made_twice() -> None:
    async def script(stage: Stage) -> None:
        await stage.applier.ensure(wanted(old="1"), OWNER)
        stage.restart()
        stage.calls()
        assert await stage.applier.ensure(wanted(old="1"), OWNER) is Applied.UNCHANGED
        assert stage.calls() == ["create", "get"]
        stage.restart()
        assert await stage.applier.ensure(wanted(new="2"), OWNER) is Applied.WRITTEN
        assert stage.live()["metadata"]["labels"] == OURS | {"new": "2"}

    play(script)


def test_somebody_elses_is_left_alone_and_looked_at_first_from_then_on() -> None:
    async def script(stage: Stage) -> None:
        theirs = {**wanted().body, "metadata": {"name": NAME, "namespace": SPACE, "labels": {"team": "x"}}}
        before = await stage.api.create(SERVICES, theirs, manager="kubectl")
        stage.calls()
        for expected in (["create", "get"], ["get"], ["get"]):
            with pytest.raises(NameTaken, match=f"Service {NAME}"):
                await stage.applier.ensure(wanted(), OWNER)
            assert stage.calls() == expected
        assert stage.live() == before
        stage.store.delete(SERVICES, SPACE, NAME)
        assert await stage.applier.ensure(wanted(), OWNER) is Applied.WRITTEN
        assert stage.calls() == ["create", "get"]
        assert stage.live()["metadata"]["labels"] == OURS

    play(script)


def test_a_successor_or_a_later_version_is_never_taken_for_what_was_seen() -> None:
    async def script(stage: Stage) -> None:
        await stage.applier.ensure(wanted(old="1"), OWNER)
        changed = stage.live()
        changed["metadata"]["labels"]["team"] = "x"
        stage.store.replace(SERVICES, changed, "kubectl")
        with pytest.raises(Conflict):
            await stage.applier.ensure(wanted(new="2"), OWNER, at_version=True)
        assert stage.live()["metadata"]["labels"]["old"] == "1"
        assert await stage.applier.ensure(wanted(new="2"), OWNER, at_version=True) is Applied.WRITTEN
        assert stage.live()["metadata"]["labels"] == OURS | {"new": "2", "team": "x"}

        stage.store.delete(SERVICES, SPACE, NAME)
        await stage.api.create(SERVICES, wanted(successor="1").body, manager=FIELD_MANAGER)
        with pytest.raises(Conflict):
            await stage.applier.ensure(wanted(newest="3"), OWNER)
        assert "newest" not in stage.live()["metadata"]["labels"]

    play(script)


def test_one_that_goes_between_the_look_and_the_patch_is_made_again_by_the_next_pass() -> None:
    async def script(stage: Stage) -> None:
        await stage.applier.ensure(wanted(old="1"), OWNER)
        stage.store.delete(SERVICES, SPACE, NAME)
        with pytest.raises(Conflict):
            await stage.applier.ensure(wanted(new="2"), OWNER)
        assert await stage.applier.ensure(wanted(new="2"), OWNER) is Applied.WRITTEN
        assert stage.live()["metadata"]["labels"] == OURS | {"new": "2"}

    play(script)
