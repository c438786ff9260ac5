"""What the running processes say about themselves, gathered once: worker states and the gateway's latencies."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from baton_local.fleet.record import PostRecord, RunRecord
from baton_local.pages import get_json
from baton_wire.messages.measures import SketchData
from baton_wire.sketch import Sketch, merged


class Link(msgspec.Struct, frozen=True):
    """One way that KV takes, as measured when the link came up."""

    peer: str
    lane: str
    bytes_per_s: float | None = None
    """None: not known."""
    below_minimum: bool | None = None


_TOLD = {"way": "transport", "bytes_sent": "kv_bytes_sent", "bytes_received": "kv_bytes_received"}


class Transfer(msgspec.Struct, frozen=True, rename=_TOLD):
    """KV that a worker sent or received so far."""

    way: str | None = None
    """A transport, perhaps with its lane behind it."""
    handovers: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    links: tuple[Link, ...] = ()
    """A prefill worker's ways to decode workers."""

    @property
    def transport(self) -> str | None:
        return self.way.split()[0] if self.way else None


class ObservedWorker(msgspec.Struct, frozen=True):
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
    workers: tuple[tuple[PostRecord, ObservedWorker | None], ...]
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


def _worker_state(post: PostRecord) -> ObservedWorker | None:
    """None: it does not answer, or not with what a worker says."""
    try:
        return msgspec.convert(get_json(f"http://{post.address}", "/state"), ObservedWorker) if post.address else None
    except msgspec.ValidationError:
        return None
