"""The handler of HTTP requests: paths to handlers, bodies within limits, answers and errors in the form of their API.

Authorisation and routing use the raw request target: a path that is not exactly a known one does not exist. A client's
headers decide nothing but its tenant, and which of several equal workers its session goes to.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import HttpVersion11, web

from baton_gateway import errors
from baton_gateway.apis.messages_answer import MESSAGES
from baton_gateway.apis.messages_request import parse_message, parse_token_count
from baton_gateway.apis.responses_answer import response_error_body
from baton_gateway.apis.responses_request import parse_response
from baton_gateway.batches.batch_desk import BatchDesk
from baton_gateway.errors import Problem, RefusedError, invalid
from baton_gateway.helper_processes.process_lane import HealthProblem
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_gateway.http_api.access_log import EXCHANGE, ID_HEADER, AccessLog, Exchange, choose_request_id
from baton_gateway.http_api.batch_api import BatchApi, pattern_of
from baton_gateway.http_api.cors import PREFLIGHT_HEADER, cors_headers, preflight_headers
from baton_gateway.http_api.encoding_api import EncodingApi
from baton_gateway.http_api.endpoints import (
    ErrorForm,
    HttpEndpoint,
    find_unsupported,
    messages_endpoint,
    problem_response,
)
from baton_gateway.http_api.line_answering import LineAnswering
from baton_gateway.http_api.lookups import JSON, MODELS, SERVER, Lookups
from baton_gateway.http_api.loop_accounts import LoopAccounts
from baton_gateway.http_api.memory_budget import MemoryBudget
from baton_gateway.http_api.model_names import ModelNames
from baton_gateway.http_api.page_lookup import PageLookup
from baton_gateway.http_api.parsed_part_cache import ParsedPartCache
from baton_gateway.http_api.rate_limits import RateLimits
from baton_gateway.http_api.record_lookup import RECORDS, RecordLookup
from baton_gateway.http_api.request_body import RequestBody, holder_of
from baton_gateway.http_api.session_hint import session_number
from baton_gateway.http_api.tokenising import Tokenising
from baton_gateway.http_api.viewers import Viewers
from baton_gateway.openai_api.answer_forms import OPENAI, AnswerForm
from baton_gateway.openai_api.answer_writers import ChargeMemory, CollectingWriter
from baton_gateway.openai_api.json_pieces import PIECE_BYTES, JsonBytes, even_pieces
from baton_gateway.openai_api.openai_fields import UnknownFields
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest, parse_chat, parse_completion
from baton_gateway.openai_api.response_encoding import error_body
from baton_gateway.openai_api.streaming_writer import STALL_S, StreamingWriter
from baton_gateway.page.page_desk import PageDesk
from baton_gateway.page.static_files import DATA, PAGE, is_static
from baton_gateway.records.record_desk import RecordDesk
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.record_keeping import refused_trail
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.tenancy.token_verifier import UnknownKeyError
from baton_gateway.text.returned_memory import MemoryReturn
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.tracing import trace_context
from baton_gateway.tracing.trace_context import TraceContext, choose_trace
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import RoutePolicy
from baton_wire.fair_loop.charging import charge_to
from baton_wire.listening.complaints import Complaints
from baton_wire.listening.source_address import source_of

_log = logging.getLogger("baton.gateway.http")

CLIENT_GONE = 499
"""A status for metrics alone: the client hung up before its answer was complete."""
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{0,255}")
_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no", **SERVER}

ParsedRequest = tuple[ChatRequest | CompletionRequest, AnswerForm]
Parse = Callable[[dict[str, object], UnknownFields], ParsedRequest]


@dataclass(frozen=True, slots=True)
class ApiParts:
    """The parts of the process that the API uses."""

    relay: Relay
    table: WorkerTable
    tenants: Tenants
    limits: RateLimits
    templates: TemplateRenderer
    metrics: GatewayMetrics
    budget: MemoryBudget
    accounts: LoopAccounts
    desk: RecordDesk
    page: PageDesk
    viewers: Viewers
    batches: BatchDesk | None = None
    """None: files and batches are not served."""


@dataclass(frozen=True, slots=True)
class ApiOptions:
    """The configuration of the API."""

    policy: RoutePolicy
    origins: tuple[str, ...] = ()
    """Origins whose pages may call from a browser; `*`: any."""
    aliases: Sequence[tuple[str, str]] = ()
    """Pairs of an alias and the served name of a model."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    trace_ratio: float | None = None
    """The share of requests that are traced where their clients do not say; None: traces are not exported."""


class HttpApi:
    """The request handler of an aiohttp low-level server."""

    def __init__(
        self, parts: ApiParts, options: ApiOptions, health_problems: Callable[[], list[HealthProblem]] = list
    ) -> None:
        """`health_problems`: returns what is wrong with the helper processes."""
        self._options = options
        self._relay = parts.relay
        self._budget = parts.budget
        self._memory = MemoryReturn()
        self._parsing = ThreadPoolExecutor(1, "parse")
        self._assembling = TenantThreads("assemble")
        self._cache = ParsedPartCache()
        self._table = parts.table
        self._tenants = parts.tenants
        self._viewers = parts.viewers
        records, page = RecordLookup(parts.desk), PageLookup(parts.page)
        self._limits = parts.limits
        self._access_log = AccessLog()
        self._complaints = Complaints(_log)
        self._metrics = parts.metrics
        self._accounts = parts.accounts
        self._streams: set[tuple[LiveRequest, StreamingWriter]] = set()
        self._names = names = ModelNames(parts.table, options.aliases)
        self._lookups = lookups = Lookups(parts.table, names, options.policy, parts.metrics, health_problems)
        self._tokenising = Tokenising(parts.table, names, parts.templates, parts.relay.prompts.encoder)
        encoding = EncodingApi(
            parts.relay,
            parts.table,
            names,
            parts.limits,
            self._body,
            self._send,
            self._unknown_fields,
            lambda: self.is_draining,
        )
        batches = parts.batches and BatchApi(
            parts.batches, parts.table, self._body, self._unknown_fields, lambda: self.is_draining
        )
        self.lines = LineAnswering(
            parts.relay, names, parts.tenants, parts.limits, parts.budget, parts.accounts, self._unknown_fields
        )
        self._endpoints = {
            "/v1/chat/completions": HttpEndpoint(("POST",), self._chat),
            "/v1/completions": HttpEndpoint(("POST",), self._completions),
            MODELS: HttpEndpoint(("GET",), lookups.models),
            "/v1/responses": HttpEndpoint(("POST",), self._response, error_form=response_error_body),
            "/v1/responses/input_tokens": HttpEndpoint(
                ("POST",), self._count_input_tokens, error_form=response_error_body
            ),
            "/v1/messages": messages_endpoint(self._message),
            "/v1/messages/count_tokens": messages_endpoint(self._count_tokens),
            **encoding.endpoints(),
            **(batches.endpoints() if batches else {}),
            "/tokenize": HttpEndpoint(("POST",), self._tokenize),
            "/detokenize": HttpEndpoint(("POST",), self._detokenize),
            "/tokenizer_info": HttpEndpoint(("GET",), self._tokenizer_info),
            RECORDS: HttpEndpoint(("GET",), records.records, takes_viewers=True),
            DATA: HttpEndpoint(("GET",), page.data, takes_viewers=True, is_open_here=True),
            "/openapi.json": HttpEndpoint(("GET",), lookups.openapi),
            "/version": HttpEndpoint(("GET",), lookups.version),
            "/health": HttpEndpoint(("GET", "POST"), lookups.routable, is_open=True, is_probe=True),
            "/ping": HttpEndpoint(("GET", "POST"), lookups.routable, is_open=True, is_probe=True),
            "/health/live": HttpEndpoint(("GET",), lookups.live, is_open=True, is_probe=True),
            "/health/ready": HttpEndpoint(("GET",), lookups.ready, is_open=True, is_probe=True),
            "/health/routable": HttpEndpoint(("GET",), lookups.routable, is_open=True, is_probe=True),
            "/metrics": HttpEndpoint(("GET",), lookups.metrics, is_open=True),
            "/": HttpEndpoint(("GET",), lookups.front, is_open=True),
            PAGE: HttpEndpoint(("GET",), page.file, is_open=True),
        }
        self._model = HttpEndpoint(("GET",), lookups.model)

    def methods(self) -> dict[str, tuple[str, ...]]:
        """Return the served paths with their methods."""
        return {path: endpoint.methods for path, endpoint in self._endpoints.items()} | {
            f"{MODELS}/{{id}}": self._model.methods
        }

    def _unknown_fields(self) -> UnknownFields:
        return self._options.unknown_fields

    def reconfigure(self, options: ApiOptions) -> None:
        """Apply other options to requests that arrive from now on; the origins stay."""
        self._options = replace(options, origins=self._options.origins)
        self._lookups.policy = options.policy
        self._names.reconfigure(options.aliases)

    @property
    def is_draining(self) -> bool:
        """True once no new request begins."""
        return self._lookups.is_draining

    def drain(self) -> None:
        self._lookups.is_draining = True

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; every problem becomes an error object."""
        clock = asyncio.get_running_loop().time
        exchange = request[EXCHANGE] = self._exchange(request, clock())
        status = CLIENT_GONE
        try:
            response = await self._answer(request, exchange)
            if not response.prepared:
                response.headers.update(exchange.headers)
            status = response.status
            return response
        finally:
            self._metrics.answered(status)
            self._access_log.log(exchange, request.method, status, clock())
            if exchange.live is not None:
                self._relay.closed(exchange.live)

    def _exchange(self, request: web.BaseRequest, now: float) -> Exchange:
        own_id = choose_request_id(request.headers.get(ID_HEADER))
        headers = {ID_HEADER: own_id} | cors_headers(request.headers.get("Origin"), self._options.origins)
        return Exchange(own_id, now, headers, trace=self._trace(request))

    def _trace(self, request: web.BaseRequest) -> TraceContext | None:
        if (ratio := self._options.trace_ratio) is None:
            return None
        sent = request.headers.getall(trace_context.HEADER, ())
        return choose_trace(sent, ratio, secrets.token_bytes(trace_context.ID_BYTES))

    async def _answer(self, request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        form: ErrorForm = error_body
        try:
            try:
                endpoint = self._find(request, exchange)
                form = endpoint.error_form
                if self._is_preflight(request):
                    return web.Response(status=204, headers=SERVER | preflight_headers(endpoint.methods))
                if request.method not in endpoint.methods:
                    raise RefusedError(errors.method_not_allowed(endpoint.methods))
                tenant = await self._identify(endpoint, request, exchange)
                is_operator = exchange.viewer is not None and exchange.viewer.sees_all
                exchange.tenant = None if is_operator else tenant.name
                self._charge(request, tenant, endpoint)
                return await endpoint.handler(request, tenant)
            except RefusedError as refusal:
                self._note_refusal(exchange, refusal.problem)
                return problem_response(refusal.problem, exchange.id, form)
        except ConnectionError:
            raise
        except BaseException as error:
            if errors.ends_task(error):
                raise
            self._complaints.say("a request failed", exchange.id, error)
            return problem_response(errors.internal_error(), exchange.id, form)

    def _note_refusal(self, exchange: Exchange, problem: Problem) -> None:
        """Note a refusal for the access log, and keep the record of a request that did not begin."""
        exchange.refusal = problem.code or problem.type
        if exchange.live is None and exchange.tenant is not None and not exchange.is_probe:
            now = asyncio.get_running_loop().time()
            trail = refused_trail(exchange.id, exchange.tenant, exchange.refusal, exchange.began_s, now)
            self._relay.records.add_refused(trail)

    def _charge(self, request: web.BaseRequest, tenant: Tenant, endpoint: HttpEndpoint) -> None:
        """Charge the loop's time for this request to its tenant, and that for a probe to the gateway itself."""
        if not endpoint.is_open:
            charge_to(self._accounts.of(tenant, source_of(request.remote or "")))
        elif endpoint.is_probe:
            charge_to(self._accounts.probes)

    async def _identify(self, endpoint: HttpEndpoint, request: web.BaseRequest, exchange: Exchange) -> Tenant:
        """Return who asks, after another look for the key of a token that is unknown. Raises RefusedError."""
        try:
            return self._tenant(endpoint, request, exchange)
        except UnknownKeyError:
            if not await self._tenants.look_for_keys():
                raise
        return self._tenant(endpoint, request, exchange)

    def _tenant(self, endpoint: HttpEndpoint, request: web.BaseRequest, exchange: Exchange) -> Tenant:
        """Return who asks. Raises RefusedError."""
        if endpoint.is_open:
            return DEFAULT_TENANT
        given = self._tenants.identified(request.headers, _certificate(request))
        credentials = endpoint.credentials(request)
        if not endpoint.takes_viewers:
            return given or self._tenants.authenticate(credentials, time.time())
        may_sit_here = endpoint.is_open_here
        viewer = self._viewers.identify(request, credentials, time.time(), may_sit_here=may_sit_here, given=given)
        exchange.viewer = viewer
        return viewer.tenant

    async def watch_streams(self) -> None:
        """Cancel requests whose clients stopped reading. Runs for the life of the server."""
        while True:
            await asyncio.sleep(1.0)
            now = asyncio.get_running_loop().time()
            for live, writer in list(self._streams):
                if writer.is_stalled(now):
                    self._metrics.stalled()
                    live.note_unread(writer.unread_since_s)
                    self._relay.client_gone(live)
                    writer.abort()

    # Routing ----------------------------------------------------------------------------------------------------------

    def _is_preflight(self, request: web.BaseRequest) -> bool:
        return bool(self._options.origins) and request.method == "OPTIONS" and PREFLIGHT_HEADER in request.headers

    def _find(self, request: web.BaseRequest, exchange: Exchange) -> HttpEndpoint:
        if "Upgrade" in request.headers or not _HOST.fullmatch(request.headers.get("Host", "")):
            raise invalid(None, "This request is not understood.", "bad_request")
        path = request.raw_path.partition("?")[0]
        endpoint = self._endpoints.get(path)
        if endpoint is None and path.startswith(MODELS + "/"):
            path, endpoint = f"{MODELS}/{{id}}", self._model
        if endpoint is None and is_static(path):
            path, endpoint = PAGE, self._endpoints[PAGE]
        if endpoint is None and (pattern := pattern_of(path)) is not None:
            path, endpoint = pattern, self._endpoints.get(pattern)
        if endpoint is None:
            raise RefusedError(find_unsupported(path) or errors.unknown_url(path, self._endpoints))
        exchange.path, exchange.is_probe = path, endpoint.is_open
        return endpoint

    # Generating -------------------------------------------------------------------------------------------------------

    async def _chat(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return await self._generate(request, tenant, lambda raw, unknown: (parse_chat(raw, unknown), OPENAI))

    async def _completions(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return await self._generate(request, tenant, lambda raw, unknown: (parse_completion(raw, unknown), OPENAI))

    async def _response(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return await self._generate(request, tenant, parse_response)

    async def _message(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return await self._generate(request, tenant, lambda raw, unknown: (parse_message(raw, unknown), MESSAGES))

    async def _count_tokens(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        with self._tokenising.slot(holder_of(request, tenant), tenant), self._body(request, tenant) as body:
            chat = parse_token_count(await body.read_object(self._table.body_limits), self._options.unknown_fields)
            request[EXCHANGE].name_ignored(chat.options.ignored)
            tokens = await self._tokenising.count(chat, tenant)
        return web.json_response({"input_tokens": tokens}, headers=SERVER)

    async def _count_input_tokens(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        with self._tokenising.slot(holder_of(request, tenant), tenant), self._body(request, tenant) as body:
            raw = await body.read_object(self._table.body_limits)
            chat, _ = parse_response(raw, self._options.unknown_fields)
            request[EXCHANGE].name_ignored(chat.options.ignored)
            tokens = await self._tokenising.count(chat, tenant)
        return web.json_response({"object": "response.input_tokens", "input_tokens": tokens}, headers=SERVER)

    async def _tokenize(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        with self._tokenising.slot(holder_of(request, tenant), tenant), self._body(request, tenant) as body:
            raw = await body.read_object(self._table.body_limits)
            return await self._send(request, [await self._tokenising.tokenize(raw, tenant, body.charged.take)])

    async def _tokenizer_info(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        return web.Response(body=self._tokenising.info(request.raw_path, tenant), headers=JSON)

    async def _detokenize(self, request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
        with self._tokenising.slot(holder_of(request, tenant), tenant), self._body(request, tenant) as body:
            raw = await body.read_object(self._table.body_limits)
            return await self._send(request, [await self._tokenising.detokenize(raw, tenant, body.charged.take)])

    def _body(self, request: web.BaseRequest, tenant: Tenant) -> RequestBody:
        """Return the request's body, charged to its holder."""
        return RequestBody(request, holder_of(request, tenant), self._budget, self._memory, self._parsing, self._cache)

    async def _generate(self, request: web.BaseRequest, tenant: Tenant, parse: Parse) -> web.StreamResponse:
        with self._body(request, tenant) as body:
            request_as_sent, form = parse(await body.read_object(self._table.body_limits), self._options.unknown_fields)
            exchange = request[EXCHANGE]
            exchange.name_ignored(request_as_sent.options.ignored)
            parsed = self._names.resolve(request_as_sent)
            exchange.session = session_number(request.headers, parsed.options.prompt_cache_key, tenant.name)
            if self.is_draining:
                raise RefusedError(errors.shutting_down())
            clock = asyncio.get_running_loop().time
            work = self._relay.expected_work(parsed)
            charged = self._limits.charge(tenant, parsed, work, exchange.headers, clock())
            try:
                answer = self._stream if parsed.options.stream else self._collect
                return await answer(request, parsed, form, tenant, body.charged.take)
            finally:
                charged.live = exchange.live
                self._limits.settle(charged, clock())

    async def _collect(
        self,
        request: web.BaseRequest,
        parsed: ChatRequest | CompletionRequest,
        form: AnswerForm,
        tenant: Tenant,
        charge: ChargeMemory,
    ) -> web.StreamResponse:
        exchange = request[EXCHANGE]
        writer = CollectingWriter(form, charge)
        live = exchange.begin(
            self._relay.start(parsed, tenant, writer, exchange.id, exchange.session, exchange.began_s)
        )
        try:
            result = await writer.done
        finally:
            self._relay.client_gone(live)
        if isinstance(result, Problem):
            raise RefusedError(result)
        exchange.name_ignored(live.unenforced)
        if result.size <= PIECE_BYTES:
            return await self._send(request, result.body())
        body = await self._assembling.run(tenant.name, result.body)
        return await self._send(request, body)

    async def _send(self, request: web.BaseRequest, pieces: Sequence[JsonBytes]) -> web.StreamResponse:
        """Send an answer that may be large: piece by piece, as fast as its client takes them."""
        size = sum(map(len, pieces))
        if size <= PIECE_BYTES:
            return web.Response(body=b"".join(pieces), headers=JSON)
        response = web.StreamResponse(headers=JSON | request[EXCHANGE].headers | {"Content-Length": str(size)})
        await response.prepare(request)
        try:
            for piece in even_pieces(pieces):
                async with asyncio.timeout(STALL_S):
                    await response.write(piece)
                await asyncio.sleep(0)
            await self._finish(response)
        except TimeoutError:
            self._cut(request)
        return response

    async def _finish(self, response: web.StreamResponse) -> None:
        """Raises TimeoutError when the client does not take the last bytes."""
        async with asyncio.timeout(STALL_S):
            await response.write_eof()

    def _cut(self, request: web.BaseRequest) -> None:
        """End the connection of a client that stopped reading."""
        self._metrics.stalled()
        if (live := request[EXCHANGE].live) is not None:
            live.note_unread(asyncio.get_running_loop().time() - STALL_S)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read")

    async def _stream(
        self,
        request: web.BaseRequest,
        parsed: ChatRequest | CompletionRequest,
        form: AnswerForm,
        tenant: Tenant,
        charge: ChargeMemory,
    ) -> web.StreamResponse:
        exchange = request[EXCHANGE]
        writer = StreamingWriter(exchange.id, form, charge)
        live = exchange.begin(
            self._relay.start(parsed, tenant, writer, exchange.id, exchange.session, exchange.began_s)
        )
        entry = (live, writer)
        try:
            if (problem := await writer.opened) is not None:
                raise RefusedError(problem)
            exchange.name_ignored(live.unenforced)
            response = web.StreamResponse(headers=_STREAM | exchange.headers)
            is_chunked = request.version >= HttpVersion11
            if is_chunked:
                response.enable_chunked_encoding()
            await response.prepare(request)
            transport = request.transport
            if transport is None:
                raise ConnectionResetError("the client is gone")
            writer.attach(transport, is_chunked)
            self._streams.add(entry)
            await writer.closed
            if transport.is_closing():
                raise ConnectionResetError("the client is gone")
            await self._finish(response)
            return response
        except TimeoutError:
            self._cut(request)
            raise
        finally:
            self._streams.discard(entry)
            self._relay.client_gone(live)


def _certificate(request: web.BaseRequest) -> dict[str, Any] | None:
    """The certificate of a client, verified; None: it has shown none."""
    transport = request.transport
    return None if transport is None else transport.get_extra_info("peercert") or None
