"""Limits of a listener's connections and log lines, as plain values."""

from __future__ import annotations

import asyncio
import logging
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.listening.complaints import Complaints, log_loop_errors
from baton_wire.listening.connection_book import OWNER_PLACES, ConnectionBook, ConnectionLimits, ConnectionPlace
from baton_wire.listening.descriptors import connection_cap, raise_descriptor_limit

LOG = logging.getLogger("test.limits")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60), st.none() | st.integers(1, 4))
def test_the_book_holds_who_came_and_did_not_leave(steps: list[tuple[bool, str]], per_address: int | None) -> None:
    book = ConnectionBook(ConnectionLimits(5, per_address))
    here: list[str] = []
    for comes, address in steps:
        if comes and not book.is_full:
            is_taken = book.take(ConnectionPlace(address))
            assert is_taken is (per_address is None or here.count(address) < per_address)
            here += [address] if is_taken else []
        elif not comes and address in here:
            here.remove(address)
            book.leave(ConnectionPlace(address))
        assert book.total == len(here) <= 5
        assert book.is_full is (len(here) == 5)


OWNERS = st.sampled_from(("strangers", "bad", "good", None))


@given(st.lists(st.tuples(st.sampled_from(("comes", "leaves", "moves")), OWNERS, st.sampled_from("ab")), max_size=80))
def test_owners_hold_their_connections_and_leave_a_place_for_others(steps: list[tuple[str, str | None, str]]) -> None:
    book = ConnectionBook(ConnectionLimits(30, per_address=20))
    here: list[ConnectionPlace] = []
    for what, owner, address in steps:
        place = ConnectionPlace(address, owner)
        if what == "comes" and book.take(place):
            here.append(place)
        elif what == "leaves" and place in here:
            here.remove(place)
            book.leave(place)
        elif what == "moves" and here:
            here.append(book.move(here.pop(0), owner))
        assert book.total == len(here) <= 30
        assert all(sum(place.address == address for place in here) <= 20 for address in "ab")
    for place in here:
        book.leave(place)
    assert book.total == 0
    assert not book._by_address
    assert not book._by_owner
    assert not book._by_both


@pytest.mark.parametrize("limits", [ConnectionLimits(1_000), ConnectionLimits(4_000, per_address=1_000)])
def test_an_owner_with_few_connections_finds_a_place_next_to_greedy_ones(limits: ConnectionLimits) -> None:
    book = ConnectionBook(limits)
    held = {owner: 0 for owner in ("strangers", "bad", "worse")}
    for owner in held:
        while book.take(ConnectionPlace("10.0.0.1", owner)):
            held[owner] += 1
    assert held["strangers"] == pytest.approx(1_000 * OWNER_PLACES / (OWNER_PLACES + 1), abs=2)
    assert all(book.take(ConnectionPlace("10.0.0.1", "good")) for _ in range(1))


@pytest.mark.parametrize(
    ("limit", "cap"), [(1 << 20, 8_192), (1_024, 768), (512, 256), (128, 64), (8_448, 8_192), (8_447, 8_191), (1, 1)]
)
def test_the_cap_leaves_descriptors_for_everything_else(limit: int, cap: int) -> None:
    assert connection_cap(8_192, limit) == cap


def test_the_soft_limit_becomes_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        assert raise_descriptor_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_complaint_is_written_once_a_second_and_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    complaints = Complaints(LOG, lambda: now)
    for _ in range(10_000):
        complaints.say("accepting", "no descriptors")
        complaints.say("another kind")
    now = 101.0
    complaints.say("accepting", "no descriptors")
    assert [record.getMessage() for record in caplog.records] == [
        "accepting: no descriptors",
        "another kind",
        "accepting: no descriptors (and 9999 more since the last such line)",
    ]


async def test_errors_that_nobody_caught_are_said_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    log_loop_errors(loop, LOG)
    try:
        for _ in range(1_000):
            loop.call_exception_handler({"message": "boom", "exception": ValueError("x")})
    finally:
        loop.set_exception_handler(before)
    assert len(caplog.records) == 1
