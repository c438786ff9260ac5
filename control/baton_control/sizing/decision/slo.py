"""The decision of mode SLO: how many workers each pool should have now, and why. Pure: the same inputs, the same
answer.

Up at once and by several; down only to what was needed at most over the stabilisation window, after a rest and
with a margin; nothing moves on unknown input. Both ways, what counts is the percentile over the last half hour and the
time of a start. Pools are decided apart (a worker that is still starting in one never holds up the other), then fitted
into the accelerator budget together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from baton_control.sizing.decision.backtest import (
    GOING_PART,
    Load,
    allowed,
    enough,
    seen_enough,
    share_late,
    with_served,
    witnessed,
)
from baton_control.sizing.decision.budget import within_budget
from baton_control.sizing.decision.capacity import Mix, Sizer
from baton_control.sizing.decision.demand import Demand, demands, learned, past_loads, together
from baton_control.sizing.decision.flips import Flips, exchanged, flips_of, resized
from baton_control.sizing.decision.idle_gaps import QuietTime
from baton_control.sizing.decision.sleep import gap_ended, is_idle, is_quiet, sleeps_after, with_arrivals
from baton_control.sizing.decision.stabilisation import SPARE, stabilised, with_orders
from baton_control.sizing.inputs.memory import HISTORY, PoolMemory, SizingMemory
from baton_control.sizing.inputs.observations import Arrivals, Observed, PoolSeen, Unknown
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class PoolDecision:
    workers: int
    reason: str
    """In words, with the numbers; what a person on call reads."""
    needed: int
    """Before bounds, budget and stabilisation."""


@dataclass(frozen=True, slots=True)
class SloDecision:
    pools: Mapping[Role, PoolDecision]
    memory: SizingMemory
    holds: bool
    """Input was unknown: every pool stays as it is."""
    inputs: Mapping[str, float]
    flips: Flips | None = None
    """How much of the way to the pools' sizes is workers that change role."""

    @property
    def reason(self) -> str:
        return "; ".join(self.pools[role].reason for role in POOL_ROLES)


def size(
    spec: SizingSpec, seen: Observed, memory: SizingMemory, now: float, sizer: Sizer, epoch_s: float = 0.0
) -> SloDecision:
    """One decision. `epoch_s` is the wall clock for schedules; `now` may be any clock that only goes forward."""
    if isinstance(seen.arrivals, Unknown):
        return _hold(spec, seen, memory, seen.arrivals.why)
    for role in POOL_ROLES:
        served = seen.served.get(role)
        memory = memory.with_pool(role, with_served(memory.pools[role], seen.pool(role), served))
    memory = with_arrivals(spec, seen, memory, now)
    memory = learned(memory, seen.arrivals, sizer, now, spec.interval_s, seen.late)
    if not is_idle(seen):
        memory = replace(memory, last_arrival_s=now)
    sleep_after = sleeps_after(spec, seen, memory, epoch_s)
    if sleep_after is not None and is_quiet(seen, memory, sleep_after, now):
        return _asleep(memory, sleep_after, now)
    if memory.mix is None:
        return _floor(spec, seen, memory, now, epoch_s)
    wanted = demands(spec, seen, memory, memory.mix, sizer, now)
    pools: dict[Role, PoolDecision] = {}
    for role in POOL_ROLES:
        pool, kept = _decide_pool(spec, role, seen.pool(role), wanted[role], memory, now, sizer, epoch_s)
        pools[role] = pool
        memory = memory.with_pool(role, kept)
    pools = _wake_together(spec, pools)
    if spec.flip_s is not None:
        pools = _exchanged(spec, seen, memory, wanted, pools, sizer, now, epoch_s)
    rates = {role: wanted[role].rate_per_s for role in POOL_ROLES}
    pools = _affordable(spec, seen, pools, rates, memory.mix, sizer)
    flips = None if spec.flip_s is None else flips_of(seen, {role: pool.workers for role, pool in pools.items()})
    memory = _ordered(memory, seen, pools, wanted, flips, now)
    inputs = {f"{role.value}_forecast_per_s": wanted[role].rate_per_s for role in POOL_ROLES}
    inputs["arrivals_per_s"] = seen.arrivals.per_s if isinstance(seen.arrivals, Arrivals) else 0.0
    if sleep_after is not None:
        inputs["sleep_after_s"] = sleep_after.seconds
    return SloDecision(pools, memory, False, inputs, flips)


def wake(spec: SizingSpec, seen: Observed, memory: SizingMemory, now: float, parked: int) -> SloDecision:
    """Requests wait and there is no worker: at least one in each pool, whatever else is known."""
    pools = {}
    for role in POOL_ROLES:
        have = seen.pool(role).workers
        workers = min(spec.bounds_of[role].maximum, max(1, have))
        move = f"{role.value} {have}→{workers}" if workers != have else f"{role.value} {have}"
        wait = "1 request waits" if parked == 1 else f"{parked} requests wait"
        pools[role] = PoolDecision(workers, f"{move}: {wait} for a first pair of workers", workers)
    memory = replace(gap_ended(spec, seen, memory, now, now), last_arrival_s=now)
    return SloDecision(pools, memory, False, {"parked": float(parked)})


def _decide_pool(  # noqa: PLR0913
    spec: SizingSpec,
    role: Role,
    pool: PoolSeen,
    demand: Demand,
    memory: SizingMemory,
    now: float,
    sizer: Sizer,
    epoch_s: float,
) -> tuple[PoolDecision, PoolMemory]:
    mix = memory.mix
    assert mix is not None
    rates = demand.lasting_per_s * SPARE, demand.rate_per_s
    sizes = {rate: sizer.required(role, mix, rate) for rate in sorted(rates, reverse=True)}  # it answers the other
    relaxed, needed = (sizes[rate] for rate in rates)
    until = round(demand.horizon_s / spec.interval_s)

    @cache
    def past() -> tuple[Load, ...]:
        return past_loads(role, memory, mix, sizer, spec.interval_s)

    def rising() -> tuple[Load, ...]:
        return (*past(), *(Load(demand.rate_per_s, demand.rate_per_s, mix),) * until)

    have = pool.workers
    grown = enough(role, rising(), max(1, have), needed, sizer) if needed > have else needed
    target, shrunk = (spec.clamped(role, workers, epoch_s) for workers in (grown, relaxed))

    def least_for_half_an_hour(least: int) -> int:
        loads = past()
        seen_least = seen_enough(spec, memory.pools[role], have, allowed(role, loads, sizer))
        witness = witnessed(spec, memory.pools[role], len(loads), until)
        unseen = HISTORY - len(loads)  # of the half hour: a clump behind a start would hold its workers for minutes
        lasting = (*loads, *(Load(demand.lasting_per_s, demand.lasting_per_s, mix),) * (unseen + until))
        return enough(role, lasting, max(least, seen_least), have, sizer, GOING_PART, witness)

    workers, why, kept = stabilised(
        spec,
        pool,
        memory.pools[role],
        target,
        shrunk,
        demand.is_late,
        memory.since_s,
        demand.horizon_s,
        now,
        least_for_half_an_hour,
    )
    if workers > pool.workers and workers > 1:
        late = share_late(role, rising(), workers - 1, sizer)
        name, limit_ms = "TTFT" if role is Role.PREFILL else "TPOT", spec.targets.limit_s(role) * 1000
        why = f"with {workers - 1}, {late:.1%} or more would be over {name} {limit_ms:.0f} ms, with the last half hour"
    elif grown < needed and not why:
        why = f"{needed} for this alone, but {grown} are enough with the last half hour"
    return PoolDecision(workers, _reason(role, pool.workers, workers, demand, why), needed), kept


def _reason(role: Role, before: int, after: int, demand: Demand, why: str) -> str:
    move = f"{role.value} {before}→{after}" if before != after else f"{role.value} {after}"
    text = f"{move}: forecast {_load(role, demand, demand.rate_per_s)} at +{demand.horizon_s:.0f} s"
    if demand.backlog_per_s > 0:
        text += f" with a backlog of {_load(role, demand, demand.backlog_per_s)}"
    return f"{text}; {why}" if why else text


def _load(role: Role, demand: Demand, rate_per_s: float) -> str:
    """In the unit in which the pool's load is counted: requests of unequal lengths are not what it gets."""
    tokens_per_s, of = rate_per_s * demand.tokens_each, "prompt" if role is Role.PREFILL else "answer"
    return f"{tokens_per_s:.3g} {of} tokens/s" if tokens_per_s < 1e3 else f"{tokens_per_s / 1e3:.3g}k {of} tokens/s"


def _hold(spec: SizingSpec, seen: Observed, memory: SizingMemory, why: str) -> SloDecision:
    """Nothing moves. History has a gap now, so the stabilisation window starts anew."""
    unknown = memory.unknown_intervals + 1
    memory = replace(memory, unknown_intervals=unknown, since_s=None, last_arrival_s=None)
    pools = {}
    for role in POOL_ROLES:
        workers = spec.bounds_of[role].clamped(seen.pool(role).workers)
        pools[role] = PoolDecision(workers, f"{role.value} {workers}: hold, {why}", workers)
        memory = memory.with_pool(role, replace(memory.pools[role], needs=()))
    return SloDecision(pools, memory, True, {"unknown_intervals": float(unknown)})


def _asleep(memory: SizingMemory, after: QuietTime, now: float) -> SloDecision:
    since = now - (memory.last_arrival_s or now)
    why = f"no request for {since:.0f} s" + (f"; {after.why}" if after.why else "")
    pools = {role: PoolDecision(0, f"{role.value} 0: {why}", 0) for role in POOL_ROLES}
    for role in POOL_ROLES:
        memory = memory.with_pool(role, replace(memory.pools[role], needs=()))
    return SloDecision(pools, memory, False, {"quiet_s": since})


def _floor(spec: SizingSpec, seen: Observed, memory: SizingMemory, now: float, epoch_s: float) -> SloDecision:
    """No request has been seen yet: keep what runs, at least the floor."""
    pools = {}
    for role in POOL_ROLES:
        workers = spec.clamped(role, seen.pool(role).workers, epoch_s)
        pools[role] = PoolDecision(workers, f"{role.value} {workers}: no request seen yet", workers)
    pools = _affordable(spec, seen, pools, {}, None, None)
    return SloDecision(pools, memory, False, {"arrivals_per_s": 0.0})


def _wake_together(spec: SizingSpec, pools: dict[Role, PoolDecision]) -> dict[Role, PoolDecision]:
    """While there is anything to serve, neither pool is empty."""
    return {
        role: pool
        if pool.workers
        else PoolDecision(min(1, spec.bounds_of[role].maximum), f"{role.value} 0→1: requests are there", 1)
        for role, pool in pools.items()
    }


def _exchanged(  # noqa: PLR0913
    spec: SizingSpec,
    seen: Observed,
    memory: SizingMemory,
    wanted: Mapping[Role, Demand],
    pools: dict[Role, PoolDecision],
    sizer: Sizer,
    now: float,
    epoch_s: float,
) -> dict[Role, PoolDecision]:
    """What one pool needs now and the other does not changes role; only what both will need together is started."""
    mix = memory.mix
    assert mix is not None
    assert spec.flip_s is not None
    near = demands(spec, seen, memory, mix, sizer, now, spec.flip_s + spec.interval_s)

    held = {role: each.held for role, each in near.items() if each.held is not None}
    if len(held) < len(near):
        return pools  # nobody knows what runs, and so who can be given away: each pool is sized alone

    def now_for(role: Role, rate_per_s: float) -> int:
        return spec.clamped(role, max(1, held[role], sizer.required(role, mix, rate_per_s)), epoch_s)

    needs = {role: now_for(role, near[role].rate_per_s) for role in POOL_ROLES}

    def keeps(role: Role) -> int:
        return now_for(role, near[role].lasting_per_s * SPARE)

    flipped = exchanged(seen, needs, keeps)
    both = ceil(together(spec, memory, wanted, mix, sizer) * sum(pool.needed for pool in pools.values()))
    # What both need together knows no minimum of a pool: a worker that died is replaced, whatever the other has.
    sizes = {
        role: spec.clamped(role, workers, epoch_s)
        for role, workers in resized(seen, flipped, {role: pool.workers for role, pool in pools.items()}, both).items()
    }

    def why(role: Role) -> str:
        before = seen.pool(role).workers
        if flipped[role] > before:
            return f"{needs[role]} are needed now, {role.partner.value} gives {flipped[role] - before}"
        if flipped[role] < before:
            return f"{role.partner.value} needs {needs[role.partner]} now, {keeps(role)} are enough here"
        return f"alone it would have {pools[role].workers}, both together need {both}"

    return {
        role: pool
        if sizes[role] == pool.workers and flipped[role] == seen.pool(role).workers
        else replace(
            pool,
            workers=sizes[role],
            reason=f"{role.value} {seen.pool(role).workers}→{sizes[role]}: {why(role)}",
        )
        for role, pool in pools.items()
    }


def _ordered(
    memory: SizingMemory,
    seen: Observed,
    pools: Mapping[Role, PoolDecision],
    wanted: Mapping[Role, Demand],
    flips: Flips | None,
    now: float,
) -> SizingMemory:
    """The memory with the workers that are started now."""
    for role, pool in pools.items():
        more = pool.workers - seen.pool(role).workers - (flips.workers if flips and flips.taker is role else 0)
        memory = memory.with_pool(role, with_orders(memory.pools[role], more, wanted[role].horizon_s, now))
    return memory


def _affordable(
    spec: SizingSpec,
    seen: Observed,
    pools: dict[Role, PoolDecision],
    rates: Mapping[Role, float],
    mix: Mix | None,
    sizer: Sizer | None,
) -> dict[Role, PoolDecision]:
    wanted = {role: pool.workers for role, pool in pools.items()}
    least = {role: max(1, _cut_floor(spec, role, seen.pool(role))) for role in POOL_ROLES}
    each = {role: spec.bounds_of[role].accelerators for role in POOL_ROLES}

    def loss(role: Role, left: int) -> tuple[float, ...]:
        """Predicted share of requests that miss the pool's target; between equal losses, the fuller pool gives."""
        fullness = -left / max(1, wanted[role])
        if mix is None or sizer is None or role not in rates:
            return 0.0, fullness
        return round(1.0 - sizer.share_met(role, mix, rates[role], left), 3), fullness

    workers = within_budget(spec.max_accelerators, wanted, least, each, loss)
    cut = f"; cut from {{}} by a budget of {spec.max_accelerators} accelerators"
    return {
        role: pool
        if workers[role] == pool.workers
        else replace(pool, workers=workers[role], reason=pool.reason + cut.format(pool.workers))
        for role, pool in pools.items()
    }


def _cut_floor(spec: SizingSpec, role: Role, pool: PoolSeen) -> int:
    """What the budget may not cut below: the minimum, and what one step down allows when that is known to be safe."""
    slowest = pool.workers if pool.routable is None else pool.workers - spec.max_step_down
    return max(spec.bounds_of[role].minimum, slowest)
