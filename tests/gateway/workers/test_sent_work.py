"""What this process knows of its own prompts and sequences at workers, between their reports."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton_gateway.workers.linked_workers import LinkedWorker
from baton_gateway.workers.sent_work import SentWork
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.gateway_link import Cancel, LegFailed, Prefill, Reserve, WorkerState
from baton_wire.messages.values import Address, Finish, PeerRef, Reason, Role, SamplingParams, TokenEntry

RUN = b"r" * 16


def linked(role: Role) -> LinkedWorker:
    hello: dict[str, Any] = dict.fromkeys(("served_name", "fingerprint", "max_context_tokens", "max_choices"))
    hello |= {
        "epoch": role.encode(),
        "role": role,
        "pair_port": None,
        "block_tokens": 16,
        "blocks_total": 100,
        "keeps_answers": False,
    }
    hello |= {"encoding": None, "max_sequences": 4}
    return LinkedWorker(
        cast(Any, SimpleNamespace(**hello)), Address("127.0.0.1", 1), cast(Any, None), lambda message: True, lambda: 1.0
    )


def state(running: int = 0, waiting: int = 0, waiting_tokens: int = 0) -> WorkerState:
    return WorkerState(False, running, waiting, waiting_tokens, 90, 0, 5, 0.1)


def entry(choice: int = 0, attempt: int = 1, first_index: int = 0, finish: Finish | None = None) -> TokenEntry:
    return TokenEntry(RUN, attempt, choice, first_index, (7,), None, finish)


def sent(prefill: LinkedWorker, decode: LinkedWorker, tokens: int, sequences: int, attempt: int = 1) -> SentWork:
    return resent(SentWork(), prefill, decode, tokens, sequences, attempt)


def resent(
    work: SentWork, prefill: LinkedWorker, decode: LinkedWorker, tokens: int, sequences: int, attempt: int
) -> SentWork:
    common = (RUN, attempt, bytes(4 * tokens), tokens, tuple(range(sequences)), SamplingParams(max_tokens=9), 1.0, "")
    work.record(decode, Reserve(*common, prefill.hello.epoch), 0)
    work.record(prefill, Prefill(*common, PeerRef(Address("127.0.0.1", 2), decode.hello.epoch)))
    return work


def _view(worker: LinkedWorker) -> WorkerView:
    worker.forget_view()
    return worker.view()


def test_a_prompt_is_no_load_from_its_first_token_on() -> None:
    prefill, decode = linked(Role.PREFILL), linked(Role.DECODE)
    prefill.record_report(state(waiting_tokens=300))
    work = sent(prefill, decode, 2_000, 1)
    assert _view(prefill).load_tokens == 2_300
    assert work.take(entry())
    assert _view(prefill).load_tokens == 300
    assert not work.take(entry(first_index=0)), "the decode worker repeats it"
    prefill.record_report(state())
    assert _view(prefill).load_tokens == 0


@pytest.mark.parametrize("in_report", [0, 2])
def test_sequences_that_ended_leave_their_slots_to_waiting_ones(in_report: int) -> None:
    prefill, decode = linked(Role.PREFILL), linked(Role.DECODE)
    decode.record_report(state(running=4, waiting=in_report))
    work = sent(prefill, decode, 10, 2)
    assert _view(decode).waiting == in_report + 2
    work.take(entry())
    assert work.take(entry(choice=0, first_index=5, finish=Finish.STOP))
    assert (_view(decode).waiting, _view(decode).load_sequences) == (in_report + 1, 5 + in_report)
    assert work.end(RUN), "its other sequence is cancelled"
    assert _view(decode).load_sequences == 4 + in_report
    assert not work.end(RUN)
    decode.record_report(state(running=4))
    assert _view(decode).load_sequences == 4, "the report has counted them"


def test_tokens_of_an_earlier_attempt_say_nothing_about_the_next_one() -> None:
    before, prefill, decode = linked(Role.PREFILL), linked(Role.PREFILL), linked(Role.DECODE)
    work = sent(before, decode, 100, 1)
    resent(work, prefill, decode, 100, 1, attempt=2)
    assert not work.take(entry(attempt=1, finish=Finish.STOP))
    assert _view(prefill).load_tokens == 100
    assert work.take(entry(attempt=2))


def test_a_finish_with_the_first_token_ends_the_reservation_too() -> None:
    prefill, decode = linked(Role.PREFILL), linked(Role.DECODE)
    work = sent(prefill, decode, 100, 1)
    assert work.take(entry(finish=Finish.LENGTH))
    assert (_view(prefill).load_tokens, _view(decode).load_sequences) == (0, 0)
    assert not work.end(RUN)
    assert not len(work)


def test_a_choice_counts_once_however_often_its_end_is_seen() -> None:
    prefill, decode = linked(Role.PREFILL), linked(Role.DECODE)
    work = sent(prefill, decode, 100, 3)
    assert work.take(entry(choice=0, finish=Finish.STOP))
    assert not work.take(entry(choice=0, finish=Finish.STOP)), "the decode worker repeats it"
    assert _view(decode).load_sequences == 2
    assert work.record(decode, Cancel(RUN, 1, 1)), "a stop string cut it"
    assert _view(decode).load_sequences == 1
    decode.record_report(state(running=1))
    assert not work.take(entry(choice=1, first_index=3, finish=Finish.LENGTH)), "it was on its way"
    assert work.end(RUN)
    assert _view(decode).load_sequences == 0


@pytest.mark.parametrize("is_failed", [True, False])
def test_an_attempt_that_ended_before_a_report_is_not_counted_again_by_the_next_one(is_failed: bool) -> None:
    prefill, decode, other = linked(Role.PREFILL), linked(Role.DECODE), linked(Role.DECODE)
    work = sent(prefill, decode, 100, 2)
    if is_failed:
        assert work.take_failed(b"prefill", LegFailed(RUN, 1, Reason.NO_CAPACITY)), "it computes the prompt no more"
        assert _view(prefill).load_tokens == 0
        assert work.take_failed(b"decode", LegFailed(RUN, 1, Reason.NO_CAPACITY))
    else:
        assert not work.record(prefill, Cancel(RUN, 1)), "the prompt counts until the worker reports"
        assert _view(prefill).load_tokens == 100
        assert work.record(decode, Cancel(RUN, 1))
    assert _view(decode).load_sequences == 0
    decode.record_report(state(running=3))
    resent(work, prefill, other, 100, 2, attempt=2)
    assert _view(decode).load_sequences == 3, "sequences of others"
    assert not work.take_failed(b"decode", LegFailed(RUN, 1, Reason.INTERNAL)), "of the attempt before"
    assert _view(other).load_sequences == 2


def test_what_is_unknown_or_over_is_not_counted_twice() -> None:
    work = SentWork()
    assert not work.take(entry())
    work.take_encoded(RUN)
    assert not work.record(linked(Role.DECODE), Cancel(RUN, 1))
    assert not work.take_failed(b"decode", LegFailed(RUN, 1, Reason.INTERNAL))
    assert not work.end(RUN)
