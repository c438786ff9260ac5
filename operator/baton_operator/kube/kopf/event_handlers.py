"""The kopf handlers: each event of an LLMDeployment or an LLMPool goes into the cache of its kind.

kopf writes nothing: no finalizer, no annotation, no Event, no peering.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import logging
import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any, cast

import aiohttp

from baton_operator.kube.cache import Cache
from baton_operator.kube.kube_api import Change, Resource, WatchEvent

_MODELS = "kubernetes.client"
sys.modules.setdefault(_MODELS, None)  # type: ignore[arg-type]  # kopf would import it for its models: 20 MB unused
import kopf  # noqa: E402

if sys.modules[_MODELS] is None:
    del sys.modules[_MODELS]

SERVER_S, CLIENT_S, CONNECT_S, REQUEST_S = 300, 330, 10, 30
RETRY_S = (1, 2, 4)
STOP_S = 10.0
_LOOK_S = 0.01
"""Between two looks at whether kopf's streams are closed."""
PAGE = 500
_WATCHING = "kopf._cogs.clients.watching"
_OUTERMOST = "infinite_watch"
"""Which generator the others of a watch are read through."""
_FOLDER = str(Path(kopf.__file__).parent)


class _NoEssence(kopf.AnnotationsDiffBaseStorage):
    """Nothing of an object, for handlers that ask for no difference: otherwise kopf copies every object three times
    for each event, which was a fifth of the operator's work."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


async def start(
    caches: Mapping[Resource, Cache],
    namespaces: tuple[str, ...] | None,
    server: str,
    session: Callable[[], aiohttp.ClientSession],
) -> Collection[asyncio.Task[Any]]:
    """Start kopf in the running loop, for these namespaces (None: all of them); gives its root tasks.

    `session` opens a session with the API server `server`; kopf closes it. Not by `kopf.operator`: that one cancels, at
    its end, every task that the loop has got since.
    """
    logging.getLogger(_WATCHING).addFilter(_is_no_attempt)
    return await kopf.spawn_tasks(
        registry=_registry(caches, server, session),
        settings=_settings(),
        standalone=True,
        clusterwide=namespaces is None,
        namespaces=namespaces or (),
    )


async def stop(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Stop kopf, given its root tasks. One that failed has left tasks behind, watchers for instance, and each watcher
    needs those that it has made to end."""
    await _cancel(tasks)
    await _cancel([each for each in _own_tasks() if each.get_name().startswith("watcher ")])
    await _cancel(_own_tasks())
    await _close_streams()


def _is_no_attempt(record: logging.LogRecord) -> bool:
    """Whether it is anything but one more attempt at a request that fails: those are logged once by who saw them."""
    return not str(record.msg).startswith("Request attempt")


def _own_tasks() -> list[asyncio.Task[Any]]:
    """Tasks of the running loop whose code is kopf's."""
    coroutines = ((task, task.get_coro()) for task in asyncio.all_tasks())
    return [task for task, each in coroutines if inspect.iscoroutine(each) and _FOLDER in each.cr_code.co_filename]


async def _close_streams() -> None:
    """Close what kopf's watchers read from, the outer generators first, and wait for the inner ones. A watcher that was
    cancelled between two events has left them open. The loop would close all of them at once at its end: an outer one
    that finds an inner one closed fails with `generator didn't stop`. Those of a task that did not end in its time are
    still being read, and are left to it."""
    left = weakref.WeakSet(each for each in _own_generators() if not each.ag_running)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STOP_S):
            for each in tuple(each for each in left if each.__name__ == _OUTERMOST):
                await each.aclose()
            while any(each.ag_frame is not None for each in left):  # noqa: ASYNC110 - nobody tells of a generator's end
                await asyncio.sleep(_LOOK_S)


def _own_generators() -> list[AsyncGeneratorType[object, None]]:
    """Asynchronous generators of kopf that have not ended. By the exact type: to be asked for its class, an object of
    some other library may run code of its own."""
    kind = AsyncGeneratorType
    found = [cast("AsyncGeneratorType[object, None]", each) for each in gc.get_objects() if type(each) is kind]
    return [each for each in found if each.ag_frame is not None and _FOLDER in each.ag_code.co_filename]


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks, timeout=STOP_S) if tasks else (set(), set())
    for task in done:
        task.cancelled() or task.exception()  # an error that nobody asks for would be logged once more


def _registry(
    caches: Mapping[Resource, Cache], server: str, session: Callable[[], aiohttp.ClientSession]
) -> kopf.OperatorRegistry:
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.AiohttpSession:  # Any: what kopf hands on
        return kopf.AiohttpSession(server=server, aiohttp_session=session())

    def feed(resource: Resource, cache: Cache) -> None:
        @kopf.on.event(resource.group, resource.version, resource.plural, registry=made)
        async def changed(event: kopf.RawEvent, **_: Any) -> None:
            cache.heard(WatchEvent(Change(event["type"] or Change.ADDED), dict(event["object"])))  # None: listed

    for resource, cache in caches.items():
        feed(resource, cache)
    return made


def _settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.persistence.diffbase_storage = _NoEssence()
    made.scanning.disabled = True
    made.watching.server_timeout = SERVER_S
    made.watching.client_timeout = CLIENT_S
    made.watching.connect_timeout = CONNECT_S
    made.watching.chunk_size = PAGE
    made.networking.request_timeout = REQUEST_S
    made.networking.connect_timeout = CONNECT_S
    made.networking.error_backoffs = RETRY_S
    made.process.ultimate_exiting_timeout = None
    return made
