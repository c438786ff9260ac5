"""The body of a request: read within bounds of size, time and memory, and held until the request has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple

from aiohttp import HttpVersion11, StreamReader, web

from baton_gateway.errors import RefusedError, invalid, out_of_memory
from baton_gateway.http_api.loop_accounts import holder_name
from baton_gateway.http_api.memory_budget import MemoryBudget, RequestMemory
from baton_gateway.http_api.parsed_part_cache import MIN_PART_BYTES, ParsedPartCache
from baton_gateway.openai_api.json_body import BYTE_ORDER_MARK, count_json, parse_object
from baton_gateway.requests.tenant import Tenant
from baton_gateway.text.returned_memory import MemoryReturn
from baton_gateway.workers.request_limits import BodyLimits
from baton_wire.listening.source_address import source_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
BODY_S = 30.0
BODY_IDLE_S = 10.0
INLINE_BYTES = 128 << 10
"""Smaller bodies are parsed on the event loop: about 1 ms."""
VALUE_BYTES = 64
"""The size of a parsed value besides its text: a token id as an object, in a list and in a tuple."""


class RequestBody:
    """A context manager: the bytes that the request takes from the budget are given back when it ends."""

    def __init__(
        self,
        request: web.BaseRequest,
        holder: str,
        budget: MemoryBudget,
        memory: MemoryReturn,
        thread: Executor,
        cache: ParsedPartCache,
    ) -> None:
        """`thread` parses large bodies."""
        self._request = request
        self._thread = thread
        self.charged = RequestMemory(budget, holder)
        """The bytes charged for the body and its answer."""
        self._memory = memory
        self._cache = cache

    def __enter__(self) -> RequestBody:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.charged.give_back()
        self._memory.request_ended(self.charged.size)

    async def read_object(self, limits: BodyLimits) -> dict[str, Any]:
        """Read and parse the body, which must be a JSON object. Raises RefusedError."""
        body = (await self._read(limits.max_bytes)).removeprefix(BYTE_ORDER_MARK)
        if MIN_PART_BYTES <= len(body) <= INLINE_BYTES:
            split = self._cache.split(body, limits.max_values)
            if split is not None:
                self._take(VALUE_BYTES * split.counts.values)
                return split.read()
        counts = await self._run(len(body), count_json, body, limits.max_values)
        self._take(VALUE_BYTES * counts.values)
        return await self._run(len(body), parse_object, body, counts)

    async def _run(self, size: int, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run work on a body; if it is large, in the thread, so the loop waits for one pass in C at a time."""
        if size <= INLINE_BYTES:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _read(self, max_bytes: int) -> bytes:
        request = self._request
        if request.content_type != "application/json":
            raise invalid(None, "Content-Type must be application/json.", "unsupported_media_type", status=415)
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise invalid(None, "Compressed bodies are not accepted.", "unsupported_media_type", status=415)
        if (request.content_length or 0) > max_bytes:
            raise _too_large(max_bytes)
        content = request.content
        if content.is_eof():  # usually it came together with the head
            body = content.read_nowait(-1)
            self._take(len(body))
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            return body
        if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
            self._send_continue()
        return await self._read_chunks(content, max_bytes)

    def _send_continue(self) -> None:
        """Tell a waiting client to send its body."""
        if self._request.transport is not None:
            self._request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _read_chunks(self, content: StreamReader, max_bytes: int) -> bytes:
        parts = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S), asyncio.timeout(BODY_IDLE_S) as idle:
                while part := await content.readany():
                    idle.reschedule(asyncio.get_running_loop().time() + BODY_IDLE_S)
                    size += len(part)
                    if size > max_bytes:
                        raise _too_large(max_bytes)
                    self._take(len(part))
                    parts.append(part)
        except TimeoutError as error:
            raise invalid(None, "The body came too slowly.", "request_timeout", status=408) from error
        return b"".join(parts)

    def _take(self, size: int) -> None:
        if not self.charged.take(size):
            raise RefusedError(out_of_memory())


def holder_of(request: web.BaseRequest, tenant: Tenant) -> str:
    """Return the holder that a request's memory and turns count for: its tenant, or without keys its address."""
    return holder_name(tenant, source_of(request.remote or ""))


def _too_large(max_bytes: int) -> RefusedError:
    message = f"The body is larger than the {max_bytes} bytes that the longest request may have."
    return invalid(None, message, "body_too_large", status=413)
