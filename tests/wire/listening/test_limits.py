"""Limits of a listener's connections and log lines, as plain values."""

from __future__ import annotations

import asyncio
import logging
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.listening.complaints import Complaints, log_loop_errors
from baton_wire.listening.connection_book import ConnectionBook, ConnectionLimits
from baton_wire.listening.descriptors import connection_cap, raise_descriptor_limit

LOG = logging.getLogger("test.limits")


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60), st.none() | st.integers(1, 4))
def test_the_book_holds_who_came_and_did_not_leave(steps: list[tuple[bool, str]], per_address: int | None) -> None:
    book = ConnectionBook(ConnectionLimits(5, per_address))
    here: list[str] = []
    for comes, address in steps:
        if comes and not book.is_full:
            is_taken = book.take(address)
            assert is_taken is (per_address is None or here.count(address) < per_address)
            here += [address] if is_taken else []
        elif not comes and address in here:
            here.remove(address)
            book.leave(address)
        assert book.total == len(here) <= 5
        assert book.is_full is (len(here) == 5)


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
