"""A worker that holds a valid key and lies about its requests: they go on elsewhere, and no client reads the lies."""

from __future__ import annotations

import math

import pytest

from baton_gateway.requests.request_events import Admitted, Arrived, LegEnded, Prepared, Prompt, PromptArrived
from baton_gateway.requests.token_validation import find_entry_fault, find_logprobs_fault, read_logprobs
from baton_testing.gateway.request_drive import D1, D2, P1, P2, PROMPT, REQUEST, Drive, started
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.gateway_link import LegFailed, PromptLogprobs, ToGateway, Tokens
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.values import (
    Finish,
    PromptLogprob,
    Reason,
    SamplingParams,
    TokenEntry,
    TokenLogprob,
    pack_ids,
)

VOCAB = 100
LIES = (math.nan, math.inf, 1.0, 1e300)


def prompt(**sampling: int | None) -> Prompt:
    return Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=8, **sampling), "", VOCAB)  # type: ignore[arg-type]


def entry(*ids: int, first: int = 0, logprobs: tuple[TokenLogprob, ...] | None = None) -> TokenEntry:
    return TokenEntry(REQUEST, 1, 0, first, ids, None if logprobs is None else pack_logprobs(logprobs))


def fault(entry: TokenEntry, of: Prompt) -> str | None:
    return find_entry_fault(entry, read_logprobs(entry), of)


@pytest.mark.parametrize(
    ("impossible", "named"),
    [
        (entry(5, VOCAB), "token id 100"),
        (entry(5, (1 << 24) - 1), "token id"),
        (entry(5, first=8), "9 tokens where 8"),
        (entry(5, first=1 << 20), "tokens where 8"),
        (entry(*range(9)), "9 tokens where 8"),
    ],
)
def test_tokens_that_cannot_be_are_named(impossible: TokenEntry, named: str) -> None:
    assert named in (fault(impossible, prompt()) or "")
    assert fault(entry(5, VOCAB - 1, first=6), prompt()) is None


@pytest.mark.parametrize("value", LIES)
def test_log_probabilities_that_are_none_are_not_taken(value: float) -> None:
    wanted, good = prompt(logprobs=2), TokenLogprob(-0.5, ((3, -0.5), (4, -math.inf)))
    assert fault(entry(5, logprobs=(good,)), wanted) is None
    for bad in (TokenLogprob(value, ()), TokenLogprob(-0.5, ((3, value),)), TokenLogprob(-0.5, ((VOCAB, -0.5),))):
        assert fault(entry(5, logprobs=(bad,)), wanted) is not None
    assert fault(entry(5), wanted) is not None
    assert fault(entry(5, 6, logprobs=(good,)), wanted) is not None


@pytest.mark.parametrize(
    "unreadable",
    [
        b"",
        b"\xff" * 40,
        pack_logprobs((TokenLogprob(-0.5, ()),)) + b"\x00",
        pack_logprobs((TokenLogprob(-0.5, ((3, -0.5),) * 21),)),
        pack_logprobs((TokenLogprob(-0.5, ((-3, -0.5),)),)),
        b"\x91" * 15_000,
        b"\xd4\x05\x00",
    ],
)
def test_log_probabilities_that_cannot_be_read_cost_their_run_an_attempt_and_no_other(unreadable: bytes) -> None:
    drive = Drive()
    drive.feed(Admitted())
    drive.feed(Prepared((prompt(logprobs=2),)))
    drive.route()
    lie = TokenEntry(REQUEST, 1, 0, 0, (50,), unreadable)
    assert decode(encode(Tokens(1, (lie,))), ToGateway) == Tokens(1, (lie,)), "the link takes it"
    assert drive.feed(Arrived(P1, lie))[:1] == ["cancel P1/1"]
    assert drive.delivered == {}


@pytest.mark.parametrize("value", LIES)
def test_log_probabilities_of_a_prompt_that_cannot_be_are_not_taken(value: float) -> None:
    def scores(first: int, *of: float) -> PromptLogprobs:
        return PromptLogprobs(REQUEST, 1, first, tuple(PromptLogprob(value, 1, ()) for value in of))

    wanted = prompt(prompt_logprobs=0)
    assert find_logprobs_fault(scores(1, -1.0, -2.0), wanted) is None
    assert find_logprobs_fault(scores(1, -1.0, value), wanted) is not None
    assert find_logprobs_fault(scores(2, -1.0, -2.0), wanted) is not None
    assert find_logprobs_fault(scores(1 << 20, -1.0), wanted) is not None
    assert find_logprobs_fault(scores(1, -1.0), prompt()) is not None


def test_a_request_of_a_worker_that_lies_goes_on_elsewhere_from_what_was_true() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    drive.tokens(D1, 0, 50, 51)
    assert drive.tokens(D1, 2, *range(52, 62)) == ["cancel D1/1", "pick"]
    assert drive.picks[0].avoid == {D1}
    drive.route(P2, D2)
    drive.tokens(P2, 2, 52, attempt=2)
    assert drive.delivered[0] == [50, 51, 52]


def test_an_index_that_jumps_is_a_lie() -> None:
    drive = started()
    drive.tokens(P1, 0, 50)
    assert "pick" in drive.tokens(D1, 3, 53)
    assert drive.delivered[0] == [50]


def test_tokens_after_the_last_one_and_of_others_requests_are_nobodys() -> None:
    drive = started(max_tokens=2)
    assert drive.tokens(D2, 0, 66) == drive.tokens(P2, 0, 66) == []  # workers that take no part in it
    assert drive.tokens(P1, 0, 66, attempt=2) == drive.tokens(P1, 0, 66, choice=9) == []
    assert drive.tokens(P1, 0, 66, run=bytes(16)) == []
    assert drive.feed(LegEnded(D2, LegFailed(REQUEST, 1, Reason.INTERNAL))) == []
    assert drive.feed(PromptArrived(P2, PromptLogprobs(REQUEST, 1, 1, (PromptLogprob(0.0, 1, ()),)))) == []
    drive.tokens(P1, 0, 50)
    assert drive.tokens(D1, 0, 50, 51, finish=Finish.LENGTH) == ["deliver 0:51", "end finished"]
    assert drive.tokens(D1, 2, 52) == []
    assert drive.delivered[0] == [50, 51]


def test_an_answer_ends_at_the_tokens_that_were_asked_for_whatever_its_worker_says() -> None:
    drive = started(max_tokens=2)
    drive.tokens(P1, 0, 50)
    assert drive.tokens(D1, 0, 50, 51) == ["deliver 0:51", "end finished"]
    assert drive.finished == {0: Finish.LENGTH}


def test_log_probabilities_that_nobody_asked_for_are_not_delivered() -> None:
    drive = Drive()
    drive.start()
    actions: list[object] = []
    unwanted = entry(50, logprobs=(TokenLogprob(math.nan, ()),))
    actions += drive.life.handle(Arrived(P1, unwanted), 0.0)
    assert [action.logprobs for action in actions] == [None]  # type: ignore[attr-defined]


def test_cached_tokens_beyond_the_prompt_count_as_all_of_it() -> None:
    drive = started()
    drive.tokens(P1, 0, 50, cached=1 << 20)
    assert drive.life.cached_tokens() == len(PROMPT)
