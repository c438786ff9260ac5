"""Sizes one pool in one decision. Pure.

A pool grows at once. It shrinks only after a window and a rest, with a margin, to a size that would have been enough
for the last half hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf

import numpy as np

from baton_control.sizing.decision.backtest import (
    SHRINK_SHARE,
    Load,
    allowed_late_share,
    fewest_by_clients,
    fewest_enough,
    late_share,
    observed_lateness,
)
from baton_control.sizing.decision.cache_floor import COLD_SHARE, CacheFloor, describe_hits, find_cache_floor
from baton_control.sizing.decision.demand import DecisionInputs, Demand, past_loads
from baton_control.sizing.inputs.memory import HISTORY, PoolMemory
from baton_control.sizing.inputs.observations import ObservedPool
from baton_wire.messages.values import Role

SPARE = 1.15
"""How many times what would be enough may stay: a smaller pool must carry this much more than the forecast, so that it
does not have to grow again at once, and another type of accelerator has to be this much cheaper."""


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """The size of one pool, and why."""

    workers: int
    reason: str
    """In words, with the numbers; what a person on call reads."""
    needed: int
    """Before bounds, budget and stabilisation."""


@dataclass(frozen=True, eq=False)
class SloPoolSizer:
    """One pool in one decision: what it has to do, what it remembers, and what would be enough."""

    inputs: DecisionInputs
    role: Role
    demand: Demand

    def decide(self) -> tuple[PoolDecision, PoolMemory]:
        """The pool's size and its new memory."""
        have, computing = self.pool.workers, self._required(self.demand.rate_per_s)
        floor = self._cache_floor
        least = 0 if floor is None else floor.workers
        needed = max(computing, least)
        kept = 0 if floor is None else floor.kept
        relaxed = max(kept, self._required(self.demand.lasting_per_s * SPARE))
        grown = max(least, self._enough(self._rising_loads, max(1, have), needed)) if needed > have else needed
        target, shrunk = self._clamp(grown), self._clamp(relaxed)
        workers, why, memory = self._stabilise(target, shrunk)
        if floor is not None and workers in (self._clamp(least), self._clamp(kept)) and kept > computing:
            why = _describe_floor(floor)
        elif workers > have and workers > 1:
            why = self._why_not_fewer(workers - 1)
        elif grown < needed and not why:
            why = f"{needed} if this lasted, but over the last half hour {grown} {'is' if grown == 1 else 'are'} enough"
        return PoolDecision(workers, self._reason(workers, why), needed), memory

    @cached_property
    def pool(self) -> ObservedPool:
        return self.inputs.seen.pool(self.role)

    @cached_property
    def memory(self) -> PoolMemory:
        return self.inputs.memory.pools[self.role]

    @cached_property
    def _cache_floor(self) -> CacheFloor | None:
        """The prefill workers that hold the contexts of sessions."""
        contexts, spec, mix = self.inputs.seen.contexts, self.inputs.spec, self.inputs.mix
        if self.role is not Role.PREFILL or contexts is None:
            return None
        model = self.inputs.sizer.model
        prompt = float(np.mean(mix.columns()[0]))
        cold_s = model.prefill.fixed_s + model.prefill.prompt_s(prompt)
        is_cold_late = cold_s > COLD_SHARE * spec.targets.ttft_s
        needed = self._required(self.demand.lasting_per_s)
        late_share = 1.0 - spec.targets.ttft_share
        return find_cache_floor(contexts, model.kv_capacity_tokens, needed, late_share, is_cold_late=is_cold_late)

    @cached_property
    def _past_loads(self) -> Sequence[Load]:
        return past_loads(self.role, self.inputs)

    @cached_property
    def _rising_loads(self) -> Sequence[Load]:
        """The last half hour, then the forecast until a worker that is started now can serve."""
        return (*self._past_loads, *self._ahead(self.demand.rate_per_s, self._start_intervals))

    @property
    def _start_intervals(self) -> int:
        return round(self.demand.horizon_s / self.inputs.spec.interval_s)

    def _ahead(self, rate_per_s: float, intervals: int) -> Sequence[Load]:
        return (Load(rate_per_s, rate_per_s, self.inputs.mix),) * intervals

    def _required(self, rate_per_s: float) -> int:
        return self.inputs.sizer.required(self.role, self.inputs.mix, rate_per_s)

    def _enough(self, loads: Sequence[Load], least: int, most: int) -> int:
        return fewest_enough(self.role, loads, least, most, self.inputs.sizer)

    def _clamp(self, workers: int) -> int:
        return self.inputs.spec.clamp(self.role, workers, self.inputs.epoch_s)

    def _stabilise(self, target: int, shrunk: int) -> tuple[int, str, PoolMemory]:
        """Workers to have now, why not fewer, and the pool's memory.

        `target`: needed now, a backlog included; `shrunk`: for the forecast alone with the margin. Only the latter is
        remembered, so that workers which drained a backlog are free as soon as it is gone.
        """
        spec, now, workers = self.inputs.spec, self.inputs.now, self.pool.workers
        recent = tuple((at, need) for at, need in self.memory.needs if now - at < spec.stabilisation_s)
        memory = replace(self.memory, needs=(*recent, (now, shrunk)))
        if target > workers:
            return target, "", replace(memory, changed_s=now)
        most = max(target, *(need for _, need in memory.needs))
        if most >= workers:
            return workers, "", memory
        obstacle = self._obstacle()
        if obstacle:
            return workers, f"could be {most}, {obstacle}", memory
        least = self._least_for_half_an_hour(most)
        if least >= workers:
            return workers, f"could be {most}, but fewer were too few for the last half hour", memory
        why = f"needed at most {most} for {spec.stabilisation_s:.0f} s"
        if least > most:
            why += f", {least} for the last half hour"
        return max(least, workers - spec.max_step_down), why, replace(memory, changed_s=now)

    def _obstacle(self) -> str:
        """Why the pool may not shrink now; empty when it may."""
        spec, now, since_s = self.inputs.spec, self.inputs.now, self.inputs.memory.since_s
        if self.demand.is_late:
            return "but requests wait"
        if self.pool.routable is None:
            return "but it is unknown which workers are routable"
        if since_s is None or now - since_s < spec.stabilisation_s:
            return "but arrivals have not been known for long enough"
        rested_s = inf if self.memory.changed_s is None else now - self.memory.changed_s
        if rested_s < self.demand.horizon_s:
            return f"but it changed {rested_s:.0f} s ago and rests for {self.demand.horizon_s:.0f} s"
        return ""

    def _least_for_half_an_hour(self, least: int) -> int:
        """At least `least` workers, and as many as the last half hour and the time of a start ask for."""
        spec, sizer, loads = self.inputs.spec, self.inputs.sizer, self._past_loads
        allowed = allowed_late_share(self.role, loads, sizer)
        least = max(least, fewest_by_clients(spec, self.memory, self.pool.workers, allowed))
        observed = observed_lateness(spec, self.memory, len(loads), self._start_intervals)
        unseen = HISTORY - len(loads)  # after a start, a burst would otherwise keep its workers for minutes
        lasting = (*loads, *self._ahead(self.demand.lasting_per_s, unseen + self._start_intervals))
        return fewest_enough(self.role, lasting, least, self.pool.workers, sizer, SHRINK_SHARE, observed)

    def _why_not_fewer(self, fewer: int) -> str:
        late = late_share(self.role, self._rising_loads, fewer, self.inputs.sizer)
        name, limit_s = "TTFT" if self.role is Role.PREFILL else "TPOT", self.inputs.spec.targets.limit_s(self.role)
        return f"with {fewer}, {late:.1%} or more would be over {name} {limit_s * 1000:.0f} ms, with the last half hour"

    def _reason(self, after: int, why: str) -> str:
        before, demand, name = self.pool.workers, self.demand, self.role.value
        move = f"{name} {before}→{after}" if before != after else f"{name} {after}"
        text = f"{move}: forecast {self._load(demand.rate_per_s)} at +{demand.horizon_s:.0f} s"
        if demand.backlog_per_s > 0:
            text += f" with a backlog of {self._load(demand.backlog_per_s)}"
        hits = describe_hits(self.inputs.seen.contexts) if self.role is Role.PREFILL else ""
        return "; ".join(part for part in (text, why, hits) if part)

    def _load(self, rate_per_s: float) -> str:
        """A load in the unit that the pool's work is counted in: requests differ in length."""
        tokens_per_s = rate_per_s * self.demand.tokens_each
        unit = f"{'prompt' if self.role is Role.PREFILL else 'answer'} tokens/s"
        return f"{tokens_per_s:.3g} {unit}" if tokens_per_s < 1e3 else f"{tokens_per_s / 1e3:.3g}k {unit}"


def _describe_floor(floor: CacheFloor) -> str:
    return (
        f"its KV holds the {floor.live_tokens / 1e6:.3g}M tokens of contexts that are continued within"
        f" {floor.window_s:.0f} s"
    )


def with_orders(memory: PoolMemory, more: int, horizon_s: float, now: float) -> PoolMemory:
    """The memory with `more` workers on their way; those that should be there by now are forgotten."""
    orders = tuple(order for order in memory.orders if order[0] + horizon_s > now)
    return replace(memory, orders=(*orders, (now + horizon_s, more)) if more > 0 else orders)
