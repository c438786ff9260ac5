"""An aiohttp application in a thread of its own, for tests of programs that block their thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

LIMIT_S = 10.0


@contextmanager
def serve_in_thread(app: web.Application) -> Iterator[str]:
    """Serve an application on loopback until the context ends. The value is its URL."""
    loop, ready, urls = asyncio.new_event_loop(), threading.Event(), list[str]()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    def serve() -> None:
        runner = loop.run_until_complete(start())
        loop.call_soon(ready.set)  # not before, or a stop might end the start instead
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
