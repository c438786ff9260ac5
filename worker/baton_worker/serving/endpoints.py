"""The worker's HTTP endpoints besides the gateway links: health, state for `baton status`, metrics.

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
"""A live engine turns its loop, and completes a step while it has work, at least this often."""


def is_live(snapshot: EngineSnapshot, now: float) -> bool:
    """True while the engine makes progress. Without a sequence in the batch it only has to turn its loop.

    Prompts and reservations may wait longer than any bound here for blocks that a transfer holds: that is no stall.
    """
    if now - snapshot.turned_s > STALLED_S:
        return False
    return snapshot.stats.running == 0 or now - max(snapshot.stepped_s, snapshot.work_since_s) <= STALLED_S


class Endpoints:
    """Answers HTTP requests by path; `/link` alone accepts input, and only after a handshake."""

    def __init__(
        self,
        links: GatewayLinks,
        metrics: WorkerMetrics,
        snapshot: Callable[[], EngineSnapshot],
        view: Callable[[], StateView],
        ready: Callable[[], bool],
    ) -> None:
        self._links = links
        self._metrics = metrics
        self._snapshot = snapshot
        self._view = view
        self._ready = ready

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        match request.raw_path.partition("?")[0]:
            case "/link":
                return await self._links.accept(request)
            case "/health/live":
                is_alive = is_live(self._snapshot(), time.monotonic())
                return _health_response(is_alive, "live" if is_alive else "engine makes no progress")
            case "/health/ready":
                return _health_response(self._ready(), "ready" if self._ready() else "not ready")
            case "/state":
                return web.json_response(asdict(self._view()))
            case "/metrics":
                body, content_type = self._metrics.render(request.headers.get("Accept", ""))
                return web.Response(body=body, headers={"Content-Type": content_type})
        return web.Response(status=404)


def _health_response(is_good: bool, text: str) -> web.Response:
    return web.Response(status=200 if is_good else 503, text=text + "\n")
