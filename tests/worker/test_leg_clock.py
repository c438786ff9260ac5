"""The times of legs: reported with their first tokens and after preemptions, forgotten with the legs."""

from __future__ import annotations

from baton_engine.scheduling.events import ChunkLaunched, Computed, Computing, Drawn, Preempted, Reserved
from baton_wire.messages.values import Finish, LegTimes, RequestKey
from baton_worker.serving.leg_clock import SPARE_LEGS, LegClock

KEY = RequestKey(b"k" * 16, 1)


def opened(at_s: float) -> LegClock:
    clock = LegClock()
    clock.received(KEY, at_s, lambda key: True, 0)
    return clock


def drawn(index: int, finish: Finish | None = None) -> Drawn:
    return Drawn(KEY, 0, index, (7,), None, finish)


def test_a_prompt_that_is_handed_over_reports_its_queue_and_its_chunks() -> None:
    clock = opened(10.0)
    for place, at_s in enumerate((10.5, 11.0)):
        clock.take(Computing(KEY, place, 8, (1,)), at_s)
        clock.take(Computed(KEY, 8, (1,)), at_s + 0.25)
    assert clock.report(drawn(0), 11.5) == LegTimes(1.5, began_s=0.5, computed_s=1.25, chunks=2)
    assert clock.report(drawn(0), 11.5) is None, "another choice's first token"


def test_a_hand_over_reports_when_it_was_reserved_and_landed() -> None:
    clock = opened(1.0)
    clock.take(Reserved(KEY, 0, (1,)), 1.25)
    clock.landed(KEY, 2.0)
    assert clock.report(drawn(1), 2.5) == LegTimes(1.5, reserved_s=0.25, landed_s=1.0)


def test_a_preemption_is_reported_with_the_next_token_once() -> None:
    clock = opened(0.0)
    clock.take(ChunkLaunched(KEY), 0.5)
    assert clock.report(drawn(0), 1.0) == LegTimes(1.0, began_s=0.5, chunks=1)
    clock.take(Preempted(KEY), 2.0)
    clock.take(ChunkLaunched(KEY), 4.0)
    assert clock.report(drawn(1), 5.0) == LegTimes(5.0, preemptions=1, preempted_s=3.0)
    assert clock.report(drawn(2), 6.0) is None


def test_times_of_an_unknown_leg_are_none() -> None:
    clock = LegClock()
    clock.take(Preempted(KEY), 1.0)
    clock.landed(KEY, 1.0)
    assert clock.report(drawn(0), 2.0) is None


def test_legs_that_ended_are_forgotten() -> None:
    clock = LegClock()
    for number in range(10 * SPARE_LEGS):
        clock.received(RequestKey(number.to_bytes(16), 1), 0.0, lambda key: False, 0)
    assert len(clock) <= SPARE_LEGS + 2


def test_a_sequence_that_landed_reports_with_its_second_token_how_long_it_waited_for_a_slot() -> None:
    clock = opened(10.0)
    clock.landed(KEY, 10.5)
    assert clock.report(drawn(0), 10.6) is None, "the first token came with the KV"
    times = clock.report(drawn(1), 14.0)
    assert times is not None
    assert (times.landed_s, times.sent_s) == (0.5, 4.0)
    assert clock.report(drawn(2), 15.0) is None


def test_a_sequence_that_landed_with_its_last_token_reports_with_that() -> None:
    clock = opened(10.0)
    clock.landed(KEY, 10.5)
    times = clock.report(drawn(0, Finish.LENGTH), 10.6)
    assert times is not None
    assert times.landed_s == 0.5
