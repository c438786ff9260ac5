"""kopf kept running in the operator's event loop: the stream that feeds the caches of Baton's own kinds.

kopf lists, watches from there, and lists again when the server no longer knows what changed. It does not report what
was deleted before such a list. So each of its lists is followed by one of our own, which shows what is gone. That list
is newer, and what is deleted after kopf's list comes as an event, so that nothing is missed. A list without an occasion
comes every `relist_s` at the latest, as in `informer`.

kopf ends at errors that it takes for final, and never looks again for a kind that its first look at the server did not
show. So it is started again, later each time, when it ends or when it requests nothing of one of its kinds.
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
"""Time after the start, and after the last request, within which kopf has to make a request for each kind and
namespace."""
LOOK_S = 5.0
GAP_S = 1.0
"""Least time between two watches of the same kind: streams that end at once, again and again, would be a busy loop."""
Place = tuple[Resource, str | None]
"""A kind in one namespace; None: in all of them."""


class KopfStream:
    """Feeds `custom`. Passes go through `api`; kopf gets sessions of `connection`."""

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
        """`on_start` is called each time that kopf has started, because kopf takes the process's signals over."""
        self._api, self._connection, self._custom = api, connection, custom
        self._namespaces = None if custom.scopes == (None,) else tuple(scope for scope in custom.scopes if scope)
        self._relist_s, self._on_start, self._rng = relist_s, on_start, rng or random.Random()
        self._listed = {place: asyncio.Event() for place in itertools.product(CUSTOM, custom.scopes)}
        """Set when kopf has listed a kind, and our own list has to show what is gone."""
        self._places = {path_of(*place): place for place in self._listed}
        self._prefix = URL(connection.server).path.rstrip("/")
        self._refused: dict[Place, Backoff] = {}
        """Where the server refused kopf lately."""
        self._asked: dict[Place, float] = {}
        """When kopf made its last request."""
        self._watched: dict[Place, float] = {}
        """When kopf made its last request for a watch."""

    async def run(self) -> None:
        """Run until cancelled."""
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
                self._custom.caches[resource].apply_list(await self._api.list(resource, namespace), namespace)
            except KubeError as error:
                log.warning("%s in %s: %s", resource.plural, namespace or "all namespaces", error)
                self._custom.reach.mark_failed(resource, namespace, error)
                await asyncio.sleep(backoff.after(error))
                self._listed[place].set()
                continue
            backoff.reset()
            self._custom.reach.mark_listed(resource, namespace)

    async def _keep_running(self) -> None:
        clock, backoff = asyncio.get_running_loop().time, Backoff(self._rng)
        while True:
            started = clock()
            try:
                missing = {kind.plural for kind in CUSTOM} - await self._api.served(GROUP, VERSION)
                why = f"the server has no {', '.join(sorted(missing))}" if missing else await self._until_it_ends()
                wait_s = backoff.after()
            except KubeError as error:
                why, wait_s = str(error), backoff.after(error)
            if clock() - started > SILENT_S:
                backoff.reset()
            log.warning("kopf: %s: restarts in %.1f s", why, wait_s)
            await asyncio.sleep(wait_s)

    async def _until_it_ends(self) -> str:
        """Run kopf once; returns why it ended."""
        clock = asyncio.get_running_loop().time
        started = clock()
        self._asked = dict.fromkeys(self._listed, started + START_S - SILENT_S)
        running = await handlers.start(
            self._custom.caches,
            self._namespaces,
            self._connection.server,
            lambda: self._connection.session(self._pass_on),
        )
        self._on_start()
        try:
            while True:
                done, _ = await asyncio.wait(running.tasks, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return _reason(done)
                for (resource, namespace), asked_at in self._asked.items():
                    if clock() - asked_at > SILENT_S:
                        return f"no request for {resource.plural} of {namespace or 'all namespaces'}"
        finally:
            await running.stop()

    async def _pass_on(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Every request of kopf comes here on its way to the server."""
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
            self._custom.reach.mark_allowed(*place)
            if not is_watch:
                self._listed[place].set()
        return answer

    async def _refuse(self, place: Place, answer: aiohttp.ClientResponse) -> None:
        """Turn a refusal into a failed connection, after a wait: at a refusal kopf would end for all namespaces, but it
        retries a failed connection for this one place. Raises ClientConnectionError."""
        error = error_of(answer.status, await answer.read(), answer.headers)
        self._custom.reach.mark_failed(*place, error)
        if place not in self._refused:
            log.warning("kopf: %s in %s: %s", place[0].plural, place[1] or "all namespaces", error)
        await asyncio.sleep(self._refused.setdefault(place, Backoff(self._rng)).after(error))
        raise aiohttp.ClientConnectionError(str(error))


def _reason(done: Collection[asyncio.Task[object]]) -> str:
    errors = [task.exception() for task in done if not task.cancelled()]
    return "; ".join(f"{type(error).__name__}: {error}" for error in errors if error is not None) or "ended by itself"
