"""The machine of one request when workers are lost: retries, migration, budgets."""

from __future__ import annotations

import pytest

from baton_gateway import errors
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.request_events import (
    NoRoute,
    Prepared,
    Prompt,
    RoutesChanged,
    Tick,
    WorkerLost,
)
from baton_gateway.requests.retry_budget import RetryBudget
from baton_testing.gateway.request_drive import D1, D2, P1, P2, PROMPT, REQUEST, Drive, started
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.values import Finish, Reason, SamplingParams, pack_ids, unpack_ids

# Losing workers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["lost", "failed"])
def test_losing_the_prefill_worker_before_token_1_tries_again_with_the_same_tokens(event: str) -> None:
    drive = started()
    did = drive.feed(WorkerLost(P1)) if event == "lost" else drive.leg(P1, Reason.PEER_LOST)
    assert did == ["cancel D1/1", "pick"]
    assert drive.picks[0].avoid == {P1}
    assert drive.route(P2, D1) == ["reserve D1/2", "prefill P2/2"]
    assert tuple(unpack_ids(drive.last(Prefill).tokens)) == PROMPT


def test_losing_the_prefill_worker_between_its_token_and_the_hand_over_migrates() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick"]
    drive.route(P2, D1)
    message = drive.last(Prefill)
    assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 50)
    assert message.prompt_tokens == 3


def test_choices_that_go_on_alone_wait_for_workers_like_the_run_that_they_come_from() -> None:
    """Found by SIGSTOP under load: with n = 2 and no worker routable for a moment, the request was lost."""
    drive = started(n=2)
    drive.tokens(P1, 0, 50)
    drive.tokens(P1, 0, 60, choice=1)
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick", "pick"]
    runs = [drive.picks.pop(0).run for _ in range(2)]
    assert [drive.feed(NoRoute(run, errors.no_workers())) for run in runs] == [[], []]
    drive.now = 1.0
    assert drive.feed(RoutesChanged()) == ["pick", "pick"]


def test_an_attempt_that_stands_still_is_tried_elsewhere_although_its_workers_live() -> None:
    drive = started()
    assert drive.life.wake_at == drive.rules.first_stall_s
    drive.now = drive.rules.first_stall_s
    assert drive.feed(Tick()) == ["cancel D1/1", "cancel P1/1", "pick"]
    assert drive.picks[0].avoid == {P1, D1}
    drive.route(P2, D2)
    drive.tokens(P2, 0, 50, attempt=2)
    drive.tokens(D2, 0, 50, 51, attempt=2)


def test_a_stream_that_stands_still_migrates_from_its_last_token() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.now = 5.0
    drive.tokens(D1, 0, 50, 51)
    assert drive.life.wake_at == 5.0 + drive.rules.stall_s
    drive.now = 4.0 + drive.rules.stall_s
    assert drive.feed(Tick()) == []
    drive.tokens(D1, 2, 52)
    drive.now += drive.rules.stall_s
    assert drive.feed(Tick()) == ["cancel D1/1", "pick"]
    drive.route(P1, D2)
    assert tuple(unpack_ids(drive.last(Prefill).tokens)) == (*PROMPT, 50, 51, 52)
    drive.tokens(D1, 3, 99)  # of the attempt that was given up
    assert drive.delivered[0] == [50, 51, 52]


def test_attempts_that_stand_still_again_and_again_end_in_an_error() -> None:
    drive = started()
    for _ in range(drive.rules.max_failures - 1):
        drive.now = drive.life.wake_at
        drive.feed(Tick())
        if not drive.picks:
            drive.now = drive.life.wake_at
            drive.feed(Tick())
        drive.route()
    drive.now = drive.life.wake_at
    drive.feed(Tick())
    assert [end.outcome for end in drive.ends] == [Outcome.FAILED]


def test_losing_the_prefill_worker_after_the_hand_over_means_nothing() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.tokens(D1, 0, 50, 51)
    assert drive.feed(WorkerLost(P1)) == []
    assert drive.leg(P1, Reason.INTERNAL) == []


def test_losing_the_decode_worker_before_token_1_tries_again() -> None:
    drive = started()
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    assert drive.route(P2, D2) == ["cancel P1/1", "reserve D2/2", "prefill P2/2"]


def test_losing_the_decode_worker_in_the_stream_goes_on_without_a_gap_or_a_duplicate() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.tokens(D1, 0, 50, 51, 52)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    assert drive.picks[0].tokens == 6
    drive.route(P1, D2)
    message = drive.last(Reserve)
    assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 50, 51, 52)
    assert message.sampling.max_tokens == 8
    assert drive.tokens(P1, 3, 53, attempt=2) == ["deliver 0:53"]
    assert drive.tokens(D2, 3, 53, 54, attempt=2) == ["deliver 0:54"]
    assert drive.delivered[0] == [50, 51, 52, 53, 54]
    assert drive.life.migrations == 1


def test_losing_both_workers_at_once_routes_once() -> None:
    drive = started()
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick"]
    assert drive.feed(WorkerLost(D1)) == []
    assert drive.route(P2, D2) == ["reserve D2/2", "prefill P2/2"]


def test_late_tokens_of_an_old_attempt_are_dropped() -> None:
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.feed(WorkerLost(D1))
    assert drive.tokens(D1, 1, 51) == []
    drive.route(P1, D2)
    assert drive.tokens(D1, 1, 51, attempt=1) == []
    assert drive.tokens(D1, 1, 51, attempt=2) == [], "a worker of another attempt"
    assert drive.tokens(D2, 1, 51, attempt=2) == ["deliver 0:51"]


def test_a_gap_in_the_indexes_fails_the_attempt() -> None:
    drive = started()
    assert drive.tokens(D1, 2, 52) == ["cancel D1/1", "pick"]
    assert drive.picks[0].avoid == {D1}


def test_a_failed_hand_over_is_blamed_on_the_lost_prefill_worker() -> None:
    drive = started()
    assert drive.leg(D1, Reason.PEER_LOST) == ["cancel P1/1", "pick"]
    assert drive.picks[0].avoid == {P1}


def test_one_of_three_choices_migrates_when_the_others_are_done() -> None:
    drive = started(n=3)
    for choice in range(3):
        drive.tokens(D1, 0, 60 + choice, choice=choice, finish=Finish.STOP if choice != 1 else None)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    drive.route(P1, D2)
    message = drive.last(Reserve)
    assert message.choices == (1,)
    assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 61)
    assert drive.tokens(D2, 1, 71, choice=1, attempt=2, finish=Finish.STOP) == ["deliver 1:71", "end finished"]


def test_three_choices_with_different_tokens_migrate_each_under_its_own_id() -> None:
    drive = started(n=3)
    for choice in range(3):
        drive.tokens(D1, 0, 60 + choice, choice=choice)
    assert drive.feed(WorkerLost(D1)) == ["pick", "pick", "pick"]
    runs = [pick.run for pick in drive.picks]
    assert len({REQUEST, *runs}) == 4
    for choice in range(3):
        drive.route(P1, D2)
        message = drive.last(Reserve)
        assert (message.request, message.attempt, message.choices) == (runs[choice], 1, (choice,))
        assert tuple(unpack_ids(message.tokens)) == (*PROMPT, 60 + choice)
    for choice in range(3):
        drive.tokens(D2, 1, 70, choice=choice, run=runs[choice], finish=Finish.STOP)
    assert drive.ends[0].outcome is Outcome.FINISHED


def test_three_choices_without_a_token_are_tried_again_together() -> None:
    drive = started(n=3)
    assert drive.feed(WorkerLost(P1)) == ["cancel D1/1", "pick"]
    drive.route(P2, D1)
    assert drive.last(Reserve).choices == (0, 1, 2)


# Budgets and waits ----------------------------------------------------------------------------------------------------


def test_three_failures_in_a_row_end_the_request() -> None:
    drive = started()
    assert drive.leg(D1, Reason.INTERNAL) == ["pick"]
    assert drive.route(P2, D2) == ["cancel P1/1", "reserve D2/2", "prefill P2/2"]
    assert drive.leg(D2, Reason.KV_CORRUPT, attempt=2) == ["cancel P2/2"]
    drive.now = drive.life.wake_at
    assert drive.feed(Tick()) == ["pick"]
    drive.route()
    assert drive.leg(D1, Reason.INTERNAL, attempt=3) == ["cancel P1/3", "end failed workers_failed"]


def test_a_run_that_only_a_failing_worker_would_take_waits_for_another_one() -> None:
    """Its only other worker may be back a moment later, and three attempts at once would end it before."""
    drive = started()
    assert drive.leg(D1, Reason.INTERNAL) == ["pick"]
    drive.route(P1, D1)
    assert "pick" not in drive.leg(D1, Reason.INTERNAL, attempt=2)
    assert drive.life.wake_at == pytest.approx(drive.rules.max_backoff_s)
    drive.now = drive.life.wake_at
    assert drive.feed(Tick()) == ["pick"]
    drive.route(P1, D2)
    assert drive.tokens(P1, 0, 50, attempt=3) == ["deliver 0:50"]


@pytest.mark.parametrize("second", [Reason.INTERNAL, Reason.NO_CAPACITY])
def test_a_run_that_one_worker_alone_failed_waits_longer_for_another_one_than_three_attempts(second: Reason) -> None:
    """The failures speak against the worker: a worker that fails everything at once may be all that is left for
    seconds.
    """
    drive = started()
    assert drive.leg(D1, Reason.INTERNAL) == ["pick"]
    drive.route(P1, D1)
    assert "pick" not in drive.leg(D1, second, attempt=2)
    attempt = 2
    while drive.now < drive.rules.patience_s:
        attempt += 1
        assert drive.life.wake_at == pytest.approx(drive.now + drive.rules.max_backoff_s)
        drive.now = drive.life.wake_at
        assert drive.feed(Tick()) == ["pick"]
        drive.route(P1, D1)
        assert not drive.ends
        drive.leg(D1, Reason.INTERNAL, attempt=attempt)
    for _ in range(drive.rules.max_failures - 1):  # from now on they count
        assert not drive.ends
        attempt += 1
        drive.now = drive.life.wake_at
        drive.feed(Tick())
        drive.route(P1, D1)
        ended = drive.leg(D1, Reason.INTERNAL, attempt=attempt)
    assert ended[-1] == "end failed workers_failed"


def test_a_second_worker_that_fails_the_run_ends_the_patience_with_the_first() -> None:
    """Then the failures speak against the request."""
    drive = started()
    assert drive.leg(D1, Reason.INTERNAL) == ["pick"]
    drive.route(P1, D1)
    drive.leg(D1, Reason.INTERNAL, attempt=2)
    drive.now = drive.life.wake_at
    drive.feed(Tick())
    drive.route(P1, D2)
    drive.leg(D2, Reason.INTERNAL, attempt=3)
    drive.now = drive.life.wake_at
    drive.feed(Tick())
    drive.route(P1, D2)
    assert drive.leg(D2, Reason.INTERNAL, attempt=4) == ["cancel P1/4", "end failed workers_failed"]


def test_a_new_token_sets_the_count_of_failures_back() -> None:
    drive = started()
    for attempt in range(1, 7):
        drive.tokens(D1, attempt - 1, 50 + attempt, attempt=attempt)
        assert drive.leg(D1, Reason.INTERNAL, attempt=attempt) == ["pick"]
        drive.route()
    assert drive.delivered[0] == [51, 52, 53, 54, 55, 56]


def test_a_full_pool_is_tried_again_after_a_pause_and_then_told() -> None:
    drive = started()
    assert drive.leg(D1, Reason.NO_CAPACITY) == []
    assert drive.life.wake_at == pytest.approx(0.05)
    drive.now = 0.05
    drive.feed(Tick())
    drive.route()
    drive.leg(D1, Reason.NO_CAPACITY, attempt=2)
    drive.now = drive.life.wake_at
    drive.feed(Tick())
    drive.route()
    did = drive.leg(D1, Reason.NO_CAPACITY, attempt=3)
    assert did == ["cancel P1/3", "end failed no_capacity"]
    assert drive.ends[0].problem is not None
    assert drive.ends[0].problem.retry_after_s is not None


def test_a_stream_that_has_begun_waits_for_room_for_seconds() -> None:
    """Its client cannot go elsewhere: after a worker's death the only ones left may be full, or say so, for a while."""
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.tokens(D1, 1, 51)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    attempt = 1
    while drive.now < drive.rules.patience_s:
        attempt += 1
        drive.route(P1, D2)
        drive.leg(D2, Reason.NO_CAPACITY, attempt=attempt)
        assert not drive.ends
        assert drive.now < drive.life.wake_at <= drive.now + drive.rules.max_backoff_s
        drive.now = drive.life.wake_at
        assert drive.feed(Tick()) == ["pick"]
    assert attempt < 12, "it does not ask a full pool without end"
    drive.route(P1, D2)
    assert drive.tokens(D2, 2, 52, attempt=attempt + 1) == ["deliver 0:52"]


def test_the_budget_of_all_requests_stops_retries_after_failures_but_not_after_losses() -> None:
    empty = RetryBudget(ratio=0, balance=0, floor_per_s=0)
    assert started(budget=empty).leg(D1, Reason.INTERNAL) == ["cancel P1/1", "end failed workers_failed"]
    assert started(budget=empty).feed(WorkerLost(D1)) == ["pick"]


def test_workers_that_keep_going_away_are_given_up_in_the_end() -> None:
    drive = started()
    for attempt in range(1, 10):
        drive.leg(D1, Reason.PEER_LOST, attempt=attempt)
        drive.now = min(drive.life.wake_at, drive.now + 5)
        drive.feed(Tick())
        drive.route()
    assert drive.leg(D1, Reason.PEER_LOST, attempt=10) == ["cancel P1/10", "end failed workers_failed"]


# The revision goes ----------------------------------------------------------------------------------------------------


def outlived(run: bytes) -> NoRoute:
    return NoRoute(run, errors.no_workers(), is_superseded=True)


def test_a_request_whose_revision_went_before_its_first_token_is_prepared_for_another() -> None:
    drive = started()
    assert drive.leg(D1, Reason.DRAINING)[-1] == "pick"
    assert drive.feed(outlived(drive.picks.pop(0).run)) == ["cancel P1/1", "prepare"]
    drive.feed(Prepared((Prompt(pack_ids((21, 22)), SamplingParams(max_tokens=1), ""),)))
    run = drive.picks[0].run
    assert run != REQUEST
    assert drive.route(P2, D2) == ["reserve D2/1", "prefill P2/1"]
    assert drive.tokens(P1, 0, 50) == []  # of the attempt before
    assert drive.tokens(P2, 0, 60, run=run, finish=Finish.LENGTH) == ["deliver 0:60", "end finished"]


def test_a_request_that_was_told_a_token_stays_with_its_revision() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.leg(D1, Reason.DRAINING)
    assert drive.feed(outlived(drive.picks.pop(0).run)) == []
    assert drive.life.is_parked


def test_of_several_prompts_none_is_prepared_again_while_a_worker_is_at_another() -> None:
    drive = started(prompts=2)
    drive.leg(D1, Reason.DRAINING)
    assert drive.feed(outlived(drive.picks.pop(0).run)) == []


# Runs that end links --------------------------------------------------------------------------------------------------


def lose(drive: Drive, after_s: float, *, is_refusal: bool) -> None:
    """Both links of the attempt end, and what is asked for is routed again."""
    drive.now += after_s
    drive.feed(WorkerLost(D1, is_refusal))
    drive.feed(WorkerLost(P1, is_refusal))
    if not drive.ends:
        if not drive.picks:
            drive.now = drive.life.wake_at
            drive.feed(Tick())
        drive.route()


@pytest.mark.parametrize(("is_refusal", "links"), [(True, 2), (False, 3)])
def test_a_request_that_ends_links_at_once_again_and_again_is_not_tried_again(is_refusal: bool, links: int) -> None:
    drive = started()
    for attempt in range(1, links + 1):
        assert drive.life.attempts == attempt
        lose(drive, 0.01, is_refusal=is_refusal)
    assert [(end.outcome, end.problem) for end in drive.ends] == [(Outcome.FAILED, errors.links_ended())]
    assert drive.life.attempts == links


@pytest.mark.parametrize(("is_refusal", "after_s"), [(True, 1.1), (False, 0.3)])
def test_links_that_end_later_are_not_held_against_a_request(is_refusal: bool, after_s: float) -> None:
    drive = started()
    for _ in range(5):
        lose(drive, after_s, is_refusal=is_refusal)
    assert drive.ends == []


def test_a_token_between_them_says_that_the_request_is_not_the_cause() -> None:
    drive = started()
    for attempt in range(1, 6):
        drive.tokens(P1, 0, *range(50, 50 + attempt), attempt=attempt)
        lose(drive, 0.01, is_refusal=True)
    assert drive.ends == []
