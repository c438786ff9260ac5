"""kopf in the running event loop: each event of an LLMDeployment or an LLMPool goes into the cache of its kind.

kopf writes nothing: no finalizer, no annotation, no Event, no peering. What is written here because of the installed
version of kopf has a heading in docs/kopf.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import sys
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from pathlib import Path
from types import AsyncGeneratorType
from typing import Any

import aiohttp

from baton_operator.kube.cache import Cache
from baton_operator.kube.kube_api import Change, Resource, WatchEvent

_MODELS = "kubernetes.client"
sys.modules.setdefault(_MODELS, None)  # type: ignore[arg-type]  # kopf 1.45: see docs/kopf.md, "The models"
import kopf  # noqa: E402

if sys.modules[_MODELS] is None:
    del sys.modules[_MODELS]

SERVER_S, CLIENT_S, CONNECT_S, REQUEST_S = 300, 330, 10, 30
RETRY_S = (1, 2, 4)
STOP_S = 10.0
_LOOK_S = 0.01
"""Time between two looks at whether kopf's streams are closed."""
PAGE = 500
_WATCHING = "kopf._cogs.clients.watching"
"""The logger of kopf 1.45 for failed requests of watches: see docs/kopf.md, "Attempts"."""
_OUTERMOST = "infinite_watch"
"""The generator of kopf 1.45 through which the other generators of a watch are read: see docs/kopf.md, "Streams"."""
_FOLDER = str(Path(kopf.__file__).parent)


class _NoEssence(kopf.AnnotationsDiffBaseStorage):
    """An empty essence of each object, because no handler asks for a difference. With kopf's own, kopf copies every
    object three times for each event, which was a fifth of the operator's work."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        return kopf.BodyEssence({})


class RunningKopf:
    """kopf from `start` to `stop`. `tasks` are its root tasks: kopf has ended when one of them ends."""

    def __init__(self, tasks: Collection[asyncio.Task[Any]], streams: OpenStreams) -> None:
        self.tasks, self._streams = tasks, streams

    async def stop(self) -> None:
        """Stop kopf. A root task that failed has left other tasks, such as watchers, and a watcher needs the tasks that
        it has made to end itself."""
        await _cancel(self.tasks)
        await _cancel([task for task in _own_tasks() if task.get_name().startswith("watcher ")])
        await _cancel(_own_tasks())
        await self._streams.close()


class OpenStreams:
    """The asynchronous generators of kopf that have begun in this thread since `OpenStreams` was made."""

    def __init__(self) -> None:
        self._begun: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()
        self._former = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._note)

    async def close(self) -> None:
        """Close what kopf's watchers read from, the outer generators first, and wait for the inner ones. A watcher that
        was cancelled between two events has left them open. The loop would close all of them at once at its end, and
        an outer generator that finds its inner one closed fails with `generator didn't stop`. A generator of a task
        that did not end in its time is still being read, and is left to that task."""
        if sys.get_asyncgen_hooks().firstiter == self._note:
            sys.set_asyncgen_hooks(firstiter=self._former.firstiter)
        left = weakref.WeakSet(stream for stream in self.still_open() if not stream.ag_running)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                for stream in tuple(stream for stream in left if stream.__name__ == _OUTERMOST):
                    await stream.aclose()
                while any(stream.ag_frame is not None for stream in left):  # noqa: ASYNC110 - a generator's end is silent
                    await asyncio.sleep(_LOOK_S)

    def still_open(self) -> list[AsyncGeneratorType[object, None]]:
        generators = [stream for stream in self._begun if isinstance(stream, AsyncGeneratorType)]
        return [stream for stream in generators if stream.ag_frame is not None]

    def _note(self, generator: AsyncGenerator[Any, Any]) -> None:
        """Called by Python for each asynchronous generator that begins."""
        if isinstance(generator, AsyncGeneratorType) and generator.ag_code.co_filename.startswith(_FOLDER):
            self._begun.add(generator)
        if self._former.firstiter is not None:
            self._former.firstiter(generator)


async def start(
    caches: Mapping[Resource, Cache],
    namespaces: tuple[str, ...] | None,
    server: str,
    session: Callable[[], aiohttp.ClientSession],
) -> RunningKopf:
    """Start kopf in the running loop, for these namespaces (None: all of them).

    `session` opens a session with the API server `server`; kopf closes it. `kopf.operator` would cancel, at its end,
    every task that the loop has got since, so kopf's tasks are spawned and stopped here.
    """
    logging.getLogger(_WATCHING).addFilter(_is_no_attempt)
    streams = OpenStreams()
    tasks = await kopf.spawn_tasks(
        registry=_registry(caches, server, session),
        settings=_settings(),
        standalone=True,
        clusterwide=namespaces is None,
        namespaces=namespaces or (),
    )
    return RunningKopf(tasks, streams)


def _is_no_attempt(record: logging.LogRecord) -> bool:
    """True for records that are not about one more attempt at a request, because the stream logs a failure once."""
    return not str(record.msg).startswith("Request attempt")


def _own_tasks() -> list[asyncio.Task[Any]]:
    """Tasks of the running loop whose code is kopf's."""
    coroutines = ((task, task.get_coro()) for task in asyncio.all_tasks())
    return [task for task, code in coroutines if inspect.iscoroutine(code) and _FOLDER in code.cr_code.co_filename]


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks, timeout=STOP_S) if tasks else (set(), set())
    for task in done:
        task.cancelled() or task.exception()  # an error that is never asked for would be logged once more


def _registry(
    caches: Mapping[Resource, Cache], server: str, session: Callable[[], aiohttp.ClientSession]
) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:  # Any: what kopf hands on
        return kopf.AiohttpSession(server=server, aiohttp_session=session())

    def feed(resource: Resource, cache: Cache) -> None:
        @kopf.on.event(resource.group, resource.version, resource.plural, registry=registry)
        async def apply_event(event: kopf.RawEvent, **_: Any) -> None:
            change = Change(event["type"] or Change.ADDED)  # None: from a list
            cache.apply_event(WatchEvent(change, dict(event["object"])))

    for resource, cache in caches.items():
        feed(resource, cache)
    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoEssence()
    settings.scanning.disabled = True
    settings.watching.server_timeout = SERVER_S
    settings.watching.client_timeout = CLIENT_S
    settings.watching.connect_timeout = CONNECT_S
    settings.watching.chunk_size = PAGE
    settings.networking.request_timeout = REQUEST_S
    settings.networking.connect_timeout = CONNECT_S
    settings.networking.error_backoffs = RETRY_S
    settings.process.ultimate_exiting_timeout = None
    return settings
