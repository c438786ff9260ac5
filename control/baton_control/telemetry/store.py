"""The merged summaries of one deployment's gateways: demand since the last decision, latencies of the last minute, and
workers.

Pure: messages and times go in, measurements come out. Each is known, proven zero or unknown. While a gateway that
should report is silent, or a summary was lost, demand is unknown, and so are the routable workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baton_control.sizing.inputs.context_use import ContextUse, merge_context_counts
from baton_control.sizing.inputs.observations import (
    MAX_SAMPLE,
    STARTUPS,
    MeasuredArrivals,
    Measurement,
    ObservedStep,
    Unknown,
    measure_arrivals,
    measure_number,
    merge_arrivals,
    slow_start_s,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.telemetry.pairs import PairMemory, Pairs
from baton_wire.messages.measures import SKETCH_RATIO, ContextCounts, Lanes, SketchData, WorkerCondition, WorkerMeasures
from baton_wire.messages.operator_link import GatewayHello, Summary
from baton_wire.messages.values import Role
from baton_wire.sketch import Sketch, merged

FRESH_S = 16.0
"""Age at which a gateway's last summary is stale: three summaries may be missing."""
LATENCY_WINDOW_S = 60.0
SETTLED_S = 8.0
"""Time for a newly linked gateway to find its first worker."""
OTHER_VERSION_S = 60.0
"""A gateway of another release that was refused this long ago has gone: it dials again at least every 30 s."""
UNLINKED_S = 60.0
"""A worker that no gateway has linked in its first minute serves nothing: it speaks another wire version."""
WORKER_MEMORY_S = 600.0
MAX_STEPS = 4_096
MAX_NUMBERS = 2_048
CONTEXT_MEMORY_S = 180.0
QUEUE_MEMORY_S = 600.0
"""Same as the longest duration of a request."""
UNPROVEN_TOKENS = 1 << 20
"""Tokens that may wait at a worker without reported prompts, because this process may have just started."""
MAX_STARTUP_S = 86_400.0


@dataclass(slots=True)
class _Window:
    """Demand that one gateway process reported since the last decision."""

    count: int = 0
    seconds: float = 0.0
    sample: list[RequestShape] = field(default_factory=list)
    has_gap: bool = False


@dataclass(slots=True)
class _Gateway:
    """A gateway process with a live link."""

    hello: GatewayHello
    since_s: float
    reported_s: float | None = None
    last: Summary | None = None
    window: _Window = field(default_factory=_Window)
    has_settled: bool = False
    """True: it has reported a usable worker, or had the time to find one."""

    def is_fresh(self, now: float) -> bool:
        return self.reported_s is not None and now - self.reported_s <= FRESH_S


@dataclass(frozen=True, slots=True)
class _Served:
    at_s: float
    ttft: SketchData
    tpot: SketchData
    unserved: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies that clients saw in the last minute, over all gateways."""

    ttft: Sketch
    tpot: Sketch
    unserved: int

    def share_met(self, role: Role, limit_s: float) -> tuple[float, int] | None:
        """Share of the requests within a target, and their number; unserved ones missed the target."""
        met = self.ttft if role is Role.PREFILL else self.tpot
        total = met.count + self.unserved
        share = met.share_within(limit_s)
        if total == 0:
            return None
        return (0.0 if share is None else share * met.count) / total, total


@dataclass(frozen=True, slots=True)
class FlexibleWorker:
    """A worker that can flip."""

    host: str
    """Host of its address, as gateways report it."""
    epoch: bytes
    role: Role
    """Role in which it serves now, by its last state."""
    flip: int
    """Number of the last flip that it carried out; 0: none."""
    is_routable: bool = True
    """True: every gateway has linked it and a partner for it."""


@dataclass(slots=True)
class TelemetryStore:
    """The telemetry of one deployment. `now` is any clock that only goes forward."""

    _gateways: dict[bytes, _Gateway] = field(default_factory=dict)
    _served: deque[_Served] = field(default_factory=deque)
    _steps: dict[tuple[bytes, int], ObservedStep] = field(default_factory=dict)
    _startups: dict[Role, deque[float]] = field(default_factory=dict)
    _prompts: deque[tuple[float, float]] = field(default_factory=deque)
    """Times at which prompts were reported, each with their tokens."""
    _known: dict[bytes, float] = field(default_factory=dict)
    """Workers whose start-up time was counted, each with the time of its last report."""
    _numbers: dict[bytes, int] = field(default_factory=dict)
    """Number of the last summary of each gateway process, also after its link was lost."""
    _contexts: deque[tuple[float, ContextCounts]] = field(default_factory=deque)
    """Counts of the last minutes, each with the time of its summary."""
    _taken_s: float = float("-inf")
    _late: list[RequestShape] = field(default_factory=list)
    _pairs: PairMemory = field(default_factory=lambda: PairMemory(FRESH_S))
    _other_version: tuple[str, float] | None = None
    """The wire versions of a gateway that proved its key and speaks none of this process's, and when it last tried."""
    parked: int = 0
    """Most requests that waited without a worker since the last decision."""
    model_config: bytes | None = None

    # From the links ---------------------------------------------------------------------------------------------------

    def linked(self, epoch: bytes, hello: GatewayHello, now: float) -> None:
        self._gateways[epoch] = _Gateway(hello, now)
        self._pairs.linked(epoch, hello.gateway, hello.processes, now)

    def gone(self, epoch: bytes, now: float) -> None:
        """The link of a gateway process ended: its last summary says nothing about now."""
        self._gateways.pop(epoch, None)
        self._pairs.gone(epoch, now)

    def refused_version(self, versions: str, now: float) -> None:
        """A gateway of this deployment was refused because it speaks other wire versions."""
        self._other_version = versions, now

    def woken(self, parked: int) -> None:
        self.parked = max(self.parked, parked)

    def add_summary(self, epoch: bytes, summary: Summary, now: float) -> None:
        gateway = self._gateways.get(epoch)
        if gateway is None:
            return
        window = gateway.window
        window.has_gap |= summary.number != self._numbers.pop(epoch, summary.number - 1) + 1
        self._numbers[epoch] = summary.number
        if len(self._numbers) > MAX_NUMBERS:
            del self._numbers[next(iter(self._numbers))]
        gateway.last, gateway.reported_s = summary, now
        self._pairs.report(epoch, bool(_usable(summary)), now)
        gateway.has_settled |= bool(_usable(summary)) or now - gateway.since_s >= SETTLED_S
        self._add_arrivals(window, summary, now)
        if summary.contexts is not None:
            self._contexts.append((now, summary.contexts))
        served = summary.served
        self._served.append(_Served(now, served.ttft, served.tpot, served.unserved))
        self._forget_old(now)
        self.parked = max(self.parked, summary.backlog.parked)
        for worker in summary.workers:
            self._add_measures(worker, now)
        self._known = {worker: at for worker, at in self._known.items() if now - at < WORKER_MEMORY_S}

    def _add_arrivals(self, window: _Window, summary: Summary, now: float) -> None:
        arrived = summary.arrived
        window.count += arrived.accepted + arrived.queued + arrived.refused
        window.seconds += summary.seconds
        if arrived.prompt_tokens.total > 0:
            self._prompts.append((now, arrived.prompt_tokens.total))
        window.sample += [
            RequestShape(shape.prompt_tokens, shape.output_tokens, min(shape.cached_tokens, shape.prompt_tokens))
            for shape in arrived.sample
        ]
        stride = max(1, -(-len(window.sample) // (2 * MAX_SAMPLE)))
        window.sample = window.sample[::stride]

    def _forget_old(self, now: float) -> None:
        while self._served and now - self._served[0].at_s > LATENCY_WINDOW_S:
            self._served.popleft()
        while self._contexts and now - self._contexts[0][0] > CONTEXT_MEMORY_S:
            self._contexts.popleft()
        while self._prompts and now - self._prompts[0][0] > QUEUE_MEMORY_S:
            self._prompts.popleft()

    def _add_measures(self, worker: WorkerMeasures, now: float) -> None:
        role = worker.role
        if worker.epoch not in self._known and 0 < (worker.startup_s or 0.0) <= MAX_STARTUP_S:
            self._startups.setdefault(role, deque(maxlen=STARTUPS)).append(worker.startup_s or 0.0)
        if worker.epoch in self._known or worker.startup_s is not None:
            self._known[worker.epoch] = now
        for timing in worker.timings:
            if len(self._steps) < MAX_STEPS:
                self._steps[worker.epoch, timing.step] = ObservedStep(role, worker.epoch.hex(), timing)

    @property
    def has_links(self) -> bool:
        return bool(self._gateways)

    def other_version(self, now: float) -> str | None:
        """The wire versions of a gateway that was refused lately for them; None: none was. It dials again while it
        runs."""
        if self._other_version is None or now - self._other_version[1] > OTHER_VERSION_S:
            return None
        return self._other_version[0]

    # For decisions ----------------------------------------------------------------------------------------------------

    def is_complete(self, now: float, expected: int) -> bool:
        """True when every gateway process that should report has reported since the last decision."""
        gateways = self._gateways.values()
        count = sum(gateway.reported_s is not None and gateway.reported_s > self._taken_s for gateway in gateways)
        return count >= max(1, expected) and count == len(gateways)

    def take_arrivals(self, now: float, expected: int) -> MeasuredArrivals:
        """Demand since the last call; `expected` gateway processes should report."""
        self._taken_s, self.parked = now, 0
        gateways = list(self._gateways.values())
        windows = [(gateway, gateway.window) for gateway in gateways]
        for gateway in gateways:
            gateway.window = _Window()
        missing = self._missing(now, expected)
        if missing:
            return Unknown(missing)
        readings: list[MeasuredArrivals] = []
        for gateway, window in windows:
            if gateway.reported_s is None or window.seconds <= 0:
                return Unknown("a gateway has reported nothing since the last decision")
            if window.has_gap:
                return Unknown("a report of a gateway did not arrive")
            count, sample = float(window.count), window.sample[:MAX_SAMPLE]
            self._late += [] if count else sample
            readings.append(measure_arrivals(count, max(0.1, window.seconds), sample, gateway.reported_s, now))
        return merge_arrivals(readings)

    def take_late(self) -> tuple[RequestShape, ...]:
        """Lengths that were reported since the last call without an arrival, so of requests that arrived earlier."""
        late, self._late = tuple(self._late[:MAX_SAMPLE]), []
        return late

    def take_steps(self) -> list[ObservedStep]:
        """Steps reported since the last call; a step that several gateways reported counts once."""
        taken, self._steps = list(self._steps.values()), {}
        return taken

    def latencies(self, now: float) -> Latencies:
        self._forget_old(now)
        served = self._served
        ttft, tpot = _merge(entry.ttft for entry in served), _merge(entry.tpot for entry in served)
        return Latencies(ttft, tpot, sum(entry.unserved for entry in served))

    def queued_tokens(self, now: float, expected: int) -> Measurement:
        """Prompt tokens that wait for a prefill step, at gateways and at prefill workers."""
        missing = self._missing(now, expected)
        if missing:
            return Unknown(missing)
        total, came = 0, 2 * sum(tokens for _, tokens in self._prompts)  # some are computed once more
        for summary in self._summaries():
            if summary.backlog.tokens is None:
                return Unknown("requests wait whose length is not known")
            total += summary.backlog.tokens
        for worker in self._workers().values():
            if worker.role is Role.PREFILL:
                if worker.waiting_tokens is None:
                    return Unknown("a worker has not reported its waiting tokens")
                if worker.waiting_tokens > came + UNPROVEN_TOKENS:
                    return Unknown("more tokens are said to wait at a worker than came")
                total += worker.waiting_tokens
        return measure_number(float(total), "queued tokens")

    def contexts(self, now: float, expected: int) -> ContextUse | None:
        """How soon contexts are used again; None: unknown."""
        self._forget_old(now)
        latest = [summary.contexts for summary in self._summaries() if summary.contexts is not None]
        if self._missing(now, expected) or not self._contexts or len(latest) < len(list(self._summaries())):
            return None
        return merge_context_counts((counts for _, counts in self._contexts), latest)

    def running(self, now: float, expected: int) -> Measurement:
        """Sequences at work in the workers."""
        missing = self._missing(now, expected)
        if missing:
            return Unknown(missing)
        counts = [worker.running for worker in self._workers().values()]
        if any(count is None for count in counts):
            return Unknown("a worker has not reported its running sequences")
        return measure_number(float(sum(count or 0 for count in counts)), "running sequences")

    def routable(self, now: float, expected: int = 0) -> Mapping[tuple[Role, str], int] | None:
        """Number of routable workers by role and template hash: live, with a fitting partner, and linked to every
        gateway process that had time to find workers. None: unknown, because a gateway is silent or speaks another wire
        version.
        """
        if self._missing(now, expected) or self.other_version(now) is not None:
            return None
        workers = self._workers()
        return Counter((workers[e].role, workers[e].template_hash) for e in self._routable_everywhere())

    def linked_templates(self, now: float) -> frozenset[tuple[Role, str]] | None:
        """Roles and template hashes of the workers that any gateway has linked. None: unknown, because a gateway is
        silent, speaks another wire version, or has not had a minute to find its workers."""
        if self.routable(now) is None or self.linked_in_s(now) is not None:
            return None
        return frozenset((worker.role, worker.template_hash) for worker in self._workers().values())

    def linked_in_s(self, now: float) -> float | None:
        """Seconds until every gateway has had a minute to find its workers; None: each has had it."""
        youngest_s = max((gateway.since_s for gateway in self._gateways.values()), default=float("-inf"))
        left_s = youngest_s + UNLINKED_S - now
        return left_s if left_s > 0 else None

    def _routable_everywhere(self) -> set[bytes]:
        """Epochs of the workers that every settled gateway can use. The first summary of a new gateway comes before its
        first worker, so it does not count."""
        reporting = [gateway for gateway in self._gateways.values() if gateway.last is not None]
        settled = [gateway for gateway in reporting if gateway.has_settled] or reporting
        sets = [_usable(gateway.last) for gateway in settled if gateway.last is not None]
        return set.intersection(*sets) if sets else set()

    def pairs(self, now: float) -> Pairs | None:
        """The fitting live pairs of the gateways; None: unknown."""
        return self._pairs.pairs(now)

    def routable_addresses(self) -> frozenset[str]:
        """Addresses of the live workers that any gateway has linked together with a partner."""
        workers = self._workers().values()
        return frozenset(str(w.address) for w in workers if w.condition is WorkerCondition.LIVE and w.has_partner)

    def flips(self) -> dict[bytes, int]:
        """Number of the last flip that each flexible worker carried out, by its epoch."""
        numbers: dict[bytes, int] = {}
        for summary in self._summaries():
            for worker in summary.workers:
                if worker.flips:
                    numbers[worker.epoch] = max(worker.flip, numbers.get(worker.epoch, 0))
        return numbers

    def flexible_workers(self) -> tuple[FlexibleWorker, ...]:
        """The flexible workers, each as reported by the gateway that knows its latest flip."""
        latest: dict[bytes, WorkerMeasures] = {}
        for summary in self._summaries():
            for worker in summary.workers:
                if worker.flips and (worker.epoch not in latest or worker.flip > latest[worker.epoch].flip):
                    latest[worker.epoch] = worker
        common = self._routable_everywhere()
        return tuple(
            FlexibleWorker(w.address.host, w.epoch, w.role, w.flip, w.epoch in common) for w in latest.values()
        )

    def startup_s(self, role: Role) -> float | None:
        """Time from the start of a worker process until it is ready; None: not measured."""
        return slow_start_s(tuple(self._startups.get(role, ())))

    def kv_capacity_tokens(self, role: Role) -> int | None:
        """KV that the smallest worker of a pool holds."""
        sizes = [w.blocks_total * w.block_tokens for w in self._workers().values() if w.role is role]
        return min(sizes, default=None)

    def kv_bytes(self) -> int | None:
        """KV that the linked decode workers have received so far; None: unknown."""
        counts = [w.kv_bytes for w in self._workers().values() if w.role is Role.DECODE]
        return None if any(count is None for count in counts) else sum(count or 0 for count in counts)

    def lanes(self) -> Lanes | None:
        """The lanes between linked workers, as measured when their links came up; None: none was measured."""
        known = [worker.lanes for worker in self._workers().values() if worker.lanes is not None]
        if not known:
            return None
        slowest = min(known, key=lambda lanes: lanes.slowest_bytes_per_s)
        measured, too_slow = sum(lanes.measured for lanes in known), sum(lanes.too_slow for lanes in known)
        return Lanes(measured, too_slow, slowest.slowest, slowest.slowest_bytes_per_s)

    def oldest_s(self) -> float:
        """Age of the oldest request that waits at a gateway; 0: there is none."""
        return max((summary.backlog.oldest_s for summary in self._summaries()), default=0.0)

    def _missing(self, now: float, expected: int) -> str:
        """The reason why telemetry is incomplete; empty when all gateways report that should."""
        gateways = list(self._gateways.values())
        fresh = sum(gateway.is_fresh(now) for gateway in gateways)
        if not self._gateways:
            return "no gateway reports"
        if fresh < len(self._gateways):
            return f"{len(self._gateways) - fresh} of {len(self._gateways)} gateway processes are silent"
        processes = {gateway.hello.gateway: gateway.hello.processes for gateway in gateways}
        wanted = max(expected, sum(processes.values()))
        return f"{fresh} of {wanted} gateway processes report" if fresh < wanted else ""

    def _summaries(self) -> Iterable[Summary]:
        return [gateway.last for gateway in self._gateways.values() if gateway.last is not None]

    def _workers(self) -> dict[bytes, WorkerMeasures]:
        return {worker.epoch: worker for summary in self._summaries() for worker in summary.workers}


def _usable(summary: Summary) -> set[bytes]:
    """Epochs of the live workers with a fitting partner: no worker, or at least a pair."""
    return {w.epoch for w in summary.workers if w.condition is WorkerCondition.LIVE and w.has_partner}


def _merge(sketches: Iterable[SketchData]) -> Sketch:
    """One sketch of all; a gateway that counts in other bins is left out."""
    return merged(sketch for sketch in sketches if sketch.ratio == SKETCH_RATIO)
