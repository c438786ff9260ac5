"""Answers lines of batches as the batch class of their tenants, with the parsers, limits and relay of live requests.

A line that cannot run at present (no room, no workers, its tenant's own limits) is answered as transient, and comes
again later.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeVar

import msgspec

from baton_gateway import errors
from baton_gateway.batches.batch_run import LineAnswer
from baton_gateway.batches.lines import EMBEDDINGS, BatchLine
from baton_gateway.errors import Problem, RefusedError, unsupported
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_gateway.http_api.encoding_api import encoding_body
from baton_gateway.http_api.loop_accounts import LoopAccounts, holder_name
from baton_gateway.http_api.memory_budget import MemoryBudget, RequestMemory
from baton_gateway.http_api.model_names import ModelNames
from baton_gateway.http_api.rate_limits import RateLimits
from baton_gateway.http_api.request_body import VALUE_BYTES
from baton_gateway.openai_api.answer_writers import AnswerWriter, CollectingWriter
from baton_gateway.openai_api.encoding_answers import EncodingWriter
from baton_gateway.openai_api.encoding_types import EncodeRequest, parse_embedding
from baton_gateway.openai_api.json_pieces import JsonBytes
from baton_gateway.openai_api.openai_fields import UnknownFields
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest, parse_chat, parse_completion
from baton_gateway.openai_api.response_encoding import error_body
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.tenants import Tenants
from baton_wire.fair_loop.charging import charged_context
from baton_wire.listening.complaints import Complaints
from baton_wire.tenant_table import PriorityClass

_log = logging.getLogger("baton.gateway.batches")
HOLDER: Final = "batches"
"""The source of lines where there are no tenants."""
LINKING_S: Final = 15.0
"""For this long after its start, a process may not know a model because no worker of it is linked yet."""
_TRANSIENT: Final = (429, 503)
AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest, EncodeRequest)


class LineAnswering:
    """The answers of one process."""

    def __init__(
        self,
        relay: Relay,
        names: ModelNames,
        tenants: Tenants,
        limits: RateLimits,
        budget: MemoryBudget,
        accounts: LoopAccounts,
        unknown_fields: Callable[[], UnknownFields],
    ) -> None:
        self._relay, self._names, self._tenants, self._limits = relay, names, tenants, limits
        self._budget, self._accounts, self._unknown_fields = budget, accounts, unknown_fields
        self._began_s = asyncio.get_running_loop().time()
        self._complaints = Complaints(_log)
        self._assembling = TenantThreads("assemble")

    def context(self, tenant: str) -> Context:
        """The context in which a tenant's lines are charged to it."""
        return charged_context(self._accounts.of(self._tenants.by_name(tenant) or DEFAULT_TENANT, HOLDER))

    async def answer(self, tenant: str, line: BatchLine) -> LineAnswer:
        """Answer one line, or say why not. Every problem becomes an error object."""
        request_id = f"req-{secrets.token_hex(12)}"
        try:
            known = self._tenants.by_name(tenant)
            if known is None:
                return _problem(errors.no_capacity(), request_id)
            body = await self._answer(known, line, request_id)
            return LineAnswer(200, b"".join(body), request_id)
        except RefusedError as refusal:
            return self._refusal(refusal.problem, request_id)
        except BaseException as error:
            if errors.ends_task(error):
                raise
            self._complaints.say("a line of a batch failed", request_id, error)
            return _problem(errors.internal_error(), request_id)

    def _refusal(self, problem: Problem, request_id: str) -> LineAnswer:
        is_new = asyncio.get_running_loop().time() - self._began_s < LINKING_S or not self._names.list_names()
        is_unlinked = problem.code == "model_not_found" and is_new
        is_transient = is_unlinked or (problem.status in _TRANSIENT and not problem.is_final)
        return _problem(problem, request_id, is_transient=is_transient)

    async def _answer(self, tenant: Tenant, line: BatchLine, request_id: str) -> list[JsonBytes]:
        memory = RequestMemory(self._budget, holder_name(tenant, HOLDER))
        try:
            if not memory.take(line.size + VALUE_BYTES):
                raise RefusedError(errors.out_of_memory())
            request = self._names.resolve(self._parse(line))
            clock = asyncio.get_running_loop().time
            charged = self._limits.charge(tenant, request, self._relay.expected_work(request), {}, clock())
            try:
                if isinstance(request, EncodeRequest):
                    encoder = EncodingWriter(memory.take)
                    charged.live = self._start(request, tenant, encoder, request_id)
                    return await self._encoded(charged.live, request, encoder, tenant)
                writer = CollectingWriter(charge=memory.take)
                charged.live = self._start(request, tenant, writer, request_id)
                result = await writer.done
                if isinstance(result, Problem):
                    raise RefusedError(result)
                return await self._assembling.run(tenant.name, result.body)
            finally:
                if charged.live is not None:
                    self._relay.client_gone(charged.live)
                    self._relay.closed(charged.live)
                self._limits.settle(charged, clock())
        finally:
            memory.give_back()

    def _start(
        self, request: ChatRequest | CompletionRequest, tenant: Tenant, writer: AnswerWriter, request_id: str
    ) -> LiveRequest:
        return self._relay.start(request, tenant, writer, request_id)

    async def _encoded(
        self, live: LiveRequest, request: EncodeRequest, writer: EncodingWriter, tenant: Tenant
    ) -> list[JsonBytes]:
        usage = await writer.done
        if isinstance(usage, Problem):
            raise RefusedError(usage)
        assert writer.head is not None
        arguments = (live, request, writer.head, writer.results(), usage)
        return await self._assembling.run(tenant.name, encoding_body, *arguments)

    def _parse(self, line: BatchLine) -> ChatRequest | CompletionRequest | EncodeRequest:
        """Parse a line's body as that of a live request of the batch class. Raises RefusedError."""
        body: dict[str, Any] = line.body
        unknown = self._unknown_fields()
        if line.url == EMBEDDINGS:
            return _in_batch_class(parse_embedding(body, unknown))
        if line.url == "/v1/completions":
            return _in_batch_class(parse_completion(body, unknown))
        return _in_batch_class(parse_chat(body, unknown))


def _in_batch_class(request: AnyRequest) -> AnyRequest:
    if request.options.stream:
        raise unsupported("stream", "a batch collects whole answers")
    return msgspec.structs.replace(
        request, options=msgspec.structs.replace(request.options, priority=PriorityClass.BATCH)
    )


def _problem(problem: Problem, request_id: str, *, is_transient: bool = True) -> LineAnswer:
    transient = is_transient and problem.status != 500
    return LineAnswer(problem.status, error_body(problem, request_id), request_id, transient, problem.retry_after_s)
