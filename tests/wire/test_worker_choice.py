"""Which worker takes a prompt: home, unless waiting there costs more; new sessions where least was done lately."""

from __future__ import annotations

from collections import Counter

import pytest

from baton_wire.rules.worker_choice import WorkerOption, choose_worker, mixed

IDLE = WorkerOption(missing_tokens=16_000, queued_tokens=0)


def chosen(*options: WorkerOption, tie: int = 3) -> int:
    return choose_worker(options, tie)


@pytest.mark.parametrize(
    ("home", "place"),
    [
        (WorkerOption(400, 0), 1),
        (WorkerOption(400, 46_799), 1),
        (WorkerOption(400, 46_801), 0),
        (WorkerOption(400, 0, is_full=True), 0),
        (WorkerOption(400, 0, is_last_resort=True), 0),
        (WorkerOption(400, 0, sequences=731), 1),
        (WorkerOption(400, 0, sequences=732), 0),
        (WorkerOption(400, 0, lately_tokens_s=46_000.0), 1),
    ],
)
def test_a_session_stays_at_home_until_its_wait_costs_more_than_computing_it_again(
    home: WorkerOption, place: int
) -> None:
    assert chosen(IDLE, home) == place


def test_a_worker_of_last_resort_is_taken_after_full_ones_and_both_where_there_is_no_other() -> None:
    full, last = IDLE._replace(is_full=True), IDLE._replace(is_last_resort=True, queued_tokens=-1)
    assert chosen(last, full) == 1
    assert chosen(last) == 0
    assert chosen(last._replace(queued_tokens=5), last) == 1


def test_of_idle_workers_the_one_that_did_least_lately_gets_the_new_session() -> None:
    workers = [IDLE._replace(lately_tokens_s=rate, seed=place) for place, rate in enumerate((900.0, 20.0, 400.0))]
    assert {choose_worker(workers, tie) for tie in range(50)} == {1}


def test_new_contexts_spread_and_prompts_that_were_just_sent_count() -> None:
    workers = [IDLE._replace(seed=mixed(place)) for place in range(4)]
    counts: Counter[int] = Counter()
    for tie in range(40):
        place = choose_worker(workers, mixed(tie))
        counts[place] += 1
        workers[place] = workers[place]._replace(queued_tokens=workers[place].queued_tokens + 16_000)
    assert set(counts.values()) == {10}


def test_a_common_beginning_is_computed_again_only_where_the_queue_is_long() -> None:
    """Eight sessions with a common beginning of 12k tokens arrive at once at four idle workers."""
    queued, has_head = [0] * 4, [False] * 4
    for _ in range(8):
        options = [
            WorkerOption(4_000 if head else 16_000, tokens) for tokens, head in zip(queued, has_head, strict=True)
        ]
        place = choose_worker(options, 1)
        queued[place] += options[place].missing_tokens
        has_head[place] = True
    assert sum(has_head) <= 3


def test_a_new_session_goes_where_the_cache_has_room_although_another_worker_has_its_beginning() -> None:
    """13,000 new tokens after a head of 12,000; every worker with the head is full of other sessions' contexts."""
    full = WorkerOption(13_000, 0, displaced_tokens=13_000)
    room = WorkerOption(25_000, 0)
    assert chosen(full, room) == 1
    assert chosen(full._replace(displaced_tokens=0), room) == 0, "while there is room for it, too"


def test_a_session_does_not_leave_a_full_home_for_an_empty_worker() -> None:
    assert chosen(WorkerOption(6_000, 20_000, displaced_tokens=6_000), WorkerOption(64_000, 0)) == 0
