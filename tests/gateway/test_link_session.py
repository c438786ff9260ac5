"""The client that dials internal links keeps no connection after a bad upgrade, and has no bound on links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from baton_gateway.link_session import link_session

MANY = 130
"""More than the library allows by default."""


@asynccontextmanager
async def served(application: web.Application) -> AsyncIterator[tuple[str, web.Server]]:
    runner = web.AppRunner(application, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        assert runner.server is not None
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/link", runner.server
    finally:
        await runner.cleanup()


async def test_a_refused_upgrade_leaves_no_connection_to_dial_over_again() -> None:
    async with served(web.Application()) as (url, server), link_session() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(url)
        async with asyncio.timeout(60):
            while server.connections:  # noqa: ASYNC110 - the library does not report it
                await asyncio.sleep(0.01)


async def test_there_are_as_many_links_as_workers() -> None:
    async def accept(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        return socket

    application = web.Application()
    application.router.add_get("/link", accept)
    async with served(application) as (url, server), link_session() as session, AsyncExitStack() as links:
        async with asyncio.timeout(60):
            for _ in range(MANY):
                await links.enter_async_context(session.ws_connect(url))
        assert len(server.connections) == MANY
