"""One decision from the reports of gateways: step times are learned, waking starts a pair, a restart forgets little."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_control.sizing.decision.sizing_state import (
    MOST_STEPS,
    fresh,
    learn_and_size,
    restore,
    save,
    with_kv_capacity,
    with_steps,
)
from baton_control.sizing.decision.slo import wake
from baton_control.sizing.inputs.deployment import sizing_spec
from baton_control.sizing.inputs.memory import MAX_SAVED_BYTES, Interval, SizingMemory
from baton_control.sizing.inputs.observations import Arrivals, ObservedStep, ProvenZero, Unknown
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_testing.kube.manifests import deployment
from baton_testing.sizing.builders import ROUND_WORKER, seen, spec
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import Role

SHAPE = RequestShape(1000, 100)


def prefill_steps(slower: float, count: int = 200) -> list[ObservedStep]:
    steps = []
    for place in range(count):
        tokens = 200 + 150 * (place % 12)
        seconds = ROUND_WORKER.prefill.seconds(tokens, tokens * tokens / 2) * slower
        timing = StepTiming(place, tokens, tokens * tokens / 2, 0, 0, seconds)
        steps.append(ObservedStep(Role.PREFILL, f"w{place % 2}", timing))
    return steps


def test_slower_steps_are_believed_after_warm_up_and_ask_for_more_workers() -> None:
    a_spec = spec(maximum=40)
    state = fresh(ROUND_WORKER, a_spec)
    assert with_steps(a_spec, state, prefill_steps(2.0, count=30)).sizer is state.sizer, "warm-up says nothing"
    slow = with_steps(a_spec, state, prefill_steps(2.0))
    assert slow.model.prefill.seconds(1000, 5e5) == pytest.approx(2 * ROUND_WORKER.prefill.seconds(1000, 5e5), rel=0.05)
    assert slow.model.decode == ROUND_WORKER.decode, "no decode step was seen"
    reading = Arrivals(300, 10.0, (SHAPE,) * 8)
    needs = [
        learn_and_size(a_spec, learned, seen(reading, (1, 1)), (), 1000.0, 0.0)[0].pools[Role.PREFILL].needed
        for learned in (state, slow)
    ]
    assert needs[1] > 1.5 * needs[0]


def test_of_thousands_of_steps_an_even_part_is_learned_from() -> None:
    """Hundreds of workers tell of thousands between two decisions. The last tenth is of a slower kind."""
    a_spec = spec()
    steps = [*prefill_steps(1.0, count=4500), *prefill_steps(1.1, count=500)]
    state = with_steps(a_spec, fresh(ROUND_WORKER, a_spec), steps)
    every = prefill_steps(1.0, count=MOST_STEPS)
    learned = with_steps(a_spec, fresh(ROUND_WORKER, a_spec), every).prefill
    assert learned.steps + sum(learned.warmed.values()) == MOST_STEPS
    assert state.prefill.steps + sum(state.prefill.warmed.values()) <= MOST_STEPS
    assert set(state.prefill.warmed) == set(learned.warmed), "no worker is left out"
    assert [round(ratio, 6) for ratio in state.prefill.recent[-10:]] == [1.1] * 10


def test_schedules_of_a_manifest_are_floors_by_role_day_and_minute() -> None:
    day = {"start": "08:30", "end": "18:00", "days": ["Mon", "Thu"], "decode": 3}
    night = {"start": "22:00", "end": "06:00", "prefill": 2, "decode": 2}
    pool = {"min": 1, "max": 4}
    a_spec = sizing_spec(deployment(prefill__replicas=pool, decode__replicas=pool, autoscaling__schedules=[day, night]))
    minutes = {8 * 60 + 29: (1, 1), 8 * 60 + 30: (1, 3), 18 * 60: (1, 1), 22 * 60: (2, 2), 5 * 60 + 59: (2, 2)}
    floors = {m: (a_spec.floor(Role.PREFILL, m * 60.0), a_spec.floor(Role.DECODE, m * 60.0)) for m in minutes}
    assert floors == minutes, "the epoch began on a Thursday"
    assert a_spec.floor(Role.DECODE, 86_400.0 + 9 * 3600.0) == 1, "a Friday"


def test_steps_of_both_kinds_at_once_teach_neither() -> None:
    a_spec = spec()
    state = fresh(ROUND_WORKER, a_spec)
    mixed = [ObservedStep(Role.DECODE, "w", StepTiming(1, 100, 5e3, 4, 400, 9.0))] * 100
    assert with_steps(a_spec, state, mixed).model == ROUND_WORKER


def test_waiting_requests_start_one_pair_whatever_else_is_unknown() -> None:
    a_spec = spec(minimum=0, scale_to_zero_after_s=60.0)
    state = fresh(ROUND_WORKER, a_spec)
    dark = seen(Unknown("no gateway reports"), (0, 0))
    decision, state = learn_and_size(a_spec, state, dark, (), 1000.0, 0.0, parked=1000)
    assert {role: pool.workers for role, pool in decision.pools.items()} == {Role.PREFILL: 1, Role.DECODE: 1}
    assert "prefill 0→1: 1000 requests wait" in decision.reason
    quiet, _ = learn_and_size(a_spec, state, seen(ProvenZero(), (1, 1), ProvenZero()), (), 1010.0, 0.0)
    assert all(pool.workers == 1 for pool in quiet.pools.values()), "the quiet time begins with the wake"


@pytest.mark.parametrize(
    ("have", "parked", "reason"),
    [
        ((0, 0), 1, "prefill 0→1: 1 request waits"),
        ((1, 0), 2, "prefill 1: 2 requests wait"),
        ((4, 0), 2, "prefill 4→3: 2 requests wait"),
    ],
)
def test_the_reason_of_a_wake_says_what_moves_and_how_many_wait(
    have: tuple[int, int], parked: int, reason: str
) -> None:
    """A pool above its maximum moves too: its bounds were lowered while its partner was empty."""
    decision = wake(spec(minimum=0, maximum=3), seen(Unknown("none"), have), SizingMemory(), 1000.0, parked)
    assert decision.pools[Role.PREFILL].reason == f"{reason} for a first pair of workers"


def test_pools_sleep_only_when_nothing_is_at_work_either() -> None:
    a_spec = spec(minimum=0, scale_to_zero_after_s=60.0)
    state = fresh(ROUND_WORKER, a_spec)
    now = 1000.0
    _, state = learn_and_size(a_spec, state, seen(Arrivals(1, 10.0, (SHAPE,)), (1, 1)), (), now, 0.0)
    silent = seen(ProvenZero(), (1, 1), ProvenZero())
    for step in range(1, 12):
        working = replace(silent, running=Unknown("a worker has not told what it works on"))
        decision, state = learn_and_size(a_spec, state, working, (), now + 10 * step, 0.0)
    assert all(pool.workers == 1 for pool in decision.pools.values())
    decision, state = learn_and_size(a_spec, state, silent, (), now + 160, 0.0)
    assert all(pool.workers == 1 for pool in decision.pools.values()), "the quiet time begins when work ended"
    decision, state = learn_and_size(a_spec, state, silent, (), now + 170, 0.0)
    assert all(pool.workers == 0 for pool in decision.pools.values())


def test_a_restart_keeps_fits_and_history_within_4_kib() -> None:
    a_spec = spec(maximum=40)
    state = with_steps(a_spec, fresh(ROUND_WORKER, a_spec), prefill_steps(2.0))
    for step in range(200):
        reading = Arrivals(300 + step, 10.0, (SHAPE,) * 8)
        _, state = learn_and_size(a_spec, state, seen(reading, (3, 3)), (), 1000.0 + 10 * step, 0.0)
    text = save(state, now=3000.0, epoch_s=1.7e9)
    assert len(text.encode()) <= MAX_SAVED_BYTES
    again = restore(text, ROUND_WORKER, a_spec, now=5.0, epoch_s=1.7e9 + 60)
    assert again.model.prefill.seconds(1000, 5e5) == pytest.approx(state.model.prefill.seconds(1000, 5e5), rel=0.06)
    assert len(again.memory.history) > 50
    for torn in ("", "{}", text[:200], "[1]", '{"p":1,"d":2,"m":3}'):
        assert restore(torn, ROUND_WORKER, a_spec, 5.0, 1.7e9).memory.history == ()


def test_what_is_saved_has_at_most_4_kib_however_long_the_history_is() -> None:
    """The memory is text within text: its quotes take twice the room."""
    state = fresh(ROUND_WORKER, spec())
    for length in range(200, 420):
        history = (Interval(1.11, 1.11, 1.11),) * length
        text = save(replace(state, memory=replace(state.memory, history=history)), now=3000.0, epoch_s=1.7e9)
        assert len(text.encode()) <= MAX_SAVED_BYTES, length


def test_the_room_for_kv_is_what_workers_really_have() -> None:
    a_spec = spec()
    state = fresh(ROUND_WORKER, a_spec)
    assert with_kv_capacity(a_spec, state, 100_000) is state
    assert with_kv_capacity(a_spec, state, 5_000).model.kv_capacity_tokens == 5_000
