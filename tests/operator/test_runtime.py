"""The loop around passes: one deployment never holds up another, and a process without progress says so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from baton_control.names import Key
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.kinds import DEPLOYMENTS, MONITORS
from baton_operator.kube.kube_api import Forbidden, Listing, Resource, Unavailable, WatchEvent
from baton_operator.objects.cluster import Platform
from baton_operator.passes.reconcile import Installation, Reconciler
from baton_operator.runtime import PASS_S, STALL_S, Pace, Runtime
from baton_testing.kube import own_kinds
from baton_testing.kube.clock import wall
from baton_testing.kube.cluster import moment
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.manifests import manifest
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual

DIGEST = "registry.example.com/baton@sha256:"
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64)
GOOD, BAD, OTHER = Key("team", "good"), Key("team", "bad"), Key("elsewhere", "other")
Pass = Callable[[Key], Coroutine[Any, Any, float | None]]


class Spaces(MemoryKube):
    """With namespaces in which nobody may read, and some that do not answer."""

    def __init__(self, store: Store, unreadable: frozenset[Resource]) -> None:
        super().__init__(store, unreadable)
        self.closed: set[str | None] = set()
        self.hangs: set[str | None] = set()

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        await self._let_in(resource, namespace)
        return await super().list(resource, namespace, selector, fields=fields)

    async def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        await self._let_in(resource, namespace)
        async for event in super().watch(resource, namespace, resource_version, selector, timeout_s=timeout_s):
            yield event

    async def _let_in(self, resource: Resource, namespace: str | None) -> None:
        if namespace in self.hangs:
            await asyncio.sleep(60.0)
            raise Unavailable(f"list {resource.plural}: TimeoutError")
        if namespace in self.closed:
            raise Forbidden(f"{resource.plural} is forbidden in {namespace}")


class Rig:
    """A runtime over a store with two deployments, whose passes are replaced by the test's own."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        work: Pass,
        unreadable: frozenset[Resource],
        spaces: tuple[str, ...],
        workers: int,
    ) -> None:
        self.clock = asyncio.get_running_loop().time
        self.store = Store(Kinds(), moment(self.clock))
        self.times: dict[Key, list[float]] = {GOOD: [], BAD: [], OTHER: []}
        self.api = Spaces(self.store, unreadable)
        for key in (BAD, GOOD, OTHER):
            body = manifest(model__source="pvc://models/a")
            body["metadata"] = {"name": key.name, "namespace": key.namespace}
            self.store.apply(DEPLOYMENTS, body, "kubectl", force=True)

        async def reconcile(_: Reconciler, key: Key) -> float | None:
            self.times[key].append(self.clock())
            return await work(key)

        monkeypatch.setattr(Reconciler, "reconcile", reconcile)
        custom, rng = CustomResources(spaces), random.Random(1)
        self.runtime = Runtime(
            self.api,
            custom,
            Installation(lambda: PLATFORM, lambda: {"k": b"m" * 32}),
            pace=Pace(workers=workers, resync_s=60.0),
            now=lambda: wall(self.clock()),
            rng=rng,
        )
        self.running = asyncio.create_task(own_kinds.run(self.runtime, custom, self.api, rng=rng))

    async def end(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def scene(
    monkeypatch: pytest.MonkeyPatch,
    work: Pass,
    after: Callable[[Rig], Coroutine[Any, Any, None]],
    unreadable: frozenset[Resource] = frozenset(),
    *,
    spaces: tuple[str, ...] = (GOOD.namespace,),
    before: Callable[[Rig], None] = lambda rig: None,
    workers: int = 1,
) -> None:
    async def main() -> None:
        rig = Rig(monkeypatch, work, unreadable, spaces, workers)
        before(rig)
        try:
            if not rig.api.hangs:
                await rig.runtime.synced.wait()
            await after(rig)
        finally:
            await rig.end()

    run_virtual(main())


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("a bug")])
def test_one_that_fails_waits_longer_each_time_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def work(key: Key) -> None:
        if key == BAD:
            raise error

    async def after(rig: Rig) -> None:
        await asyncio.sleep(600.0)
        assert 8 <= len(rig.times[BAD]) <= 25
        assert len(rig.times[GOOD]) >= 9, "each resync"
        assert rig.runtime.stalled() is None, "failing is progress"
        assert not rig.running.done()

    scene(monkeypatch, work, after)


def test_a_pass_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(key: Key) -> None:
        if key == BAD:
            await asyncio.sleep(1e6)

    async def after(rig: Rig) -> None:
        await asyncio.sleep(2 * PASS_S + 60.0)
        assert len(rig.times[BAD]) >= 2
        assert rig.times[GOOD], "the only worker came free again"

    scene(monkeypatch, work, after)


def test_a_pass_that_asks_for_another_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(key: Key) -> float | None:
        return 7.0 if key == BAD else None

    async def after(rig: Rig) -> None:
        await asyncio.sleep(50.0)
        gaps = [b - a for a, b in zip(rig.times[BAD], rig.times[BAD][1:], strict=False)]
        assert max(gaps) <= 7.0

    scene(monkeypatch, work, after)


def test_a_process_in_which_no_pass_ends_says_why_it_should_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_operator.runtime.PASS_S", 1e7)

    async def work(key: Key) -> None:
        if key == BAD and rigs and rigs[0].clock() > 100.0:
            await asyncio.sleep(1e6)

    rigs: list[Rig] = []

    async def after(rig: Rig) -> None:
        rigs.append(rig)
        await asyncio.sleep(100.0)
        assert rig.runtime.stalled() is None
        await asyncio.sleep(2 * STALL_S + 120.0)
        assert "no pass has ended" in str(rig.runtime.stalled())

    scene(monkeypatch, work, after)


def test_a_kind_that_the_operator_may_not_list_is_left_out_and_holds_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    async def work(key: Key) -> None:
        return None

    async def after(rig: Rig) -> None:
        await asyncio.sleep(10.0)
        assert rig.times[GOOD]
        assert rig.runtime.reach.left_out("team") == {MONITORS}
        assert rig.runtime.reach.problems() == {}

    scene(monkeypatch, work, after, unreadable=frozenset({MONITORS}))


BOTH = (GOOD.namespace, OTHER.namespace)


async def _nothing(key: Key) -> None:
    return None


@pytest.mark.parametrize("problem", ["closed", "hangs"])
def test_a_namespace_that_cannot_be_read_is_its_own_trouble_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    def lose(rig: Rig) -> None:
        getattr(rig.api, problem).add(OTHER.namespace)

    async def after(rig: Rig) -> None:
        await asyncio.sleep(30.0)
        assert rig.times[GOOD], "it waits for nobody"
        assert rig.times[GOOD][0] < 5.0
        await asyncio.sleep(STALL_S + 60.0)
        assert rig.times[OTHER] == []
        assert set(rig.runtime.reach.problems()) == {OTHER.namespace}
        assert rig.runtime.stalled() is None
        getattr(rig.api, problem).clear()
        await asyncio.sleep(120.0)
        assert rig.times[OTHER]
        assert rig.runtime.reach.problems() == {}

    scene(monkeypatch, _nothing, after, spaces=BOTH, before=lose)


def test_rights_that_are_revoked_hold_that_namespace_and_its_deployments_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def condition(rig: Rig, key: Key) -> Any:
        conditions = rig.store.read(DEPLOYMENTS, key.namespace, key.name).get("status", {}).get("conditions", [])
        return next((condition["reason"] for condition in conditions if condition["type"] == "Degraded"), None)

    async def after(rig: Rig) -> None:
        await asyncio.sleep(30.0)
        rig.api.closed.add(OTHER.namespace)
        await asyncio.sleep(400.0)  # the longest watch, and a while
        held = len(rig.times[OTHER])
        assert condition(rig, OTHER) == "NamespaceUnreadable"
        assert condition(rig, GOOD) is None
        await asyncio.sleep(200.0)
        assert len(rig.times[OTHER]) == held
        assert rig.runtime.stalled() is None

    scene(monkeypatch, _nothing, after, spaces=BOTH)


def test_a_process_that_can_read_nothing_says_that_it_should_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(rig: Rig) -> None:
        rig.api.closed |= set(BOTH)

    async def after(rig: Rig) -> None:
        await asyncio.sleep(STALL_S - 60.0)
        assert rig.runtime.stalled() is None
        await asyncio.sleep(120.0)
        assert "no namespace could be read" in str(rig.runtime.stalled())
        rig.api.closed.clear()
        await asyncio.sleep(60.0)
        assert rig.runtime.stalled() is None

    scene(monkeypatch, _nothing, after, spaces=BOTH, before=lose)


def test_passes_that_wait_for_somebody_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(key: Key) -> None:
        if key != OTHER:
            await asyncio.sleep(1e6)

    async def after(rig: Rig) -> None:
        await asyncio.sleep(50.0)
        assert rig.times[OTHER]
        assert rig.times[OTHER][0] < 10.0

    scene(monkeypatch, work, after, spaces=BOTH, workers=2)


def test_a_deployment_that_is_gone_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(key: Key) -> None:
        return None

    async def after(rig: Rig) -> None:
        await asyncio.sleep(10.0)
        rig.store.delete(DEPLOYMENTS, BAD.namespace, BAD.name)
        await asyncio.sleep(400.0)
        last = len(rig.times[BAD])
        await asyncio.sleep(400.0)
        assert len(rig.times[BAD]) == last
        assert BAD not in rig.runtime._queue._states

    scene(monkeypatch, work, after)
