"""kopf in the operator's event loop, kept running: the stream that feeds what is known of Baton's own kinds.

kopf lists, watches from there, and lists again when the server no longer knows what changed. It does not tell what was
deleted before such a list. So each of its lists is followed by one of our own, which says what is gone. That one is
newer, and what is deleted after kopf's list comes as an event: nothing is missed. A list without an occasion comes
every `relist_s` at the latest, as in `informer`.

kopf ends at errors that it takes for final, and never looks again for a kind that its first look at the server did not
show. So it is started again, later each time, when it ends or leaves one of its kinds alone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Collection

import aiohttp

from baton_operator.kube import handlers
from baton_operator.kube.backoff import Backoff
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.http_client import HttpKubeApi, path_of
from baton_operator.kube.informer import RELIST_S
from baton_operator.kube.kinds import CUSTOM, GROUP, VERSION
from baton_operator.kube.kube_api import KubeApi, KubeError, Resource

log = logging.getLogger(__name__)
START_S, SILENT_S = 60.0, 2.0 * handlers.CLIENT_S
"""So long after the start, or after the last request, kopf has to have made a request for each kind and namespace."""
LOOK_S = 5.0
GAP_S = 1.0
"""Between two watches of the same: streams that end at once, one after the other, would be a busy loop."""
Place = tuple[Resource, str | None]
"""A kind in one namespace, None: in all of them."""


class KopfStream:
    """Feeds `custom`. `api` is what passes go through; kopf gets sessions of `connection`."""

    def __init__(
        self,
        api: KubeApi,
        connection: HttpKubeApi,
        custom: CustomResources,
        namespaces: tuple[str, ...] | None,
        *,
        relist_s: float = RELIST_S,
        on_start: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        """`on_start` is called each time that kopf has started, which takes the process's signals over."""
        self._api, self._connection, self._custom, self._namespaces = api, connection, custom, namespaces
        self._relist_s, self._on_start, self._rng = relist_s, on_start, rng or random.Random()
        self._listed = {place: asyncio.Event() for place in itertools.product(CUSTOM, namespaces or (None,))}
        """Set when kopf has listed a kind: what is gone has to be found out."""
        self._asked: dict[Place, float] = {}
        """When kopf made its last request."""
        self._watched: dict[Place, float] = {}
        """When that was a watch, for the last time."""

    async def run(self) -> None:
        """Until cancelled."""
        compared = {place: asyncio.Event() for place in self._listed}
        async with asyncio.TaskGroup() as tasks:
            for place, event in compared.items():
                tasks.create_task(self._compare(place, event))
            tasks.create_task(self._keep_running())
            for event in compared.values():
                await event.wait()
            self._custom.synced.set()

    async def _compare(self, place: Place, compared: asyncio.Event) -> None:
        resource, namespace = place
        backoff = Backoff(self._rng)
        while True:
            try:
                async with asyncio.timeout(self._relist_s * self._rng.uniform(0.8, 1.2)):
                    await self._listed[place].wait()
            except TimeoutError:
                pass
            self._listed[place].clear()
            try:
                self._custom.caches[resource].listed(await self._api.list(resource, namespace), namespace)
            except KubeError as error:
                log.warning("%s: %s", resource.plural, error)
                await asyncio.sleep(backoff.after(error))
                self._listed[place].set()
                continue
            backoff.reset()
            compared.set()

    async def _keep_running(self) -> None:
        clock, backoff = asyncio.get_running_loop().time, Backoff(self._rng)
        while True:
            started = clock()
            try:
                missing = {each.plural for each in CUSTOM} - await self._api.served(GROUP, VERSION)
                why = f"the server has no {', '.join(sorted(missing))}" if missing else await self._until_it_ends()
                wait_s = backoff.after()
            except KubeError as error:
                why, wait_s = str(error), backoff.after(error)
            if clock() - started > SILENT_S:
                backoff.reset()
            log.warning("kopf: %s: again in %.1f s", why, wait_s)
            await asyncio.sleep(wait_s)

    async def _until_it_ends(self) -> str:
        """One life of kopf; returns why it ended."""
        clock = asyncio.get_running_loop().time
        started = clock()
        self._asked = dict.fromkeys(self._listed, started + START_S - SILENT_S)
        tasks = await handlers.start(
            self._custom.caches,
            self._namespaces,
            self._connection.server,
            lambda: self._connection.session(self._through),
        )
        self._on_start()
        try:
            while True:
                done, _ = await asyncio.wait(tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return _reason(done)
                for (resource, namespace), asked_at in self._asked.items():
                    if clock() - asked_at > SILENT_S:
                        return f"no request for {resource.plural} of {namespace or 'all namespaces'}"
        finally:
            await handlers.stop(tasks)

    async def _through(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Every request of kopf passes here."""
        places = (each for each in self._listed if request.url.path.endswith(path_of(*each)))
        place = next(places, None)
        if place is None:
            return await handler(request)
        clock, is_watch = asyncio.get_running_loop().time, "watch" in request.url.query
        self._connection.count("watch" if is_watch else "list", place[0])
        if is_watch:
            await asyncio.sleep(self._watched.get(place, -GAP_S) + GAP_S - clock())
            self._watched[place] = clock()
            if request.session.closed:  # by kopf, meanwhile
                raise aiohttp.ClientConnectionError("the session is closed")
        self._asked[place] = clock()
        answer = await handler(request)
        if not is_watch and answer.status == 200:
            self._listed[place].set()
        return answer


def _reason(done: Collection[asyncio.Task[object]]) -> str:
    errors = [each.exception() for each in done if not each.cancelled()]
    return "; ".join(f"{type(each).__name__}: {each}" for each in errors if each is not None) or "has ended by itself"
