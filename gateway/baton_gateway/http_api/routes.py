"""The public HTTP server: raw paths to handlers, bodies within limits, answers and errors as OpenAI's API has them.

Authorisation and routing look at the raw request target, compared as it is: whatever is not exactly a known path does
not exist. No header of a client steers anything but its own tenant.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import HttpVersion11, StreamReader, web

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError, invalid
from baton_gateway.http_api.json_body import parse_object
from baton_gateway.http_api.lookups import JSON, MODELS, SERVER, Lookups
from baton_gateway.http_api.openai_types import ChatRequest, CompletionRequest, parse_chat, parse_completion
from baton_gateway.http_api.responses import error_body
from baton_gateway.http_api.sinks import CollectingSink, StreamingSink
from baton_gateway.http_api.tenants import DEFAULT_TENANT, Tenant, Tenants
from baton_gateway.http_api.tokenising import Tokenising
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.relay import Relay
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import RoutePolicy

_log = logging.getLogger("baton.gateway.http")

CLIENT_GONE = 499
"""Only in metrics: the client hung up before its answer was complete."""
BODY_S = 30.0
BODY_IDLE_S = 10.0
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{0,255}")
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", **SERVER}

Handler = Callable[[web.BaseRequest, Tenant], Awaitable[web.StreamResponse]]
Parse = Callable[[dict[str, object]], ChatRequest | CompletionRequest]


@dataclass(frozen=True, slots=True)
class _Endpoint:
    methods: tuple[str, ...]
    handler: Handler
    is_open: bool = False
    """Answered without an API key: probes and monitoring."""


class HttpApi:
    """The request handler of an aiohttp low-level server."""

    def __init__(
        self,
        relay: Relay,
        table: WorkerTable,
        tenants: Tenants,
        templates: TemplateRenderer,
        policy: RoutePolicy,
        metrics: GatewayMetrics,
    ) -> None:
        self._relay = relay
        self._table = table
        self._tenants = tenants
        self._metrics = metrics
        self._streams: set[tuple[LiveRequest, StreamingSink]] = set()
        self._lookups = lookups = Lookups(table, policy, metrics)
        self._tokenising = Tokenising(table, templates, relay.encoder)
        self._endpoints = {
            "/v1/chat/completions": _Endpoint(("POST",), self._chat),
            "/v1/completions": _Endpoint(("POST",), self._completions),
            MODELS: _Endpoint(("GET",), lookups.models),
            "/tokenize": _Endpoint(("POST",), self._tokenize),
            "/detokenize": _Endpoint(("POST",), self._detokenize),
            "/openapi.json": _Endpoint(("GET",), lookups.openapi),
            "/version": _Endpoint(("GET",), lookups.version),
            "/health": _Endpoint(("GET", "POST"), lookups.routable, is_open=True),
            "/ping": _Endpoint(("GET", "POST"), lookups.routable, is_open=True),
            "/health/live": _Endpoint(("GET",), lookups.live, is_open=True),
            "/health/ready": _Endpoint(("GET",), lookups.ready, is_open=True),
            "/health/routable": _Endpoint(("GET",), lookups.routable, is_open=True),
            "/metrics": _Endpoint(("GET",), lookups.metrics, is_open=True),
        }
        self._model = _Endpoint(("GET",), lookups.model)

    def methods(self) -> dict[str, tuple[str, ...]]:
        """The paths that are served, with their methods."""
        return {path: endpoint.methods for path, endpoint in self._endpoints.items()} | {
            f"{MODELS}/{{id}}": self._model.methods
        }

    def reconfigure(self, policy: RoutePolicy) -> None:
        self._lookups.policy = policy

    @property
    def is_draining(self) -> bool:
        """Nothing new is begun."""
        return self._lookups.is_draining

    def drain(self) -> None:
        self._lookups.is_draining = True

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every problem becomes an error object."""
        try:
            response = await self._answer(request)
        except (ConnectionError, asyncio.CancelledError):
            self._metrics.answered(CLIENT_GONE)
            raise
        self._metrics.answered(response.status)
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            try:
                endpoint = self._find(request)
                tenant = DEFAULT_TENANT if endpoint.is_open else self._tenants.of(request.headers.get("Authorization"))
                return await endpoint.handler(request, tenant)
            except RefusedError as refusal:
                return _error(refusal.problem)
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 (the outermost loop of a request; logged and counted)
            _log.exception("a request failed")
            return _error(errors.internal_error())

    async def watch_streams(self) -> None:
        """Cancel requests whose clients stopped reading. Runs for the life of the server."""
        while True:
            await asyncio.sleep(1.0)
            now = asyncio.get_running_loop().time()
            for live, sink in list(self._streams):
                if sink.is_stalled(now):
                    self._metrics.stalled()
                    self._relay.client_gone(live)
                    sink.abort()

    # Routing ----------------------------------------------------------------------------------------------------------

    def _find(self, request: web.BaseRequest) -> _Endpoint:
        if "Upgrade" in request.headers or not _HOST.fullmatch(request.headers.get("Host", "")):
            raise invalid(None, "This request is not understood.", "bad_request")
        path = request.raw_path.partition("?")[0]
        endpoint = self._endpoints.get(path)
        if endpoint is None and path.startswith(MODELS + "/"):
            endpoint = self._model
        if endpoint is None:
            raise RefusedError(errors.unknown_url(self._endpoints))
        if request.method not in endpoint.methods:
            raise RefusedError(errors.method_not_allowed(endpoint.methods))
        return endpoint

    # Generating -------------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return await self._generate(request, tenant, parse_chat)

    async def _completions(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return await self._generate(request, tenant, parse_completion)

    async def _tokenize(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return web.Response(body=await self._tokenising.tokenize(await self._object(request), tenant), headers=JSON)

    async def _detokenize(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return web.Response(body=await self._tokenising.detokenize(await self._object(request)), headers=JSON)

    async def _object(self, request: web.BaseRequest) -> dict[str, Any]:
        """The body. Raises RefusedError."""
        limits = self._table.body_limits
        return parse_object(await _body(request, limits.max_bytes), limits.max_values)

    async def _generate(self, request: web.BaseRequest, tenant: Tenant, parse: Parse) -> web.StreamResponse:
        parsed = parse(await self._object(request))
        if self.is_draining:
            raise RefusedError(errors.shutting_down())
        if parsed.options.stream:
            return await self._stream(request, parsed, tenant)
        return await self._collect(parsed, tenant)

    async def _collect(self, parsed: ChatRequest | CompletionRequest, tenant: Tenant) -> web.StreamResponse:
        sink = CollectingSink()
        live = self._relay.start(parsed, tenant, sink)
        try:
            result = await sink.done
        finally:
            self._relay.client_gone(live)
        if isinstance(result, Problem):
            return _error(result)
        return web.Response(body=result, headers=JSON)

    async def _stream(
        self, request: web.BaseRequest, parsed: ChatRequest | CompletionRequest, tenant: Tenant
    ) -> web.StreamResponse:
        sink = StreamingSink()
        live = self._relay.start(parsed, tenant, sink)
        entry = (live, sink)
        try:
            if (problem := await sink.opened) is not None:
                return _error(problem)
            response = web.StreamResponse(headers=_STREAM)
            is_chunked = request.version >= HttpVersion11
            if is_chunked:
                response.enable_chunked_encoding()
            await response.prepare(request)
            transport = request.transport
            if transport is None:
                raise ConnectionResetError("the client is gone")
            sink.attach(transport, is_chunked)
            self._streams.add(entry)
            await sink.closed
            if transport.is_closing():
                raise ConnectionResetError("the client is gone")
            await response.write_eof()
            return response
        finally:
            self._streams.discard(entry)
            self._relay.client_gone(live)


async def _body(request: web.BaseRequest, max_bytes: int) -> bytes:
    """The body within size and time. Raises RefusedError."""
    if request.content_type != "application/json":
        raise invalid(None, "Content-Type must be application/json.", "unsupported_media_type", status=415)
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise invalid(None, "Compressed bodies are not accepted.", "unsupported_media_type", status=415)
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes)
    content = request.content
    if content.is_eof():  # as a rule it came together with the head
        body = content.read_nowait(-1)
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        return body
    return await _late_body(content, max_bytes)


async def _late_body(content: StreamReader, max_bytes: int) -> bytes:
    parts = []
    size = 0
    try:
        async with asyncio.timeout(BODY_S), asyncio.timeout(BODY_IDLE_S) as idle:
            while part := await content.readany():
                idle.reschedule(asyncio.get_running_loop().time() + BODY_IDLE_S)
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError as error:
        raise invalid(None, "The body came too slowly.", "request_timeout", status=408) from error
    return b"".join(parts)


def _too_large(max_bytes: int) -> RefusedError:
    message = f"The body is larger than the {max_bytes} bytes that the longest request may have."
    return invalid(None, message, "body_too_large", status=413)


def _error(problem: Problem) -> web.Response:
    headers = dict(JSON)
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    if problem.allow is not None:
        headers["Allow"] = problem.allow
    response = web.Response(status=problem.status, body=error_body(problem), headers=headers)
    if problem.status in (408, 413, 415):
        response.force_close()
    return response


def not_http(status: int, message: str) -> web.StreamResponse:
    """The answer to bytes that are no request."""
    kind, code = (errors.INVALID, "bad_request") if status < 500 else (errors.SERVER, "internal_error")
    return _error(Problem(status, kind, message, None, code))
