"""The machine of one request, alone: events that come at another time than the usual one change nothing."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.requests.request_events import (
    Admitted,
    Arrived,
    LifeRules,
    NoRevision,
    NoRoute,
    Prepared,
    Prompt,
    RoutesChanged,
    Tick,
)
from baton_testing.gateway.request_drive import D1, P1, PROMPT, REQUEST, Drive, started
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.values import Reason, SamplingParams, TokenEntry, TokenLogprob, pack_ids


def test_a_failure_of_an_attempt_that_has_not_begun_is_not_believed() -> None:
    drive = started()
    assert drive.leg(D1, Reason.INTERNAL, attempt=2) == []
    assert drive.tokens(P1, 0, 50) == ["deliver 0:50"]


def test_a_refused_route_of_a_run_that_runs_changes_nothing() -> None:
    drive = started()
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    assert drive.tokens(P1, 0, 50) == ["deliver 0:50"]
    assert drive.life.attempts == 1


def test_the_time_to_wait_for_a_first_pair_ends_with_the_wait() -> None:
    drive = Drive(rules=LifeRules(park_s=10.0))
    drive.feed(Admitted())
    assert drive.feed(NoRevision(errors.no_workers())) == []
    drive.now = 5.0
    assert drive.feed(RoutesChanged()) == ["prepare"]
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=8), ""),)))
    drive.route()
    drive.now = 11.0
    assert drive.feed(Tick()) == []
    assert drive.tokens(P1, 0, 50) == ["deliver 0:50"]


def test_tokens_with_the_log_probabilities_that_were_asked_for_are_believed() -> None:
    drive = Drive()
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=8, logprobs=0), ""),)))
    drive.route()
    entry = TokenEntry(REQUEST, 1, 0, 0, (50,), pack_logprobs((TokenLogprob(-0.5, ()),)))
    assert drive.feed(Arrived(P1, entry)) == ["deliver 0:50"]
