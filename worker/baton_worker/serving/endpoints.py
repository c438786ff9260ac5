"""The worker's HTTP surface beside the gateway links: health, state for `baton status`, metrics.

Nothing here changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict

from aiohttp import web

from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import EngineSnapshot, StateView
from baton_worker.serving.gateway_links import GatewayLinks

STALLED_S = 60.0
"""Live means: the loop turns, and with work queued a step completes at least this often."""


def is_live(snapshot: EngineSnapshot, now: float) -> bool:
    """Whether the engine makes progress: without a sequence in the batch it only has to turn its loop.

    Prompts and reservations may wait for longer than any bound here, for KV that others hold: that is no stall.
    """
    if now - snapshot.turned_s > STALLED_S:
        return False
    return snapshot.stats.running == 0 or now - max(snapshot.stepped_s, snapshot.work_since_s) <= STALLED_S


def application(
    links: GatewayLinks,
    metrics: WorkerMetrics,
    snapshot: Callable[[], EngineSnapshot],
    view: Callable[[], StateView],
    ready: Callable[[], bool],
) -> web.Application:
    """The aiohttp application of a worker; `/link` is the only route that accepts input, and only after a handshake."""

    async def live(_: web.Request) -> web.Response:
        alive = is_live(snapshot(), time.monotonic())
        return web.Response(status=200 if alive else 503, text="live\n" if alive else "engine makes no progress\n")

    async def is_ready(_: web.Request) -> web.Response:
        return web.Response(status=200 if ready() else 503, text="ready\n" if ready() else "not ready\n")

    async def state(_: web.Request) -> web.Response:
        return web.json_response(asdict(view()))

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application(client_max_size=0)
    app.router.add_get("/link", links.accept, allow_head=False)
    app.router.add_get("/health/live", live)
    app.router.add_get("/health/ready", is_ready)
    app.router.add_get("/state", state)
    app.router.add_get("/metrics", scrape)
    return app
