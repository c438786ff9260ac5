"""The order of one tenant's waiting requests."""

from __future__ import annotations

import random

import pytest

from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import QueuePlace, WaitingLine, WaitingRequest
from baton_wire.tenant_table import PriorityClass

BATCH, STANDARD, INTERACTIVE = PriorityClass.BATCH, PriorityClass.STANDARD, PriorityClass.INTERACTIVE


def waiting(priority: PriorityClass = STANDARD, session: int | None = None, sequences: int = 1) -> WaitingRequest:
    return WaitingRequest(60.0, sequences, sequences, 1, QueuePlace(priority, session))


def line_of(*requests: WaitingRequest) -> WaitingLine:
    line = WaitingLine()
    for ticket, request in enumerate(requests):
        line.add(ticket, request)
    return line


def turns(line: WaitingLine) -> list[int]:
    return [line.start_first()[0] for _ in range(len(line))]


def test_classes_go_in_order_and_requests_of_one_in_order_of_arrival() -> None:
    line = line_of(waiting(BATCH), waiting(), waiting(INTERACTIVE), waiting(), waiting(INTERACTIVE))
    assert turns(line) == [2, 4, 1, 3, 0]


def test_a_session_with_many_requests_delays_another_by_one() -> None:
    line = line_of(*(waiting(session=7) for _ in range(500)), waiting(session=8), waiting(), waiting(session=8))
    assert turns(line)[:6] == [0, 500, 501, 1, 502, 2]


def test_a_session_that_asks_again_waits_one_round() -> None:
    line = line_of(waiting(session=1), waiting(session=2), waiting(session=3))
    assert line.start_first()[0] == 0
    line.add(3, waiting(session=1))
    assert turns(line) == [1, 2, 3]


def test_sessions_take_turns_within_a_class_only() -> None:
    line = line_of(waiting(session=1), waiting(INTERACTIVE, 1), waiting(INTERACTIVE, 1), waiting(session=2))
    assert turns(line) == [1, 2, 0, 3]


def test_nothing_is_kept_of_many_sessions_once_they_have_gone() -> None:
    line = WaitingLine()
    for number in range(50_000):
        line.add(number, waiting(session=number))
        if number >= 8:
            line.start_first()
    assert len(line) == sum(map(len, line._sessions)) == 8


def test_the_newest_of_the_longest_session_of_the_last_class_is_evicted_first() -> None:
    batch, first, second = waiting(BATCH, 9), waiting(session=1), waiting(session=2)
    line = line_of(batch, first, first, first, second, waiting(INTERACTIVE))
    assert [ticket for ticket, _ in line.evictable()] == [0, 3, 2, 4, 1, 5]
    assert [ticket for ticket, _ in line.evictable(is_batch=True)] == [0]


@pytest.mark.parametrize(
    ("newcomer", "evictable"),
    [
        (QueuePlace(INTERACTIVE), [0, 3, 2, 4, 1]),
        (QueuePlace(STANDARD, 3), [0, 3, 2]),
        (QueuePlace(STANDARD, 2), [0, 3]),
        (QueuePlace(STANDARD, 1), [0]),
        (QueuePlace(BATCH), []),
    ],
)
def test_a_newcomer_evicts_lower_classes_and_sessions_with_more(newcomer: QueuePlace, evictable: list[int]) -> None:
    first, second = waiting(session=1), waiting(session=2)
    line = line_of(waiting(BATCH, 9), first, first, first, second)
    assert [ticket for ticket, _ in line.evictable(newcomer)] == evictable


def test_as_much_is_ahead_as_goes_first() -> None:
    line = line_of(*(waiting(session=1) for _ in range(10)), waiting(session=2, sequences=3), waiting(INTERACTIVE))
    assert line.ahead(QueuePlace(INTERACTIVE)) == 1
    assert line.ahead(QueuePlace(STANDARD, 3)) == 3, "one of each session, and the other class"
    assert line.ahead(QueuePlace(STANDARD, 1)) == 14
    assert line.ahead(QueuePlace(BATCH)) == 14


@pytest.mark.parametrize("seed", range(20))
def test_counts_hold_whatever_comes_and_goes(seed: int) -> None:
    dice, line, inside = random.Random(seed), WaitingLine(), dict[int, WaitingRequest]()
    for ticket in range(300):
        if dice.random() < 0.6:
            request = waiting(dice.choice(list(PriorityClass)), dice.choice([None, 1, 2]), dice.randint(1, 4))
            line.add(ticket, request)
            inside[ticket] = request
        elif inside and dice.random() < 0.5:
            gone = dice.choice(list(inside))
            assert line.remove(gone) is inside.pop(gone)
        elif inside:
            started, request = line.start_first()
            assert request is inside.pop(started)
            assert all(other.place.rank >= request.place.rank for other in inside.values())
        assert line.remove(-1) is None
        assert line.sequences == sum(request.sequences for request in inside.values())
        assert sorted(ticket for ticket, _ in line.evictable()) == sorted(inside)


@pytest.mark.parametrize(
    ("allowed", "asked", "granted"),
    [
        ((), None, STANDARD),
        ((), INTERACTIVE, INTERACTIVE),
        ((BATCH, STANDARD), INTERACTIVE, STANDARD),
        ((BATCH,), None, BATCH),
        ((BATCH, INTERACTIVE), None, BATCH),
        ((INTERACTIVE, STANDARD), BATCH, STANDARD),
        ((INTERACTIVE,), None, INTERACTIVE),
    ],
)
def test_a_class_that_a_tenant_may_not_have_becomes_the_next_lower_one(
    allowed: tuple[PriorityClass, ...], asked: PriorityClass | None, granted: PriorityClass
) -> None:
    assert Tenant("a", priorities=allowed).grant(asked) is granted
