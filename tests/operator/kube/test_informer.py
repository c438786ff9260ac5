"""How a cache is filled: nothing of a list is kept but what the cache keeps, and lists take turns."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from typing import Any

from baton_operator.kube.cache import Cache
from baton_operator.kube.informer import Informer, Turns
from baton_operator.kube.kinds import SERVICES, WORKERS
from baton_operator.kube.kube_api import Listing, Resource, WatchEvent
from baton_operator.kube.reach import Reach
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual


class Body(dict[str, Any]):
    """An object that can be watched dying."""


class Lists(MemoryKube):
    """Counts the lists that are under way, and remembers what they brought."""

    def __init__(self) -> None:
        super().__init__(Store(Kinds(), lambda: "now"))
        self.now = self.most = 0
        self.brought: list[weakref.ref[Body]] = []

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.5)
        self.now -= 1
        metadata = {"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "5"}
        body = Body(metadata={**metadata, "labels": {"baton.dev/deployment": "chat"}})
        self.brought.append(weakref.ref(body))
        return Listing((body,), "100")

    async def watch(self, *args: Any, timeout_s: float, **rest: Any) -> AsyncIterator[WatchEvent]:
        await asyncio.sleep(timeout_s)
        events: tuple[WatchEvent, ...] = ()
        for event in events:
            yield event


def test_nothing_of_a_list_stays_in_memory_while_its_watch_goes_on_and_lists_take_turns() -> None:
    async def main() -> None:
        api, reach = Lists(), Reach()
        caches = [Cache(kind, lambda key: None) for kind in (SERVICES, WORKERS)]
        for cache in caches:
            reach.expect(cache.resource, None)
        turns = Turns(lists=1)
        informers = [Informer(api, cache, None, turns=turns, reach=reach) for cache in caches]
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        await reach.settled()
        await asyncio.sleep(1.0)
        gc.collect()
        assert [len(cache) for cache in caches] == [1, 1]
        assert [listing() for listing in api.brought] == [None, None]
        assert api.most == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(main())
