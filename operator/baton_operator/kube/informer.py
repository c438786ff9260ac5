"""Keeps one cache up to date: list, watch from there, list again when the server no longer knows what changed.

The client's time-outs end a dead stream. A lost event is repaired by the next list, which comes every `relist_s` at the
latest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from baton_operator.kube.backoff import Backoff
from baton_operator.kube.kinds import selector_for
from baton_operator.kube.kube_api import Expired, Forbidden, KubeApi, KubeError, Listing, Resource, WatchEvent
from baton_operator.kube.object_fields import metadata_of
from baton_operator.kube.reach import Reach

log = logging.getLogger(__name__)
WATCH_S = 300.0
RELIST_S = 900.0

LISTS, TURN_S = 4, 1.0
"""Most lists at a time, and the time after which a list gives up its turn. A decoded list takes ten times the memory of
the cache, so lists take turns; a list that hangs must not keep the others waiting."""


class Turns:
    """Lets LISTS lists run at a time. A list that takes longer than TURN_S goes on, and the next may begin."""

    def __init__(self, lists: int = LISTS) -> None:
        self._slots = asyncio.Semaphore(lists)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        await self._slots.acquire()
        with contextlib.ExitStack() as slot:
            slot.callback(self._slots.release)
            late = asyncio.get_running_loop().call_later(TURN_S, slot.close)
            try:
                yield
            finally:
                late.cancel()


class Store(Protocol):
    """A cache, or another store, that an informer fills."""

    @property
    def resource(self) -> Resource: ...

    def apply_list(self, listing: Listing, namespace: str | None) -> None: ...

    def apply_event(self, event: WatchEvent) -> None: ...


class Informer:
    """Fills one store from one namespace (None: from all)."""

    def __init__(  # noqa: PLR0913 - keyword only: intervals and what informers share
        self,
        api: KubeApi,
        cache: Store,
        namespace: str | None,
        *,
        beat: Callable[[], None] = lambda: None,
        relist_s: float = RELIST_S,
        watch_s: float = WATCH_S,
        rng: random.Random | None = None,
        turns: Turns | None = None,
        reach: Reach | None = None,
        is_optional: bool = False,
    ) -> None:
        """`turns`: shared by informers that list one after the other. `reach` notes what could be read. `is_optional`:
        a refused list is tried again only when the next list is due."""
        self._api, self._cache, self._namespace = api, cache, namespace
        self._selector = selector_for(cache.resource)
        self._beat, self._relist_s, self._watch_s = beat, relist_s, watch_s
        self._rng = rng or random.Random()
        self._turns, self._reach, self._is_optional = turns or Turns(), reach or Reach(), is_optional
        self._backoff = Backoff(self._rng)
        self._version = self._logged = ""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._beat()
            try:
                await self._list_and_watch()
                self._backoff.reset()
            except KubeError as error:
                await self._back_off(error)

    async def _list_and_watch(self) -> None:
        """One list and the watches after it; returns when it is time for the next list."""
        clock = asyncio.get_running_loop().time
        async with self._turns.one():
            self._version = await self._list()
        self._backoff.reset()
        self._beat()
        self._logged = ""
        self._reach.mark_listed(self._cache.resource, self._namespace)
        until = clock() + self._relist_s * self._rng.uniform(0.8, 1.2)
        while (left_s := until - clock()) > 0:
            started = clock()
            try:
                await self._watch(min(self._watch_s, left_s))
            except Expired:
                return
            except Forbidden:
                raise
            except KubeError as error:  # goes on where it was: what was missed comes then
                await self._back_off(error)
                continue
            if clock() - started < 1.0:  # streams that end at once, one after the other, would be a busy loop
                await asyncio.sleep(1.0)

    async def _list(self) -> str:
        """Apply one list to the cache; returns its version. The list itself is not kept during the watch, because it
        takes ten times the memory of the cache."""
        listing = await self._api.list(self._cache.resource, self._namespace, self._selector)
        self._cache.apply_list(listing, self._namespace)
        return listing.resource_version

    async def _watch(self, timeout_s: float) -> None:
        """Read one stream, and keep the version of its last event."""
        stream = self._api.watch(
            self._cache.resource, self._namespace, self._version, self._selector, timeout_s=max(1.0, timeout_s)
        )
        async for event in stream:
            self._beat()
            self._cache.apply_event(event)
            self._backoff.reset()
            self._reach.mark_allowed(self._cache.resource, self._namespace)
            version = metadata_of(event.object).get("resourceVersion")
            self._version = str(version) if version else self._version
        self._beat()

    async def _back_off(self, error: KubeError) -> None:
        text = f"{self._cache.resource.plural} in {self._namespace or 'all namespaces'}: {error}"
        log.log(logging.WARNING if text != self._logged else logging.DEBUG, "%s", text)
        self._logged = text
        self._beat()
        self._reach.mark_failed(self._cache.resource, self._namespace, error)
        wait_s = self._backoff.after(error)
        if self._is_optional and isinstance(error, Forbidden):
            wait_s = self._relist_s * self._rng.uniform(0.8, 1.2)
        await asyncio.sleep(wait_s)
