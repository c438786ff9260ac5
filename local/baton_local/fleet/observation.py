"""What the running processes say about themselves, gathered once: worker states and the gateway's latencies."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from baton_local.fleet.record import PostRecord, RunRecord
from baton_local.pages import get_json
from baton_wire.sketch import Sketch, SketchData, merged

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Link:
    """One way that KV takes, as measured when the link came up."""

    peer: str
    lane: str
    bytes_per_s: float | None
    """None: not known."""
    below_minimum: bool | None


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV that a worker sent or received so far."""

    transport: str | None
    handovers: int
    bytes_sent: int
    bytes_received: int
    links: tuple[Link, ...] = ()
    """A prefill worker's ways to decode workers."""


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
class GatewayState:
    """What the gateway's processes say together; empty when they do not answer."""

    links: dict[str, str] = field(default_factory=dict)
    """Worker address → `live`, `suspect` or `draining`."""
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)


@dataclass(frozen=True, slots=True)
class Observation:
    """A running deployment as seen now."""

    record: RunRecord
    workers: tuple[tuple[PostRecord, WorkerState | None], ...]
    """None: the worker does not answer."""
    gateway: PostRecord | None
    seen_by_gateway: GatewayState


def observe(record: RunRecord) -> Observation:
    """Ask every process of a run."""
    gateway = next((post for post in record.posts if post.role == "gateway"), None)
    workers = tuple((post, _worker_state(post)) for post in record.posts if post.role != "gateway")
    return Observation(record, workers, gateway, _gateway_state(gateway))


def _gateway_state(gateway: PostRecord | None) -> GatewayState:
    if gateway is None or gateway.admin_port is None:
        return GatewayState()
    raw = get_json(f"http://127.0.0.1:{gateway.admin_port}", "/state")
    if raw is None:
        return GatewayState()
    state = msgspec.convert(raw, _GatewayPage)
    links = {worker.address: worker.state for worker in state.workers}
    return GatewayState(links, _whole(state.latency.get("ttft")), _whole(state.latency.get("tpot")))


class _LinkedWorker(msgspec.Struct, frozen=True):
    address: str
    state: str


class _Buckets(msgspec.Struct, frozen=True):
    ratio: float
    sum_s: float
    buckets: tuple[tuple[int, int], ...]


class _Latency(msgspec.Struct, frozen=True):
    sketch: _Buckets


class _GatewayPage(msgspec.Struct, frozen=True):
    """The part of the gateway's `/state` that is shown."""

    workers: tuple[_LinkedWorker, ...]
    latency: dict[str, _Latency]


def _whole(latency: _Latency | None) -> Sketch:
    told = [] if latency is None else [latency.sketch]
    return merged(SketchData(each.ratio, each.sum_s, each.buckets) for each in told)


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


def _transfer(raw: Json) -> Transfer:
    transport, links = raw.get("transport"), raw.get("links")
    return Transfer(
        transport=str(transport).split()[0] if transport else None,
        handovers=_count(raw, "handovers"),
        bytes_sent=_count(raw, "kv_bytes_sent"),
        bytes_received=_count(raw, "kv_bytes_received"),
        links=tuple(_link(link) for link in links if isinstance(link, dict)) if isinstance(links, list) else (),
    )


def _link(raw: Json) -> Link:
    rate, below = raw.get("bytes_per_s"), raw.get("below_minimum")
    return Link(
        peer=str(raw.get("peer")),
        lane=str(raw.get("lane")),
        bytes_per_s=rate if isinstance(rate, float) else None,
        below_minimum=below if isinstance(below, bool) else None,
    )


def _count(raw: Json, name: str) -> int:
    value = raw.get(name, 0)
    return value if isinstance(value, int) else 0
