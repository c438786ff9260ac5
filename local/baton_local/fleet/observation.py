"""An observation of a running deployment: the state pages of its workers and the latencies of its gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import msgspec

from baton_local.fleet.record import ProcessRecord, RunRecord
from baton_local.pages import get_json
from baton_wire.messages.measures import SketchData
from baton_wire.sketch import Sketch, merged

MAX_PAGES = 8
"""Pages that are read at once."""


class Link(msgspec.Struct, frozen=True):
    """A prefill worker's link to a decode worker."""

    peer: str
    lane: str
    bytes_per_s: float | None = None
    """Bandwidth measured when the link came up; None: not measured."""
    below_minimum: bool | None = None
    recent_bytes_per_s: float | None = None
    """Bandwidth in the last minute, while bytes were under way; None: none were."""


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


class ObservedCacheUse(msgspec.Struct, frozen=True):
    """How much of what workers had cached of the prompts was found, by the gateway's count."""

    prompt_tokens: int
    cached_tokens: int
    cacheable_tokens: int
    moved_sessions: dict[str, int]


class ObservedTenant(msgspec.Struct, frozen=True):
    """A tenant's sequences in the gateway."""

    name: str
    running: int
    waiting: int


class LostTime(msgspec.Struct, frozen=True):
    """Where the late and failed requests of the last minutes lost their time, as the gateway's page has it."""

    place: str
    share: float
    meaning: str
    requests: int
    detail: str = ""
    tenant: str | None = None
    """The tenant of most of them; None: there is none."""
    errors: int = 0
    code: str | None = None
    """The error that most of the failed ones got; None: there is none."""


class _Page(msgspec.Struct, frozen=True):
    limited_by: LostTime | None = None


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The state of all gateway processes together; empty when none answers, or not with a gateway's state page."""

    links: dict[str, str] = field(default_factory=dict)
    """Worker address → `live`, `suspect` or `draining`."""
    ttft: Sketch = field(default_factory=Sketch)
    """Since the gateway started, like `tpot`."""
    tpot: Sketch = field(default_factory=Sketch)
    ttft_minute: Sketch = field(default_factory=Sketch)
    """In the last minute, like `tpot_minute`."""
    tpot_minute: Sketch = field(default_factory=Sketch)
    cache: ObservedCacheUse | None = None
    """None: not known."""
    running: int | None = None
    """Sequences that the gateway has let begin; None: not known, like `waiting`."""
    waiting: int | None = None
    tenants: tuple[ObservedTenant, ...] = ()
    """Tenants that have sequences, the ones with the most first."""
    unserved_minute: int | None = None
    """Requests of the last minute that failed, or were refused for want of workers; None: not known."""
    lost_time: LostTime | None = None
    """None: no request was late, it is not known, or it was not asked for."""


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
    workers = [process for process in record.processes if process.role != "gateway"]
    with ThreadPoolExecutor(max_workers=MAX_PAGES) as pool:  # a worker that is silent delays no other's page
        states = list(pool.map(_worker_state, workers))
    return Observation(record, tuple(zip(workers, states, strict=True)), gateway, _gateway_state(gateway))


def _gateway_state(gateway: ProcessRecord | None) -> GatewayState:
    if gateway is None or gateway.admin_port is None:
        return GatewayState()
    raw = get_json(f"http://127.0.0.1:{gateway.admin_port}", "/state")
    try:
        return GatewayState() if raw is None else merge_gateways([raw])
    except msgspec.ValidationError:
        return GatewayState()


def with_lost_time(seen: Observation) -> Observation:
    """The observation with where late requests lost their time: it is in the data of the gateway's page, which the
    gateway makes from its records, and so costs it more than its state."""
    gateway, state = seen.gateway, seen.seen_by_gateway
    if gateway is None or gateway.admin_port is None or state.running is None:  # it does not answer
        return seen
    page = get_json(f"http://127.0.0.1:{gateway.admin_port}", "/ui/data.json")
    return replace(seen, seen_by_gateway=replace(state, lost_time=lost_time(page)))


def lost_time(page: object) -> LostTime | None:
    """Read where late requests lost their time from the data of a gateway's page; None: it does not say."""
    try:
        return msgspec.convert(page, _Page).limited_by
    except msgspec.ValidationError:
        return None


def merge_gateways(pages: Sequence[Mapping[str, object]]) -> GatewayState:
    """Merge the state pages of gateways. Raises msgspec.ValidationError for a page that is no gateway's."""
    if not pages:
        return GatewayState()
    states = [msgspec.convert(page, _GatewayPage) for page in pages]
    ttft, tpot = ([state.latency.get(name) for state in states] for name in ("ttft", "tpot"))
    links = {worker.address: worker.state for state in reversed(states) for worker in state.workers}
    processes = [process for state in states for process in state.processes]
    return GatewayState(
        links,
        _merge(ttft),
        _merge(tpot),
        _merge(map(_minute, ttft)),
        _merge(map(_minute, tpot)),
        _merge_cache([state.cache for state in states if state.cache is not None]),
        sum(process.requests_running for process in processes),
        sum(process.requests_waiting for process in processes),
        _merge_tenants(tenant for state in states for tenant in state.tenants),
        _sum_unserved([state.last_minute for state in states]),
    )


def _sum_unserved(minutes: Sequence[_Minute | None]) -> int | None:
    """The sum of what is known; None: no gateway reports it."""
    known = [minute.unserved for minute in minutes if minute is not None]
    return sum(known) if known else None


def _merge_cache(uses: Sequence[ObservedCacheUse]) -> ObservedCacheUse | None:
    if not uses:
        return None
    moved: Counter[str] = Counter()
    for use in uses:
        moved.update(use.moved_sessions)
    return ObservedCacheUse(
        sum(use.prompt_tokens for use in uses),
        sum(use.cached_tokens for use in uses),
        sum(use.cacheable_tokens for use in uses),
        dict(moved),
    )


def _merge_tenants(tenants: Iterable[ObservedTenant]) -> tuple[ObservedTenant, ...]:
    sums: dict[str, ObservedTenant] = {}
    for tenant in tenants:
        before = sums.get(tenant.name, ObservedTenant(tenant.name, 0, 0))
        sums[tenant.name] = ObservedTenant(
            tenant.name, before.running + tenant.running, before.waiting + tenant.waiting
        )
    return tuple(sorted(sums.values(), key=lambda tenant: (-tenant.running - tenant.waiting, tenant.name)))


class _LinkedWorker(msgspec.Struct, frozen=True):
    address: str
    state: str


class _Buckets(msgspec.Struct, frozen=True):
    ratio: float
    sum_s: float
    buckets: tuple[tuple[int, int], ...]


class _Distribution(msgspec.Struct, frozen=True):
    sketch: _Buckets


class _Latency(_Distribution, frozen=True):
    last_minute: _Distribution | None = None


class _GatewayProcess(msgspec.Struct, frozen=True):
    requests_running: int
    requests_waiting: int


class _Minute(msgspec.Struct, frozen=True):
    unserved: int


class _GatewayPage(msgspec.Struct, frozen=True):
    """The part of the gateway's `/state` that is shown."""

    workers: tuple[_LinkedWorker, ...]
    latency: dict[str, _Latency]
    processes: tuple[_GatewayProcess, ...] = ()
    tenants: tuple[ObservedTenant, ...] = ()
    cache: ObservedCacheUse | None = None
    last_minute: _Minute | None = None


def _minute(latency: _Latency | None) -> _Distribution | None:
    return None if latency is None else latency.last_minute


def _merge(latencies: Iterable[_Distribution | None]) -> Sketch:
    sketches = [latency.sketch for latency in latencies if latency is not None]
    return merged(SketchData(sketch.ratio, sketch.sum_s, sketch.buckets) for sketch in sketches)


def _worker_state(process: ProcessRecord) -> ObservedWorker | None:
    """The state of a worker. None: it does not answer, or not with a worker's state page."""
    return worker_state(get_json(f"http://{process.address}", "/state")) if process.address else None


def worker_state(page: object) -> ObservedWorker | None:
    """Read a worker's state page; None: it is none."""
    try:
        return msgspec.convert(page, ObservedWorker)
    except msgspec.ValidationError:
        return None
