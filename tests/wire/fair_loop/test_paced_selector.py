"""The selector polls less while callbacks are ready, and is silent about a descriptor that is paused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from selectors import EVENT_READ, EVENT_WRITE

import pytest

from baton_wire.fair_loop.paced_selector import POLL_S, PacedSelector

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


@pytest.fixture
def selector() -> Iterator[PacedSelector]:
    """A selector to which every poll is long after the last one."""
    now = [0.0]

    def clock() -> float:
        now[0] += 2 * POLL_S
        return now[0]

    selector = PacedSelector(clock)
    yield selector
    selector.close()


def test_a_selector_polls_again_only_after_a_moment_unless_it_may_wait() -> None:
    now = [0.0]
    selector = PacedSelector(lambda: now[0])
    one, other = socket.socketpair()
    try:
        selector.register(one, EVENT_READ)
        assert selector.select(0) == []
        other.send(b"x")
        now[0] += 0.9 * POLL_S
        assert selector.select(0) == [], "polled a moment ago"
        now[0] += 0.2 * POLL_S
        assert len(selector.select(0)) == 1
        assert len(selector.select(None)) == 1, "nothing else is to be done"
        assert len(selector.select(0.01)) == 1
    finally:
        selector.close()
        one.close()
        other.close()


def test_a_paused_descriptor_is_silent_until_it_is_resumed(selector: PacedSelector, pair: Pair) -> None:
    one, other = pair
    selector.register(one, EVENT_READ, "data")
    other.send(b"x")
    selector.pause(one.fileno())
    selector.pause(one.fileno())
    assert selector.select(0) == []
    assert selector.get_key(one).data == "data"
    selector.resume(one.fileno())
    selector.resume(one.fileno())
    [(key, events)] = selector.select(0)
    assert (key.data, events) == ("data", EVENT_READ)


def test_a_paused_descriptor_is_silent_about_its_end_too(selector: PacedSelector, pair: Pair) -> None:
    one, other = pair
    selector.register(one, EVENT_READ)
    selector.pause(one.fileno())
    other.close()
    assert selector.select(0) == []
    selector.resume(one.fileno())
    assert len(selector.select(0)) == 1


def test_new_events_end_a_pause(selector: PacedSelector, pair: Pair) -> None:
    one, other = pair
    selector.register(one, EVENT_READ)
    other.send(b"x")
    selector.pause(one.fileno())
    selector.modify(one, EVENT_READ | EVENT_WRITE)
    [(_, events)] = selector.select(0)
    assert events == EVENT_READ | EVENT_WRITE


def test_a_descriptor_that_left_while_paused_may_be_registered_anew(selector: PacedSelector, pair: Pair) -> None:
    one, other = pair
    selector.register(one, EVENT_READ)
    other.send(b"x")
    selector.pause(one.fileno())
    selector.unregister(one)
    selector.resume(one.fileno())
    assert selector.select(0) == []
    selector.register(one, EVENT_READ)
    assert len(selector.select(0)) == 1


def test_a_descriptor_that_was_closed_while_paused_is_forgotten(selector: PacedSelector, pair: Pair) -> None:
    one, _ = pair
    selector.register(one, EVENT_READ)
    fd = one.fileno()
    selector.pause(fd)
    one.close()
    selector.resume(fd)
    assert selector.select(0) == []
