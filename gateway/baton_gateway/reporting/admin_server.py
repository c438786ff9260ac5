"""The admin listener: `/state`, `/metrics`, `/requests` and the page at `/ui/` on loopback, read only.

For the local runtime and users of this host. A browser that a foreign site leads here sends that site's name, and is
refused.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from baton_gateway.reporting.state_page import ProcessReport, state_body
from baton_wire.listening.bounded_server import BoundedServer
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.descriptors import connection_cap

_log = logging.getLogger("baton.gateway.admin")
MAX_CONNECTIONS = 256
STOP_S = 1.0


class AdminServer:
    """`reports` asks every process of this gateway; `metrics_body` renders their metrics together for an `Accept`
    header, and returns them with their content type; `records_body` answers a query for records, and raises ValueError
    where that is malformed; `page` returns None for paths that are not the page's.
    """

    def __init__(
        self,
        reports: Callable[[], Awaitable[list[ProcessReport]]],
        metrics_body: Callable[[str], tuple[bytes, str]],
        records_body: Callable[[str], Awaitable[bytes]],
        page: Callable[[web.BaseRequest], Awaitable[web.StreamResponse | None]],
        sits_here: Callable[[web.BaseRequest], bool],
    ) -> None:
        self._reports = reports
        self._records_body = records_body
        self._page, self._sits_here = page, sits_here
        self._metrics_body = metrics_body
        self._http: BoundedServer | None = None

    async def start(self, listening: socket.socket) -> None:
        self._http = BoundedServer(self._handle, ConnectionLimits(connection_cap(MAX_CONNECTIONS)), _log)
        self._http.begin(listening)

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.end(STOP_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        if not self._sits_here(request):
            return web.Response(status=403, text="this listener is for programs on this machine\n")
        path, _, query = request.raw_path.partition("?")
        if path == "/requests":
            return await self._records(query)
        if path.startswith("/ui"):
            return await self._page(request) or web.Response(status=404)
        match request.raw_path:
            case "/state":
                return web.Response(body=state_body(await self._reports()), content_type="application/json")
            case "/metrics":
                body, content_type = self._metrics_body(request.headers.get("Accept", ""))
                return web.Response(body=body, headers={"Content-Type": content_type})
        return web.Response(status=404)

    async def _records(self, query: str) -> web.StreamResponse:
        try:
            return web.Response(body=await self._records_body(query), content_type="application/json")
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")
