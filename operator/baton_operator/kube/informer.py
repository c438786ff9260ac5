"""Keeps one cache up to date: list, watch from there, list again when the server no longer knows what changed.

A stream that is dead without saying so ends by the time-outs of the client; one that loses an event is healed by the
next list, which comes every `relist_s` at the latest.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from baton_operator.kube.backoff import Backoff
from baton_operator.kube.cache import Cache
from baton_operator.kube.kinds import selector_for
from baton_operator.kube.kube_api import Expired, KubeApi, KubeError
from baton_operator.kube.object_fields import metadata_of

log = logging.getLogger(__name__)
WATCH_S = 300.0
RELIST_S = 900.0


class Informer:
    """Fills one cache from one namespace (None: from all)."""

    def __init__(
        self,
        api: KubeApi,
        cache: Cache,
        namespace: str | None,
        *,
        beat: Callable[[], None] = lambda: None,
        relist_s: float = RELIST_S,
        watch_s: float = WATCH_S,
        rng: random.Random | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """`turn`: shared by informers that shall list one after the other."""
        self._api, self._cache, self._namespace = api, cache, namespace
        self._selector = selector_for(cache.resource)
        self._beat, self._relist_s, self._watch_s = beat, relist_s, watch_s
        self._rng = rng or random.Random()
        self._turn = turn or asyncio.Lock()
        self._backoff = Backoff(self._rng)
        self._version = ""
        self.synced = asyncio.Event()
        """Set once the first list is in."""

    async def run(self) -> None:
        """Until cancelled."""
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
        async with self._turn:
            self._version = await self._list()
        self._backoff.reset()
        self._beat()
        self.synced.set()
        until = clock() + self._relist_s * self._rng.uniform(0.8, 1.2)
        while (left_s := until - clock()) > 0:
            started = clock()
            try:
                await self._watch(min(self._watch_s, left_s))
            except Expired:
                return
            except KubeError as error:  # goes on where it was: what was missed comes then
                await self._back_off(error)
                continue
            if clock() - started < 1.0:  # streams that end at once, one after the other, would be a busy loop
                await asyncio.sleep(1.0)

    async def _list(self) -> str:
        """One list into the cache; returns its version. Nothing else of it is kept while the watch goes on: decoded, it
        takes ten times what the cache does."""
        listing = await self._api.list(self._cache.resource, self._namespace, self._selector)
        self._cache.listed(listing, self._namespace)
        return listing.resource_version

    async def _watch(self, timeout_s: float) -> None:
        """One stream; keeps the version up to which everything was heard."""
        stream = self._api.watch(
            self._cache.resource, self._namespace, self._version, self._selector, timeout_s=max(1.0, timeout_s)
        )
        async for event in stream:
            self._beat()
            self._cache.heard(event)
            self._backoff.reset()
            found = metadata_of(event.object).get("resourceVersion")
            self._version = str(found) if found else self._version
        self._beat()

    async def _back_off(self, error: KubeError) -> None:
        log.warning("%s: %s", self._cache.resource.plural, error)
        self._beat()
        await asyncio.sleep(self._backoff.after(error))
