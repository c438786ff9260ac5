"""One active operator: taken over in time, never two at once, given up before others may take it. On virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from baton_operator.kube.kinds import LEASES
from baton_operator.kube.kube_api import KubeApi, Unavailable
from baton_operator.kube.lease import Lease, LeaseLost
from baton_testing.kube.clock import wall
from baton_testing.kube.cluster import moment
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual


class Flaky:
    """A KubeApi whose calls fail, before or after they took effect, while it is told so."""

    def __init__(self, api: KubeApi) -> None:
        self._api, self.down, self.loses_answers = api, False, False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._api, name)

        async def flaky(*args: object, **options: object) -> Any:
            if self.down:
                raise Unavailable("no answer")
            answer = await call(*args, **options)
            if self.loses_answers:
                raise Unavailable("the answer is lost")
            return answer

        return flaky


class Site:
    """A store and the operators that want its Lease."""

    def __init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.store = Store(Kinds(), moment(self.clock))
        self.active: set[str] = set()
        self.most = 0
        self.log: list[tuple[float, str]] = []

    def link(self) -> Flaky:
        return Flaky(MemoryKube(self.store))

    async def operate(self, name: str, api: Any) -> None:
        """Be active from getting the Lease until it is lost; then start anew, as a Pod would."""
        lives = 0
        while True:
            lives += 1
            lease = Lease(api, "ns", "baton", f"{name}-{lives}", now=lambda: wall(self.clock()))
            await lease.acquire()
            self.active.add(name)
            self.most = max(self.most, len(self.active))
            self.log.append((self.clock(), name))
            try:
                await lease.keep()
            except LeaseLost:
                self.active.discard(name)
            except asyncio.CancelledError:
                self.active.discard(name)
                await lease.release()
                raise
            await asyncio.sleep(1.0)

    async def started(self, name: str) -> None:
        while name not in self.active:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.1)


def on_virtual_time(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(scene())


async def ended(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_the_second_takes_over_within_the_lease_when_the_first_dies() -> None:
    async def scene() -> None:
        site = Site()
        first, second = site.link(), site.link()
        one = asyncio.create_task(site.operate("one", first))
        await asyncio.sleep(1.0)
        two = asyncio.create_task(site.operate("two", second))
        await asyncio.sleep(100.0)
        assert site.active == {"one"}
        first.down = True  # as kill -9: it neither renews nor gives back
        one.cancel()
        died = site.clock()
        await site.started("two")
        assert site.clock() - died <= 15.0 + 2.0 + 0.5
        await ended(one, two)

    on_virtual_time(scene)


@pytest.mark.parametrize("waits", [False, True])
def test_a_store_that_was_restored_from_a_backup_ends_who_knows_what_came_after_it(waits: bool) -> None:
    """The holder is the one that the backup has, too: nothing else would tell it."""

    async def scene() -> None:
        site = Site()
        holder = Lease(MemoryKube(site.store), "ns", "baton", "one", now=lambda: wall(site.clock()))
        other = Lease(MemoryKube(site.store), "ns", "baton", "two", now=lambda: wall(site.clock()))
        await holder.acquire()
        keeping = asyncio.create_task(holder.keep())
        waiting = asyncio.create_task(other.acquire())
        await asyncio.sleep(30.0)
        backup = Store(Kinds(), moment(site.clock))
        backup.adopt(site.store)
        await asyncio.sleep(60.0)
        site.store.adopt(backup)
        await asyncio.sleep(5.0)
        ends, stays = (waiting, keeping) if waits else (keeping, waiting)
        with pytest.raises(LeaseLost, match="restored"):
            await ends
        await ended(stays)

    on_virtual_time(scene)


def test_one_that_ends_in_order_hands_over_at_once() -> None:
    async def scene() -> None:
        site = Site()
        one = asyncio.create_task(site.operate("one", site.link()))
        await asyncio.sleep(1.0)
        two = asyncio.create_task(site.operate("two", site.link()))
        await asyncio.sleep(20.0)
        await ended(one)
        left = site.clock()
        await site.started("two")
        assert site.clock() - left <= 2.5
        await ended(two)

    on_virtual_time(scene)


def test_who_cannot_renew_stops_before_anybody_else_may_start() -> None:
    async def scene() -> None:
        site = Site()
        first = site.link()
        one = asyncio.create_task(site.operate("one", first))
        await asyncio.sleep(1.0)
        two = asyncio.create_task(site.operate("two", site.link()))
        await asyncio.sleep(20.0)
        first.down = True
        await asyncio.sleep(60.0)
        assert site.active == {"two"}
        assert site.most == 1
        await ended(one, two)

    on_virtual_time(scene)


def test_a_renewal_whose_answer_is_lost_is_recognised_as_ones_own() -> None:
    async def scene() -> None:
        site = Site()
        api = site.link()
        one = asyncio.create_task(site.operate("one", api))
        await asyncio.sleep(5.0)
        api.loses_answers = True
        await asyncio.sleep(6.0)
        api.loses_answers = False
        await asyncio.sleep(60.0)
        assert site.active == {"one"}
        assert [name for _, name in site.log] == ["one"], "it was never lost"
        await ended(one)

    on_virtual_time(scene)


def test_a_deleted_lease_is_lost() -> None:
    async def scene() -> None:
        site = Site()
        lease = Lease(MemoryKube(site.store), "ns", "baton", "one", now=lambda: wall(site.clock()))
        await lease.acquire()
        site.store.delete(LEASES, "ns", "baton")
        with pytest.raises(LeaseLost):
            await lease.keep()

    on_virtual_time(scene)


def foreign(site: Site, **fields: object) -> None:
    """Somebody else writes into the Lease."""
    lease = site.store.read(LEASES, "ns", "baton")
    site.store.replace(LEASES, {**lease, "spec": {**lease["spec"], **fields}}, "foreign")


@pytest.mark.parametrize("duration", [0, -1, 1, True])
def test_a_duration_that_somebody_shortened_never_makes_two_active(duration: object) -> None:
    async def scene() -> None:
        site = Site()
        one = asyncio.create_task(site.operate("one", site.link()))
        await asyncio.sleep(1.0)
        two = asyncio.create_task(site.operate("two", site.link()))
        for step in range(40):
            await asyncio.sleep(1.3 + 0.17 * step)
            foreign(site, leaseDurationSeconds=duration)
        assert site.most == 1
        await ended(one, two)

    on_virtual_time(scene)


def test_a_duration_that_somebody_lengthened_is_waited_for_a_minute_at_most() -> None:
    async def scene() -> None:
        site = Site()
        first = site.link()
        one = asyncio.create_task(site.operate("one", first))
        await asyncio.sleep(1.0)
        two = asyncio.create_task(site.operate("two", site.link()))
        await asyncio.sleep(20.0)
        first.down = True
        one.cancel()
        foreign(site, leaseDurationSeconds=10**9, leaseTransitions=(1 << 31) - 1)
        left = site.clock()
        await asyncio.wait_for(site.started("two"), 100.0)
        assert site.clock() - left <= 60.0 + 2.0 + 0.5
        assert site.store.read(LEASES, "ns", "baton")["spec"]["leaseTransitions"] == 1
        await ended(one, two)

    on_virtual_time(scene)


@pytest.mark.parametrize("seed", range(3))
def test_never_two_at_once_whatever_fails(seed: int) -> None:
    """Three operators, links that fail and lose answers at random for twenty minutes; mostly, somebody is active."""

    async def scene() -> None:
        site, rng = Site(), random.Random(seed)
        links = [site.link() for _ in range(3)]
        tasks = [asyncio.create_task(site.operate(f"op{i}", link)) for i, link in enumerate(links)]
        idle = 0
        for _ in range(240):
            await asyncio.sleep(5.0)
            for link in links:
                link.down, link.loses_answers = rng.random() < 0.15, rng.random() < 0.1
            idle += not site.active
        assert site.most == 1
        assert idle < 120, "mostly, somebody works"
        await ended(*tasks)

    on_virtual_time(scene)
