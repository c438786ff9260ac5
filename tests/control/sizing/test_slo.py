"""The decision of mode SLO, walked through time by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_control.sizing.decision.budget import cut_to_budget
from baton_control.sizing.decision.slo import SloDecision, size
from baton_control.sizing.inputs.context_use import ContextUse
from baton_control.sizing.inputs.memory import MAX_SAVED_BYTES, Interval, SizingMemory, restore, save
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Arrivals, Known, MeasuredArrivals, ProvenZero, Unknown
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Bounds, Schedule, SizingSpec
from baton_testing.sizing.builders import ROUND_WORKER, PerWorker, seen, spec
from baton_wire.messages.measures import NUM_WINDOWS
from baton_wire.messages.values import Role

SHAPE = RequestShape(1000, 100)


def arrivals(per_s: float, seconds: float = 10.0) -> MeasuredArrivals:
    count = round(per_s * seconds)
    return Arrivals(count, seconds, (SHAPE,) * 8) if count else ProvenZero()


class Walk:
    """Feeds a decision its own answers, one interval at a time."""

    def __init__(self, a_spec: SizingSpec, workers: int = 1, startup_s: float = 30.0) -> None:
        self.spec, self.startup_s = a_spec, startup_s
        self.memory = SizingMemory()
        self.now = 1000.0
        self.workers = (workers, workers)

    def step(
        self, reading: MeasuredArrivals, count: int = 1, queued: float = 0.0, running: float | None = None
    ) -> SloDecision:
        for _ in range(count):
            self.now += 10.0
            waiting = Known(queued) if queued else ProvenZero()
            observed = seen(reading, self.workers, waiting, self.startup_s)
            if running is not None:
                observed = replace(observed, running=Known(running))
            decision = size(self.spec, observed, self.memory, self.now, PerWorker(), epoch_s=self.now)
            self.memory = decision.memory
            self.workers = (decision.pools[Role.PREFILL].workers, decision.pools[Role.DECODE].workers)
        return decision


def test_a_step_in_the_load_is_followed_at_once_by_several_workers() -> None:
    walk = Walk(spec())
    walk.step(arrivals(4), 40)
    assert walk.workers == (1, 1)
    decision = walk.step(arrivals(30))
    assert min(walk.workers) >= 6
    assert "prefill 1→" in decision.reason
    assert "tokens/s at +40 s" in decision.reason
    assert "or more would be over TTFT" in decision.reason


CALM = (2.2, 3.1, 3.6, 3.4, 3.5, 4.1, 3.2, 3.2, 2.5, 3.3, 4.1, 4.8, 2.9, 4.0, 3.3)
BURST = (11.3, 9.6, 11.4, 10.0, 14.3, 11.9)
AFTER = (3.6, 2.6, 4.5, 3.9, 3.4, 4.1, 3.0, 4.2, 3.5, 4.5, 3.4)
"""Requests per second in intervals of ten seconds, with a minute of burst, as a simulation drew them."""


@pytest.mark.parametrize(("times", "starts"), [(1.0, False), (2.0, True)])
def test_a_burst_starts_a_worker_only_where_the_percentile_of_all_requests_would_break(
    times: float, starts: bool
) -> None:
    """By the upper quantile alone the next burst needs two workers. One keeps 96 % of all requests, and too few where
    the burst is twice as high."""
    rates = (*CALM, *(rate * times for rate in BURST), *AFTER)
    memory = replace(
        SizingMemory(), history=tuple(Interval(rate, rate / 9.5, rate / 9.5) for rate in rates), shapes=(SHAPE,) * 8
    )
    observed = seen(arrivals(2.1), (1, 1), startup_s=130.0)
    pool = size(spec(), observed, memory, 1000.0, PerWorker(9.5)).pools[Role.PREFILL]
    assert pool.needed > 1, "more than one worker for the load at the quantile"
    assert (pool.workers > 1) == starts
    assert starts or "over the last half hour 1 is enough" in pool.reason


def test_a_pool_shrinks_only_after_the_window_to_what_it_needed_in_it() -> None:
    walk = Walk(spec(stabilisation_s=180.0), 8)
    walk.step(arrivals(4), 17)
    assert walk.workers == (8, 8)
    decision = walk.step(arrivals(4), 3)
    assert max(walk.workers) < 8
    assert "needed at most" in decision.reason or "forecast" in decision.reason


def test_unknown_arrivals_hold_every_pool_and_are_counted() -> None:
    walk = Walk(spec(), 6)
    walk.step(arrivals(4), 10)
    before = walk.workers
    decision = walk.step(Unknown("no report"), 5)
    assert decision.holds
    assert decision.inputs == {"unknown_intervals": 5.0}
    assert walk.step(Unknown("no report")).inputs == {"unknown_intervals": 6.0}
    assert walk.workers == before
    walk.step(arrivals(4), 6)
    assert walk.workers == before, "the window starts anew behind a gap"


def test_zero_needs_proof_over_the_whole_time_and_waking_needs_one_request() -> None:
    walk = Walk(spec(minimum=0, scale_to_zero_after_s=120.0))
    walk.step(arrivals(3), 5)
    walk.step(ProvenZero(), 11)
    assert min(walk.workers) == 1
    walk.step(Unknown("gateway restarts"))
    walk.step(ProvenZero(), 11)
    assert min(walk.workers) == 1, "an unknown interval starts the wait anew"
    walk.step(ProvenZero(), 3)
    assert walk.workers == (0, 0)
    walk.step(arrivals(0.1))
    assert min(walk.workers) >= 1, "both pools wake together"


def test_pools_that_may_be_empty_stay_awake_while_no_quiet_time_is_set() -> None:
    walk = Walk(spec(minimum=0))
    walk.step(arrivals(0.3), 6)
    walk.step(ProvenZero(), 400)
    assert walk.workers == (1, 1)


def test_pools_that_sleep_go_on_sleeping_when_a_gateway_had_nothing_to_tell() -> None:
    walk = Walk(spec(minimum=0, scale_to_zero_after_s=60.0))
    walk.step(arrivals(3), 5)
    walk.step(ProvenZero(), 8)
    assert walk.workers == (0, 0)
    walk.step(Unknown("gateway restarts"))
    walk.step(ProvenZero())
    assert walk.workers == (0, 0)


def test_queued_prompts_forbid_zero() -> None:
    walk = Walk(spec(minimum=0, scale_to_zero_after_s=60.0))
    walk.step(arrivals(3), 5)
    walk.step(ProvenZero(), 30, queued=500.0)
    assert min(walk.workers) == 1


def test_a_thousand_requests_at_zero_are_one_activation_within_bounds() -> None:
    walk = Walk(spec(minimum=0, maximum=9, scale_to_zero_after_s=60.0), 0)
    walk.step(arrivals(100), 1, queued=1e6)
    assert walk.workers == (9, 9)


class NoneNeeded(PerWorker):
    """A sizer by which a pool without load needs no worker."""

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int:
        return 0


def test_neither_pool_is_empty_while_there_is_anything_to_serve() -> None:
    walk = Walk(spec(minimum=0, scale_to_zero_after_s=60.0), 0)
    memory = replace(walk.memory, shapes=(SHAPE,) * 8)
    decision = size(walk.spec, seen(arrivals(0.1), (0, 0)), memory, walk.now, NoneNeeded())
    assert {role: pool.workers for role, pool in decision.pools.items()} == {Role.PREFILL: 1, Role.DECODE: 1}
    assert decision.reason == "prefill 0→1: requests arrive; decode 0→1: requests arrive"


def test_without_arrivals_the_figure_of_arrivals_is_zero() -> None:
    walk = Walk(spec())
    assert walk.step(ProvenZero()).inputs == {"arrivals_per_s": 0.0}, "no request was seen yet"
    assert walk.step(arrivals(4)).inputs["arrivals_per_s"] == 4.0
    assert walk.step(ProvenZero()).inputs["arrivals_per_s"] == 0.0


def test_a_worker_that_is_starting_in_one_pool_never_holds_up_the_other() -> None:
    observed = seen(arrivals(30), (2, 2))
    pending = replace(observed, prefill=replace(observed.prefill, routable=0))
    decision = size(spec(), pending, SizingMemory(), 10.0, PerWorker())
    assert decision.pools[Role.DECODE].workers >= 6


def test_unknown_routable_workers_forbid_going_down() -> None:
    walk = Walk(spec(stabilisation_s=60.0), 8)
    walk.step(arrivals(4), 5)
    observed = seen(arrivals(4), (8, 8))
    for _ in range(20):
        walk.now += 10.0
        blind = replace(observed, decode=replace(observed.decode, routable=None))
        decision = size(walk.spec, blind, walk.memory, walk.now, PerWorker())
        walk.memory = decision.memory
    assert decision.pools[Role.DECODE].workers == 8
    assert "unknown which workers are routable" in decision.pools[Role.DECODE].reason


def test_a_budget_takes_from_the_pool_that_loses_least() -> None:
    a_spec = spec(max_accelerators=8)
    floors = {Role.PREFILL: 1, Role.DECODE: 1}
    wanted = {Role.PREFILL: 8, Role.DECODE: 4}
    accelerators = {Role.PREFILL: 1, Role.DECODE: 1}
    losses = {Role.PREFILL: 0.1, Role.DECODE: 0.06}
    cut = cut_to_budget(8, wanted, floors, accelerators, lambda role, left: (losses[role] / left,))
    assert cut == {Role.PREFILL: 5, Role.DECODE: 3}
    assert cut_to_budget(None, wanted, floors, accelerators, lambda role, left: (0.0,)) == wanted
    cpus = cut_to_budget(3, wanted, floors, {Role.PREFILL: 1, Role.DECODE: 0}, lambda role, left: (0.0,))
    assert cpus == {Role.PREFILL: 3, Role.DECODE: 4}, "workers without accelerators cost none"
    walk = Walk(a_spec)
    decision = walk.step(arrivals(60), 3)
    assert sum(walk.workers) <= 8
    assert "budget of 8 accelerators" in decision.reason


def test_a_schedule_raises_the_floor_while_its_window_is_open() -> None:
    night = Schedule(Role.DECODE, 5, start_minute=22 * 60, end_minute=6 * 60)
    a_spec = spec(schedules=(night,))
    assert a_spec.floor(Role.DECODE, 23 * 3600.0) == 5
    assert a_spec.floor(Role.DECODE, 12 * 3600.0) == 1
    assert a_spec.floor(Role.PREFILL, 23 * 3600.0) == 1
    assert Schedule(Role.DECODE, 5, 0, 60, frozenset({3})).is_open(60.0), "the epoch began on a Thursday"


def test_pools_do_not_sleep_in_a_window_and_wake_when_it_opens() -> None:
    day = Schedule(Role.DECODE, 2, start_minute=8 * 60, end_minute=18 * 60)
    walk = Walk(spec(0, scale_to_zero_after_s=300.0, schedules=(day,)), 1)
    walk.now = 8 * 3600.0 - 600.0
    walk.step(arrivals(1))
    walk.step(arrivals(0), 40)
    assert walk.workers == (0, 0)
    walk.step(arrivals(0), 20)
    assert walk.workers == (1, 2), "nobody asked, but the window is open"
    walk.step(arrivals(0), 100)
    assert walk.workers == (1, 2)


def test_a_pool_rests_for_as_long_as_a_new_worker_takes_before_it_shrinks() -> None:
    walk = Walk(spec(), startup_s=200.0)
    walk.step(arrivals(40), 6)
    grown = walk.workers
    walk.step(arrivals(5), 10)
    assert walk.workers == grown, "nobody knows yet whether they were needed"
    walk.step(arrivals(5), 10)
    assert walk.workers[0] < grown[0]


def test_a_pool_keeps_as_many_as_its_last_half_hour_asked_for_and_no_longer() -> None:
    walk = Walk(spec())
    for _ in range(3):
        walk.step(arrivals(20), 30)
        walk.step(arrivals(4), 30)
    assert walk.workers[0] == 4, "a third of all requests would be late with three, whenever they are many"
    assert "but fewer were too few for the last half hour" in walk.step(arrivals(4)).reason
    walk.step(arrivals(4), 180)
    assert walk.workers[0] == 1


def test_a_clump_at_the_start_counts_as_one_of_half_an_hour_and_not_of_what_was_seen() -> None:
    walk = Walk(spec())
    walk.step(arrivals(40), 2)
    assert walk.workers[0] == 9
    walk.step(arrivals(8), 10)
    assert walk.workers[0] == 5, "of what was seen, too many would be late with so few"


def test_nobody_is_started_for_a_burst_that_the_half_hour_bears() -> None:
    walk = Walk(spec(3))
    walk.step(arrivals(12), 170)
    decision = walk.step(arrivals(30), 2)
    assert walk.workers == (3, 3)
    assert "7 if this lasted, but over the last half hour 3 are enough" in decision.reason
    walk.step(arrivals(30), 30)
    assert walk.workers[0] >= 6, "it goes on"


def test_a_step_in_requests_is_one_in_prompt_tokens_although_their_lengths_vary() -> None:
    long = RequestShape(8000, 100)
    short = replace(long, prompt_tokens=100)
    walk = Walk(spec())
    walk.step(Arrivals(50, 10.0, (short,) * 7 + (long,)), 40)
    assert walk.workers[0] <= 2
    decision = walk.step(Arrivals(200, 10.0, (short,) * 30 + (long,)))
    assert walk.workers[0] >= 4, decision.reason


def test_what_waits_is_counted_in_whole_prompts_like_the_queue_is() -> None:
    cached = RequestShape(10_000, 100, cached_tokens=9000)
    walk = Walk(spec(), 1)
    walk.step(Arrivals(40, 10.0, (cached,) * 40), 3)
    decision = walk.step(Arrivals(40, 10.0, (cached,) * 40), queued=20 * 10_000.0)
    assert "backlog" not in decision.reason, "20 requests wait, which one worker works off before another is there"


def test_a_backlog_is_worked_off_and_only_then_are_its_workers_sent_away() -> None:
    walk = Walk(spec(stabilisation_s=180.0), 2)
    walk.step(arrivals(6), 30)
    before = walk.workers[0]
    walk.step(arrivals(6), queued=600_000.0)
    grown = walk.workers
    assert grown[0] > before
    assert grown[1] == before, "decode has answers of its own to go by"
    decision = walk.step(arrivals(6), 12, queued=300_000.0)
    assert walk.workers[0] >= grown[0]
    assert "requests wait" in decision.reason
    walk.step(arrivals(6), 3)
    assert walk.workers == (before, before), "the window remembers the load, not the backlog"


def test_decode_has_a_backlog_of_answers_that_run_and_stays_until_they_end() -> None:
    """A worker that ends five answers of 100 tokens a second holds 12.5 of them at 25 ms a token."""
    walk = Walk(spec(), 3)
    walk.step(arrivals(11), 30)
    calm = walk.workers[1]
    decision = walk.step(arrivals(11), running=900.0)
    assert walk.workers[1] > calm, decision.reason
    assert "backlog" in decision.pools[Role.DECODE].reason
    assert walk.workers[0] == calm


def test_memory_survives_a_restart_in_four_kilobytes() -> None:
    walk = Walk(spec(), 3)
    for per_s in range(1, 200):
        walk.step(arrivals(per_s * 7.7))
    text = save(walk.memory, walk.now)
    assert len(text.encode()) <= MAX_SAVED_BYTES
    again = restore(text, walk.now + 30)
    assert again.history[-1].requests_per_s == pytest.approx(walk.memory.history[-1].requests_per_s, rel=0.01)
    assert again.since_s is None, "nothing shrinks until a new window was seen"


def test_a_memory_with_the_gaps_that_sleep_by_cost_kept_is_understood() -> None:
    walk = Walk(spec(), 3)
    walk.step(arrivals(7.7), 5)
    text = save(walk.memory, walk.now)
    former = f'{text[:-1]},"gaps":[[600,9.0]],"busy":[0.3,64]}}'
    assert restore(former, walk.now + 30) == restore(text, walk.now + 30) != SizingMemory()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v":1}', '{"v":1,"at":"x"}', "null", '{"v":1,"at":1e999}'])
def test_a_damaged_memory_is_an_empty_one(text: str) -> None:
    assert restore(text, 100.0) == SizingMemory()


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('"v":5', '"v":4'),
        ('"at":1000', '"at":"x"'),
        ('"at":1000', '"at":1e999'),
        ('"req":[', '"req":[1.0,'),
        ('"prefill"', '"nobody"'),
        ('"last":', '"lost":'),
        ("}", ""),
    ],
)
def test_one_wrong_place_makes_a_memory_an_empty_one(was: str, becomes: str) -> None:
    memory = replace(SizingMemory(), last_arrival_s=990.0, history=(Interval(1.0, 0.2, 0.2),), shapes=(SHAPE,))
    text = save(memory, 1000.0)
    assert restore(text, 1001.0).history == memory.history
    assert was in text
    assert restore(text.replace(was, becomes, 1), 1001.0) == SizingMemory()


def test_bounds_hold_whatever_is_wanted() -> None:
    bounds = SizingSpec(Bounds(2, 3), Bounds(4, 4), spec().targets)
    walk = Walk(bounds, 2)
    walk.step(arrivals(500), 3)
    assert walk.workers == (3, 4)


def test_a_pool_is_not_cut_below_what_its_sessions_have_cached() -> None:
    """Five workers compute what is missing while nine hold the contexts; with five, all would be computed anew."""
    live = 7 * ROUND_WORKER.kv_capacity_tokens
    contexts = ContextUse(
        *(10_000_000, 0, 9_000_000, 1_000_000, (5_000_000,) * 3 + (9_000_000,) * 9, (live,) * NUM_WINDOWS)
    )

    def steps(walk: Walk, known: ContextUse | None) -> SloDecision:
        for _ in range(60):
            walk.now += 10.0
            observed = replace(seen(arrivals(22), walk.workers, ProvenZero()), contexts=known)
            decision = size(walk.spec, observed, walk.memory, walk.now, PerWorker(), epoch_s=walk.now)
            walk.memory = decision.memory
            walk.workers = (decision.pools[Role.PREFILL].workers, decision.pools[Role.DECODE].workers)
        return decision

    blind, informed = Walk(spec(), 12), Walk(spec(), 12)
    steps(blind, None)
    decision = steps(informed, contexts)
    assert blind.workers[0] < 7
    assert informed.workers[0] == 9, "with some room, since each stop empties a cache"
    assert informed.workers[1] == blind.workers[1], "decode workers are not asked for"
    assert "its KV holds the" in decision.pools[Role.PREFILL].reason
    grown = Walk(spec(), 2)
    steps(grown, contexts)
    assert grown.workers[0] == 8
