"""Measurements that a decision reads. Each is known, proven zero or unknown, has a time and is in bounds.

The functions that make measurements from reported numbers refuse absurd values: these become Unknown with the reason,
never a number. Authenticated links decide who may report; the messages are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from baton_control.sizing.inputs.context_use import ContextUse
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import Role

MAX_RATE_PER_S = 1e5
MAX_TOKENS = 1 << 21
MAX_SAMPLE = 64
STALE_S = 30.0
STARTUPS = 8
"""How many of the last starts are looked at."""


@dataclass(frozen=True, slots=True)
class Known:
    """A measured value that is not zero, or a zero that says nothing about demand."""

    value: float


@dataclass(frozen=True, slots=True)
class ProvenZero:
    """Measured, complete and zero: there is no demand."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not measured, stale or incomplete. Never the same as zero: nothing is scaled down on it."""

    why: str


Measurement = Known | ProvenZero | Unknown


@dataclass(frozen=True, slots=True)
class ObservedStep:
    """One engine step that a worker reported."""

    role: Role
    worker: str
    timing: StepTiming


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests that came in an interval: accepted, queued and rejected ones alike."""

    count: int
    seconds: float
    sample: tuple[RequestShape, ...]
    """Some of the requests, drawn evenly; answers that still run have the lengths of answers that ended lately."""

    @property
    def per_s(self) -> float:
        return self.count / self.seconds


MeasuredArrivals = Arrivals | ProvenZero | Unknown


@dataclass(frozen=True, slots=True)
class Lateness:
    """Requests of one pool that clients saw end lately."""

    requests: int
    late: float
    """How many were over the pool's target; a request that was not served is late."""
    reached_s: float | None = None
    """The latency at the target's percentile, of the requests that were served; None: unknown."""
    unserved: int | None = None
    """How many of the requests were refused or failed; None: unknown."""


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """One pool as it is."""

    workers: int
    """Started and not asked to stop."""
    routable: int | None
    """How many of the workers the gateways can use; None: unknown."""
    startup_s: float | None = None
    """How long a new worker takes until it is routable, a high quantile of what was measured; None: never measured."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything that was measured for one decision."""

    arrivals: MeasuredArrivals
    prefill: ObservedPool
    decode: ObservedPool
    queued_tokens: Measurement = Unknown("not measured")  # frozen
    """Prompt tokens that wait for a prefill step, at gateways and workers, without those that are cached."""
    running: Measurement = Unknown("not measured")  # frozen
    """Sequences at work in the workers."""
    served: Mapping[Role, Lateness] = field(default_factory=dict)
    """The last minute by pool, as clients saw it; a pool without a report is left out."""
    contexts: ContextUse | None = None
    """How soon contexts are used again; None: not reported."""
    late: tuple[RequestShape, ...] = ()
    """Lengths of requests that arrived earlier and became known only now: they waited for a first worker."""

    def pool(self, role: Role) -> ObservedPool:
        return self.prefill if role is Role.PREFILL else self.decode


def measure_arrivals(
    count: float | None, seconds: float, sample: Iterable[RequestShape], stamp_s: float, now: float
) -> MeasuredArrivals:
    """The arrivals of a report. Unknown when a number is missing, stale, not a number or out of bounds."""
    if count is None:
        return Unknown("arrivals were not reported")
    if not (isfinite(stamp_s) and -5.0 <= now - stamp_s <= STALE_S):
        return Unknown("the report of arrivals is stale")
    if not (isfinite(count) and isfinite(seconds) and count >= 0 and 0.1 <= seconds <= 3600):
        return Unknown("the report of arrivals is not a number of requests over a time")
    if count == 0:
        return ProvenZero()
    if count / seconds > MAX_RATE_PER_S:
        return Unknown(f"{count / seconds:.3g} req/s is not believed")
    shapes = tuple(shape for shape in sample if _is_sane(shape))[:MAX_SAMPLE]
    return Arrivals(int(count), seconds, shapes)


def measure_number(value: float | None, what: str, low: float = 0.0, high: float = 1e12) -> Measurement:
    """Known inside [low, high], proven zero at 0, else Unknown."""
    if value is None or not isfinite(value) or not low <= value <= high:
        return Unknown(f"{what}: {'not reported' if value is None else 'out of bounds'}")
    return ProvenZero() if value == 0 else Known(value)


def slow_start_s(last: Sequence[float]) -> float | None:
    """The slowest but one of the last `STARTUPS` (the slowest of fewer), in seconds; None: none was measured."""
    known = sorted(last[-STARTUPS:])
    if not known:
        return None
    return known[-2] if len(known) == STARTUPS else known[-1]


def merge_arrivals(readings: Iterable[MeasuredArrivals]) -> MeasuredArrivals:
    """Arrivals of all gateways: one unknown part makes the whole unknown."""
    total, seconds, sample = 0, 0.0, []
    for reading in readings:
        if isinstance(reading, Unknown):
            return reading
        if isinstance(reading, Arrivals):
            total += reading.count
            seconds = max(seconds, reading.seconds)
            sample.append(reading.sample)
    if total == 0:
        return ProvenZero()
    mixed = [shape for shapes in zip(*_cycled(sample), strict=True) for shape in shapes]
    return Arrivals(total, seconds, tuple(mixed[:MAX_SAMPLE]))


def _cycled(samples: list[tuple[RequestShape, ...]]) -> list[list[RequestShape]]:
    longest = max((len(sample) for sample in samples), default=0)
    return [[sample[i % len(sample)] for i in range(longest)] for sample in samples if sample]


def _is_sane(shape: RequestShape) -> bool:
    lengths = (shape.prompt_tokens, shape.output_tokens)
    return all(1 <= tokens <= MAX_TOKENS for tokens in lengths) and 0 <= shape.cached_tokens <= shape.prompt_tokens
