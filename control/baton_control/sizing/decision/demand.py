"""From arrivals to the load that each pool has to be ready for at its horizon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from baton_control.sizing.decision.backtest import Load
from baton_control.sizing.decision.capacity import Sizer
from baton_control.sizing.decision.forecast import Forecast, forecast, means
from baton_control.sizing.inputs.memory import HISTORY, RECENT, Interval, Orders, SizingMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import (
    Arrivals,
    Known,
    MeasuredArrivals,
    Measurements,
    ObservedPool,
    Unknown,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.workload import Floats
from baton_wire.messages.values import POOL_ROLES, Role

MIX_REFRESH_S = 120.0
"""Seconds between two mixes, and between two comparisons of accelerator types: both need new simulations."""
MIX_CHANGE = 0.1
"""A mix is replaced when the mean or the tail of its lengths moved by more than this."""
DRAIN_SHARE = 1.5
"""Start-ups that a backlog may take to drain. It was late before any worker could help, new requests do not wait for
it, and the workers that drain it are paid for as long as they take to start and stop."""
Steps = tuple[tuple[float, int], ...]
"""(seconds from now, workers from then on), ascending, the first at 0."""


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Everything that the sizes of both pools are decided from."""

    spec: SizingSpec
    seen: Measurements
    memory: SizingMemory
    mix: Mix
    sizer: Sizer
    now: float
    epoch_s: float
    """The wall clock, for schedules."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The load that one pool has to be ready for."""

    rate_per_s: float
    """Requests of the present mix, the upper quantile at the horizon, with the backlog."""
    lasting_per_s: float
    """The same without the backlog."""
    horizon_s: float
    backlog_per_s: float
    """The backlog that is left on top of the arrivals when a worker that is started now can serve."""
    is_late: bool
    """More requests wait than can be answered within the target: no worker is stopped now."""
    tokens_each: float
    """Tokens of the present mix's mean request: of the prompt, to compute, or of the answer."""
    held: int | None
    """Workers that the running answers fill at the pace of TPOT; 0 for prefill. None: it is unknown what runs."""


def with_arrivals(
    memory: SizingMemory,
    arrivals: MeasuredArrivals,
    sizer: Sizer,
    now: float,
    interval_s: float,
    late: tuple[RequestShape, ...] = (),
) -> SizingMemory:
    """The memory with one more interval of known arrivals. `late`: lengths of requests that came before it."""
    assert not isinstance(arrivals, Unknown), "the caller holds on unknown arrivals"
    known_since = memory.since_s if memory.since_s is not None else now
    last = memory.last_arrival_s if memory.last_arrival_s is not None else now
    if not isinstance(arrivals, Arrivals):
        history = (*memory.history, Interval(0.0, 0.0, 0.0))[-HISTORY:]
        memory = replace(memory, history=history, since_s=known_since, last_arrival_s=last, unknown_intervals=0)
        return _with_mix(replace(memory, shapes=(*memory.shapes, *late)[-RECENT:]), now) if late else memory
    shapes = (*memory.shapes, *arrivals.sample)[-RECENT:]
    sample = Mix(arrivals.sample or shapes)
    prefill, decode = (arrivals.per_s / sizer.most_per_s(role, sample) if sample.shapes else 0.0 for role in POOL_ROLES)
    memory = replace(memory, shapes=shapes, since_s=known_since, last_arrival_s=now, unknown_intervals=0)
    memory = _with_mix(memory, now)
    interval = Interval(arrivals.per_s, prefill, decode, memory.mix)
    return replace(memory, history=(*memory.history, interval)[-HISTORY:])


def demands(inputs: DecisionInputs, horizon_s: float | None = None) -> Mapping[Role, Demand]:
    """Each pool's demand at `horizon_s`; None: when a worker that is started now can serve."""
    prefill = _prefill_demand(inputs, horizon_s)
    return {Role.PREFILL: prefill, Role.DECODE: _decode_demand(inputs, horizon_s, prefill.is_late)}


def _prefill_demand(inputs: DecisionInputs, horizon_s: float | None) -> Demand:
    return _demand(inputs, Role.PREFILL, horizon_s, waiting=_late_prompts(inputs), held=0)


def _decode_demand(inputs: DecisionInputs, horizon_s: float | None, prefill_is_late: bool) -> Demand:
    """The demand of decode. While prefill is late, decode waits for what comes."""
    running, mix, spec = inputs.seen.running, inputs.mix, inputs.spec
    if isinstance(running, Unknown):
        demand = _demand(inputs, Role.DECODE, horizon_s, waiting=0.0, held=None)
    else:
        batch = inputs.sizer.most_per_s(Role.DECODE, mix) * mix.mean_tokens(Role.DECODE) * spec.targets.tpot_s
        sequences = running.value if isinstance(running, Known) else 0.0
        waiting = max(0.0, sequences - _routable(inputs.seen.decode) * batch)
        demand = _demand(inputs, Role.DECODE, horizon_s, waiting, held=ceil(sequences / batch))
    return replace(demand, is_late=demand.is_late or prefill_is_late)


def _demand(inputs: DecisionInputs, role: Role, horizon_s: float | None, waiting: float, held: int | None) -> Demand:
    """`waiting`: requests that have to be worked off; `held`: see `Demand`."""
    spec, pool = inputs.spec, inputs.seen.pool(role)
    startup_s = pool.startup_s if pool.startup_s is not None else spec.startup_s
    ahead_s = horizon_s or startup_s + spec.interval_s
    per_s = inputs.sizer.most_per_s(role, inputs.mix)
    ahead = _forecast(inputs, role, per_s, ahead_s)
    draining = 0.0
    if waiting > 0:
        orders = inputs.memory.pools[role].orders
        ready = capacity_steps(_routable(pool), pool.workers, orders, inputs.now, ahead_s)
        draining = waiting_at(waiting, ahead.mean, per_s, ready, ahead_s) / (DRAIN_SHARE * ahead_s)
    rate = max(ahead.high, ahead.mean + draining)
    mean_tokens = inputs.mix.mean_tokens(role)
    return Demand(rate, ahead.high, ahead_s, draining, waiting > 0, mean_tokens, held)


def _forecast(inputs: DecisionInputs, role: Role, per_s: float, ahead_s: float) -> Forecast:
    """The pool's load at the horizon, in requests of the present mix, of which one worker does `per_s`."""
    spec, history = inputs.spec, inputs.memory.history
    loads, lengths = _filled(role, inputs.memory) * per_s, inputs.mix.tokens(role)
    spread = 1.0 + (float(lengths.std()) / inputs.mix.mean_tokens(role)) ** 2
    ahead = forecast(loads, spec.interval_s, ahead_s, spec.quantile, spread)
    if ahead.is_step or loads[-1] <= ahead.high:
        return ahead
    # A step in the number of requests shows sooner than in their lengths, which vary.
    requests = np.array([interval.requests_per_s for interval in history])
    counted = forecast(requests, spec.interval_s, ahead_s, spec.quantile)
    if not counted.is_step:
        return ahead
    ratio = loads[-1] / requests[-1]  # of requests like those of the last interval, which may not be the mix's
    return replace(counted, mean=counted.mean * ratio, high=max(ahead.high, counted.high * ratio))


def past_loads(role: Role, inputs: DecisionInputs) -> tuple[Load, ...]:
    """The pool's load in each remembered interval, as means over `ACTUAL_S`: as many requests as arrived, with the
    lengths of that time."""
    history, interval_s = inputs.memory.history, inputs.spec.interval_s
    filled = means(_filled(role, inputs.memory), interval_s).tolist()
    counts = means([interval.requests_per_s for interval in history], interval_s).tolist()
    mixes = [interval.mix or inputs.mix for interval in history]
    rates = [workers * inputs.sizer.most_per_s(role, mix) for workers, mix in zip(filled, mixes, strict=True)]
    return tuple(map(Load, counts, rates, mixes))


def _filled(role: Role, memory: SizingMemory) -> Floats:
    """How many workers each interval filled."""
    return np.array([interval.workers(role) for interval in memory.history])


def concurrent_share(inputs: DecisionInputs, wanted: Mapping[Role, Demand]) -> float:
    """How much of both pools' demands is likely to come at once: they seldom peak together."""
    per_s = {role: inputs.sizer.most_per_s(role, inputs.mix) for role in POOL_ROLES}
    apart = sum(wanted[role].rate_per_s / per_s[role] for role in POOL_ROLES)
    work = [interval.prefill_workers + interval.decode_workers for interval in inputs.memory.history]
    horizon_s = max(demand.horizon_s for demand in wanted.values())
    ahead = forecast(work, inputs.spec.interval_s, horizon_s, inputs.spec.quantile)
    draining = sum(wanted[role].backlog_per_s / per_s[role] for role in POOL_ROLES)
    return min(1.0, max(ahead.high, ahead.mean + draining) / max(1e-9, apart))


def capacity_steps(routable: int, workers: int, orders: Orders, now: float, horizon_s: float) -> Steps:
    """How many workers serve when. Workers on their way without a known order serve after half the horizon."""
    pending = max(0, workers - routable)
    coming: list[tuple[float, int]] = []
    for ready_s, count in reversed(orders):  # the latest are those that are still missing
        taken = min(count, pending)
        if taken:
            coming.append((min(horizon_s, max(0.0, ready_s - now)), taken))
            pending -= taken
    if pending:
        coming.append((horizon_s / 2, pending))
    steps, total = [(0.0, routable)], routable
    for at, count in sorted(coming):
        total += count
        steps.append((at, total))
    return tuple(steps)


def waiting_at(waiting: float, rate_per_s: float, one_per_s: float, steps: Steps, horizon_s: float) -> float:
    """Requests that wait after `horizon_s`, when `rate_per_s` arrive and each worker serves `one_per_s`."""
    ends = [at for at, _ in steps[1:]] + [horizon_s]
    for (start, workers), end in zip(steps, ends, strict=True):
        waiting = max(0.0, waiting + (rate_per_s - workers * one_per_s) * max(0.0, end - start))
    return waiting


def _late_prompts(inputs: DecisionInputs) -> float:
    """Requests that wait for prefill, when they are more than the pool answers within the target; else 0."""
    seen, queued = inputs.seen, inputs.seen.queued_tokens
    if not isinstance(queued, Known) or seen.prefill.workers == 0:
        return 0.0
    waiting = queued.value / inputs.mix.mean_tokens(Role.PREFILL)
    per_s = inputs.sizer.most_per_s(Role.PREFILL, inputs.mix)
    return waiting if waiting > _routable(seen.prefill) * per_s * inputs.spec.targets.ttft_s else 0.0


def _routable(pool: ObservedPool) -> int:
    return pool.workers if pool.routable is None else min(pool.routable, pool.workers)


def _with_mix(memory: SizingMemory, now: float) -> SizingMemory:
    if not memory.shapes:
        return memory
    mix = memory.mix
    if mix is not None and now - memory.mix_s < MIX_REFRESH_S and len(memory.shapes) < 2 * len(mix.shapes):
        return memory
    mix = Mix(memory.shapes)
    if memory.mix is not None and len(memory.mix.shapes) >= RECENT // 2 and _is_alike(memory.mix, mix):
        return replace(memory, mix_s=now)
    return replace(memory, mix=mix, mix_s=now)


def _is_alike(one: Mix, other: Mix) -> bool:
    return all(abs(a - b) <= MIX_CHANGE * max(a, 1.0) for a, b in zip(_features(one), _features(other), strict=True))


def _features(mix: Mix) -> tuple[float, ...]:
    prompts = np.array([shape.prompt_tokens - shape.cached_tokens for shape in mix.shapes], dtype=np.float64)
    outputs = np.array([shape.output_tokens for shape in mix.shapes], dtype=np.float64)
    return float(prompts.mean()), float(np.sqrt((prompts**2).mean())), float(outputs.mean())
