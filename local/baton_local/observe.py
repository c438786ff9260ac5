"""What the running processes say about themselves, gathered once: worker states and the gateway's latencies."""

from __future__ import annotations

from dataclasses import dataclass

from baton_local.client import get_json, get_page
from baton_local.latency import Histogram, merged
from baton_local.record import PostRecord, RunRecord

TTFT_METRIC = "baton_gateway_ttft_seconds"
TPOT_METRIC = "baton_gateway_tpot_seconds"


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV that a worker sent or received so far."""

    transport: str | None
    handovers: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's own account of itself."""

    blocks_total: int
    blocks_free: int
    """Cached blocks count: they are given out when needed."""
    block_bytes: int
    running: int
    waiting: int
    transfer: Transfer


@dataclass(frozen=True, slots=True)
class Observation:
    """A running deployment as seen now."""

    record: RunRecord
    workers: tuple[tuple[PostRecord, WorkerState | None], ...]
    """None: the worker does not answer."""
    gateways: tuple[PostRecord, ...]
    ttft: Histogram
    tpot: Histogram


def observe(record: RunRecord) -> Observation:
    """Ask every process of a run."""
    gateways = tuple(post for post in record.posts if post.role == "gateway")
    workers = tuple((post, _worker_state(post)) for post in record.posts if post.role != "gateway")
    admins = [f"http://127.0.0.1:{port}" for gateway in gateways for port in gateway.admin_ports]
    pages = [page.decode() for page in (get_page(admin, "/metrics") for admin in admins) if page is not None]
    return Observation(record, workers, gateways, merged(pages, TTFT_METRIC), merged(pages, TPOT_METRIC))


def _worker_state(post: PostRecord) -> WorkerState | None:
    raw = get_json(f"http://{post.address}", "/state") if post.address else None
    if raw is None:
        return None
    transfer = raw.get("transfer")
    return WorkerState(
        blocks_total=_count(raw, "blocks_total"),
        blocks_free=_count(raw, "blocks_free"),
        block_bytes=_count(raw, "block_bytes"),
        running=_count(raw, "running"),
        waiting=_count(raw, "waiting"),
        transfer=_transfer(transfer if isinstance(transfer, dict) else {}),
    )


def _transfer(raw: dict[str, object]) -> Transfer:
    transport = raw.get("transport")
    return Transfer(
        transport=str(transport) if transport else None,
        handovers=_count(raw, "handovers"),
        bytes_sent=_count(raw, "kv_bytes_sent"),
        bytes_received=_count(raw, "kv_bytes_received"),
    )


def _count(raw: dict[str, object], name: str) -> int:
    value = raw.get(name, 0)
    return value if isinstance(value, int) else 0
