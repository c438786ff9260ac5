"""What workers announce of their caches: every gateway knows the same, and no worker can make it know too much."""

from __future__ import annotations

import random

import pytest

from baton_gateway.workers.cached_places import ASK_S, CHANGES_AT_ONCE, DISBELIEVED_S, CachedPlacesBook
from baton_wire.messages.gateway_link import MAX_CHANGED_PLACES, CachedPlaces
from baton_wire.rules.prefix_digests import MOST_PLACES

ONE, OTHER = b"1" * 16, b"2" * 16
NAMES = b"".join(bytes([number]) * 8 for number in range(1, 9))


def first(names: bytes = b"", generation: int = 0) -> CachedPlaces:
    return CachedPlaces(generation, names, b"", is_first=True)


def linked(*epochs: bytes) -> CachedPlacesBook:
    book = CachedPlacesBook()
    for epoch in epochs:
        book.begin(epoch)
        book.take(epoch, first(), 0.0)
    return book


def test_what_a_worker_holds_is_unknown_until_it_says_so() -> None:
    book = CachedPlacesBook()
    book.begin(ONE)
    assert book.places(ONE) is None
    book.take(ONE, first(), 0.0)
    assert book.places(ONE) == 0


def test_changes_are_followed_and_a_restarted_worker_holds_nothing() -> None:
    book = linked(ONE, OTHER)
    book.take(ONE, CachedPlaces(1, NAMES[:24], b""), 0.0)
    book.take(OTHER, CachedPlaces(1, NAMES[:8], b""), 0.0)
    book.take(ONE, CachedPlaces(1, NAMES[24:40], NAMES[:8]), 0.0)
    assert book.longest(NAMES) == {ONE: 5, OTHER: 1}
    assert (book.places(ONE), book.places(OTHER)) == (4, 1)
    book.end(ONE)
    assert book.longest(NAMES) == {OTHER: 1}
    book.begin(ONE)
    assert book.longest(NAMES) == {OTHER: 1}
    book.end(b"nobody")


def test_a_gateway_that_missed_a_change_asks_once_and_knows_nothing_until_it_is_answered() -> None:
    book = linked(ONE)
    book.take(ONE, CachedPlaces(1, NAMES, b""), 0.0)
    assert book.take(ONE, CachedPlaces(3, b"", NAMES[8:]), 1.0).asks
    assert book.longest(NAMES) == {}
    assert not book.take(ONE, CachedPlaces(4, NAMES[8:], b""), 1.1).asks
    assert book.take(ONE, CachedPlaces(5, NAMES[8:], b""), 1.1 + ASK_S).asks, "the question may be lost as well"
    book.take(ONE, first(NAMES[:16], generation=5), 7.0)
    assert book.longest(NAMES) == {ONE: 2}


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([CachedPlaces(2, b"", b"")] * 3 + [CachedPlaces(1, NAMES, b"")], "generation 1 came after 2"),
        ([first(generation=7), first(NAMES, generation=6)], "generation 6 came after 7"),
        ([CachedPlaces(1, NAMES[:9], b"")], "multiples of 8"),
        ([CachedPlaces(1, b"", NAMES[:15])], "multiples of 8"),
    ],
)
def test_the_impossible_is_said_once_and_the_worker_is_not_believed_for_a_while(
    messages: list[CachedPlaces], fault: str
) -> None:
    book = linked(ONE, OTHER)
    book.take(ONE, CachedPlaces(1, NAMES[:16], b""), 0.0)
    book.take(OTHER, CachedPlaces(1, NAMES[:16], b""), 0.0)
    faults = [book.take(ONE, message, 0.0).fault for message in messages]
    if messages[0].generation == 2:
        assert fault in str(faults[-1])
    faults += [book.take(ONE, message, 1.0).fault for message in messages * 5]
    (only,) = [text for text in faults if text is not None]
    assert fault in only
    assert book.longest(NAMES) == {OTHER: 2}
    assert book.places(ONE) is None
    assert book.take(ONE, CachedPlaces(9, NAMES, b""), DISBELIEVED_S + 1).asks
    book.take(ONE, first(NAMES[:8], generation=9), DISBELIEVED_S + 2)
    assert book.longest(NAMES) == {ONE: 1, OTHER: 2}


def test_a_million_places_of_nobody_take_bounded_memory_and_are_forgotten() -> None:
    book, dice = linked(ONE, OTHER), random.Random(1)
    book.take(OTHER, CachedPlaces(1, NAMES[:8], b""), 0.0)
    faults = []
    for generation in range(1, 1_000_000 // MAX_CHANGED_PLACES):
        message = CachedPlaces(generation, dice.randbytes(8 * MAX_CHANGED_PLACES), b"")
        faults.append(book.take(ONE, message, 0.0).fault)
        assert len(book._index) <= MOST_PLACES + MAX_CHANGED_PLACES + 1
    (only,) = [text for text in faults if text is not None]
    assert f"more than {MOST_PLACES} places" in only
    assert book.longest(NAMES) == {OTHER: 1}


def test_endless_changes_are_not_read() -> None:
    book = linked(ONE)
    names = random.Random(2).randbytes(8 * 1_024)
    faults: list[str | None] = []
    generation = 0
    while not any(faults) and generation < 1_000:
        generation += 1
        faults.append(book.take(ONE, CachedPlaces(generation, names, names), generation / 1e3).fault)
    assert "changed in a second" in str(faults[-1])
    assert generation * 2 * 1_024 <= CHANGES_AT_ONCE + 2_048 * 5


def test_drops_of_what_a_worker_does_not_hold_change_nothing() -> None:
    book = linked(ONE, OTHER)
    book.take(OTHER, CachedPlaces(1, NAMES[:16], b""), 0.0)
    book.take(ONE, CachedPlaces(1, NAMES[:8], NAMES), 0.0)
    assert book.longest(NAMES) == {OTHER: 2}
    assert book.places(ONE) == 0


def test_asking_without_end_is_not_possible() -> None:
    book = linked(ONE)
    asked = sum(book.take(ONE, CachedPlaces(2 * number + 5, b"", b""), number * 0.01).asks for number in range(1_000))
    assert asked <= 10.0 / ASK_S
