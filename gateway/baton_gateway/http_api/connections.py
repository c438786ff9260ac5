"""Client connections: how many there may be, and how long one may take to say what it wants.

aiohttp times out a connection that stands idle between requests, but not one that sends the head of a request a byte
at a time; here every wait for a whole head has a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import StreamReader, web, web_protocol
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

HEAD_S = 10.0
KEEPALIVE_S = 75.0
LINGER_S = 1.0
"""For what a client still sends of a body that was refused: closing at once would reset the connection, and the answer
might never be read."""
MAX_CONNECTIONS = 8_192
"""Per process. A stream that stands still costs up to 384 KiB (see `sinks` and the send buffer)."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ClientServer(web.Server):
    """aiohttp's low-level server with these limits."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(
            self._handle_within_limits,
            request_factory=self._request_came,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
        )
        self._handle = handle
        self._waits: dict[web_protocol.RequestHandler, asyncio.TimerHandle | None] = {}

    def connection_made(self, handler: web_protocol.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._waits) >= MAX_CONNECTIONS:
            transport.abort()
            return
        self._waits[handler] = self._expect_head(transport, HEAD_S)

    def connection_lost(self, handler: web_protocol.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        wait = self._waits.pop(handler, None)
        if wait is not None:
            wait.cancel()

    def _request_came(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web_protocol.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        wait = self._waits.get(protocol)
        if wait is not None:
            wait.cancel()
            self._waits[protocol] = None
        return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())

    async def _handle_within_limits(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handle(request)
        protocol: Any = request.protocol
        if protocol in self._waits and request.transport is not None:
            self._waits[protocol] = self._expect_head(request.transport, KEEPALIVE_S + HEAD_S)
        return response

    @staticmethod
    def _expect_head(transport: asyncio.Transport, within_s: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(within_s, transport.abort)
