"""From what arrived to the load that each pool has to be ready for at its horizon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from baton_operator.names import POOL_ROLES, Role
from baton_operator.sizing.capacity import Mix, Sizer
from baton_operator.sizing.decision import Known, Unknown
from baton_operator.sizing.forecast import forecast
from baton_operator.sizing.memory import HISTORY, RECENT, Interval, Memory
from baton_operator.sizing.spec import SizingSpec
from baton_operator.sizing.telemetry import ArrivalReading, Arrivals, Observed, PoolSeen
from baton_operator.sizing.workload import RequestShape

MIX_REFRESH_S = 120.0
MIX_CHANGE = 0.1
"""A mix is replaced when the mean or the tail of its lengths moved by more than this."""
DISPERSIONS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
CORRECTION_STEP, CORRECTION_DECAY, MAX_CORRECTION = 0.04, 0.005, 1.5
TOLERANCE = 0.02
"""By how much clients may see less than the wanted share before the twin is corrected."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Of one pool."""

    rate_per_s: float
    """Requests of the present mix, the upper quantile at the horizon, with backlog and correction."""
    horizon_s: float
    backlog_per_s: float
    predictor: str


def learned(
    memory: Memory, arrivals: ArrivalReading, now: float, interval_s: float, late: tuple[RequestShape, ...] = ()
) -> Memory:
    """The memory with one more interval of known arrivals. `late`: lengths of requests that came before it."""
    assert not isinstance(arrivals, Unknown), "the caller holds on unknown arrivals"
    known_since = memory.since_s if memory.since_s is not None else now
    last = memory.last_arrival_s if memory.last_arrival_s is not None else now
    if not isinstance(arrivals, Arrivals):
        history = (*memory.history, Interval(0.0, 0.0))[-HISTORY:]
        memory = replace(memory, history=history, since_s=known_since, last_arrival_s=last, unknown_intervals=0)
        return _with_mix(replace(memory, shapes=(*memory.shapes, *late)[-RECENT:]), now, interval_s) if late else memory
    shapes = (*memory.shapes, *arrivals.sample)[-RECENT:]
    tokens = [shape.prompt_tokens - shape.cached_tokens for shape in arrivals.sample or shapes]
    mean = float(np.mean(tokens)) if tokens else 0.0
    history = (*memory.history, Interval(arrivals.per_s, arrivals.per_s * mean))[-HISTORY:]
    memory = replace(
        memory, history=history, shapes=shapes, since_s=known_since, last_arrival_s=now, unknown_intervals=0
    )
    return _with_mix(memory, now, interval_s)


def demands(spec: SizingSpec, seen: Observed, memory: Memory, mix: Mix, sizer: Sizer) -> Mapping[Role, Demand]:
    """What each pool has to be ready for."""
    mean_tokens = max(1.0, float(np.mean([shape.prompt_tokens - shape.cached_tokens for shape in mix.shapes])))
    requests = [interval.requests_per_s for interval in memory.history]
    tokens = [interval.tokens_per_s / mean_tokens for interval in memory.history]
    result = {}
    for role in POOL_ROLES:
        pool = seen.prefill if role is Role.PREFILL else seen.decode
        horizon_s = (pool.startup_s if pool.startup_s is not None else spec.startup_s) + spec.interval_s
        series = tokens if role is Role.PREFILL else requests
        ahead = forecast(series, spec.interval_s, horizon_s, spec.quantile, spec.season_s)
        backlog = _backlog_per_s(spec, seen, pool, mix, ahead.mean, mean_tokens, horizon_s, sizer, role)
        rate = max(ahead.high, ahead.mean + backlog) * memory.pools[role].correction
        result[role] = Demand(rate, horizon_s, backlog, ahead.predictor)
    return result


def corrected(correction: float, pool: PoolSeen, wanted_share: float, was_enough: bool) -> float:
    """The correction after an interval: up while clients see less than promised although the pool was large enough."""
    if isinstance(pool.share_met, Known) and was_enough and pool.share_met.value < wanted_share - TOLERANCE:
        return min(MAX_CORRECTION, correction + CORRECTION_STEP)
    return max(1.0, correction - CORRECTION_DECAY)


def _backlog_per_s(
    spec: SizingSpec,
    seen: Observed,
    pool: PoolSeen,
    mix: Mix,
    rate_per_s: float,
    mean_tokens: float,
    horizon_s: float,
    sizer: Sizer,
    role: Role,
) -> float:
    """What is expected to wait still when a worker started now could help, spread over the time to drain it."""
    if role is not Role.PREFILL or not isinstance(seen.queued_tokens, Known) or pool.workers == 0:
        return 0.0
    waiting = seen.queued_tokens.value / mean_tokens
    most = sizer.most_per_s(role, mix) * pool.workers
    left = waiting + (rate_per_s - most) * horizon_s
    return max(0.0, left) / spec.drain_s if waiting > most * spec.targets.ttft_s else 0.0


def _with_mix(memory: Memory, now: float, interval_s: float) -> Memory:
    if not memory.shapes or (memory.mix is not None and now - memory.mix_s < MIX_REFRESH_S):
        return memory
    mix = Mix(memory.shapes, _dispersion(memory.history, interval_s))
    if memory.mix is not None and len(memory.mix.shapes) >= RECENT // 2 and _is_alike(memory.mix, mix):
        return replace(memory, mix_s=now)
    return replace(memory, mix=mix, mix_s=now)


def _dispersion(history: tuple[Interval, ...], interval_s: float) -> float:
    """Variance over mean of arrivals per interval, from successive differences so that a trend does not count."""
    counts = np.array([interval.requests_per_s * interval_s for interval in history[-60:]])
    if len(counts) < 6 or counts.mean() < 1:
        return DISPERSIONS[1]
    ratio = float(np.mean(np.diff(counts) ** 2) / 2 / counts.mean())
    return next((step for step in DISPERSIONS if step >= ratio), DISPERSIONS[-1])


def _is_alike(one: Mix, other: Mix) -> bool:
    if one.dispersion != other.dispersion:
        return False
    return all(abs(a - b) <= MIX_CHANGE * max(a, 1.0) for a, b in zip(_features(one), _features(other), strict=True))


def _features(mix: Mix) -> tuple[float, ...]:
    prompts = np.array([shape.prompt_tokens - shape.cached_tokens for shape in mix.shapes], dtype=np.float64)
    outputs = np.array([shape.output_tokens for shape in mix.shapes], dtype=np.float64)
    return float(prompts.mean()), float(np.sqrt((prompts**2).mean())), float(outputs.mean())
