"""The endpoints without an answer in text: embeddings, reranking, scores of pairs, labels."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from baton_gateway.errors import Problem, RefusedError, shutting_down
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_gateway.http_api.access_log import EXCHANGE
from baton_gateway.http_api.endpoints import HttpEndpoint
from baton_gateway.http_api.model_names import ModelNames
from baton_gateway.http_api.rate_limits import RateLimits
from baton_gateway.http_api.request_body import RequestBody
from baton_gateway.openai_api.answer_writers import ChargeMemory
from baton_gateway.openai_api.encoding_answers import (
    EncodingWriter,
    classification_body,
    embedding_body,
    rerank_body,
    score_body,
)
from baton_gateway.openai_api.encoding_types import (
    EncodeRequest,
    EncodeTask,
    parse_classification,
    parse_embedding,
    parse_rerank,
    parse_score,
)
from baton_gateway.openai_api.json_pieces import PIECE_BYTES, JsonBytes
from baton_gateway.openai_api.openai_fields import UnknownFields
from baton_gateway.openai_api.response_encoding import AnswerHead, Usage
from baton_gateway.requests.encode_plan import label_probabilities, pair_scores
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.tenant import Tenant
from baton_gateway.workers.linked_workers import WorkerTable
from baton_wire.messages.encoding import unpack_floats

ParseEncoding = Callable[[dict[str, Any], UnknownFields], EncodeRequest]
SendPieces = Callable[[web.BaseRequest, Sequence[JsonBytes]], Awaitable[web.StreamResponse]]


class EncodingApi:
    """The handlers of these endpoints."""

    def __init__(  # noqa: PLR0913 - parts of the whole API, and what it lends
        self,
        relay: Relay,
        table: WorkerTable,
        names: ModelNames,
        limits: RateLimits,
        open_body: Callable[[web.BaseRequest, Tenant], RequestBody],
        send: SendPieces,
        unknown_fields: Callable[[], UnknownFields],
        is_draining: Callable[[], bool],
    ) -> None:
        self._relay, self._table, self._names, self._limits = relay, table, names, limits
        self._open_body, self._send = open_body, send
        self._unknown_fields, self._is_draining = unknown_fields, is_draining
        self._assembling = TenantThreads("assemble")

    def endpoints(self) -> dict[str, HttpEndpoint]:
        """The paths with their endpoints."""
        embeds, scores = self._endpoint(parse_embedding), self._endpoint(parse_score)
        reranks, classifies = self._endpoint(parse_rerank), self._endpoint(parse_classification)
        bare = self._endpoint(lambda raw, unknown: parse_rerank(raw, unknown, returns_documents=False))
        return {
            "/v1/embeddings": embeds,
            "/v1/rerank": reranks,
            "/v2/rerank": bare,
            "/rerank": reranks,
            "/v1/score": scores,
            "/score": scores,
            "/classify": classifies,
        }

    def _endpoint(self, parse: ParseEncoding) -> HttpEndpoint:
        async def handle(request: web.BaseRequest, tenant: Tenant) -> web.StreamResponse:
            return await self._encode(request, tenant, parse)

        return HttpEndpoint(("POST",), handle)

    async def _encode(self, request: web.BaseRequest, tenant: Tenant, parse: ParseEncoding) -> web.StreamResponse:
        with self._open_body(request, tenant) as body:
            parsed = parse(await body.read_object(self._table.body_limits), self._unknown_fields())
            exchange = request[EXCHANGE]
            exchange.name_ignored(parsed.options.ignored)
            named = self._names.resolve(parsed)
            assert isinstance(named, EncodeRequest)
            if self._is_draining():
                raise RefusedError(shutting_down())
            clock = asyncio.get_running_loop().time
            work = self._relay.expected_work(named)
            charged = self._limits.charge(tenant, named, work, exchange.headers, clock())
            try:
                return await self._collect(request, named, tenant, body.charged.take)
            finally:
                charged.live = exchange.live
                self._limits.settle(charged, clock())

    async def _collect(
        self, request: web.BaseRequest, parsed: EncodeRequest, tenant: Tenant, charge: ChargeMemory
    ) -> web.StreamResponse:
        exchange = request[EXCHANGE]
        writer = EncodingWriter(charge)
        live = exchange.begin(self._relay.start(parsed, tenant, writer, exchange.id))
        try:
            usage = await writer.done
        finally:
            self._relay.client_gone(live)
        if isinstance(usage, Problem):
            raise RefusedError(usage)
        results, head = writer.results(), writer.head
        assert head is not None
        arguments = (live, parsed, head, results, usage)
        if sum(map(len, results)) <= PIECE_BYTES:
            return await self._send(request, encoding_body(*arguments))
        return await self._send(request, await self._assembling.run(tenant.name, encoding_body, *arguments))


def encoding_body(
    live: LiveRequest,
    request: EncodeRequest,
    head: AnswerHead,
    results: Sequence[bytes],
    usage: Usage,
) -> list[JsonBytes]:
    """Encode the answer. May be called in another thread."""
    plan = live.encoding
    assert plan is not None
    assert live.text is not None
    if request.task is EncodeTask.EMBED:
        return embedding_body(head, results, request.is_base64, usage)
    values = [unpack_floats(packed) for packed in results]
    if request.task is EncodeTask.CLASSIFY:
        rows = [label_probabilities(row, plan.is_probability) for row in values]
        return classification_body(head, rows, live.text.bundle.labels, usage)
    assert plan.scoring is not None
    scores = pair_scores(request, plan.scoring, values, plan.is_probability)
    if request.task is EncodeTask.RERANK:
        return rerank_body(head, request, scores, usage)
    return score_body(head, scores, usage)
