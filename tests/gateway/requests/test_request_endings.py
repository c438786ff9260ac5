"""The machine of one request at its ends: refusals, parking, deadlines, clients that go away in every state."""

from __future__ import annotations

import logging
import math
import random

import pytest

from baton_gateway import errors
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.live_request import log_failure
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import (
    Admitted,
    ClientGone,
    Event,
    LifeRules,
    NoRevision,
    NoRoute,
    Prepared,
    Prompt,
    Refused,
    RoutesChanged,
    StopFound,
    Tick,
    WorkerLost,
)
from baton_testing.gateway.request_drive import D1, D2, DEADLINE_S, P1, P2, PROMPT, REQUEST, Drive, started
from baton_wire.messages.encoding import Encode
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve, Retarget
from baton_wire.messages.values import Finish, Reason, SamplingParams, pack_ids, unpack_ids


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.TOO_LONG, 400), (Reason.DEADLINE, 504), (Reason.BAD_REQUEST, 500), (Reason.GRAMMAR, 400)],
)
def test_what_another_attempt_cannot_help_is_told_at_once(reason: Reason, status: int) -> None:
    drive = started()
    drive.leg(D1, reason)
    assert drive.ends[0].problem is not None
    assert drive.ends[0].problem.status == status


def test_a_failure_is_logged_with_its_workers_and_their_states(caplog: pytest.LogCaptureFixture) -> None:
    drive = started()
    drive.now = DEADLINE_S
    drive.feed(Tick())
    with caplog.at_level(logging.WARNING, "baton.gateway.requests"):
        log_failure(drive.life, drive.ends[0].problem, drive.now)
    [line] = caplog.messages
    assert line.startswith(
        "failed: deadline_exceeded after 600.0 s, 1 attempts, 0 tokens delivered: running, attempt 1"
    )
    assert f"prefill {P1.hex()[:8]}, decode {D1.hex()[:8]}, retained by -, landed False, 0 failures, 0 losses" in line


def test_a_failure_before_any_worker_had_the_request_says_so(caplog: pytest.LogCaptureFixture) -> None:
    drive = Drive(rules=LifeRules(park_s=5))
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), ""),)))
    drive.feed(NoRoute(REQUEST, errors.no_workers()))
    drive.now = DEADLINE_S
    drive.feed(Tick())
    log_failure(drive.life, drive.ends[0].problem, drive.now)
    [line] = caplog.messages
    assert line.endswith(
        "unrouted, attempt 0, prefill -, decode -, retained by -, landed False, 0 failures, 0 losses, "
        "never sent to workers"
    )


def test_without_a_pair_a_new_request_is_told_at_once() -> None:
    drive = Drive()
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), ""),)))
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == ["end refused no_routable_workers"]


def test_a_request_is_parked_before_there_is_anything_to_tokenise_with() -> None:
    drive = Drive(rules=LifeRules(park_s=5))
    drive.feed(Admitted())
    assert drive.feed(NoRevision(errors.no_workers())) == []
    assert drive.life.wake_at == 5
    assert drive.feed(RoutesChanged()) == ["prepare"]
    drive.now = 2
    assert drive.feed(NoRevision(errors.no_workers())) == []
    assert drive.life.wake_at == 5, "the wait is counted from its beginning"
    drive.now = 5
    assert drive.feed(Tick()) == ["end refused no_routable_workers"]


def test_without_parking_a_request_that_finds_no_revision_is_told_at_once() -> None:
    drive = Drive()
    drive.feed(Admitted())
    assert drive.feed(NoRevision(errors.no_workers())) == ["end refused no_routable_workers"]


def test_a_request_may_be_parked_until_a_pair_appears() -> None:
    drive = Drive(rules=LifeRules(park_s=5))
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), ""),)))
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    assert drive.life.wake_at == 5
    assert drive.feed(RoutesChanged()) == ["pick"]
    drive.now = 5
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == ["end failed no_routable_workers"]


def test_a_request_that_lost_its_workers_waits_for_others() -> None:
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.feed(WorkerLost(D1))
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    drive.now = 20
    assert drive.feed(RoutesChanged()) == ["pick"]
    drive.picks.clear()
    assert drive.feed(NoRoute(REQUEST, errors.no_workers())) == []
    assert drive.life.wake_at == 60, "the wait is counted from its beginning"
    drive.feed(RoutesChanged())
    drive.picks[:-1] = []
    assert drive.route(P2, D2) == ["reserve D2/2", "prefill P2/2"]


def test_the_deadline_ends_it_wherever_it_stands() -> None:
    drive = started()
    drive.tokens(D1, 0, 50)
    drive.now = DEADLINE_S
    assert drive.feed(Tick()) == ["cancel D1/1", "end failed deadline_exceeded"]


def test_the_workers_are_told_the_time_that_is_left() -> None:
    drive = started()
    drive.now = 100.0
    drive.feed(WorkerLost(D1))
    drive.route(P1, D2)
    assert drive.last(Reserve).timeout_s == DEADLINE_S - 100


# The client goes away -------------------------------------------------------------------------------------------------


def _queued(drive: Drive) -> None:
    pass


def _preparing(drive: Drive) -> None:
    drive.feed(Admitted())


def _routing(drive: Drive) -> None:
    drive.feed(Admitted())
    drive.feed(Prepared((Prompt(pack_ids(PROMPT), SamplingParams(max_tokens=3), ""),)))


def _unrouted(drive: Drive) -> None:
    drive.start()
    drive.feed(WorkerLost(D1))
    drive.feed(NoRoute(REQUEST, errors.no_workers()))
    drive.sent.clear()


def _started(drive: Drive) -> None:
    drive.start()


def _first_token(drive: Drive) -> None:
    drive.start()
    drive.tokens(P1, 0, 50)


def _decoding(drive: Drive) -> None:
    _first_token(drive)
    drive.tokens(D1, 0, 50, 51)


def _backing_off(drive: Drive) -> None:
    drive.start()
    drive.leg(D1, Reason.NO_CAPACITY)
    drive.sent.clear()


@pytest.mark.parametrize(
    ("state", "cancels"),
    [
        (_queued, []),
        (_preparing, []),
        (_routing, []),
        (_unrouted, ["cancel P1/1"]),
        (_backing_off, ["cancel P1/1"]),
        (_started, ["cancel D1/1", "cancel P1/1"]),
        (_first_token, ["cancel D1/1", "cancel P1/1"]),
        (_decoding, ["cancel D1/1"]),
    ],
)
def test_a_client_that_goes_away_frees_what_is_held_in_every_state(state: object, cancels: list[str]) -> None:
    drive = Drive()
    assert callable(state)
    state(drive)
    assert drive.feed(ClientGone()) == [*cancels, "end cancelled"]
    assert drive.feed(ClientGone()) == []
    assert drive.life.stage is Stage.ENDED


@pytest.mark.parametrize(
    "event",
    [Admitted(), RoutesChanged(), Tick(), WorkerLost(D1), StopFound(0, 1), Refused(errors.no_workers())],
)
def test_nothing_happens_after_the_end(event: Event) -> None:
    drive = started()
    drive.feed(ClientGone())
    assert drive.feed(event) == []
    assert drive.tokens(D1, 0, 50) == []


def test_a_refusal_while_preparing_ends_it() -> None:
    drive = Drive()
    drive.feed(Admitted())
    assert drive.feed(Refused(errors.model_not_found("x", ["y"]))) == ["end refused model_not_found"]


@pytest.mark.parametrize("seed", range(200))
def test_random_losses_never_lose_or_repeat_a_token(seed: int) -> None:
    """Workers die at random; what each choice gets is the same as without."""
    random_ = random.Random(seed)
    n, length = random_.choice([1, 1, 2, 3]), random_.randrange(1, 12)
    drive = Drive(n=n, max_tokens=length, rules=LifeRules(max_losses=1_000, first_stall_s=math.inf, stall_s=math.inf))
    drive.start(*random_.choice([(P1, D1), (P2, D2), (None, D1)]))
    for _ in range(4_000):
        if drive.ends:
            break
        drive.now += 0.3  # a run whose links break at once, again and again, is held to be the cause
        _random_event(drive, random_, length)
    assert drive.ends[0].outcome is Outcome.FINISHED
    assert drive.delivered == {choice: [100 * choice + i for i in range(length)] for choice in range(n)}


def _random_event(drive: Drive, random_: random.Random, length: int) -> None:
    if drive.picks:
        drive.route(*random_.choice([(P1, D1), (P2, D2), (P1, D2), (None, D1)]))
        return
    if random_.random() < 0.15:
        drive.feed(WorkerLost(random_.choice([P1, P2, D1, D2])))
        return
    if drive.life.wake_at < DEADLINE_S:
        drive.now = max(drive.now, drive.life.wake_at)
        drive.feed(Tick())
        return
    send = random_.choice(drive.sent[-12:])
    message = send.message
    if isinstance(message, Cancel | Retarget | Encode):
        return
    start = len(unpack_ids(message.tokens)) - message.prompt_tokens
    choice = random_.choice(message.choices)
    have = len(drive.delivered.get(choice, []))
    top = start if isinstance(message, Prefill) else min(length - 1, have + random_.randrange(2))
    first = random_.randrange(start, max(start, min(have, top)) + 1)
    ids = [100 * choice + i for i in range(first, max(first, top) + 1)]
    finish = Finish.LENGTH if ids[-1] == 100 * choice + length - 1 else None
    drive.tokens(send.worker, first, *ids, choice=choice, attempt=message.attempt, run=message.request, finish=finish)
