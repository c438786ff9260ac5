"""Addresses that count as one source, and the handshake that ends when there are too many."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.listening.connection_book import ConnectionBook, ConnectionLimits, ConnectionPlace
from baton_wire.listening.handshake_pool import HandshakePool
from baton_wire.listening.source_address import source_of


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.1", "::FFFF:0a00:1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff:eeee:dddd:cccc", True),
        ("2001:db8:1:2::1", "2001:0DB8:1:2::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("fd00:1::5", "fd00:1::6", True),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("::1", "::2", False),
        ("", "", True),
        ("not an address", "another", False),
    ],
)
def test_addresses_of_one_host_are_one_source(first: str, second: str, is_same: bool) -> None:
    assert (source_of(first) == source_of(second)) is is_same


def test_a_book_of_connections_counts_a_hosts_addresses_together() -> None:
    book = ConnectionBook(ConnectionLimits(8, per_address=1))
    assert book.take(ConnectionPlace("2001:db8::1"))
    assert not book.take(ConnectionPlace("2001:db8::2"))
    assert book.take(ConnectionPlace("10.0.0.1"))
    assert not book.take(ConnectionPlace("::ffff:10.0.0.1"))
    book.leave(ConnectionPlace("2001:db8::2"))  # whichever of its addresses is given
    assert book.take(ConnectionPlace("2001:db8::3"))


def test_a_source_that_floods_ends_its_own_oldest_handshakes_only() -> None:
    pool: HandshakePool[str] = HandshakePool(4)
    assert pool.enter("honest", "honest 1") is None
    ended = [pool.enter("flood", f"flood {number}") for number in range(1_000)]
    assert ended[:3] == [None] * 3
    assert ended[3:] == [f"flood {number}" for number in range(997)]
    assert pool.enter("late", "late 1") == "flood 997"
    assert len(pool) == 4


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=60), st.integers(1, 6))
def test_who_has_few_handshakes_is_never_ended_for_who_has_many(steps: list[tuple[int, bool]], capacity: int) -> None:
    pool: HandshakePool[int] = HandshakePool(capacity)
    here: dict[int, str] = {}
    for number, (source, leaves) in enumerate(steps):
        if leaves and here:
            gone = next(iter(here))
            del here[gone]
            pool.leave(gone)
            continue
        here[number] = str(source)
        evicted = pool.enter(str(source), number)
        assert (evicted is None) is (len(here) <= capacity)
        if evicted is not None:
            counts = Counter(here.values())
            assert counts[here.pop(evicted)] == max(counts.values())
            pool.leave(evicted)  # its task ends later
        assert len(pool) == len(here)
