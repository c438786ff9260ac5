"""Flips, the third move next to starts and stops: a worker of one pool serves in the other from now on. Pure.

What one pool needs and the other can spare changes role. That takes seconds, so the pool that gives does not wait for a
window: a worker that it gave comes back as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from baton_control.pool_flips import Flips, count_flips
from baton_control.sizing.decision.demand import DecisionInputs, Demand, concurrent_share, demands
from baton_control.sizing.decision.pool_sizer import SPARE, PoolDecision
from baton_control.sizing.inputs.observations import Measurements, ObservedPool
from baton_wire.messages.values import POOL_ROLES, Role


def exchange_workers(
    inputs: DecisionInputs, wanted: Mapping[Role, Demand], pools: dict[Role, PoolDecision]
) -> dict[Role, PoolDecision]:
    """The pools' decisions with workers exchanged: what one pool needs now and the other does not changes role, and
    only what both will need together is started. `wanted`: at the time of a start."""
    spec = inputs.spec
    assert spec.flip_s is not None
    near = demands(inputs, spec.flip_s + spec.interval_s)
    if any(demand.held is None for demand in near.values()):
        return pools  # it is unknown what runs, and so which workers can be spared: each pool is sized alone
    return _Exchange(inputs, near).resize(wanted, pools)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """The exchange of workers, by what each pool needs at the time of a flip."""

    inputs: DecisionInputs
    near: Mapping[Role, Demand]

    def needed(self, role: Role) -> int:
        return self._required(role, self.near[role].rate_per_s)

    def keeps(self, role: Role) -> int:
        """The workers that a pool which gives has to keep."""
        return self._required(role, self.near[role].lasting_per_s * SPARE)

    def resize(self, wanted: Mapping[Role, Demand], pools: dict[Role, PoolDecision]) -> dict[Role, PoolDecision]:
        flipped = sizes_after_flips(self.inputs.seen, {role: self.needed(role) for role in POOL_ROLES}, self.keeps)
        both = ceil(concurrent_share(self.inputs, wanted) * sum(pool.needed for pool in pools.values()))
        alone = {role: pool.workers for role, pool in pools.items()}
        # `both` knows no minimum of a pool: a worker that died is replaced, whatever the other pool has.
        sizes = {
            role: self._clamp(role, workers)
            for role, workers in sizes_with_starts(self.inputs.seen, flipped, alone, both).items()
        }
        decisions = {}
        for role, pool in pools.items():
            before = self.inputs.seen.pool(role).workers
            if sizes[role] != pool.workers or flipped[role] != before:
                why = self._why(role, flipped[role], alone[role], both)
                pool = replace(pool, workers=sizes[role], reason=f"{role.value} {before}→{sizes[role]}: {why}")
            decisions[role] = pool
        return decisions

    def _required(self, role: Role, rate_per_s: float) -> int:
        required = self.inputs.sizer.required(role, self.inputs.mix, rate_per_s)
        return self._clamp(role, max(1, self.near[role].held or 0, required))

    def _clamp(self, role: Role, workers: int) -> int:
        return self.inputs.spec.clamp(role, workers, self.inputs.epoch_s)

    def _why(self, role: Role, flipped: int, alone: int, both: int) -> str:
        before, partner = self.inputs.seen.pool(role).workers, role.partner
        if flipped > before:
            return f"{self.needed(role)} are needed now, {partner.value} gives {flipped - before}"
        if flipped < before:
            return f"{partner.value} needs {self.needed(partner)} now, {self.keeps(role)} are enough here"
        return f"alone it would have {alone}, both together need {both}"


def sizes_after_flips(seen: Measurements, needs: Mapping[Role, int], keeps: Callable[[Role], int]) -> dict[Role, int]:
    """The sizes after the pool that is short of what it `needs` now got what the other has on top of what it `keeps`,
    which is asked only then.

    A worker that is still starting helps neither pool now, so it does not count.
    """
    sizes = {role: seen.pool(role).workers for role in POOL_ROLES}
    serving = {role: _spare_workers(seen.pool(role)) + 1 for role in POOL_ROLES}
    for taker in POOL_ROLES:
        giver = taker.partner
        missing = needs[taker] - serving[taker]
        if missing <= 0 or serving[giver] <= 1 or seen.pool(taker).routable is None:
            continue
        count = min(missing, serving[giver] - max(1, keeps(giver)))
        if count > 0:
            return {taker: sizes[taker] + count, giver: sizes[giver] - count}
    return sizes


def sizes_with_starts(
    seen: Measurements, flipped: Mapping[Role, int], alone: Mapping[Role, int], both: int
) -> dict[Role, int]:
    """The sizes after the flips, with the stops that each pool decided `alone`, and its starts as far as `both` pools
    together will need them: the pools decided before any worker was exchanged."""
    shrinks = [role for role in POOL_ROLES if alone[role] < seen.pool(role).workers]
    sizes = {role: min(flipped[role], alone[role]) if role in shrinks else flipped[role] for role in POOL_ROLES}
    for role in sorted(POOL_ROLES, key=lambda role: sizes[role] - alone[role]):
        sizes[role] += max(0, min(both - sum(sizes.values()), alone[role] - sizes[role]))
    return sizes


def find_flips(seen: Measurements, sizes: Mapping[Role, int]) -> Flips | None:
    """How much of the way to `sizes` are flips: what one pool loses and the other gains."""
    workers = {role: seen.pool(role).workers for role in POOL_ROLES}
    return count_flips(workers, sizes, {role: _spare_workers(seen.pool(role)) for role in POOL_ROLES})


def _spare_workers(pool: ObservedPool) -> int:
    """Workers that serve now, but for one; none while it is unknown which serve. A starting worker is not flipped."""
    return max(0, min(pool.routable or 0, pool.workers) - 1)
