"""What the gateways of one deployment told, merged: demand since the last decision, latencies of the last minute,
workers.

Pure: messages and times go in, readings come out. Every reading is known, proven zero or unknown: while a gateway that
should report is silent, or a summary was lost, demand is unknown, and so is what is routable.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
from baton_wire.messages.measures import SKETCH_RATIO, Lanes, SketchData, WorkerCondition, WorkerMeasures
from baton_wire.messages.operator_link import GatewayHello, Summary
from baton_wire.messages.values import Role
from baton_wire.sketch import Sketch, merged

FRESH_S = 16.0
"""Three summaries may be missing before a gateway counts as silent."""
LATENCY_WINDOW_S = 60.0
SETTLED_S = 8.0
"""So long a gateway that has just linked may have found no worker yet, while others have some."""
WORKER_MEMORY_S = 600.0
MAX_STEPS = 4_096
MAX_NUMBERS = 2_048
QUEUE_MEMORY_S = 600.0
"""As long as a request may last."""
UNPROVEN_TOKENS = 1 << 20
"""That may wait at a worker although no gateway told of prompts: this process may have just started."""
MAX_STARTUP_S = 86_400.0


@dataclass(slots=True)
class _Window:
    """Demand that one gateway process told of since the last decision."""

    count: int = 0
    seconds: float = 0.0
    sample: list[RequestShape] = field(default_factory=list)
    has_gap: bool = False


@dataclass(slots=True)
class _Gateway:
    """One gateway process behind a live link."""

    hello: GatewayHello
    since_s: float
    heard_s: float | None = None
    last: Summary | None = None
    window: _Window = field(default_factory=_Window)
    has_settled: bool = False
    """It has told of a worker that it can use, or has had the time to find one."""

    def is_fresh(self, now: float) -> bool:
        return self.heard_s is not None and now - self.heard_s <= FRESH_S


@dataclass(frozen=True, slots=True)
class _Served:
    at_s: float
    ttft: SketchData
    tpot: SketchData
    unserved: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """What clients saw in the last minute, over all gateways."""

    ttft: Sketch
    tpot: Sketch
    unserved: int

    def share_met(self, role: Role, limit_s: float) -> tuple[float, int] | None:
        """Share of the requests within a target and how many there were; who was not served missed it."""
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
    """Where gateways have found it."""
    epoch: bytes
    role: Role
    """What it serves as now, by its last state."""
    flip: int
    """The number of the last flip that it carried out; 0: none."""
    is_routable: bool = True
    """Whether every gateway has linked it and a partner for it."""


@dataclass(slots=True)
class TelemetryStore:
    """Of one deployment. `now` is any clock that only goes forward."""

    _gateways: dict[bytes, _Gateway] = field(default_factory=dict)
    _served: deque[_Served] = field(default_factory=deque)
    _steps: dict[tuple[bytes, int], ObservedStep] = field(default_factory=dict)
    _startups: dict[Role, deque[float]] = field(default_factory=dict)
    _prompts: deque[tuple[float, float]] = field(default_factory=deque)
    """When gateways told of prompts, and of how many tokens."""
    _known: dict[bytes, float] = field(default_factory=dict)
    """Workers whose start-up time was counted, with when they were last told of."""
    _numbers: dict[bytes, int] = field(default_factory=dict)
    """The last summary of each gateway process, also of one whose link was lost a moment ago."""
    _taken_s: float = float("-inf")
    _late: list[RequestShape] = field(default_factory=list)
    _pairs: PairMemory = field(default_factory=lambda: PairMemory(FRESH_S))
    parked: int = 0
    """Requests that were said to wait without a worker since the last decision."""
    model_config: bytes | None = None

    # From the links ---------------------------------------------------------------------------------------------------

    def linked(self, epoch: bytes, hello: GatewayHello, now: float) -> None:
        self._gateways[epoch] = _Gateway(hello, now)
        self._pairs.linked(epoch, hello.gateway, hello.processes, now)

    def gone(self, epoch: bytes, now: float) -> None:
        """Its link ended: what it had told last says nothing about now."""
        self._gateways.pop(epoch, None)
        self._pairs.gone(epoch, now)

    def woken(self, parked: int) -> None:
        self.parked = max(self.parked, parked)

    def told(self, epoch: bytes, summary: Summary, now: float) -> None:
        gateway = self._gateways.get(epoch)
        if gateway is None:
            return
        window = gateway.window
        window.has_gap |= summary.number != self._numbers.pop(epoch, summary.number - 1) + 1
        self._numbers[epoch] = summary.number
        if len(self._numbers) > MAX_NUMBERS:
            del self._numbers[next(iter(self._numbers))]
        gateway.last, gateway.heard_s = summary, now
        self._pairs.told(epoch, bool(_usable(summary)), now)
        gateway.has_settled |= bool(_usable(summary)) or now - gateway.since_s >= SETTLED_S
        self._arrived(window, summary, now)
        served = summary.served
        self._served.append(_Served(now, served.ttft, served.tpot, served.unserved))
        self._forget_old(now)
        self.parked = max(self.parked, summary.backlog.parked)
        for worker in summary.workers:
            self._measured(worker, now)
        self._known = {worker: at for worker, at in self._known.items() if now - at < WORKER_MEMORY_S}

    def _arrived(self, window: _Window, summary: Summary, now: float) -> None:
        arrived = summary.arrived
        window.count += arrived.accepted + arrived.queued + arrived.refused
        window.seconds += summary.seconds
        if arrived.prompt_tokens.total > 0:
            self._prompts.append((now, arrived.prompt_tokens.total))
        window.sample += [
            RequestShape(each.prompt_tokens, each.output_tokens, min(each.cached_tokens, each.prompt_tokens))
            for each in arrived.sample
        ]
        stride = max(1, -(-len(window.sample) // (2 * MAX_SAMPLE)))
        window.sample = window.sample[::stride]

    def _forget_old(self, now: float) -> None:
        while self._served and now - self._served[0].at_s > LATENCY_WINDOW_S:
            self._served.popleft()
        while self._prompts and now - self._prompts[0][0] > QUEUE_MEMORY_S:
            self._prompts.popleft()

    def _measured(self, worker: WorkerMeasures, now: float) -> None:
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

    # For decisions ----------------------------------------------------------------------------------------------------

    def is_complete(self, now: float, expected: int) -> bool:
        """Every gateway process that should report has told something since the last decision."""
        told = [each for each in self._gateways.values() if each.heard_s is not None and each.heard_s > self._taken_s]
        return len(told) >= max(1, expected) and len(told) == len(self._gateways)

    def take_arrivals(self, now: float, expected: int) -> MeasuredArrivals:
        """Demand since the last call; `expected` gateway processes should report."""
        self._taken_s, self.parked = now, 0
        gateways = list(self._gateways.values())
        windows = [(each, each.window) for each in gateways]
        for each in gateways:
            each.window = _Window()
        missing = self._missing(now, expected)
        if missing:
            return Unknown(missing)
        readings: list[MeasuredArrivals] = []
        for each, window in windows:
            if each.heard_s is None or window.seconds <= 0:
                return Unknown("a gateway has told nothing since the last decision")
            if window.has_gap:
                return Unknown("a summary of a gateway was lost")
            count, sample = float(window.count), window.sample[:MAX_SAMPLE]
            self._late += [] if count else sample
            readings.append(measure_arrivals(count, max(0.1, window.seconds), sample, each.heard_s, now))
        return merge_arrivals(readings)

    def take_late(self) -> tuple[RequestShape, ...]:
        """Lengths told since the last call in intervals without an arrival: of requests that came before."""
        late, self._late = tuple(self._late[:MAX_SAMPLE]), []
        return late

    def take_steps(self) -> list[ObservedStep]:
        """Steps told since the last call; one that several gateways told of counts once."""
        taken, self._steps = list(self._steps.values()), {}
        return taken

    def latencies(self, now: float) -> Latencies:
        self._forget_old(now)
        served = self._served
        ttft, tpot = _understood(each.ttft for each in served), _understood(each.tpot for each in served)
        return Latencies(ttft, tpot, sum(each.unserved for each in served))

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
                    return Unknown("a worker has not told what waits there")
                if worker.waiting_tokens > came + UNPROVEN_TOKENS:
                    return Unknown("more tokens are said to wait at a worker than came")
                total += worker.waiting_tokens
        return measure_number(float(total), "queued tokens")

    def running(self, now: float, expected: int) -> Measurement:
        """Sequences at work in the workers."""
        missing = self._missing(now, expected)
        if missing:
            return Unknown(missing)
        counts = [worker.running for worker in self._workers().values()]
        if any(count is None for count in counts):
            return Unknown("a worker has not told what it works on")
        return measure_number(float(sum(count or 0 for count in counts)), "running sequences")

    def routable(self, now: float, expected: int = 0) -> Mapping[tuple[Role, str], int] | None:
        """Live workers with a fitting partner by role and template hash; only those that every gateway process has that
        has had the time to find them.

        None: not known, because a gateway is silent.
        """
        if self._missing(now, expected):
            return None
        workers = self._workers()
        return Counter((workers[e].role, workers[e].template_hash) for e in self._routable_everywhere())

    def _routable_everywhere(self) -> set[bytes]:
        """A new gateway's first summary comes before its first worker: it says nothing about what others serve."""
        told = [each for each in self._gateways.values() if each.last is not None]
        settled = [each for each in told if each.has_settled] or told
        sets = [_usable(each.last) for each in settled if each.last is not None]
        return set.intersection(*sets) if sets else set()

    def pairs(self, now: float) -> Pairs | None:
        """Whether every gateway has a live pair that fits, each one of its own; None: not known."""
        return self._pairs.pairs(now)

    def routable_addresses(self) -> frozenset[str]:
        """Where the live workers are that any gateway has with a partner."""
        workers = self._workers().values()
        return frozenset(str(w.address) for w in workers if w.condition is WorkerCondition.LIVE and w.has_partner)

    def flips(self) -> dict[bytes, int]:
        """The number of the last flip that each worker carried out, by its epoch; only of those that can flip."""
        told: dict[bytes, int] = {}
        for summary in self._summaries():
            for worker in summary.workers:
                if worker.flips:
                    told[worker.epoch] = max(worker.flip, told.get(worker.epoch, 0))
        return told

    def flexible_workers(self) -> tuple[FlexibleWorker, ...]:
        """What is known of the workers that can flip, each by the gateway that heard of its latest flip."""
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
        """From the start of a process until it was ready; None: none was measured."""
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
        """All ways between linked workers, as measured when their links came up; None: none was."""
        known = [worker.lanes for worker in self._workers().values() if worker.lanes is not None]
        if not known:
            return None
        slowest = min(known, key=lambda each: each.slowest_bytes_per_s)
        measured, too_slow = sum(each.measured for each in known), sum(each.too_slow for each in known)
        return Lanes(measured, too_slow, slowest.slowest, slowest.slowest_bytes_per_s)

    def oldest_s(self) -> float:
        """Age of the oldest request that no worker has been told of; 0 without any."""
        return max((summary.backlog.oldest_s for summary in self._summaries()), default=0.0)

    def _missing(self, now: float, expected: int) -> str:
        """Why it is not known what the gateways do; empty when all that should report do."""
        gateways = list(self._gateways.values())
        fresh = sum(each.is_fresh(now) for each in gateways)
        if not self._gateways:
            return "no gateway reports"
        if fresh < len(self._gateways):
            return f"{len(self._gateways) - fresh} of {len(self._gateways)} gateway processes are silent"
        wanted = max(expected, sum({each.hello.gateway: each.hello.processes for each in gateways}.values()))
        return f"{fresh} of {wanted} gateway processes report" if fresh < wanted else ""

    def _summaries(self) -> Iterable[Summary]:
        return [each.last for each in self._gateways.values() if each.last is not None]

    def _workers(self) -> dict[bytes, WorkerMeasures]:
        return {worker.epoch: worker for summary in self._summaries() for worker in summary.workers}


def _usable(summary: Summary) -> set[bytes]:
    """Epochs of the live workers with a fitting partner: none, or at least a pair."""
    return {w.epoch for w in summary.workers if w.condition is WorkerCondition.LIVE and w.has_partner}


def _understood(told: Iterable[SketchData]) -> Sketch:
    """A gateway that counts in other bins is not understood: its latencies count as none."""
    return merged(each for each in told if each.ratio == SKETCH_RATIO)
