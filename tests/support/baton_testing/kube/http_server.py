"""The API server in memory over HTTP: discovery, lists and watches of Baton's kinds."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

from aiohttp import web

from baton_operator.kube.kinds import CUSTOM, GROUP, VERSION
from baton_operator.kube.kube_api import Expired
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Json, Store

DEFINITIONS = ("apiextensions.k8s.io", "v1")
VERBS = ["list", "watch", "get", "patch", "create", "delete"]


class HttpServer:
    """Serves a store; the flags are what can be wrong with it."""

    def __init__(self, store: Store) -> None:
        self._api = MemoryKube(store)
        self._watches: set[asyncio.Task[None]] = set()
        self.answers_with = 200
        """Any other status answers every request."""
        self.has_definitions = True
        self.shows_groups = True
        """True: Baton's group is in the list of groups, which a real server updates late."""
        self.token: str | None = None
        """The token that requests need."""
        self.forgets = False
        """True: watches end because their changes are no longer known."""
        self.refused = ""
        """Plural of the kind whose watches are answered as if it were not there."""
        self.closed: set[str] = set()
        """Namespaces that may not be read."""
        self.asked: list[str] = []
        """`GET path`, `WATCH path` for a watch."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve while the block runs; gives the address."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        # Cancelled with their connection: a watch of a client that went is over, as at an API server.
        runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            self.hang_up()
            await runner.cleanup()

    @property
    def watches(self) -> int:
        """How many are open."""
        return len(self._watches)

    def hang_up(self) -> None:
        """End every watch."""
        for task in list(self._watches):
            task.cancel()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        is_watch = "watch" in request.query
        self.asked.append(f"{'WATCH' if is_watch else request.method} {request.path}")
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _refusal(401)
        if self.answers_with != 200:
            return _refusal(self.answers_with)
        discovered = self._discovered(request.path)
        if discovered is not None:
            return web.json_response(discovered)
        *_, plural = request.path.split("/")
        _, _, after = request.path.partition("/namespaces/")
        namespace = after.partition("/")[0] or None
        resource = next((kind for kind in CUSTOM if kind.plural == plural), None)
        if resource is None or not self.has_definitions:
            return _refusal(404)
        if namespace in self.closed:
            return _refusal(403)
        if is_watch and plural == self.refused:
            return _refusal(404)
        if is_watch:
            return await self._watch(request, CUSTOM.index(resource), namespace)
        listing = await self._api.list(resource, namespace)
        body = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "items": listing.items}
        return web.json_response({**body, "metadata": {"resourceVersion": listing.resource_version}})

    async def _watch(self, request: web.Request, kind: int, namespace: str | None) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)

        async def stream() -> None:
            version = request.query["resourceVersion"]
            try:
                if self.forgets:
                    raise Expired("too old resource version")
                async for event in self._api.watch(CUSTOM[kind], namespace, version, timeout_s=300.0):
                    await answer.write(_line(event.change, event.object))
            except Expired as error:
                await answer.write(_line("ERROR", {"kind": "Status", "code": 410, "message": error.message}))

        task = asyncio.create_task(stream())
        self._watches.add(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
            self._watches.discard(task)
        return answer

    def _discovered(self, path: str) -> Json | None:
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/api/v1":
            return _resources(("namespaces", "Namespace", False), ("events", "Event", True))
        if path == "/apis":
            shown = [DEFINITIONS, *([(GROUP, VERSION)] if self.shows_groups and self.has_definitions else [])]
            versions = [(group, {"groupVersion": f"{group}/{version}", "version": version}) for group, version in shown]
            return {"groups": [{"name": group, "versions": [v], "preferredVersion": v} for group, v in versions]}
        if path == "/apis/" + "/".join(DEFINITIONS):
            return _resources(("customresourcedefinitions", "CustomResourceDefinition", False))
        if path == f"/apis/{GROUP}/{VERSION}" and self.has_definitions:
            return _resources(*((kind.plural, kind.kind, True) for kind in CUSTOM))
        return None


def _resources(*kinds: tuple[str, str, bool]) -> Json:
    names = [{"name": name, "kind": kind, "singularName": "", "namespaced": own} for name, kind, own in kinds]
    return {"kind": "APIResourceList", "resources": [{**entry, "verbs": VERBS} for entry in names]}


def _line(change: str, body: object) -> bytes:
    return json.dumps({"type": change, "object": body}).encode() + b"\n"


def _refusal(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": f"refused: {code}"}, status=code)
