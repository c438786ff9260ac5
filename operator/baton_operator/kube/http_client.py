"""The real KubeApi: JSON over HTTPS with aiohttp, a deadline on every call, a limit on calls per second."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from baton_operator.kube.kube_api import (
    Listing,
    NotFound,
    ReadLater,
    Resource,
    Unavailable,
    WatchEvent,
)
from baton_operator.kube.kubeconfig import KubeConnection
from baton_operator.kube.object_fields import Manifest
from baton_operator.kube.server_answers import error_of, lines_of, mapping_of, page_of, watch_event
from baton_operator.kube.server_clock import ServerClock

CALL_S, LIST_S = 20.0, 60.0
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_UNACKNOWLEDGED_MS = 60_000
"""A connection whose other end has vanished ends after a minute, a quiet watch in particular."""
_GOODBYES = 1_000
"""Most looks at connections that are still closing, 5 ms apart."""
PAGE = 500
CONNECTIONS = 128
"""For calls. Watches have connections of their own, one each: they never keep a call waiting."""


class RateLimit:
    """Spreads calls: `burst` at once, then `per_s` in each second, first come first served."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._gap_s, self._burst_s = 1.0 / per_s, burst / per_s
        self._next = 0.0

    async def wait(self) -> None:
        now = asyncio.get_running_loop().time()
        self._next = max(self._next, now - self._burst_s) + self._gap_s
        if self._next > now:
            await asyncio.sleep(self._next - now)


@dataclass(frozen=True, slots=True)
class _Request:
    """One HTTP request to the API server."""

    verb: str
    """The name under which it is counted."""
    method: str
    resource: Resource
    path: str
    query: Mapping[str, str] | None = None
    body: Manifest | Sequence[Manifest] | None = None
    content_type: str = "application/json"
    deadline_s: float = CALL_S


class HttpKubeApi:
    """A session with an API server; `async with` closes it. Calls beyond `calls_per_s` wait."""

    def __init__(
        self,
        connection: KubeConnection,
        *,
        calls_per_s: float = 200.0,
        burst: int = 400,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        self.clock = ServerClock(now)
        self._connection, self._origin = connection, URL(connection.server).origin()
        self._rate_limit = RateLimit(calls_per_s, burst)
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.calls: dict[tuple[str, str], int] = {}
        """Answered and failed calls by (verb, plural)."""

    async def __aenter__(self) -> HttpKubeApi:
        self._session, self._streams = self.session(limit=CONNECTIONS), self.session()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()
        self._session = self._streams = None
        await self._wait_for_closing()

    @property
    def server(self) -> str:
        """`https://host:port`."""
        return self._connection.server

    def session(self, *middlewares: aiohttp.ClientMiddlewareType, limit: int = 0) -> aiohttp.ClientSession:
        """A session of the same account with the same server, for callers with requests of their own, who close it.
        `limit`: most connections; 0: one per request."""
        connector = aiohttp.TCPConnector(limit=limit, ssl=self._connection.ssl or False, socket_factory=self._socket)
        return aiohttp.ClientSession(
            connector=connector, headers={"User-Agent": "baton-operator"}, middlewares=(*middlewares, self._authorized)
        )

    def count(self, verb: str, resource: Resource) -> None:
        """Count a call that was made in another session."""
        key = (verb, resource.plural)
        self.calls[key] = self.calls.get(key, 0) + 1

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        return await self._call(_Request("get", "GET", resource, path_of(resource, namespace, name)))

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        query = {"limit": str(PAGE)} | ({"labelSelector": selector} if selector else {})
        query |= {"fieldSelector": fields} if fields else {}
        kind: Manifest = {"apiVersion": resource.api_version, "kind": resource.kind}
        items: list[msgspec.Raw] = []
        while True:
            data = await self._answer(
                _Request("list", "GET", resource, path_of(resource, namespace), query=query, deadline_s=LIST_S)
            )
            page = page_of(data)
            items += page.items or ()
            if not page.metadata.next:
                return Listing(ReadLater(items, lambda item: kind | mapping_of(item)), page.metadata.version)
            query["continue"] = page.metadata.next

    async def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        query = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, int(timeout_s))),
        } | ({"labelSelector": selector} if selector else {})
        self.count("watch", resource)
        timeout = aiohttp.ClientTimeout(total=timeout_s + 15.0, sock_connect=10.0)
        try:
            request = _Request("watch", "GET", resource, path_of(resource, namespace), query)
            async with self._open(request, timeout, self._streams) as answer:
                if answer.status != 200:
                    raise error_of(answer.status, await answer.read(), answer.headers)
                async for line in lines_of(answer.content):
                    yield watch_event(line)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"watch {resource.plural}: {_text_of(error)}") from error

    async def apply(
        self,
        resource: Resource,
        manifest: Manifest,
        *,
        manager: str,
        force: bool,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Manifest:
        namespace, name = _place_of(manifest)
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        query |= {"dryRun": "All"} if dry_run else {}
        path = path_of(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        return await self._call(
            _Request("patch", "PATCH", resource, path, query, manifest, "application/apply-patch+yaml")
        )

    async def create(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        namespace, _ = _place_of(manifest)
        query = {"fieldManager": manager, "fieldValidation": "Strict"}  # as strict as an apply, since 1.25
        return await self._call(_Request("create", "POST", resource, path_of(resource, namespace), query, manifest))

    async def replace(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        namespace, name = _place_of(manifest)
        path = path_of(resource, namespace, name)
        return await self._call(_Request("update", "PUT", resource, path, {"fieldManager": manager}, manifest))

    async def set_managed_fields(
        self, resource: Resource, namespace: str, name: str, entries: Sequence[Manifest], *, uid: str, version: str
    ) -> Manifest:
        metadata: Manifest = {"managedFields": entries, "uid": uid, "resourceVersion": version}
        patch = [Manifest(op="replace", path=f"/metadata/{field}", value=value) for field, value in metadata.items()]
        path = path_of(resource, namespace, name)
        return await self._call(_Request("patch", "PATCH", resource, path, None, patch, "application/json-patch+json"))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        conditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        options: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": conditions,
            "propagationPolicy": "Background",
        }
        await self._call(_Request("delete", "DELETE", resource, path_of(resource, namespace, name), None, options))

    async def served(self, group: str, version: str) -> frozenset[str]:
        resource = Resource(group, version, "discovery", "APIResourceList")
        try:
            answer = await self._call(_Request("discover", "GET", resource, _root(resource)))
        except NotFound:
            return frozenset()
        entries = answer.get("resources")
        return (
            frozenset(str(entry["name"]) for entry in entries if isinstance(entry, dict) and "name" in entry)
            if (isinstance(entries, list))
            else frozenset()
        )

    async def version(self) -> str:
        """The server's, such as `v1.33.2`; empty when it does not say. Raises KubeError."""
        answer = await self._call(_Request("version", "GET", Resource("", "", "version", "Version"), "/version"))
        return str(answer.get("gitVersion", ""))

    def _open(
        self, request: _Request, timeout: aiohttp.ClientTimeout, session: aiohttp.ClientSession | None
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        assert session is not None, "used outside of `async with`"
        content_type = {"Content-Type": request.content_type} if request.body is not None else {}
        return session.request(
            request.method,
            self._connection.server + request.path,
            params=request.query,
            data=None if request.body is None else msgspec.json.encode(request.body),
            headers={"Accept": "application/json", **content_type},
            timeout=timeout,
        )

    async def _call(self, request: _Request) -> Manifest:
        return mapping_of(await self._answer(request))

    async def _answer(self, request: _Request) -> bytes:
        await self._rate_limit.wait()
        self.count(request.verb, request.resource)
        timeout = aiohttp.ClientTimeout(total=request.deadline_s, sock_connect=10.0)
        try:
            async with self._open(request, timeout, self._session) as answer:
                data = await answer.read()
                self.clock.read_date(answer.headers.get("Date", ""))
                if answer.status >= 300:
                    raise error_of(answer.status, data, answer.headers)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{request.verb} {request.resource.plural}: {_text_of(error)}") from error
        return data

    def _socket(self, address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
        opened = _socket(address)
        self._sockets.add(opened)
        return opened

    async def _wait_for_closing(self) -> None:
        """Wait for the connections of cancelled calls, such as watches: aiohttp forgets them, and TLS closes them with
        a last exchange, so that a loop that ends at once would leave their sockets to the garbage collector."""
        for _ in range(_GOODBYES):
            if all(opened.fileno() < 0 for opened in self._sockets):
                return
            await asyncio.sleep(0.005)

    async def _authorized(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send the present token, which rotates, except where a redirect leads to another server."""
        token = self._connection.token()
        if token is not None and request.url.origin() == self._origin:
            request.headers["Authorization"] = f"Bearer {token}"
        return await handler(request)


def _socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        opened.setsockopt(socket.IPPROTO_TCP, option, value)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
    return opened


def _root(resource: Resource) -> str:
    return f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"


def path_of(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    """The path of a kind on the API server, in one namespace or in all, or of one object."""
    place = f"/namespaces/{quote(namespace, safe='')}" if namespace is not None else ""
    return f"{_root(resource)}{place}/{resource.plural}" + (f"/{quote(name, safe='')}" if name is not None else "")


def _place_of(manifest: Manifest) -> tuple[str, str]:
    metadata = manifest["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["namespace"]), str(metadata.get("name", ""))


def _text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
