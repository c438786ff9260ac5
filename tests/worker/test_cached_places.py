"""What a worker announces of its prefix cache: bounded, in order, and the same for all gateways."""

from __future__ import annotations

import random

from baton_engine.memory.place_journal import PlaceChanges
from baton_wire.messages.codec import encode
from baton_wire.messages.gateway_link import MAX_CHANGED_PLACES, CachedPlaces
from baton_wire.rules.prefix_digests import split_places
from baton_worker.reporting.cached_places import BURST_S, BYTES_PER_S, PlaceQueue, PlacesReport


def digest(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(24)


def name(number: int) -> bytes:
    return digest(number)[:8]


def added(*numbers: int, blocks: int = 1) -> PlaceChanges:
    return PlaceChanges(tuple((digest(number), blocks) for number in numbers))


def dropped(*numbers: int) -> PlaceChanges:
    return PlaceChanges((), tuple(map(digest, numbers)))


class Reader:
    """A gateway's view, made of the messages alone."""

    def __init__(self) -> None:
        self.known: set[bytes] = set()
        self.generation = -1

    def take(self, messages: list[CachedPlaces]) -> None:
        for message in messages:
            encode(message)
            if message.is_first:
                self.known, self.generation = set(), message.generation
            assert message.generation - self.generation in (0, 1)
            self.generation = message.generation
            self.known |= set(split_places(message.added))
            self.known -= set(split_places(message.dropped))


def test_a_reader_that_links_later_knows_the_same_as_the_others() -> None:
    report, first, second, dice = PlacesReport(), Reader(), Reader(), random.Random(5)
    first.take(report.announce_all())
    held: set[int] = set()
    for turn in range(50):
        gone = {number for number in held if dice.random() < 0.2}
        come = {dice.randrange(10_000) for _ in range(20)} - held
        held = (held - gone) | come
        report.record(dropped(*gone))
        report.record(added(*come, blocks=dice.randint(1, 99)))
        if turn == 25:
            second.take(report.announce_all())
        messages = report.announce(turn)
        first.take(messages)
        if turn >= 25:
            second.take(messages)
    assert first.known == second.known == {name(number) for number in held}


def test_a_place_that_came_and_went_is_not_mentioned() -> None:
    report = PlacesReport()
    report.record(added(1))
    report.record(dropped(1))
    assert report.announce(0.0) == []
    report.record(added(2))
    report.announce(1.0)
    report.record(dropped(2))
    report.record(added(2))
    assert report.announce(2.0) == []


def test_over_its_bound_a_worker_announces_the_longest_contexts_and_says_how_many_it_left_out() -> None:
    report, reader = PlacesReport(most_places=100), Reader()
    reader.take(report.announce_all())
    for number in range(300):
        report.record(added(number, blocks=number + 1))
    messages = report.announce(0.0)
    reader.take(messages)
    shortest = 300 - len(reader.known)
    assert 80 <= len(reader.known) <= 100
    assert reader.known == {name(number) for number in range(shortest, 300)}
    assert messages[-1].left_out == report.left_out == shortest
    report.record(dropped(*range(150, 300)))
    reader.take(report.announce(60.0))
    report.record(dropped(*range(80, 150)))
    reader.take(report.announce(120.0))
    assert reader.known == {name(number) for number in range(80)}, "there is room again"
    assert report.left_out == 0


def test_changes_are_announced_at_a_bounded_rate_the_longest_first() -> None:
    report, reader = PlacesReport(bytes_per_s=800.0), Reader()
    reader.take(report.announce_all())
    for number in range(1_000):
        report.record(added(number, blocks=number + 1))
    reader.take(report.announce(0.0))
    burst = int(100 * BURST_S)
    assert reader.known == {name(number) for number in range(1_000 - burst, 1_000)}
    assert report.left_out == 1_000 - burst
    report.record(dropped(0, 1, 2))
    reader.take(report.announce(1.0))
    assert len(reader.known) == burst + 100
    for second in range(2, 12):
        reader.take(report.announce(second))
    assert reader.known == {name(number) for number in range(3, 1_000)}


def test_a_large_cache_fits_into_frames() -> None:
    report, reader = PlacesReport(bytes_per_s=1e9), Reader()
    for number in range(2 * MAX_CHANGED_PLACES + 1):
        report.record(added(number))
    assert len(report.announce(0.0)) == 3
    messages = report.announce_all()
    reader.take(messages)
    assert [message.is_first for message in messages] == [True, False, False]
    assert len(reader.known) == 2 * MAX_CHANGED_PLACES + 1


def test_the_rate_leaves_room_for_the_frames() -> None:
    frames_a_second, around_a_frame = 20, 100
    assert BYTES_PER_S + frames_a_second * around_a_frame <= 16 << 10


def test_the_queue_hands_over_in_order_and_once() -> None:
    queue = PlaceQueue()
    for changes in (added(1), PlaceChanges(), dropped(1)):
        queue.add(changes)
    assert list(queue.take()) == [added(1), dropped(1)]
    assert list(queue.take()) == []
