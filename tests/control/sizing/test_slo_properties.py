"""Properties that hold on every trace: generated loads, gaps and failures through the decision of mode SLO."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import pi, sin

from hypothesis import given, settings
from hypothesis import strategies as st

from baton_control.sizing.decision.slo import size
from baton_control.sizing.inputs.memory import SizingMemory, restore, save
from baton_control.sizing.inputs.observations import (
    Arrivals,
    Known,
    MeasuredArrivals,
    ObservedPool,
    ProvenZero,
    Unknown,
    measure_arrivals,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_testing.sizing.builders import PerWorker, seen, spec
from baton_wire.messages.values import POOL_ROLES, Role

TRACES = settings(max_examples=2000, deadline=None, derandomize=True, database=None)
AT_THRESHOLD = settings(max_examples=6, deadline=None, derandomize=True, database=None)
SAMPLE = (RequestShape(800, 100), RequestShape(2000, 50))

_rate = st.floats(0, 80, allow_nan=False)
_absurd = st.sampled_from([float("nan"), float("inf"), -1.0, 1e300])


@dataclass(frozen=True)
class Tick:
    reading: MeasuredArrivals
    routable: int | None
    """How many workers of each pool are routable at most; None: unknown."""
    died: int
    restart: bool


def _reading(kind: int, rate: float, absurd: float) -> MeasuredArrivals:
    if kind == 0:
        return Unknown("no report")
    if kind == 1:
        return measure_arrivals(absurd, 10.0, SAMPLE, 100.0, 100.0)
    if kind == 2:
        return measure_arrivals(rate, 10.0, SAMPLE, 0.0, 1000.0)  # stale
    if kind == 3 or rate < 0.1:
        return ProvenZero()
    return Arrivals(max(1, round(rate * 10)), 10.0, SAMPLE)


_ticks = st.lists(
    st.builds(
        Tick,
        reading=st.builds(_reading, st.integers(0, 12), _rate, _absurd),
        routable=st.one_of(st.none(), st.integers(0, 20)),
        died=st.sampled_from([0, 0, 0, 0, 0, 1]),
        restart=st.sampled_from([False] * 15 + [True]),
    ),
    min_size=5,
    max_size=24,
)


@TRACES
@given(
    ticks=_ticks,
    minimum=st.integers(0, 2),
    budget=st.one_of(st.none(), st.integers(6, 30)),
    flip_s=st.sampled_from([None, 2.0]),
)
def test_decisions_stay_within_every_bound_on_any_trace(
    ticks: list[Tick], minimum: int, budget: int | None, flip_s: float | None
) -> None:
    a_spec = spec(
        minimum,
        15,
        max_accelerators=budget,
        scale_to_zero_after_s=60.0 if minimum == 0 else None,
        stabilisation_s=60.0,
        max_step_down=2,
        flip_s=flip_s,
    )
    memory, now, quiet_s = SizingMemory(), 0.0, 0.0
    workers = dict.fromkeys(POOL_ROLES, max(1, minimum))
    for tick in ticks:
        now += 10.0
        workers = {role: max(0, count - tick.died) for role, count in workers.items()}
        if tick.restart:
            memory = restore(save(memory, now), now)
            quiet_s = 0.0 if memory.last_arrival_s is None else quiet_s
        observed = seen(tick.reading, (workers[Role.PREFILL], workers[Role.DECODE]), ProvenZero())
        pools = [_pool(workers[role], tick.routable) for role in POOL_ROLES]
        observed = replace(observed, prefill=pools[0], decode=pools[1])
        decision = size(a_spec, observed, memory, now, PerWorker(), epoch_s=now)
        memory = decision.memory
        after = {role: decision.pools[role].workers for role in POOL_ROLES}
        is_unknown = isinstance(tick.reading, Unknown)
        quiet_s = 0.0 if is_unknown or isinstance(tick.reading, Arrivals) else quiet_s + 10.0
        for role in POOL_ROLES:
            before = workers[role]
            assert minimum <= after[role] <= 15
            if is_unknown or tick.routable is None:
                asleep = after[role] == 0 and not is_unknown
                assert after[role] >= min(before, 15) or asleep, "nothing shrinks on unknown input"
            if after[role] == 0 and before > 0:
                assert quiet_s >= 60.0, "zero needs proof over the whole quiet time"
            flipped = decision.flips.workers if decision.flips and decision.flips.giver is role else 0
            assert after[role] >= before - 2 - flipped or after[role] == 0, "steps down are limited"
        if budget is not None and sum(workers.values()) <= budget:
            assert sum(after.values()) <= budget
        workers = after


def test_a_worker_that_died_is_replaced_where_both_pools_are_sized_as_one() -> None:
    """The little that both need together is one worker and a bit; each pool still has its minimum of two."""
    a_spec, memory = spec(2, 15, flip_s=2.0), SizingMemory()
    for place in range(17):
        reading = Arrivals(10, 10.0, SAMPLE) if place == 16 else Unknown("no report")
        observed = seen(reading, (2, 2) if place < 16 else (1, 1), ProvenZero())
        decision = size(a_spec, observed, memory, 10.0 * (place + 1), PerWorker())
        memory = decision.memory
    assert {role: decision.pools[role].workers for role in POOL_ROLES} == dict.fromkeys(POOL_ROLES, 2)


def _pool(workers: int, routable: int | None) -> ObservedPool:
    return ObservedPool(workers, None if routable is None else min(routable, workers), 30.0)


@AT_THRESHOLD
@given(
    base=st.floats(4, 60),
    swing=st.floats(0, 0.12),
    period_s=st.floats(40, 3000),
    noise=st.lists(st.floats(-0.05, 0.05), min_size=30, max_size=30),
)
def test_a_load_around_a_threshold_turns_a_pool_at_most_eight_times_an_hour(
    base: float, swing: float, period_s: float, noise: list[float]
) -> None:
    a_spec, memory, now = spec(), SizingMemory(), 0.0
    workers = (3, 3)
    sizes: list[tuple[float, int]] = []
    for place in range(400):
        now += 10.0
        rate = base * (1 + swing * sin(2 * pi * now / period_s) + noise[place % 30])
        reading = Arrivals(max(1, round(rate * 10)), 10.0, SAMPLE)
        decision = size(a_spec, seen(reading, workers, Known(1.0)), memory, now, PerWorker())
        memory = decision.memory
        workers = (decision.pools[Role.PREFILL].workers, decision.pools[Role.DECODE].workers)
        if now > 900.0:  # the start is a step, not a threshold
            sizes.append((now, workers[1]))
    turns = _turns(sizes)
    most = max((sum(1 for other in turns if 0 <= other - turn < 3600) for turn in turns), default=0)
    assert most <= 8, f"{most} changes of direction within an hour"


def _turns(sizes: list[tuple[float, int]]) -> list[float]:
    turns, direction = [], 0
    for (_, before), (at, after) in pairwise(sizes):
        if after != before:
            step = 1 if after > before else -1
            if direction == -step:
                turns.append(at)
            direction = step
    return turns
