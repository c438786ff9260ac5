"""Where the kubelet and Prometheus ask: alive, ready, metrics."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

from aiohttp import web

from baton_operator import metrics


@contextlib.asynccontextmanager
async def serving(
    address: tuple[str, int],
    stalled: Callable[[], str | None],
    troubles: Callable[[], Iterable[str]],
    waits: Callable[[], str | None],
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. `stalled` says why the process should be ended, or None. A standby is
    ready too: it does what it is there for. `waits`: what the process cannot begin without, or None. It is alive then,
    and not ready: one that was ended would begin no earlier, and the kubelet's back-off could keep it away for minutes
    more. `troubles`, not asked before it has begun: namespaces that are not worked on, and why, and what the server
    lacks. Readiness names them; it does not fail for them, or the gateways of all other namespaces would lose the
    operator."""

    async def live(_: web.Request) -> web.Response:
        why = stalled()
        return web.Response(status=200 if why is None else 503, text=why or "ok")

    async def ready(_: web.Request) -> web.Response:
        why = stalled() or waits()
        return web.Response(status=200 if why is None else 503, text=why or "\n".join(["ok", *sorted(troubles())]))

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application(client_max_size=1024)
    app.add_routes([web.get("/health/live", live), web.get("/health/ready", ready), web.get("/metrics", show)])
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, *address)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
