"""An observation of a running deployment: the state pages of its workers and the latencies of its gateway."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from baton_local.fleet.record import ProcessRecord, RunRecord
from baton_local.pages import get_json
from baton_wire.messages.measures import SketchData
from baton_wire.sketch import Sketch, merged


class Link(msgspec.Struct, frozen=True):
    """A prefill worker's link to a decode worker, with the bandwidth measured when it came up."""

    peer: str
    lane: str
    bytes_per_s: float | None = None
    """Measured bandwidth; None: not measured."""
    below_minimum: bool | None = None


_PAGE_NAMES = {"way": "transport", "bytes_sent": "kv_bytes_sent", "bytes_received": "kv_bytes_received"}


class Transfer(msgspec.Struct, frozen=True, rename=_PAGE_NAMES):
    """KV transfers of a worker so far."""

    way: str | None = None
    """The transport, perhaps followed by its lane."""
    handovers: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    links: tuple[Link, ...] = ()
    """A prefill worker's links to decode workers."""

    @property
    def transport(self) -> str | None:
        return self.way.split()[0] if self.way else None


class ObservedWorker(msgspec.Struct, frozen=True):
    """A worker's state page."""

    blocks_total: int
    blocks_free: int
    """Free blocks, cached ones included: they are evicted when needed."""
    block_bytes: int
    running: int
    waiting: int
    transfer: Transfer


class CacheUse(msgspec.Struct, frozen=True):
    """How much of what workers had cached of the prompts was found, by the gateway's count."""

    prompt_tokens: int
    cached_tokens: int
    cacheable_tokens: int
    moved_sessions: dict[str, int]


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The state of all gateway processes together; empty when none answers."""

    links: dict[str, str] = field(default_factory=dict)
    """Worker address → `live`, `suspect` or `draining`."""
    ttft: Sketch = field(default_factory=Sketch)
    tpot: Sketch = field(default_factory=Sketch)
    cache: CacheUse | None = None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A running deployment at one moment."""

    record: RunRecord
    workers: tuple[tuple[ProcessRecord, ObservedWorker | None], ...]
    """Each worker with its state; None: it does not answer."""
    gateway: ProcessRecord | None
    seen_by_gateway: GatewayState


def observe(record: RunRecord) -> Observation:
    """Read the state pages of every process of a run."""
    gateway = next((process for process in record.processes if process.role == "gateway"), None)
    workers = tuple((process, _worker_state(process)) for process in record.processes if process.role != "gateway")
    return Observation(record, workers, gateway, _gateway_state(gateway))


def _gateway_state(gateway: ProcessRecord | None) -> GatewayState:
    if gateway is None or gateway.admin_port is None:
        return GatewayState()
    raw = get_json(f"http://127.0.0.1:{gateway.admin_port}", "/state")
    if raw is None:
        return GatewayState()
    state = msgspec.convert(raw, _GatewayPage)
    links = {worker.address: worker.state for worker in state.workers}
    return GatewayState(links, _whole(state.latency.get("ttft")), _whole(state.latency.get("tpot")), state.cache)


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
    cache: CacheUse | None = None


def _whole(latency: _Latency | None) -> Sketch:
    sketches = [] if latency is None else [latency.sketch]
    return merged(SketchData(sketch.ratio, sketch.sum_s, sketch.buckets) for sketch in sketches)


def _worker_state(process: ProcessRecord) -> ObservedWorker | None:
    """The state of a worker. None: it does not answer, or not with a worker's state page."""
    try:
        return (
            msgspec.convert(get_json(f"http://{process.address}", "/state"), ObservedWorker)
            if process.address
            else None
        )
    except msgspec.ValidationError:
        return None
