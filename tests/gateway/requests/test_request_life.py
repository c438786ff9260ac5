"""The machine of one request, alone, when nothing is lost: whole sequences of events and what it does at each."""

from __future__ import annotations

from baton_gateway.requests.request_events import (
    Admitted,
    ClientGone,
    LifeRules,
    Prepared,
    Prompt,
    Routed,
    StopFound,
    Tick,
    WorkerLost,
)
from baton_gateway.workers.route import Route
from baton_testing.gateway.request_drive import D1, DEADLINE_S, P1, P2, PROMPT, Drive, started
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.values import Address, Finish, Reason, SamplingParams, pack_ids, unpack_ids

# The way it should go -------------------------------------------------------------------------------------------------


def test_both_legs_start_at_once_and_tokens_are_delivered_once() -> None:
    drive = Drive(max_tokens=3)
    assert drive.feed(Admitted()) == ["prepare"]
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), "s"),)))
    assert drive.route() == ["reserve D1/1", "prefill P1/1"]
    assert drive.tokens(P1, 0, 50) == ["deliver 0:50"]
    assert drive.tokens(D1, 0, 50) == []
    assert drive.tokens(D1, 1, 51) == ["deliver 0:51"]
    assert drive.tokens(D1, 2, 52, finish=Finish.LENGTH) == ["deliver 0:52", "end finished"]
    assert drive.life.completion_tokens() == 3


def test_the_messages_say_the_same_to_both_workers() -> None:
    drive = started()
    reserve, prefill = drive.last(Reserve), drive.last(Prefill)
    assert isinstance(reserve, Reserve)
    assert isinstance(prefill, Prefill)
    assert reserve.prefill_epoch == P1
    assert prefill.decode.epoch == D1
    for message in (reserve, prefill):
        assert tuple(unpack_ids(message.tokens)) == PROMPT
        assert (message.prompt_tokens, message.choices, message.timeout_s) == (3, (0,), DEADLINE_S)


def test_what_is_missing_of_a_prompt_is_reckoned_where_it_is_computed() -> None:
    address = Address("10.0.0.1", 7)
    for route, expected in (
        (Route(P1, D1, address, missing_tokens=2), [None, 2]),
        (Route(None, D1, None, missing_tokens=1), [1]),
        (Route(P1, D1, address), [None, None]),
    ):
        drive = Drive()
        drive.feed(Admitted())
        drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), ""),)))
        drive.feed(Routed(drive.picks.pop().run, route))
        assert [send.missing_tokens for send in drive.sent] == expected


def test_a_decode_worker_is_sent_the_target_between_tokens() -> None:
    reserve = started(rules=LifeRules(tpot_s=0.012)).last(Reserve)
    assert isinstance(reserve, Reserve)
    assert reserve.tpot_s == 0.012


def test_a_token_of_the_decode_worker_may_come_before_that_of_the_prefill_worker() -> None:
    drive = started()
    assert drive.tokens(D1, 0, 50, 51) == ["deliver 0:50,51"]
    assert drive.tokens(P1, 0, 50) == []
    assert drive.tokens(D1, 1, 51, 52) == ["deliver 0:52"]


def test_a_request_that_ends_at_its_first_token_sends_no_cancel() -> None:
    drive = started()
    assert drive.tokens(P1, 0, 2, finish=Finish.STOP) == ["deliver 0:2", "end finished"]


def test_a_finish_that_only_the_repetition_carries_counts() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert drive.tokens(D1, 0, 50, finish=Finish.LENGTH) == ["deliver 0:", "end finished"]


def test_cached_tokens_are_what_the_worker_of_the_prompt_said() -> None:
    drive = started()
    assert drive.life.cached_tokens() is None
    drive.tokens(D1, 0, 50)
    assert drive.life.cached_tokens() is None
    drive.tokens(P1, 0, 50, cached=2)
    assert drive.life.cached_tokens() == 2


def test_cached_tokens_of_several_prompts_are_unknown_until_all_were_told() -> None:
    drive = Drive(prompts=2)
    drive.start()
    first, second = (send.message.request for send in drive.sent if isinstance(send.message, Prefill))
    drive.tokens(P1, 0, 50, run=first, cached=0)
    assert drive.life.cached_tokens() is None
    drive.tokens(P1, 0, 50, run=second, cached=3)
    assert drive.life.cached_tokens() == 3


def test_a_second_attempt_does_not_change_what_the_first_said_of_the_cache() -> None:
    drive = started(n=2)
    drive.tokens(P1, 0, 50, cached=0)
    drive.leg(P1, Reason.INTERNAL)
    drive.route(None)
    drive.route(None)
    later = [send.message.request for send in drive.sent if isinstance(send.message, Reserve)][-1]
    drive.tokens(D1, 0, 51, choice=1, run=later, cached=3)
    assert drive.delivered == {0: [50], 1: [51]}
    assert drive.life.cached_tokens() == 0


def test_a_local_prefill_has_one_leg() -> None:
    drive = Drive()
    drive.start(prefill=None)
    assert [type(send.message) for send in drive.sent] == [Reserve]
    assert drive.feed(ClientGone()) == ["cancel D1/1", "end cancelled"]


def test_a_route_without_a_prefill_worker_or_without_an_address_has_one_leg() -> None:
    """A decode worker that has no address for prefill workers, because it was one itself, computes the prompt."""
    for route in (Route(P1, D1, None), Route(None, D1, Address("10.0.0.1", 7))):
        drive = Drive()
        drive.feed(Admitted())
        drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), ""),)))
        drive.feed(Routed(drive.picks.pop().run, route))
        (sent,) = drive.sent
        assert isinstance(sent.message, Reserve)
        assert (sent.worker, sent.message.prefill_epoch) == (D1, None)


def test_choices_finish_one_by_one_and_the_request_with_the_last() -> None:
    drive = started(n=3)
    assert drive.last(Reserve).choices == (0, 1, 2)
    for choice in range(3):
        drive.tokens(P1, 0, 60 + choice, choice=choice)
    assert drive.tokens(D1, 1, 70, choice=1, finish=Finish.STOP) == ["deliver 1:70"]
    assert drive.tokens(D1, 1, 70, choice=0, finish=Finish.STOP) == ["deliver 0:70"]
    assert drive.tokens(D1, 1, 70, choice=2, finish=Finish.STOP) == ["deliver 2:70", "end finished"]


def test_every_prompt_of_a_batch_has_a_run_of_its_own() -> None:
    drive = started(prompts=2, n=2)
    runs = [send.message.request for send in drive.sent if isinstance(send.message, Reserve)]
    assert len(set(runs)) == 2
    assert drive.tokens(P1, 0, 50, choice=1, run=runs[1]) == ["deliver 3:50"]
    assert drive.life.prompt_tokens() == 6


# Stop strings ---------------------------------------------------------------------------------------------------------


def test_a_stop_string_cancels_both_legs_before_the_hand_over_is_known() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert drive.feed(StopFound(0, 1)) == ["cancel D1/1", "cancel P1/1", "end finished"]


def test_a_stop_string_of_one_choice_cancels_only_that_choice() -> None:
    drive = started(n=2)
    drive.tokens(D1, 0, 50, 51, 52, choice=1)
    assert drive.feed(StopFound(1, 2)) == ["cancel D1/1#1"]
    assert drive.life.completion_tokens() == 2
    assert drive.tokens(D1, 3, 53, choice=1) == []
    drive.tokens(D1, 0, 60, choice=0)
    assert drive.feed(StopFound(0, 1)) == ["cancel D1/1", "end finished"]


def test_a_stop_string_in_the_last_tokens_adds_nothing() -> None:
    drive = started()
    assert drive.tokens(D1, 0, 50, finish=Finish.LENGTH)[-1] == "end finished"
    assert drive.feed(StopFound(0, 1)) == []


# What is said of prompts ----------------------------------------------------------------------------------------------


def test_tokens_that_overtake_what_is_said_of_the_prompt_wait_for_it() -> None:
    """Both workers have links of their own: the decode worker's first step may arrive before all of the prompt."""
    drive = started(prompt_logprobs=2, max_tokens=3)
    assert drive.tokens(D1, 0, 50) == []
    assert drive.scores(P1, 1, 1) == ["prompt 0:1+1"]
    assert drive.tokens(D1, 1, 51) == []
    assert drive.scores(P1, 2, 1) == ["prompt 0:2+1", "deliver 0:50", "deliver 0:51"]
    assert drive.tokens(P1, 0, 50) == []
    assert drive.tokens(D1, 2, 52, finish=Finish.LENGTH) == ["deliver 0:52", "end finished"]


def test_an_answer_that_is_whole_before_its_prompt_is_told_ends_with_it() -> None:
    drive = started(prompt_logprobs=0, max_tokens=2)
    assert drive.tokens(D1, 0, 50, 51, finish=Finish.LENGTH) == []
    assert drive.scores(P1, 1, 2) == ["prompt 0:1+2", "deliver 0:50,51", "end finished"]


def test_a_prefill_worker_that_is_lost_before_it_told_all_is_replaced() -> None:
    drive = started(prompt_logprobs=0, max_tokens=2)
    drive.tokens(D1, 0, 50)
    drive.scores(P1, 1, 1)
    drive.feed(WorkerLost(P1))
    drive.now += 60
    drive.feed(Tick())
    drive.route(P2)
    assert drive.tokens(D1, 0, 50, attempt=2) == []
    assert drive.scores(P2, 1, 2, attempt=2) == ["prompt 0:1+2", "deliver 0:50"]
