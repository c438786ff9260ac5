"""An HTTP/1.1 listener that strangers can reach: bounded connections, and a limit on every wait for a request's head.

aiohttp's own sites accept without end: beyond the limit of descriptors they write a traceback for every try. Here
nothing is accepted that could not be served; further clients wait in the kernel's queue. aiohttp times out a
connection that is idle between requests, but not one that sends the head of a request a byte at a time. And a
round of the event loop accepts and begins only few connections: `newcomers.py`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

from aiohttp import StreamReader, web, web_protocol
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong

from baton_wire.fair_loop.charging import LoopAccount, charged_context
from baton_wire.listening.complaints import Complaints
from baton_wire.listening.connection_book import ConnectionBook, ConnectionLimits, ConnectionPlace
from baton_wire.listening.newcomers import (
    BEGINS_A_ROUND,
    HANDSHAKES_A_ROUND,
    ListenerAccounts,
    Newcomer,
    Newcomers,
)
from baton_wire.listening.source_address import source_of
from baton_wire.reset import reset_on_close

ACCEPTS_A_ROUND = 64
"""Connections accepted in one round of the loop, at 15 to 30 µs each; the kernel's queue holds the others."""
ACCEPTS_A_TURN = 16
"""The same in a turn of the listener's account, where accounts are kept."""
HEAD_S = 10.0
MAX_HEAD_LINE_BYTES = 8_190
MAX_HEADERS = 128
KEEPALIVE_S = 75.0
LINGER_S = 1.0
"""For the rest of a body that was refused: closing at once would reset the connection, and the answer
might never be read."""
EVICTED_AFTER_S = 1.0
"""A full listener closes connections that have asked nothing for this long, the longest first, to let others in."""
SILENT_S = 0.2
"""The same for a connection without a byte that gives way to another stranger. Clients speak within a round trip."""
ACCEPT_AGAIN_S = 1.0
LOOK_S = 1.0
LOOKS_AN_ACCEPT = 512
"""Connections that are read, while one to close is looked for, in the time of an accept."""

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[int, str], web.StreamResponse]
"""The answer to something that is no HTTP request: its status and what is wrong with it."""


def _plain(status: int, message: str) -> web.StreamResponse:
    return web.Response(status=status, text=message + "\n")


class _Idle(NamedTuple):
    """A connection from which no request is at work."""

    since_s: float
    close: Callable[[], None]


class BoundedServer(web.Server):
    """aiohttp's low-level server with these limits. Accepts by itself: give it no site."""

    def __init__(
        self,
        handle: Handle,
        limits: ConnectionLimits,
        log: logging.Logger,
        refuse: Refuse = _plain,
        accounts: ListenerAccounts | None = None,
    ) -> None:
        """`accounts`: None where the loop's time is not charged."""
        super().__init__(
            self._handle_within_limits,
            request_factory=self._request_started,
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=LINGER_S,
        )
        self._handle = handle
        self._refuse = refuse
        self._accounts = accounts
        self._book = ConnectionBook(limits)
        self._complaints = Complaints(log)
        self._listening: socket.socket | None = None
        self._newcomers: Newcomers | None = None
        self._places: dict[web_protocol.RequestHandler, ConnectionPlace] = {}
        self._transports: dict[web_protocol.RequestHandler, asyncio.Transport] = {}
        self._idle: OrderedDict[web_protocol.RequestHandler, tuple[float, asyncio.TimerHandle]] = OrderedDict()
        """Connections that are expected to send a head, and since when; the longest first."""
        self._begun_s: dict[web_protocol.RequestHandler, float] = {}
        """Connections whose request is being answered, and since when."""
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = copy_context() if accounts is None else charged_context(accounts.listener)
        """The context of accepting."""

    def begin(self, listening: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Serve a socket that listens already, and close it in the end."""
        listening.setblocking(False)
        self._listening = listening
        self._newcomers = Newcomers(
            self._book,
            lambda newcomer: self._keep(self._serve(newcomer, context), newcomer.account),
            lambda newcomer: self._release(newcomer.place),
            BEGINS_A_ROUND if context is None else HANDSHAKES_A_ROUND,
            self._accounts,
        )
        self._keep(self._accept(listening, self._newcomers))
        self._keep(self._watch(self._newcomers))

    async def end(self, timeout_s: float) -> None:
        """Stop accepting; connections that are still served after `timeout_s` are cut off."""
        for task in self._tasks:
            task.cancel()
        if self._newcomers is not None:
            self._newcomers.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listening is not None:
            self._listening.close()
        self.pre_shutdown()
        await self.shutdown(timeout_s)

    @property
    def num_connections(self) -> int:
        return self._book.total

    # Accepting --------------------------------------------------------------------------------------------------------

    async def _accept(self, listening: socket.socket, newcomers: Newcomers) -> None:
        loop = asyncio.get_running_loop()
        at_once = ACCEPTS_A_ROUND if self._accounts is None else ACCEPTS_A_TURN
        left = at_once
        while True:
            await self._until_room(newcomers)
            if left <= 0:  # while the kernel's queue has more, an accept waits for nothing
                await asyncio.sleep(0)
                left = at_once
            try:
                sock, peer = await loop.sock_accept(listening)
            except OSError as error:
                self._complaints.say("accepting a connection", error.strerror or str(error))
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            left -= 1
            newcomer = newcomers.look(sock, source_of(str(peer[0])) if peer else "", loop.time())
            if newcomer is None:
                sock.close()
                continue
            if not self._book.take(newcomer.place):
                left -= self._make_room(newcomers, newcomer)
                if not self._book.take(newcomer.place):
                    reset_on_close(sock)
                    sock.close()
                    continue
            newcomers.add(newcomer)

    async def _until_room(self, newcomers: Newcomers) -> None:
        """Wait until a connection can be let in. Where strangers are here one can, if it is no stranger itself."""
        while self._book.is_full and not newcomers.has_strangers:
            self._complaints.say("as many connections as may be", str(self._book.total))
            idle, _ = self._longest_idle(newcomers)
            wait_s = LOOK_S if idle is None else idle.since_s + EVICTED_AFTER_S - asyncio.get_running_loop().time()
            if idle is not None and wait_s <= 0:
                idle.close()
                continue
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()

    def _make_room(self, newcomers: Newcomers, newcomer: Newcomer) -> int:
        """Close a connection for a newcomer: a stranger, or else the connection that idles longest, if long enough. Of
        its address if that has as many as it may have, of its owner if that has. Returns how many accepts that took as
        long as."""
        book, place, now = self._book, newcomer.place, asyncio.get_running_loop().time()
        address = None if book.is_full else place.address
        owner = None if book.is_full or book.is_full_for(place.address) else place.owner
        kind = "as many connections as may be" if address is None else "an address has as many connections as one may"
        self._complaints.say(f"{kind}; closed another", place.address)
        if newcomers.is_stranger(newcomer):
            is_closed = newcomers.close_stranger(address, now - SILENT_S, now - EVICTED_AFTER_S)
        else:
            is_closed = owner is None and newcomers.close_stranger(address, now, now)
        if is_closed:
            return 0
        idle, looked = self._longest_idle(newcomers, address, owner)
        if idle is not None and idle.since_s <= now - EVICTED_AFTER_S:
            idle.close()
        return looked // LOOKS_AN_ACCEPT

    def _longest_idle(
        self, newcomers: Newcomers, address: str | None = None, owner: str | None = None
    ) -> tuple[_Idle | None, int]:
        """The connection from which no request is at work for the longest: of this address and owner, or of all. And
        how many were looked at."""
        idle, looked = None, 0
        for handler, (since_s, _) in self._idle.items():
            looked += 1
            place = self._places.get(handler)
            is_meant = place is not None and address in (None, place.address) and owner in (None, place.owner)
            if is_meant and not self._transports[handler].get_write_buffer_size():
                idle = _Idle(since_s, partial(self._close_idle, handler))
                break
        silent = newcomers.longest_silent(address)
        if silent is not None and owner not in (None, silent.place.owner):
            silent = None
        if silent is not None and (idle is None or silent.since_s < idle.since_s):
            idle = _Idle(silent.since_s, partial(newcomers.close_silent, silent))
        return idle, looked

    def _close_idle(self, handler: web_protocol.RequestHandler) -> None:
        self._no_longer_idle(handler)
        self._transports[handler].abort()
        self._connection_left(handler)

    async def _serve(self, newcomer: Newcomer, context: ssl.SSLContext | None) -> None:
        handler = self()
        self._places[handler] = newcomer.place
        within_s = None if context is None else HEAD_S
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handler, newcomer.sock, ssl=context, ssl_handshake_timeout=within_s
            )
        except (OSError, ssl.SSLError):  # no TLS, or not in time
            self._connection_left(handler)
        except asyncio.CancelledError:
            self._connection_left(handler)
            raise

    def _connection_left(self, handler: web_protocol.RequestHandler) -> None:
        place = self._places.pop(handler, None)
        if place is not None:
            self._release(place)

    def _release(self, place: ConnectionPlace) -> None:
        self._book.leave(place)
        self._changed.set()

    def _keep(self, work: Coroutine[Any, Any, None], account: LoopAccount | None = None) -> None:
        """Own a task, charged to an account, or else to the listener's."""
        context = self._context.copy() if account is None else charged_context(account)
        task = asyncio.create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Connections ------------------------------------------------------------------------------------------------------

    def __call__(self) -> web_protocol.RequestHandler:
        return _Connection(self, self._refuse, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: web_protocol.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._transports[handler] = transport
        self._expect_head(handler, HEAD_S)

    def connection_lost(self, handler: web_protocol.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._transports.pop(handler, None)
        self._no_longer_idle(handler)
        self._begun_s.pop(handler, None)
        self._connection_left(handler)

    def _request_started(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web_protocol.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        self._no_longer_idle(protocol)
        self._begun_s[protocol] = self._loop.time()
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop)

    async def _handle_within_limits(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handle(request)
        protocol: Any = request.protocol
        self._begun_s.pop(protocol, None)
        if protocol in self._transports:
            self._expect_head(protocol, KEEPALIVE_S + HEAD_S)
        return response

    def _expect_head(self, handler: web_protocol.RequestHandler, within_s: float) -> None:
        self._no_longer_idle(handler)
        loop = asyncio.get_running_loop()
        self._idle[handler] = loop.time(), loop.call_later(within_s, self._transports[handler].abort)
        self._changed.set()

    def _no_longer_idle(self, handler: web_protocol.RequestHandler) -> None:
        if (idle := self._idle.pop(handler, None)) is not None:
            idle[1].cancel()

    # Clients that left ------------------------------------------------------------------------------------------------

    async def _watch(self, newcomers: Newcomers) -> None:
        """Close the connections that were silent for too long, and notice those that left.

        A connection that is not read, for what its client has sent ahead, cannot notice that the client left: its FIN
        waits after those bytes. So they are read and dropped, and the connection ends with the answer at work.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            now = asyncio.get_running_loop().time()
            newcomers.close_silent_since(now - HEAD_S)
            until_s = now - LOOK_S
            for handler, transport in self._transports.items():
                if self._begun_s.get(handler, until_s) < until_s and not transport.is_reading():
                    handler.close()
                    transport.resume_reading()


class _Connection(web_protocol.RequestHandler):
    """One connection: what is no HTTP is answered like everything else, and not worth a traceback."""

    __slots__ = ("_refuse",)

    def __init__(self, manager: BoundedServer, refuse: Refuse, **options: Any) -> None:
        super().__init__(
            manager,
            max_line_size=MAX_HEAD_LINE_BYTES,
            max_field_size=MAX_HEAD_LINE_BYTES,
            max_headers=MAX_HEADERS,
            **options,
        )
        self._refuse = refuse

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is out already")
        if status >= 500:
            self.log_exception("a request failed", exc_info=exc)
        if status < 500 and (reason := _too_large(exc)) is not None:
            response = self._refuse(431, reason)
        else:
            response = self._refuse(status, "This is no valid HTTP request." if status < 500 else "Internal error.")
        response.force_close()
        return response


def _too_large(error: BaseException | None) -> str | None:
    """Return which limit on the head of a request was exceeded; None: the head is no HTTP."""
    if isinstance(error, LineTooLong):
        what = f"a line of at most {MAX_HEAD_LINE_BYTES} bytes: a long token, cookies or URL does not fit"
    elif isinstance(error, BadHttpMessage) and "Too many headers" in str(error):
        what = f"at most {MAX_HEADERS} header lines"
    else:
        return None
    return f"The head of a request may have {what}."
