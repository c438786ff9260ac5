"""One gateway process: builds the parts, serves a listening socket, drains and stops.

Several such processes can serve one port (`processes`); each has its own links to all workers and knows nothing of the
others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Iterable

import aiohttp.web
from prometheus_client import CollectorRegistry

from baton_gateway.admission import Admission, AdmissionLimits
from baton_gateway.connections import ClientServer
from baton_gateway.http_api import HttpApi
from baton_gateway.links import LinkTimes, WorkerLinks
from baton_gateway.metrics import GatewayMetrics
from baton_gateway.relay import Relay, RelayRules
from baton_gateway.request_events import LifeRules
from baton_gateway.route import RoutePolicy
from baton_gateway.settings import Settings
from baton_gateway.state import ProcessReport, worker_report
from baton_gateway.templates import TemplateRenderer
from baton_gateway.tenants import Tenants
from baton_gateway.workers import WorkerTable
from baton_kv_transfer.discovery import Endpoint, watch
from baton_kv_transfer.keys import KeyDirectory
from baton_kv_transfer.wire.values import Address, Role

_log = logging.getLogger("baton.gateway")
SHUTDOWN_S = 1.0
"""For connections to close, after their requests have ended."""
SEND_BUFFER_BYTES = 128 << 10
"""The kernel's own buffer per connection, kept small so that a client that stops reading is noticed."""


class GatewayServer:
    """The parts of one process."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError when the API key file does not fit."""
        self._settings = settings
        self.epoch = secrets.token_bytes(16)
        policy = RoutePolicy(
            disaggregate=settings.disaggregation != "never",
            decode_locally=settings.prefill_unavailable == "decode-locally",
        )
        rules = RelayRules(LifeRules(park_s=settings.park_s), policy, settings.max_request_duration_s)
        limits = AdmissionLimits(settings.max_running, settings.max_queued, settings.max_queue_s)
        self.table = WorkerTable()
        self.metrics = GatewayMetrics(CollectorRegistry())
        self._templates = TemplateRenderer()
        self._admission = Admission(limits)
        self.relay = Relay(self.table, self._admission, self._templates, self.metrics, rules)
        self.links = WorkerLinks(
            self.table,
            self.relay,
            KeyDirectory(settings.keys),
            self.epoch,
            LinkTimes(suspect_s=settings.suspect_s, dead_s=settings.dead_s),
        )
        self._tenants = Tenants(settings.api_keys)
        self.api = HttpApi(self.relay, self.table, self._tenants, policy, self.metrics)
        self._tasks: list[asyncio.Task[None]] = []
        self._runner: aiohttp.web.ServerRunner | None = None

    def report(self) -> ProcessReport:
        """What `/state` says of this process."""
        return ProcessReport(
            pid=os.getpid(),
            epoch=self.epoch.hex(),
            requests_running=self._admission.num_running,
            requests_waiting=self._admission.num_waiting,
            workers=tuple(worker_report(worker) for worker in self.table.all()),
            ttft=self.metrics.ttft.data(),
            tpot=self.metrics.tpot.data(),
        )

    async def start(self, listening: socket.socket) -> None:
        """Serve the socket, which is bound and owned by the caller."""
        await self._templates.start()
        await self.links.start()
        self._runner = aiohttp.web.ServerRunner(ClientServer(self.api.handle), shutdown_timeout=SHUTDOWN_S)
        await self._runner.setup()
        await aiohttp.web.SockSite(self._runner, listening, backlog=1024).start()
        self._tasks = [
            asyncio.create_task(self.api.watch_streams()),
            asyncio.create_task(self._every_second()),
            asyncio.create_task(watch(self._settings.prefill_discovery, self._prefill_found)),
            asyncio.create_task(watch(self._settings.decode_discovery, self._decode_found)),
        ]

    async def stop(self) -> None:
        """Let open requests finish within the drain time, then end everything."""
        self.api.is_draining = True
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self.relay.until_idle()
        except TimeoutError:
            _log.warning("stopping with %d requests at work", self.relay.num_live)
            self.relay.end_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._runner is not None:
            await self._runner.shutdown()
            await self._runner.cleanup()
        await self.links.stop()
        await self._templates.stop()

    async def _every_second(self) -> None:
        while True:
            linked: dict[Role, int] = {}
            for worker in self.table.all():
                linked[worker.hello.role] = linked.get(worker.hello.role, 0) + 1
            self.metrics.now_at_work(self._admission.num_running, self._admission.num_waiting, linked)
            try:
                self._tenants.refresh()
            except ValueError as error:
                _log.error("API keys stay as they were: %s", error)
            await asyncio.sleep(1.0)

    def _prefill_found(self, endpoints: Iterable[Endpoint]) -> None:
        self.links.discovered(Role.PREFILL, map(_address, endpoints))

    def _decode_found(self, endpoints: Iterable[Endpoint]) -> None:
        self.links.discovered(Role.DECODE, map(_address, endpoints))


def _address(endpoint: Endpoint) -> Address:
    return Address(endpoint.host, endpoint.port)


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """A bound TCP socket, not yet listening. Raises OSError. `shared`: other sockets may take the same port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sock.setblocking(False)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
