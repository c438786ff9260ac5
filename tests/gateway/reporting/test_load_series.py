"""The series of the last hour: exact counts by target, bounded, and added over processes."""

from __future__ import annotations

from baton_gateway.reporting.load_series import MAX_SLOTS, SLOT_S, LoadSeries, merge_slots
from baton_gateway.reporting.outcome import Outcome


def test_attainment_is_exact_at_the_target() -> None:
    series = LoadSeries(0.5, 0.05)
    for seconds in (0.1, 0.5, 0.500001):
        series.count_first_token(seconds, 3.0)
    series.count_sequence(0.05, 3.0)
    series.count_sequence(0.0500001, 3.0)
    [slot] = series.slots(9.0)
    assert (slot.first_tokens, slot.first_in_time) == (3, 2)
    assert (slot.sequences, slot.sequences_in_time) == (2, 1)


def test_every_outcome_has_a_count() -> None:
    series = LoadSeries()
    for outcome in Outcome:
        series.count_end(outcome, 5, 7, 0.0)
    [slot] = series.slots(0.0)
    assert [getattr(slot, outcome) for outcome in Outcome] == [1] * len(Outcome)
    assert (slot.prompt_tokens, slot.completion_tokens) == (20, 28)


def test_what_is_older_than_an_hour_is_gone_and_idle_time_takes_no_room() -> None:
    series = LoadSeries()
    for number in range(3 * MAX_SLOTS):
        series.sample(number, 0, number * SLOT_S)
    slots = series.slots(3 * MAX_SLOTS * SLOT_S - 1)
    assert (len(slots), slots[-1].running) == (MAX_SLOTS, 3 * MAX_SLOTS - 1)
    assert series.slots(9 * MAX_SLOTS * SLOT_S) == []


def test_another_target_judges_from_the_next_slot_on() -> None:
    series = LoadSeries(1.0)
    series.count_first_token(0.7, 0.0)
    series.retarget(0.5, None)
    series.count_first_token(0.7, 1.0)
    series.count_first_token(0.7, SLOT_S)
    assert [(slot.ttft_target_s, slot.first_in_time) for slot in series.slots(SLOT_S)] == [(1.0, 2), (0.5, 0)]


def test_processes_are_added_and_stay_as_they_were() -> None:
    one, other = LoadSeries(1.0), LoadSeries(1.0)
    one.count_first_token(0.5, 5.0)
    other.count_first_token(2.0, 5.0)
    other.count_first_token(0.5, 15.0)
    merged = merge_slots([one.slots(20.0), other.slots(20.0)])
    assert [(slot.first_tokens, slot.first_in_time) for slot in merged] == [(2, 1), (1, 1)]
    assert merge_slots([one.slots(20.0)])[0].first_tokens == 1
