"""The real kopf against an API server in memory: nothing is missed, nothing is watched twice, and it never gives up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any

import kopf
import pytest
from kopf._cogs.aiokits import aiotasks

from baton_control.names import Key
from baton_operator.kube import backoff
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import DEPLOYMENTS, POOLS
from baton_operator.kube.kopf import event_handlers as handlers
from baton_operator.kube.kopf import watch_stream as kopf_stream
from baton_operator.kube.kopf.watch_stream import KopfStream
from baton_operator.kube.kubeconfig import KubeConnection
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_testing.kube.cluster import moment
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.http_server import HttpServer
from baton_testing.kube.manifests import manifest
from baton_testing.kube.store import Store

LONG_S = 60.0
TEAM, OTHER = "team", "other"
SPEC = {"deployment": "b", "role": "decode", "replicas": 1}


@dataclass
class Rig:
    store: Store
    server: HttpServer
    custom: CustomResources
    streaming: asyncio.Task[None]
    changed: Counter[Key]
    starts: Counter[str]
    calls: dict[tuple[str, str], int]

    def create(self, name: str, namespace: str = TEAM) -> None:
        body = manifest(model__source="pvc://models/a")
        body["metadata"] = {"name": name, "namespace": namespace}
        self.store.create(DEPLOYMENTS, body, "kubectl")

    def names(self) -> set[tuple[str, str]]:
        return set(self.custom.caches[DEPLOYMENTS].deployments())

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG_S):
            while not holds():
                assert not self.streaming.done()
                await asyncio.sleep(0.02)

    async def streams(self, watches: int = 2) -> None:
        """Until both caches are filled and both kinds are watched."""
        await self.until(lambda: not self.custom.reach.is_blind and self.server.watches == watches)


@contextlib.asynccontextmanager
async def rig(
    namespaces: tuple[str, ...] | None = (TEAM,), before: Callable[[Rig], None] = lambda rig: None, **options: Any
) -> AsyncIterator[Rig]:
    store = Store(Kinds(), moment(asyncio.get_running_loop().time))
    server, custom, starts = HttpServer(store), CustomResources(namespaces), Counter[str]()
    async with (
        server.serving() as address,
        HttpKubeApi(KubeConnection(address, None, lambda: server.token)) as connection,
    ):
        stream = KopfStream(connection, connection, custom, on_start=lambda: starts.update("x"), **options)
        rigged = Rig(store, server, custom, asyncio.create_task(_soon(stream)), Counter(), starts, connection.calls)
        custom.listeners.append(lambda key: rigged.changed.update([key]))
        before(rigged)
        try:
            yield rigged
        finally:
            rigged.streaming.cancel()
            await asyncio.gather(rigged.streaming, return_exceptions=True)


async def _soon(stream: KopfStream) -> None:
    await asyncio.sleep(0)
    await stream.run()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "RETRY_S", (0.02, 0.02))
    monkeypatch.setattr(backoff, "FIRST_WAIT_S", 0.05)
    monkeypatch.setattr(backoff, "LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(kopf_stream, "LOOK_S", 0.05)
    monkeypatch.setattr(kopf_stream, "GAP_S", 0.05)


async def test_what_is_there_and_what_changes_is_heard_by_one_stream_a_kind_that_writes_nothing() -> None:
    async with rig(before=lambda rig: rig.create("a")) as rigged:
        await rigged.streams()
        assert rigged.names() == {(TEAM, "a")}
        rigged.create("b")
        rigged.create("c", OTHER)
        pool = {"apiVersion": POOLS.api_version, "kind": POOLS.kind, "spec": SPEC}
        metadata = {"name": "b-decode", "namespace": TEAM, "labels": {DEPLOYMENT_LABEL: "b"}}
        rigged.store.create(POOLS, {**pool, "metadata": metadata}, "baton-operator")
        await rigged.until(lambda: len(rigged.custom.caches[POOLS]) == 1 and len(rigged.names()) == 2)
        assert rigged.changed[Key(TEAM, "b")] == 2, "the deployment and its pool"
        rigged.store.delete(DEPLOYMENTS, TEAM, "a")
        await rigged.until(lambda: rigged.names() == {(TEAM, "b")})
        assert Key(OTHER, "c") not in rigged.changed
        watches = [call for call in rigged.server.asked if call.startswith("WATCH")]
        assert len(watches) == len(set(watches)) == 2
        assert {call.split()[0] for call in rigged.server.asked} == {"GET", "WATCH"}
        assert rigged.calls["watch", "llmpools"] == 1


async def test_all_namespaces_are_one_stream() -> None:
    async with rig(namespaces=None) as rigged:
        await rigged.streams()
        rigged.create("a")
        rigged.create("a", OTHER)
        await rigged.until(lambda: rigged.names() == {(TEAM, "a"), (OTHER, "a")})


async def test_what_was_deleted_unheard_is_gone_even_when_nothing_is_left_to_list() -> None:
    async with rig(before=lambda rig: rig.create("a")) as rigged:
        await rigged.streams()
        rigged.server.answers_with = 503
        rigged.server.hang_up()
        await rigged.until(lambda: rigged.server.watches == 0)
        rigged.store.delete(DEPLOYMENTS, TEAM, "a")
        rigged.server.forgets = True
        rigged.server.answers_with = 200
        await rigged.until(lambda: rigged.names() == set())
        rigged.server.forgets = False
        rigged.create("b")
        await rigged.until(lambda: rigged.names() == {(TEAM, "b")})
        assert rigged.changed[Key(TEAM, "a")] == 2, "when it came and when it was gone"


async def test_a_stream_that_breaks_goes_on_where_it_was() -> None:
    async with rig() as rigged:
        await rigged.streams()
        lists = rigged.calls["list", "llmdeployments"]
        rigged.server.hang_up()
        rigged.create("a")
        await rigged.until(lambda: rigged.names() == {(TEAM, "a")})
        assert rigged.calls["list", "llmdeployments"] == lists
        assert rigged.starts["x"] == 1


async def test_what_no_event_told_is_found_by_the_list_that_comes_without_an_occasion() -> None:
    async with rig(before=lambda rig: rig.create("a"), relist_s=0.3) as rigged:
        await rigged.streams()
        cache = rigged.custom.caches[DEPLOYMENTS]
        cache.remove(TEAM, "a")
        assert rigged.names() == set()
        await rigged.until(lambda: rigged.names() == {(TEAM, "a")})


@pytest.mark.parametrize("status", [404, 500, 503])
async def test_kopf_is_started_again_when_it_gives_up_and_nothing_else_of_the_loop_ends(status: int) -> None:
    async with rig() as rigged:
        await rigged.streams()
        bystander = asyncio.create_task(asyncio.sleep(LONG_S))
        rigged.server.answers_with = status
        rigged.server.hang_up()
        await rigged.until(lambda: rigged.server.watches == 0)
        asked = len(rigged.server.asked)
        await rigged.until(lambda: len(rigged.server.asked) > asked + 10)
        rigged.server.answers_with = 200
        rigged.create("a")
        await rigged.until(lambda: rigged.names() == {(TEAM, "a")} and rigged.server.watches == 2)
        await rigged.until(lambda: rigged.starts["x"] >= 2)
        assert not bystander.done()
        bystander.cancel()


async def test_a_namespace_that_may_not_be_read_holds_no_other_up_and_comes_back_with_its_rights() -> None:
    def close(rig: Rig) -> None:
        rig.create("a")
        rig.server.closed = {OTHER}

    async with rig(namespaces=(TEAM, OTHER), before=close) as rigged:
        reach = rigged.custom.reach
        await rigged.until(lambda: rigged.server.watches == 2 and bool(reach.problems()))
        await rigged.until(lambda: reach.is_known(TEAM))  # by our own list, which follows kopf's
        assert set(reach.problems()) == {OTHER}
        rigged.create("b")
        await rigged.until(lambda: rigged.names() == {(TEAM, "a"), (TEAM, "b")})
        rigged.server.closed = set()
        rigged.create("c", OTHER)
        await rigged.until(lambda: (OTHER, "c") in rigged.names() and rigged.server.watches == 4)
        assert reach.problems() == {}
        rigged.server.closed = {OTHER}
        rigged.server.hang_up()
        rigged.create("d")
        await rigged.until(lambda: (TEAM, "d") in rigged.names() and set(reach.problems()) == {OTHER})
        assert rigged.starts["x"] == 1, "nobody else's stream began anew"


async def test_a_server_that_is_away_or_has_no_definitions_yet_is_waited_for() -> None:
    def absent(rig: Rig) -> None:
        rig.server.answers_with, rig.server.has_definitions = 503, False

    async with rig(before=absent) as rigged:
        await rigged.until(lambda: len(rigged.server.asked) > 3)
        rigged.server.answers_with = 200
        await rigged.until(lambda: len(rigged.server.asked) > 6)
        assert rigged.custom.reach.is_blind
        assert rigged.starts["x"] == 0
        rigged.server.has_definitions = True
        await rigged.streams()


async def test_a_kind_that_kopfs_first_look_did_not_show_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kopf_stream, "START_S", 1.0)

    def late(rig: Rig) -> None:
        rig.server.shows_groups = False

    async with rig(before=late) as rigged:
        await rigged.until(lambda: rigged.starts["x"] == 2)
        assert rigged.custom.reach.is_blind
        rigged.server.shows_groups = True
        await rigged.streams()


async def test_a_token_that_changes_is_used_at_once_and_a_refused_one_ends_nothing() -> None:
    async with rig() as rigged:
        await rigged.streams()
        rigged.server.token = "second"
        rigged.server.hang_up()
        rigged.create("a")
        await rigged.until(lambda: rigged.names() == {(TEAM, "a")})
        rigged.server.answers_with = 401
        rigged.server.hang_up()
        await rigged.until(lambda: rigged.server.watches == 0)
        asked = len(rigged.server.asked)
        await rigged.until(lambda: len(rigged.server.asked) > asked + 3)
        rigged.server.answers_with = 200
        rigged.create("b")
        await rigged.until(lambda: rigged.names() == {(TEAM, "a"), (TEAM, "b")})


@pytest.mark.parametrize("status", [200, 403])
async def test_the_end_leaves_no_task_behind(status: int) -> None:
    async with rig(before=lambda rig: rig.create("a")) as rigged:
        await rigged.streams()
        assert handlers._own_tasks() != []
        asked = len(rigged.server.asked)
        rigged.server.answers_with = status
        rigged.server.hang_up()
        await rigged.until(lambda: len(rigged.server.asked) > asked)
        rigged.streaming.cancel()
        await asyncio.wait([rigged.streaming], timeout=LONG_S)
        assert handlers._own_tasks() == []


def test_an_end_between_two_events_closes_the_streams_and_logs_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not a coroutine: what the loop closes at its end belongs to it."""
    spawn, is_between = aiotasks.Scheduler.spawn, asyncio.Event()

    async def slowly(self: aiotasks.Scheduler, coro: Coroutine[Any, Any, Any], *, name: str | None = None) -> None:
        await spawn(self, coro, name=name)
        if str(name).startswith("worker for"):
            is_between.set()
            await asyncio.sleep(LONG_S)

    monkeypatch.setattr(aiotasks.Scheduler, "spawn", slowly)
    left: list[str] = []

    async def life() -> None:
        async with rig() as rigged:
            await rigged.streams()
            rigged.create("a")
            await rigged.until(is_between.is_set)
        left.extend(generator.__name__ for generator in open_generators())

    asyncio.run(life())
    assert left == []
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


def open_generators() -> list[AsyncGeneratorType[object, None]]:
    """Asynchronous generators of kopf that have not ended, as the garbage collector knows them. By the exact type: to
    be asked for its class, an object of some other library may run code of its own."""
    generators = [item for item in gc.get_objects() if type(item) is AsyncGeneratorType]
    folder = str(Path(kopf.__file__).parent)
    return [item for item in generators if item.ag_frame is not None and folder in item.ag_code.co_filename]


async def test_kopf_that_is_started_again_watches_nothing_twice() -> None:
    async with rig(before=lambda rig: rig.create("a")) as rigged:
        rigged.server.refused = POOLS.plural
        await rigged.until(lambda: rigged.starts["x"] > 3)
        rigged.server.refused = ""
        await rigged.streams()
        await asyncio.sleep(0.5)
        assert rigged.server.watches == 2


def test_the_operator_loads_nothing_of_the_package_kubernetes() -> None:
    code = "import sys, baton_operator.__main__; print([m for m in sys.modules if m.split('.')[0] == 'kubernetes'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_kopf_makes_no_copy_of_an_object_to_compare_it() -> None:
    body = kopf.Body({"metadata": {"name": "a", "labels": {"x": "y"}}, "spec": {"model": "m"}})
    assert handlers._settings().persistence.diffbase_storage.build(body=body) == {}
