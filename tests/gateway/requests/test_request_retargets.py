"""KV at a prefill worker goes to another decode worker when the first one fails: nothing is computed again."""

from __future__ import annotations

import pytest

from baton_gateway.requests.request_events import ClientGone, LegEnded, StopFound, Tick, WorkerLost
from baton_testing.gateway.request_drive import D1, D2, P1, P2, PROMPT, REQUEST, Drive, started
from baton_wire.messages.gateway_link import LegFailed, Reserve, Retarget
from baton_wire.messages.values import Finish, Reason, unpack_ids


def retain(drive: Drive, reason: Reason = Reason.PEER_LOST, attempt: int = 1) -> list[str]:
    """The prefill worker reports that its hand-over failed and that it retains the KV."""
    return drive.feed(LegEnded(P1, LegFailed(REQUEST, attempt, reason, "", True)))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("event", ["lost", "full", "reported by the prefill worker"])
def test_a_failed_decode_worker_is_replaced_and_nothing_is_computed_again(event: str, first: bool) -> None:
    drive = started()
    if first:
        drive.tokens(P1, 0, 50)
    if event == "lost":
        did = drive.feed(WorkerLost(D1))
    elif event == "full":
        did = drive.leg(D1, Reason.DRAINING)
    else:
        did = retain(drive)
        assert did.pop(0) == "cancel D1/1"
    assert did == ["pick"]
    assert drive.picks[0].retained_by == P1
    assert drive.picks[0].avoid == {D1}
    assert drive.route(P1, D2) == ["retarget P1/1", "reserve D2/2"]
    reserve, retarget = drive.sent[-1].message, drive.sent[-2].message
    assert isinstance(reserve, Reserve)
    assert isinstance(retarget, Retarget)
    assert (retarget.next_attempt, retarget.decode.epoch, reserve.prefill_epoch) == (2, D2, P1)
    assert tuple(unpack_ids(reserve.tokens)) == PROMPT
    drive.tokens(P1, 0, 50, attempt=2)
    drive.tokens(D2, 0, 50, 51, attempt=2)
    assert drive.delivered[0] == [50, 51]


def test_late_words_of_the_first_attempt_change_nothing() -> None:
    drive = started()
    drive.feed(WorkerLost(D1))
    drive.route(P1, D2)
    assert retain(drive) == []
    assert drive.tokens(P1, 0, 50, attempt=1) == []
    assert drive.leg(P1, Reason.UNKNOWN_REQUEST, attempt=1) == []


def test_kv_that_is_not_there_any_more_is_computed_again() -> None:
    drive = started()
    drive.feed(WorkerLost(D1))
    drive.route(P1, D2)
    assert drive.leg(P1, Reason.UNKNOWN_REQUEST, attempt=2)[:1] == ["cancel D2/2"]
    drive.now = drive.life.wake_at
    if not drive.picks:
        drive.feed(Tick())
    assert drive.picks[0].retained_by is None
    assert drive.route(P2, D2) == ["reserve D2/3", "prefill P2/3"]


@pytest.mark.parametrize("event", ["lost", "let go"])
def test_a_keeper_that_is_gone_before_a_route_is_found_is_forgotten(event: str) -> None:
    drive = started()
    drive.leg(D1, Reason.NO_CAPACITY)
    if event == "lost":
        assert drive.feed(WorkerLost(P1)) == []
    else:
        assert drive.leg(P1, Reason.UNKNOWN_REQUEST) == []
    drive.now = drive.life.wake_at
    assert drive.feed(Tick()) == ["pick"]
    assert drive.route(P2, D2) == ["reserve D2/2", "prefill P2/2"]


def test_a_keeper_that_is_not_chosen_is_told_to_let_go() -> None:
    drive = started()
    drive.feed(WorkerLost(D1))
    assert drive.route(P2, D2) == ["cancel P1/1", "reserve D2/2", "prefill P2/2"]
    drive = started()
    drive.feed(WorkerLost(D1))
    assert drive.route(None, D2) == ["cancel P1/1", "reserve D2/2"]


def test_a_stream_that_went_on_at_the_decode_worker_migrates_instead() -> None:
    drive = started()
    drive.tokens(D1, 0, 50, 51)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    assert drive.picks[0].retained_by is None


@pytest.mark.parametrize("reason", [Reason.KV_CORRUPT, Reason.PEER_LOST])
def test_kv_that_may_be_bad_or_out_of_reach_is_computed_again(reason: Reason) -> None:
    drive = started()
    assert drive.leg(D1, reason) == ["cancel P1/1", "pick"]
    assert drive.picks[0].retained_by is None


def test_all_choices_of_a_prompt_go_on_together() -> None:
    drive = started(n=2)
    drive.tokens(P1, 0, 50)
    drive.tokens(P1, 0, 60, choice=1)
    assert drive.feed(WorkerLost(D1)) == ["pick"]
    assert drive.route(P1, D2) == ["retarget P1/1", "reserve D2/2"]
    message = drive.last(Reserve)
    assert message.choices == (0, 1)
    assert tuple(unpack_ids(message.tokens)) == PROMPT
    drive.tokens(D2, 0, 50, 51, attempt=2)
    drive.tokens(D2, 0, 60, 61, choice=1, attempt=2)
    assert drive.delivered == {0: [50, 51], 1: [60, 61]}


@pytest.mark.parametrize("how", ["finish", "stop string"])
def test_with_a_choice_that_is_over_the_others_migrate(how: str) -> None:
    drive = started(n=2)
    drive.tokens(P1, 0, 50, finish=Finish.STOP if how == "finish" else None)
    if how == "stop string":
        drive.feed(StopFound(0, 1))
    drive.tokens(P1, 0, 60, choice=1)
    assert drive.feed(WorkerLost(D1)) == ["cancel P1/1", "pick"]
    assert drive.picks[0].retained_by is None


def test_a_migrated_choice_can_be_sent_on_too() -> None:
    drive = started()
    drive.tokens(D1, 0, 50, 51)
    drive.feed(WorkerLost(D1))
    drive.route(P1, D2)
    drive.tokens(P1, 2, 52, attempt=2)
    drive.feed(WorkerLost(D2))
    assert drive.route(P1, D1) == ["retarget P1/2", "reserve D1/3"]
    assert tuple(unpack_ids(drive.last(Reserve).tokens)) == (*PROMPT, 50, 51)
    drive.tokens(D1, 2, 52, 53, attempt=3)
    assert drive.delivered[0] == [50, 51, 52, 53]


def test_the_client_that_goes_away_meanwhile_frees_what_is_kept() -> None:
    drive = started()
    drive.leg(D1, Reason.NO_CAPACITY)
    assert drive.feed(ClientGone()) == ["cancel P1/1", "end cancelled"]
