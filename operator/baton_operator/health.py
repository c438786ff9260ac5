"""Where the kubelet and Prometheus ask: alive, ready, metrics."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable

from aiohttp import web

from baton_operator import metrics
from baton_wire.listening.bounded_server import BoundedServer
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.sockets import bind

log = logging.getLogger(__name__)

BACKLOG = 128
MAX_CONNECTIONS = 256
"""One address may have half of the connections, so that the kubelet always gets in."""
SHUTDOWN_S = 1.0
METHODS = ("GET", "HEAD")
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@contextlib.asynccontextmanager
async def serving(
    address: tuple[str, int],
    stalled: Callable[[], str | None],
    problems: Callable[[], Iterable[str]],
    waits: Callable[[], str | None],
) -> AsyncIterator[int]:
    """Serve while the block runs; gives the port. `stalled` says why the process should be ended, or None. A standby is
    ready too: it does what it is there for. `waits`: what the process cannot begin without, or None. It is alive then,
    and not ready: one that was ended would begin no earlier, and the kubelet's back-off could keep it away for minutes
    more. `problems`, not asked before it has begun: namespaces that are not worked on, and why, and what the server
    lacks. Readiness names them; it does not fail for them, or the gateways of all other namespaces would lose the
    operator."""

    def live() -> web.Response:
        why = stalled()
        return web.Response(status=200 if why is None else 503, text=why or "ok")

    def ready() -> web.Response:
        why = stalled() or waits()
        return web.Response(status=200 if why is None else 503, text=why or "\n".join(["ok", *sorted(problems())]))

    def show() -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": METRICS_TYPE})

    pages = {"/health/live": live, "/health/ready": ready, "/metrics": show}

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        page = pages.get(request.path)
        if page is None:
            return web.Response(status=404)
        return page() if request.method in METHODS else web.Response(status=405, headers={"Allow": ", ".join(METHODS)})

    listening = bind(*address)
    listening.listen(BACKLOG)
    server = BoundedServer(handle, ConnectionLimits(MAX_CONNECTIONS, MAX_CONNECTIONS // 2), log)
    server.begin(listening)
    try:
        yield int(listening.getsockname()[1])
    finally:
        await server.end(SHUTDOWN_S)
