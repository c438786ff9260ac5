"""A small HTTP server on an address of this machine, for what fetching asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.test_utils import TestServer


@contextlib.asynccontextmanager
async def serving(answer: Callable[[web.Request], web.StreamResponse], host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The server's URL, for as long as the context lasts."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return answer(request)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    server = TestServer(app, host=host)
    await server.start_server()
    try:
        yield f"http://{server.host}:{server.port}"
    finally:
        await server.close()
