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
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry

from baton_gateway.garbage_collection import collect_when_quiet
from baton_gateway.helper_processes.process_lane import NOT_READY_S, HealthProblem, longest_lasting
from baton_gateway.http_api.certificate import Certificate, CertificateError
from baton_gateway.http_api.endpoints import not_http
from baton_gateway.http_api.loop_accounts import LoopAccounts
from baton_gateway.http_api.memory_budget import MemoryBudget
from baton_gateway.http_api.rate_limits import RateLimits
from baton_gateway.http_api.routes import ApiParts, HttpApi
from baton_gateway.http_api.viewers import Viewers
from baton_gateway.page.page_desk import PageDesk
from baton_gateway.page.page_part import PartSources
from baton_gateway.page.viewer import is_loopback
from baton_gateway.process_rules import (
    admission_limits,
    api_options,
    connection_limits,
    open_batch_desk,
    open_own_ledger,
    relay_rules,
)
from baton_gateway.records.record_desk import RecordDesk
from baton_gateway.records.record_ring import RecordRing
from baton_gateway.reporting.metric_files import METRICS_VARIABLE
from baton_gateway.reporting.metrics import GatewayMetrics, watch_loop_lag
from baton_gateway.reporting.metrics_page import own_version
from baton_gateway.reporting.operator_link import OperatorLink, OperatorSources
from baton_gateway.reporting.state_page import ProcessReport, cache_report, worker_report
from baton_gateway.reporting.vllm_names import with_vllm_names
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.relay import Relay
from baton_gateway.requests.tenant import Tenant
from baton_gateway.settings import Settings, SettingsError, config_hash
from baton_gateway.tenancy.process_limits import ProcessLimits
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.tenancy.token_verifier import read_verifier
from baton_gateway.tenancy.trusted_identity import TrustedIdentity, trust_client_certificates
from baton_gateway.text.template_renderer import TemplateRenderer
from baton_gateway.tracing.trace_builder import GEN_AI_OPT_IN_VARIABLE, wants_gen_ai
from baton_gateway.tracing.trace_exporter import TraceExporter
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.links import LinkTimes, WorkerLinks
from baton_wire.deployment_history import decode_history
from baton_wire.discovery import Endpoint, watch
from baton_wire.keys import KeyDirectory
from baton_wire.listening.bounded_server import BoundedServer
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.operator_link import (
    MAX_CONFIG_BYTES,
    MAX_LIMITS,
    FlipOrder,
    GatewayHello,
    LimitOrder,
    LimitUse,
    Summary,
)
from baton_wire.messages.values import Address, Role

_log = logging.getLogger("baton.gateway")
SHUTDOWN_S = 1.0
"""For connections to close, after their requests have ended."""
SEND_BUFFER_BYTES = 128 << 10
"""The kernel's own buffer per connection, kept small so that a client that stops reading is noticed."""


class GatewayServer:
    """The parts of one process."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings] | None = None) -> None:
        """`reread`: reads the settings again after their file changed. Raises ValueError when the API key file or the
        certificate is invalid.
        """
        self._settings = settings
        self._reread = reread
        self.epoch = secrets.token_bytes(16)
        rules = relay_rules(settings)
        keys = KeyDirectory(settings.keys)
        self.table = WorkerTable()
        self.metrics = GatewayMetrics(CollectorRegistry(), settings.slo_ttft_s, settings.slo_tpot_s)
        if settings.metrics_compat == "vllm":
            self.metrics.rename = lambda page: with_vllm_names(page, next(iter(self.table.served_names()), ""))
        self._templates = TemplateRenderer()
        self._admission = Admission(admission_limits(settings))
        records = RecordRing(settings.request_records, epoch=self.epoch.hex())
        self.relay = Relay(self.table, self._admission, self._templates, self.metrics, rules, records=records)
        self.traces = _trace_exporter(settings, self.metrics)
        if self.traces is not None:
            self.relay.trace = self.traces.offer
        self.ledger = self.relay.ledger = open_own_ledger(settings, self.metrics)
        folder = os.environ.get(METRICS_VARIABLE)
        self.desk = RecordDesk(records, None if folder is None else Path(folder), settings.processes)
        self.links = WorkerLinks(
            self.table,
            self.relay,
            keys,
            self.epoch,
            self.metrics.altered_frames["worker"],
            LinkTimes(liveness=LivenessConfig(settings.suspect_s, settings.dead_s)),
            settings.formats,
        )
        tokens = None if settings.jwt is None else read_verifier(settings.jwt)
        trusted = None if settings.trusted_identity is None else TrustedIdentity(settings.trusted_identity)
        self.tenants = Tenants(settings.api_keys, settings.tenants, settings.limit_share, tokens, trusted)
        self.limits = ProcessLimits(self.tenants, settings.limit_share, settings.tenants)
        self.page = self._page_desk(None if folder is None else Path(folder))
        self._history = b""
        """The deployment's history as JSON; empty: none was announced."""
        self._certificate = None if settings.tls is None else Certificate(settings.tls)
        if self._certificate is not None and trusted is not None and trusted.client_ca is not None:
            trust_client_certificates(self._certificate.context, trusted.client_ca)
        self.complaint = ""
        """The problem of the current configuration file; empty: none."""
        self.certificate_complaint = ""
        """The problem of the certificate's files; empty: none."""
        self.budget = MemoryBudget(settings.max_request_memory_mib << 20)
        limits = RateLimits(self.limits.meters, self.limits.months)
        self._accounts = LoopAccounts(self.tenants)
        parts = ApiParts(
            *(self.relay, self.table, self.tenants, limits, self._templates, self.metrics, self.budget, self._accounts),
            *(self.desk, self.page, Viewers(self.tenants, keys, is_local=is_loopback(settings.listen[0]))),
            open_batch_desk(settings, self.metrics),
        )
        self.batches = parts.batches
        self.api = HttpApi(parts, api_options(settings), self.health_problems)
        self.operator_link = self._operator_link(keys)
        self._tasks: list[asyncio.Task[None]] = []
        self._http: BoundedServer | None = None

    @property
    def applied(self) -> str:
        """The hash of the applied configuration."""
        return config_hash(self._settings)

    def report(self) -> ProcessReport:
        """This process's part of `/state`."""
        now = asyncio.get_running_loop().time()
        return ProcessReport(
            pid=os.getpid(),
            epoch=self.epoch.hex(),
            requests_running=self._admission.num_running,
            requests_waiting=self._admission.num_waiting,
            tasks=len(asyncio.all_tasks()),
            held_bytes=self.budget.used_bytes,
            workers=tuple(worker_report(worker) for worker in self.table.all()),
            ttft=self.metrics.ttft.whole.data(),
            tpot=self.metrics.tpot.whole.data(),
            ailment=str(longest_lasting(self.health_problems(), NOT_READY_S) or ""),
            cache=cache_report(self.metrics.cache_use),
            ttft_minute=self.metrics.ttft.minute.sketch(now).data(),
            tpot_minute=self.metrics.tpot.minute.sketch(now).data(),
            tenants=self._admission.tenant_loads(),
            unserved_minute=self.metrics.unserved_minute.sketch(now).count,
        )

    def health_problems(self) -> list[HealthProblem]:
        """The problems of the helper processes."""
        now = time.monotonic()
        sources = self._templates, self.relay.prompts.compiler, self.relay.prompts.encoder, self.links.texts
        return [problem for source in sources for problem in source.health_problems(now)]

    async def start(self, listening: socket.socket) -> None:
        """Serve the listening socket until `stop`, which closes it."""
        await self._templates.start()
        await self.links.start()
        await self.desk.start()
        await self.page.start()
        if self.traces is not None:
            self.traces.start()
        if self.ledger is not None:
            self.ledger.start()
        if self.batches is not None:
            self.batches.start(self.api.lines)
        limits, accounts = connection_limits(self._settings), self._accounts.listener
        self._http = BoundedServer(self.api.handle, limits, _log, not_http, accounts)
        self._http.begin(listening, None if self._certificate is None else self._certificate.context)
        self._tasks = [
            asyncio.create_task(self.relay.prompts.compiler.start()),
            asyncio.create_task(self.api.watch_streams()),
            asyncio.create_task(self._every_second()),
            asyncio.create_task(self._watch_helpers()),
            asyncio.create_task(self.tenants.keep_keys()),
            asyncio.create_task(watch_loop_lag(self.metrics.lagged, self.relay.records.interruptions)),
            asyncio.create_task(collect_when_quiet()),
            asyncio.create_task(watch(self._settings.prefill_discovery, self._update_prefill)),
        ]
        if self._settings.decode_discovery is not None:
            self._tasks.append(asyncio.create_task(watch(self._settings.decode_discovery, self._update_decode)))
        self.metrics.telemetry.began(asyncio.get_running_loop().time())
        if self.operator_link is not None:
            self._tasks.append(asyncio.create_task(self.operator_link.run(), name="operator link"))

    async def stop(self) -> None:
        """Let open requests finish within the drain time, then end everything."""
        self.api.drain()
        if self.batches is not None:
            await self.batches.stop()
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self.relay.until_idle()
        except TimeoutError:
            _log.warning("stopping with %d requests at work", self.relay.num_live)
            self.relay.end_all()
        await self.limits.report_rest()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._http is not None:
            await self._http.end(SHUTDOWN_S)
        await self.links.stop()
        await self.desk.stop()
        await self.page.stop()
        if self.traces is not None:
            await self.traces.stop()
        if self.ledger is not None and not await asyncio.to_thread(self.ledger.stop):
            _log.error(
                "the ledger is not written to its end; the next process writes the rest: %s", self.ledger.writer.problem
            )
        await self._templates.stop()
        await self.relay.prompts.compiler.stop()

    async def _every_second(self) -> None:
        while True:
            linked: dict[Role, int] = {}
            for worker in self.table.all():
                linked[worker.role] = linked.get(worker.role, 0) + 1
            now = asyncio.get_running_loop().time()
            self.metrics.sample(self._admission.num_running, self._admission.num_waiting, linked, now)
            if self.ledger is not None:
                self.metrics.sample_ledger(self.ledger.num_held, is_failing=bool(self.ledger.writer.problem))
            try:
                self.tenants.refresh()
            except ValueError as error:
                _log.error("API keys stay as they were: %s", error)
            for _ in self.tenants.read_table():
                await asyncio.sleep(0)
            self.limits.read_usage()
            self._refresh_certificate()
            self._refresh_settings()
            if self.operator_link is not None and not self.operator_link.is_linked:
                self._renew(self.tenants.lift_empty_slots())
            await asyncio.sleep(1.0)

    async def _watch_helpers(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await asyncio.gather(
                self._templates.recheck(), self.relay.prompts.compiler.recheck(), self.links.texts.recheck()
            )

    def _refresh_certificate(self) -> None:
        """Take a renewed certificate; an invalid one changes nothing."""
        if self._certificate is None:
            return
        try:
            if self._certificate.refresh():
                self.certificate_complaint = ""
                _log.info("the certificate has been renewed")
        except CertificateError as error:
            if str(error) != self.certificate_complaint:
                _log.error("the certificate stays as it was: %s", error)
            self.certificate_complaint = str(error)

    def _refresh_settings(self) -> None:
        """Apply a changed configuration file; an invalid one changes nothing."""
        if self._reread is None:
            return
        try:
            settings = self._reread()
        except SettingsError as error:
            if str(error) != self.complaint:
                _log.error("the configuration stays as it was: %s", error)
            self.complaint = str(error)
            return
        self.complaint = ""
        if config_hash(settings) == config_hash(self._settings):
            return
        self._settings = settings
        self.metrics.series.retarget(settings.slo_ttft_s, settings.slo_tpot_s)
        self._renew(self.limits.configure(settings.limit_share, asyncio.get_running_loop().time()))
        self.relay.reconfigure(relay_rules(settings))
        self._admission.reconfigure(admission_limits(settings))
        self.api.reconfigure(api_options(settings))
        _log.info("configuration %s applied", config_hash(settings))

    def _page_desk(self, folder: Path | None) -> PageDesk:
        sources = PartSources(
            *(self.table, self._admission, self.tenants, self.limits.meters, self.limits.months, self.metrics),
            targets=lambda: (self._settings.slo_ttft_s, self._settings.slo_tpot_s),
            problem=lambda: str(longest_lasting(self.health_problems(), NOT_READY_S) or ""),
            history=lambda: self._history,
        )
        return PageDesk(sources, self.desk, folder, self._settings.processes)

    def _operator_link(self, keys: KeyDirectory) -> OperatorLink | None:
        settings = self._settings
        if settings.operator is None:
            return None
        sources = OperatorSources(
            self._summary,
            lambda: self.relay.num_parked,
            self._model_config,
            self._flip,
            self.tenants.take_content,
            self._limit_uses,
            self._take_shares,
            self._take_history,
            self.limits.change_link,
            lambda: self.limits.months.report(MAX_LIMITS),
            self.limits.months.take,
            lambda: self.tenants.reported,
        )
        hello = GatewayHello(settings.name, settings.processes)
        altered = self.metrics.altered_frames["operator"]
        link = OperatorLink(settings.operator, keys, self.epoch, hello, sources, altered)
        self.relay.on_parked, self.relay.on_workers_changed = link.wake, link.report_now
        return link

    def _limit_uses(self) -> tuple[LimitUse, ...]:
        sequences = self._admission.sequence_uses(MAX_LIMITS // 2)
        now = asyncio.get_running_loop().time()
        return (*self.limits.meters.usage(now, MAX_LIMITS - len(sequences)), *sequences)

    def _take_shares(self, order: LimitOrder) -> None:
        """Apply this process's parts of tenants' limits."""
        self._renew(self.limits.apply(order, asyncio.get_running_loop().time()))

    def _take_history(self, content: bytes) -> None:
        try:
            self.table.wanted = decode_history(content).wanted_workers
        except ValueError as error:
            _log.warning("the deployment's history stays as it was: %s", error)
            return
        self._history = content

    def _renew(self, tenants: Iterable[Tenant]) -> None:
        """More or fewer sequences of these tenants may run from now on."""
        for tenant in tenants:
            self.relay.update_tenant(tenant)

    def _flip(self, order: FlipOrder) -> None:
        """Pass the order on to the worker, which ignores a late one. Orders are repeated until they are carried out."""
        worker = self.table.get(order.worker)
        if worker is not None and not worker.flip(order.number, order.role):
            _log.warning("flip %d to %s is refused: worker %s cannot flip", order.number, order.role, worker.address)

    def _summary(self) -> Summary:
        now = asyncio.get_running_loop().time()
        telemetry, relay = self.metrics.telemetry, self.relay
        telemetry.look(now, relay.answers())
        return telemetry.summary(now, time.time(), relay.backlog(), self.table.all(), self.applied)

    def _model_config(self) -> bytes | None:
        configs = (worker.text.bundle.config_json.encode() for worker in self.table.all())
        return next((config for config in configs if 2 <= len(config) <= MAX_CONFIG_BYTES), None)

    def _update_prefill(self, endpoints: Iterable[Endpoint]) -> None:
        self.links.update_addresses(Role.PREFILL, map(_address, endpoints))

    def _update_decode(self, endpoints: Iterable[Endpoint]) -> None:
        self.links.update_addresses(Role.DECODE, map(_address, endpoints))


def _trace_exporter(settings: Settings, metrics: GatewayMetrics) -> TraceExporter | None:
    """Build the exporter of traces. OpenTelemetry is imported for it alone."""
    if settings.tracing_endpoint is None:
        return None
    from baton_gateway.tracing.otlp_sender import OtlpSender

    instance, is_gen_ai = f"{settings.name}/{os.getpid()}", wants_gen_ai(os.environ.get(GEN_AI_OPT_IN_VARIABLE, ""))
    sender = OtlpSender(settings.tracing_endpoint, instance, own_version(), is_gen_ai=is_gen_ai)
    return TraceExporter(sender, metrics.traced)


def _address(endpoint: Endpoint) -> Address:
    return Address(endpoint.host, endpoint.port)
