"""The rules, limits and options that the parts of a gateway process get from its settings."""

from __future__ import annotations

from baton_gateway.batches.batch_desk import BatchDesk
from baton_gateway.batches.file_store import FileBounds
from baton_gateway.http_api.routes import ApiOptions
from baton_gateway.ledger.request_ledger import RequestLedger, open_ledger
from baton_gateway.reporting.metrics import GatewayMetrics
from baton_gateway.requests.admission import AdmissionLimits
from baton_gateway.requests.live_request import RelayRules
from baton_gateway.requests.request_events import LifeRules
from baton_gateway.requests.wait_prediction import WaitRules
from baton_gateway.settings import Settings, SettingsError
from baton_gateway.workers.route import RoutePolicy
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.descriptors import connection_cap
from baton_wire.rules.prompt_placement import LatencyTargets

UNSET_QUEUE_S = 60.0
"""The longest wait for a turn where none is set."""
MAX_CONNECTIONS = 8_192
"""Connections per process. A stalled stream costs up to 384 KiB (see `streaming_writer` and the send buffer)."""


def connection_limits(settings: Settings) -> ConnectionLimits:
    """How many connections the process and each address may have."""
    total = connection_cap(MAX_CONNECTIONS)
    per_address = settings.max_connections_per_address
    return ConnectionLimits(total, (total + 1) // 2 if per_address is None else per_address or None)


def api_options(settings: Settings) -> ApiOptions:
    """The configuration of the HTTP API."""
    return ApiOptions(
        route_policy(settings),
        tuple(settings.allowed_origins),
        settings.model_aliases,
        settings.unknown_fields,
        None if settings.tracing_endpoint is None else settings.tracing_sample_ratio,
    )


def route_policy(settings: Settings) -> RoutePolicy:
    """The rules by which workers are chosen."""
    return RoutePolicy(
        disaggregate=settings.disaggregation != "never",
        decode_locally=settings.prefill_unavailable == "decode-locally",
        targets=LatencyTargets(settings.slo_ttft_s, settings.slo_tpot_s) if settings.disaggregation == "auto" else None,
    )


def relay_rules(settings: Settings) -> RelayRules:
    """The rules of requests."""
    life = LifeRules(park_s=settings.park_s, tpot_s=settings.slo_tpot_s)
    duration_s = settings.max_request_duration_s
    wait = WaitRules(settings.slo_ttft_s, settings.max_queue_s)
    return RelayRules(
        life,
        route_policy(settings),
        duration_s,
        settings.slo_ttft_s,
        wait,
        settings.max_queued,
        generation_defaults=settings.generation_defaults == "on",
        clamps_max_tokens=settings.oversized_max_tokens == "clamp",
    )


def admission_limits(settings: Settings) -> AdmissionLimits:
    """A request may wait as long for its turn as for workers to appear. Without a setting only the predicted wait is
    bounded, and requests that were let in wrongly end after a minute.
    """
    max_wait_s = max(UNSET_QUEUE_S if settings.max_queue_s is None else settings.max_queue_s, settings.park_s)
    return AdmissionLimits(settings.max_running, settings.max_queued, max_wait_s)


def open_own_ledger(settings: Settings, metrics: GatewayMetrics) -> RequestLedger | None:
    """Open the ledger. Raises SettingsError where its folder cannot be used."""
    if settings.ledger is None:
        return None
    is_required = settings.ledger_full == "refuse"
    try:
        return open_ledger(
            settings.ledger, settings.name, settings.ledger_lines, is_required=is_required, count=metrics.ledgered
        )
    except OSError as error:
        raise SettingsError(f"--ledger: {error.filename or settings.ledger}: {error.strerror or error}") from error


def open_batch_desk(settings: Settings, metrics: GatewayMetrics) -> BatchDesk | None:
    """Open the folder of files and batches. Raises SettingsError where it cannot be used."""
    if settings.batch_folder is None:
        return None
    try:
        return BatchDesk(settings.batch_folder, batch_bounds(settings), settings.batch_concurrency, metrics)
    except OSError as error:
        message = f"--batch-folder: {error.filename or settings.batch_folder}: {error.strerror or error}"
        raise SettingsError(message) from error


def batch_bounds(settings: Settings) -> FileBounds:
    """The bounds of each tenant's files."""
    return FileBounds(settings.batch_file_mib << 20, settings.batch_tenant_mib << 20, settings.batch_tenant_files)
