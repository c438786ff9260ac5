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
from yarl import URL

from baton_operator.kube.backoff import Backoff
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.http_client import HttpKubeApi, path_of
from baton_operator.kube.informer import RELIST_S
from baton_operator.kube.kinds import CUSTOM, GROUP, VERSION
from baton_operator.kube.kopf import event_handlers as handlers
from baton_operator.kube.kube_api import KubeApi, KubeError, Resource
from baton_operator.kube.server_answers import error_of

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
        *,
        relist_s: float = RELIST_S,
        on_start: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        """`on_start` is called each time that kopf has started, which takes the process's signals over."""
        self._api, self._connection, self._custom = api, connection, custom
        self._namespaces = None if custom.scopes == (None,) else tuple(each for each in custom.scopes if each)
        self._relist_s, self._on_start, self._rng = relist_s, on_start, rng or random.Random()
        self._listed = {place: asyncio.Event() for place in itertools.product(CUSTOM, custom.scopes)}
        """Set when kopf has listed a kind: what is gone has to be found out."""
        self._places = {path_of(*place): place for place in self._listed}
        self._prefix = URL(connection.server).path.rstrip("/")
        self._refused: dict[Place, Backoff] = {}
        """Where kopf was not let in lately."""
        self._asked: dict[Place, float] = {}
        """When kopf made its last request."""
        self._watched: dict[Place, float] = {}
        """When that was a watch, for the last time."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for place in self._listed:
                tasks.create_task(self._compare(place))
            tasks.create_task(self._keep_running())

    async def _compare(self, place: Place) -> None:
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
                log.warning("%s in %s: %s", resource.plural, namespace or "all namespaces", error)
                self._custom.reach.failed(resource, namespace, error)
                await asyncio.sleep(backoff.after(error))
                self._listed[place].set()
                continue
            backoff.reset()
            self._custom.reach.listed(resource, namespace)

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
        place = self._places.get(request.url.path.removeprefix(self._prefix))
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
        if answer.status == 403:
            await self._refuse(place, answer)
        if answer.status == 200:
            self._refused.pop(place, None)
            self._custom.reach.heard(*place)
            if not is_watch:
                self._listed[place].set()
        return answer

    async def _refuse(self, place: Place, answer: aiohttp.ClientResponse) -> None:
        """kopf would end at a refusal, for all namespaces. It takes a connection that fails for something that passes:
        so it comes again, for this one place, in a while. Raises that."""
        error = error_of(answer.status, await answer.read(), answer.headers)
        self._custom.reach.failed(*place, error)
        if place not in self._refused:
            log.warning("kopf: %s in %s: %s", place[0].plural, place[1] or "all namespaces", error)
        await asyncio.sleep(self._refused.setdefault(place, Backoff(self._rng)).after(error))
        raise aiohttp.ClientConnectionError(str(error))


def _reason(done: Collection[asyncio.Task[object]]) -> str:
    errors = [each.exception() for each in done if not each.cancelled()]
    return "; ".join(f"{type(each).__name__}: {each}" for each in errors if each is not None) or "has ended by itself"
