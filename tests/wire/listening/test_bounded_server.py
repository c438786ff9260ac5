"""A listener under more connections than it may hold, and under clients that stop in the middle."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from baton_wire.listening import bounded_server
from baton_wire.listening.bounded_server import BoundedServer
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.sockets import bind

LOG = logging.getLogger("test.listening")
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def hello(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="hello")


@asynccontextmanager
async def serving(limits: ConnectionLimits, handle: bounded_server.Handle = hello) -> AsyncIterator[Any]:
    listening = bind("127.0.0.1", 0)
    listening.listen(64)
    server = BoundedServer(handle, limits, LOG)
    server.begin(listening)
    server.port = listening.getsockname()[1]  # type: ignore[attr-defined]
    server.clients = []  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        for _, writer in server.clients:  # type: ignore[attr-defined]
            writer.transport.abort()  # left open, it would fail a later test when it is collected
        await server.end(0.1)


async def connect(server: Any, source: str = "127.0.0.1") -> Streams:
    streams = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0))
    server.clients.append(streams)
    return streams


def let_time_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the clock of the event loop: what is due meanwhile happens next."""
    loop = asyncio.get_running_loop()
    time = loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + seconds)


async def ask(streams: Streams, within_s: float = 5.0) -> bytes:
    """The status line, or nothing when the connection ends without one."""
    reader, writer = streams
    writer.write(GET)
    async with asyncio.timeout(within_s):
        line = await reader.readline()
        await reader.readuntil(b"hello")
    return line


async def close(*all_streams: Streams) -> None:
    for _, writer in all_streams:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_at_the_cap_nobody_is_accepted_until_somebody_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "EVICTED_AFTER_S", 60.0)
    async with serving(ConnectionLimits(2)) as server:
        first, second = await connect(server), await connect(server)
        assert (await ask(first)).startswith(b"HTTP/1.1 200")
        await ask(second)
        third = await connect(server)  # by the kernel
        with pytest.raises(TimeoutError):
            await ask(third, within_s=0.2)
        assert server.num_connections == 2
        await close(first)
        async with asyncio.timeout(60):
            assert (await third[0].readline()).startswith(b"HTTP/1.1 200")
        await close(second, third)


async def test_a_full_listener_closes_who_idles_longest_for_who_wants_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "EVICTED_AFTER_S", 0.05)
    async with serving(ConnectionLimits(2)) as server:
        idle, half = await connect(server), await connect(server)
        half[1].write(b"GET / HTTP/1.1\r\nX-Slow: ")
        third = await connect(server)
        assert (await ask(third)).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(60):
            with pytest.raises((ConnectionError, EOFError)):
                await idle[0].readexactly(1)
        fourth = await connect(server)
        assert (await ask(fourth)).startswith(b"HTTP/1.1 200")
        await close(idle, half, third, fourth)


async def test_a_connection_is_not_closed_for_others_while_its_request_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_server, "EVICTED_AFTER_S", 60.0)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.BaseRequest) -> web.StreamResponse:
        begun.set()
        await go_on.wait()
        return web.Response(text="hello")

    async with serving(ConnectionLimits(1), slow) as server:
        first = await connect(server)
        first[1].write(GET)
        async with asyncio.timeout(60):
            await begun.wait()
        let_time_pass(monkeypatch, 120.0)
        second = await connect(server)
        with pytest.raises(TimeoutError):
            await ask(second, within_s=0.3)
        go_on.set()
        async with asyncio.timeout(60):
            assert (await first[0].readline()).startswith(b"HTTP/1.1 200")
        await close(first)
        async with asyncio.timeout(60):
            assert (await second[0].readline()).startswith(b"HTTP/1.1 200")
        await close(second)


async def test_one_address_cannot_take_every_connection() -> None:
    async with serving(ConnectionLimits(8, per_address=2)) as server:
        ours = [await connect(server) for _ in range(2)]
        for streams in ours:
            await ask(streams)
        third = await connect(server)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await ask(third)
        elsewhere = await connect(server, "127.0.0.2")
        assert (await ask(elsewhere)).startswith(b"HTTP/1.1 200")
        await close(*ours, third, elsewhere)
        fresh = await connect(server)
        assert (await ask(fresh)).startswith(b"HTTP/1.1 200")
        await close(fresh)


async def test_who_has_all_that_its_address_may_have_gets_in_for_its_own_idle_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(ConnectionLimits(8, per_address=2)) as server:
        idle = [await connect(server) for _ in range(2)]
        async with asyncio.timeout(60):
            while server.num_connections < 2:  # noqa: ASYNC110 - an accept sets no event
                await asyncio.sleep(0.01)
        let_time_pass(monkeypatch, 2 * bounded_server.EVICTED_AFTER_S)
        fresh = await connect(server)
        assert (await ask(fresh)).startswith(b"HTTP/1.1 200")
        assert server.num_connections == 2
        await close(*idle, fresh)


async def test_no_descriptor_left_is_said_once_and_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bounded_server, "ACCEPT_AGAIN_S", 0.01)
    loop, tries = asyncio.get_running_loop(), 0
    accept = loop.sock_accept

    async def without_descriptors(listening: socket.socket) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 20:
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", without_descriptors)
    async with serving(ConnectionLimits(8)) as server:
        streams = await connect(server)
        assert (await ask(streams)).startswith(b"HTTP/1.1 200")
        await close(streams)
    lines = [record for record in caplog.records if "Too many open files" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].exc_info is None
    assert tries <= 22, "one try after each pause"


async def test_a_client_that_left_is_noticed_behind_what_it_sent_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "LOOK_S", 0.05)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        begun.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.set()
        return web.Response()

    async with serving(ConnectionLimits(8), endless) as server:
        _, writer = await connect(server)
        writer.write(GET)
        await begun.wait()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\n\r\n" + b"x" * 4_000_000)
        await asyncio.sleep(0.1)
        assert not ended.is_set()
        writer.transport.abort()
        async with asyncio.timeout(60):
            await ended.wait()


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n"])
async def test_what_is_no_http_is_answered_and_not_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(ConnectionLimits(8)) as server:
        reader, writer = await connect(server)
        writer.write(sent)
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert answer.split(b"\r\n")[0].endswith(b"400 Bad Request")
        await close((reader, writer))
    assert caplog.records == []


async def test_what_is_sent_of_a_refused_body_does_not_reset_the_connection() -> None:
    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        response = web.Response(status=413, text="hello")
        response.force_close()
        return response

    async with serving(ConnectionLimits(8), refuse) as server:
        reader, writer = await connect(server)
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        for _ in range(10):
            writer.write(b"x" * 100_000)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 413")
        assert answer.endswith(b"hello")
        await close((reader, writer))
