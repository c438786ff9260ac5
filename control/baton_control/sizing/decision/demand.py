"""From what arrived to the load that each pool has to be ready for at its horizon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from baton_control.sizing.decision.backtest import Load
from baton_control.sizing.decision.capacity import Mix, Sizer
from baton_control.sizing.decision.forecast import forecast, means
from baton_control.sizing.inputs.memory import HISTORY, RECENT, Interval, Orders, SizingMemory
from baton_control.sizing.inputs.observations import ArrivalReading, Arrivals, Known, Observed, PoolSeen, Unknown
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.workload import Floats
from baton_wire.messages.values import POOL_ROLES, Role

MIX_REFRESH_S = 120.0
"""Between two mixes, and two looks at other types of accelerators: both ask the twin anew."""
MIX_CHANGE = 0.1
"""A mix is replaced when the mean or the tail of its lengths moved by more than this."""
DRAIN_SHARE = 1.5
"""Start-ups that a backlog may take to drain: it was late before any worker could help, what comes now does not wait
behind it, and workers that drain it are paid for as long as they take to come and go."""
Steps = tuple[tuple[float, int], ...]
"""(seconds from now, workers from then on), ascending, the first at 0."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Of one pool."""

    rate_per_s: float
    """Requests of the present mix, the upper quantile at the horizon, with the backlog."""
    lasting_per_s: float
    """The same without the backlog."""
    horizon_s: float
    backlog_per_s: float
    """What has to be worked off on top of the arrivals when a worker started now is there."""
    is_late: bool
    """More waits than can be answered within the target: nobody is sent away now."""
    tokens_each: float
    """Of the present mix's mean request: prompt tokens to compute, or of its answer."""
    held: int | None
    """Workers that the answers which run now fill, at the pace of TPOT; 0 of prefill. None: nobody knows what runs."""


def learned(
    memory: SizingMemory,
    arrivals: ArrivalReading,
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
    history = (*memory.history, Interval(arrivals.per_s, prefill, decode))[-HISTORY:]
    memory = replace(
        memory, history=history, shapes=shapes, since_s=known_since, last_arrival_s=now, unknown_intervals=0
    )
    memory = _with_mix(memory, now)
    return replace(memory, history=(*memory.history[:-1], replace(memory.history[-1], mix=memory.mix)))


def demands(
    spec: SizingSpec,
    seen: Observed,
    memory: SizingMemory,
    mix: Mix,
    sizer: Sizer,
    now: float,
    horizon_s: float | None = None,
) -> Mapping[Role, Demand]:
    """What each pool has to be ready for at `horizon_s`; None: when a worker that is started now can serve."""
    requests = np.array([interval.requests_per_s for interval in memory.history])
    result: dict[Role, Demand] = {}
    is_late = False
    for role in POOL_ROLES:  # prefill first: while it is late, decode waits for what comes
        pool, lengths, each = seen.pool(role), mix.tokens(role), mix.mean_tokens(role)
        ahead_s = horizon_s or (pool.startup_s if pool.startup_s is not None else spec.startup_s) + spec.interval_s
        one = sizer.most_per_s(role, mix)
        loads = _filled(role, memory) * one
        spread = 1.0 + (float(lengths.std()) / each) ** 2
        ahead = forecast(loads, spec.interval_s, ahead_s, spec.quantile, spread)
        if not ahead.is_step and loads[-1] > ahead.high:
            # A step in the number of requests shows sooner than in their lengths, which vary.
            counted, like = forecast(requests, spec.interval_s, ahead_s, spec.quantile), loads[-1] / requests[-1]
            if counted.is_step:  # of requests like those of the last interval, which may not be the mix's
                ahead = replace(counted, mean=counted.mean * like, high=max(ahead.high, counted.high * like))
        held: int | None
        if role is Role.PREFILL:
            held, waiting = 0, _late(spec, seen, one, mix)
        elif isinstance(seen.running, Unknown):
            held, waiting = None, 0.0
        else:
            batch = one * each * spec.targets.tpot_s
            running = seen.running.value if isinstance(seen.running, Known) else 0.0
            held, waiting = ceil(running / batch), max(0.0, running - _routable(pool) * batch)
        is_late = is_late or waiting > 0
        ready = capacity_steps(_routable(pool), pool.workers, memory.pools[role].orders, now, ahead_s)
        left = waiting_at(waiting, ahead.mean, one, ready, ahead_s) if waiting > 0 else 0.0
        draining = left / (DRAIN_SHARE * ahead_s)
        rate = max(ahead.high, ahead.mean + draining)
        result[role] = Demand(rate, ahead.high, ahead_s, draining, is_late, each, held)
    return result


def past_loads(role: Role, memory: SizingMemory, mix: Mix, sizer: Sizer, interval_s: float) -> tuple[Load, ...]:
    """What the pool had to do in each interval that is remembered, as means over `ACTUAL_S`: as many requests as came,
    with the lengths of that time."""
    filled = means(_filled(role, memory), interval_s).tolist()
    counts = means([interval.requests_per_s for interval in memory.history], interval_s).tolist()
    mixes = [interval.mix or mix for interval in memory.history]
    most_per_s = {then: sizer.most_per_s(role, then) for then in set(mixes)}  # few, of many intervals
    rates = [workers * most_per_s[then] for workers, then in zip(filled, mixes, strict=True)]
    return tuple(map(Load, counts, rates, mixes))


def _filled(role: Role, memory: SizingMemory) -> Floats:
    """Workers of the pool in each interval."""
    if role is Role.PREFILL:
        return np.array([interval.prefill_workers for interval in memory.history])
    return np.array([interval.decode_workers for interval in memory.history])


def together(spec: SizingSpec, memory: SizingMemory, wanted: Mapping[Role, Demand], mix: Mix, sizer: Sizer) -> float:
    """How much of both pools' demands is likely to come at once: they seldom peak together."""
    one = {role: sizer.most_per_s(role, mix) for role in POOL_ROLES}
    apart = sum(wanted[role].rate_per_s / one[role] for role in POOL_ROLES)
    work = [interval.prefill_workers + interval.decode_workers for interval in memory.history]
    ahead = forecast(work, spec.interval_s, max(each.horizon_s for each in wanted.values()), spec.quantile)
    draining = sum(wanted[role].backlog_per_s / one[role] for role in POOL_ROLES)
    return min(1.0, max(ahead.high, ahead.mean + draining) / max(1e-9, apart))


def capacity_steps(routable: int, workers: int, orders: Orders, now: float, horizon_s: float) -> Steps:
    """How many workers serve when. Those on their way that no order is known of come after half the horizon."""
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


def _late(spec: SizingSpec, seen: Observed, one_per_s: float, mix: Mix) -> float:
    """Requests that wait for prefill, when they are more than the pool answers within the target; else 0."""
    if not isinstance(seen.queued_tokens, Known) or seen.prefill.workers == 0:
        return 0.0
    waiting = seen.queued_tokens.value / float(np.mean([shape.prompt_tokens for shape in mix.shapes]))
    return waiting if waiting > _routable(seen.prefill) * one_per_s * spec.targets.ttft_s else 0.0


def _routable(pool: PoolSeen) -> int:
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
