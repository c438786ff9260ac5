"""One decision of mode SLO: how many workers each pool should have now, and why. Pure: the same inputs, the same
answer.

Pools are sized apart, so that a worker which is still starting in one never holds up the other. Then workers are
exchanged where they can change role, and both pools are cut to the budget of accelerators. Nothing moves on unknown
input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baton_control.pool_flips import Flips
from baton_control.sizing.decision.backtest import with_lateness
from baton_control.sizing.decision.budget import cut_to_budget
from baton_control.sizing.decision.capacity import Sizer
from baton_control.sizing.decision.demand import DecisionInputs, Demand, demands, with_arrivals
from baton_control.sizing.decision.explanation import with_explanation
from baton_control.sizing.decision.flips import exchange_workers, find_flips
from baton_control.sizing.decision.pool_sizer import PoolDecision, SloPoolSizer, with_orders
from baton_control.sizing.inputs.memory import SizingMemory
from baton_control.sizing.inputs.observations import Arrivals, Measurements, ObservedPool, ProvenZero, Unknown
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class SloDecision:
    """The sizes of both pools, and what to remember."""

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
    spec: SizingSpec, seen: Measurements, memory: SizingMemory, now: float, sizer: Sizer, epoch_s: float = 0.0
) -> SloDecision:
    """One decision. `epoch_s` is the wall clock for schedules; `now` may be any clock that only goes forward."""
    if isinstance(seen.arrivals, Unknown):
        return _hold(spec, seen, memory, seen.arrivals.why)
    for role in POOL_ROLES:
        pool_memory = with_lateness(memory.pools[role], seen.pool(role), seen.served.get(role))
        memory = memory.with_pool(role, pool_memory)
    memory = with_arrivals(memory, seen.arrivals, sizer, now, spec.interval_s, seen.late)
    if not _is_idle(seen):
        memory = replace(memory, last_arrival_s=now)
    sleep_after_s = _sleep_after_s(spec, seen, epoch_s)
    if sleep_after_s is not None and _is_quiet(seen, memory, sleep_after_s, now):
        return _asleep(memory, now)
    if memory.mix is None:
        return _floor(spec, seen, memory, epoch_s)
    inputs = DecisionInputs(spec, seen, memory, memory.mix, sizer, now, epoch_s)
    wanted = demands(inputs)
    pools: dict[Role, PoolDecision] = {}
    for role in POOL_ROLES:
        pools[role], pool_memory = SloPoolSizer(inputs, role, wanted[role]).decide()
        memory = memory.with_pool(role, pool_memory)
    pools = _wake_together(spec, pools)
    if spec.flip_s is not None:
        pools = exchange_workers(inputs, wanted, pools)
    rates = {role: wanted[role].rate_per_s for role in POOL_ROLES}
    uncut = pools
    pools = _cut(spec, seen, pools, lambda role, left: sizer.share_met(role, inputs.mix, rates[role], left))
    pools = {
        role: with_explanation(inputs, role, rates[role], pool, pool is not uncut[role]) for role, pool in pools.items()
    }
    sizes = {role: pool.workers for role, pool in pools.items()}
    flips = None if spec.flip_s is None else find_flips(seen, sizes)
    memory = _with_orders(memory, seen, sizes, wanted, flips, now)
    figures = {f"{role.value}_forecast_per_s": rates[role] for role in POOL_ROLES}
    figures["arrivals_per_s"] = seen.arrivals.per_s if isinstance(seen.arrivals, Arrivals) else 0.0
    if sleep_after_s is not None:
        figures["sleep_after_s"] = sleep_after_s
    return SloDecision(pools, memory, False, figures, flips)


def wake(spec: SizingSpec, seen: Measurements, memory: SizingMemory, now: float, parked: int) -> SloDecision:
    """Requests wait and there is no worker: at least one in each pool, whatever else is known."""
    pools, first = {}, "a first pair of workers" if len(spec.roles) > 1 else "a first worker"
    for role in POOL_ROLES:
        have = seen.pool(role).workers
        workers = min(spec.bounds_of[role].maximum, max(1, have))
        move = f"{role.value} {have}→{workers}" if workers != have else f"{role.value} {have}"
        wait = "1 request waits" if parked == 1 else f"{parked} requests wait"
        pools[role] = PoolDecision(workers, f"{move}: {wait} for {first}", workers)
    return SloDecision(pools, replace(memory, last_arrival_s=now), False, {"parked": float(parked)})


def _is_idle(seen: Measurements) -> bool:
    """True where it is proven that nothing came, nothing waits and nothing runs."""
    return all(isinstance(value, ProvenZero) for value in (seen.arrivals, seen.queued_tokens, seen.running))


def _sleep_after_s(spec: SizingSpec, seen: Measurements, epoch_s: float) -> float | None:
    """The quiet time after which both pools sleep; None: they stay awake while something runs, in a schedule's window,
    and where no time is set."""
    is_kept_awake = not _is_idle(seen) or any(spec.floor(role, epoch_s) for role in POOL_ROLES)
    return None if is_kept_awake else spec.scale_to_zero_after_s


def _is_quiet(seen: Measurements, memory: SizingMemory, after_s: float, now: float) -> bool:
    """True where idle pools have been idle for long enough. Unknown input starts the wait anew, but wakes no sleeping
    pool: proof that nothing came is enough to sleep on."""
    if memory.last_arrival_s is None:
        return False
    is_asleep = not any(seen.pool(role).workers for role in POOL_ROLES)
    return is_asleep or now - memory.last_arrival_s >= after_s


def _hold(spec: SizingSpec, seen: Measurements, memory: SizingMemory, why: str) -> SloDecision:
    """Nothing moves. History has a gap now, so the stabilisation window starts anew."""
    unknown = memory.unknown_intervals + 1
    memory = replace(memory, unknown_intervals=unknown, since_s=None, last_arrival_s=None).without_needs()
    pools = {}
    for role in POOL_ROLES:
        workers = spec.bounds_of[role].clamp(seen.pool(role).workers)
        pools[role] = PoolDecision(workers, f"{role.value} {workers}: hold, {why}", workers)
    return SloDecision(pools, memory, True, {"unknown_intervals": float(unknown)})


def _asleep(memory: SizingMemory, now: float) -> SloDecision:
    quiet_s = now - (memory.last_arrival_s or now)
    pools = {role: PoolDecision(0, f"{role.value} 0: no request for {quiet_s:.0f} s", 0) for role in POOL_ROLES}
    return SloDecision(pools, memory.without_needs(), False, {"quiet_s": quiet_s})


def _floor(spec: SizingSpec, seen: Measurements, memory: SizingMemory, epoch_s: float) -> SloDecision:
    """No request has been seen yet: keep what runs, at least the floor."""
    pools = {}
    for role in POOL_ROLES:
        workers = spec.clamp(role, seen.pool(role).workers, epoch_s)
        pools[role] = PoolDecision(workers, f"{role.value} {workers}: no request seen yet", workers)
    return SloDecision(_cut(spec, seen, pools, lambda role, left: 1.0), memory, False, {"arrivals_per_s": 0.0})


def _wake_together(spec: SizingSpec, pools: dict[Role, PoolDecision]) -> dict[Role, PoolDecision]:
    """While there is anything to serve, no pool that may have workers is empty."""
    return {
        role: pool
        if pool.workers or role not in spec.roles
        else PoolDecision(min(1, spec.bounds_of[role].maximum), f"{role.value} 0→1: requests arrive", 1)
        for role, pool in pools.items()
    }


def _with_orders(
    memory: SizingMemory,
    seen: Measurements,
    sizes: Mapping[Role, int],
    wanted: Mapping[Role, Demand],
    flips: Flips | None,
    now: float,
) -> SizingMemory:
    """The memory with the workers that are started now."""
    for role, workers in sizes.items():
        more = workers - seen.pool(role).workers - (flips.workers if flips and flips.taker is role else 0)
        memory = memory.with_pool(role, with_orders(memory.pools[role], more, wanted[role].horizon_s, now))
    return memory


def _cut(
    spec: SizingSpec, seen: Measurements, pools: dict[Role, PoolDecision], share_met: Callable[[Role, int], float]
) -> dict[Role, PoolDecision]:
    """The decisions within the budget. `share_met`: of a pool's requests with that many workers left."""
    wanted = {role: pool.workers for role, pool in pools.items()}
    least = {role: max(1, _least_after_cut(spec, role, seen.pool(role))) for role in POOL_ROLES}
    accelerators = {role: spec.bounds_of[role].accelerators for role in POOL_ROLES}

    def loss(role: Role, left: int) -> tuple[float, ...]:
        """The share that misses the pool's target; between equal losses, the fuller pool gives."""
        return round(1.0 - share_met(role, left), 3), -left / max(1, wanted[role])

    workers = cut_to_budget(spec.max_accelerators, wanted, least, accelerators, loss)
    cut = f"; cut from {{}} by a budget of {spec.max_accelerators} accelerators"
    return {
        role: pool
        if workers[role] == pool.workers
        else replace(pool, workers=workers[role], reason=pool.reason + cut.format(pool.workers))
        for role, pool in pools.items()
    }


def _least_after_cut(spec: SizingSpec, role: Role, pool: ObservedPool) -> int:
    """The size that the budget may not cut below: the minimum, and what one step down allows when that is safe."""
    slowest = pool.workers if pool.routable is None else pool.workers - spec.max_step_down
    return max(spec.bounds_of[role].minimum, slowest)
