"""Contexts that sessions come back to: what is counted, within which windows, and that it is bounded."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from baton_wire.messages.measures import NUM_WINDOWS, ContextCounts
from baton_wire.rules.context_reuse import WINDOWS_S, ContextReuse


def places(session: int, tokens: int, head: int = 0) -> list[tuple[bytes, int]]:
    """A place for each 1,000 tokens, the longest first; the first `head` tokens are those of every session."""
    ends = range(tokens // 1_000 * 1_000, 0, -1_000)
    return [(b"%d %d" % (0 if end <= head else session, end), end) for end in ends]


def count(reuse: ContextReuse, session: int, tokens: int, now: float, cached: int = 0, head: int = 0) -> None:
    reuse.count(places(session, tokens, head), tokens, cached, tokens - cached, now)


def within(values: Sequence[int], seconds: float) -> int:
    return values[next(place for place, limit_s in enumerate(WINDOWS_S) if limit_s >= seconds)]


def test_windows_ascend_and_there_are_as_many_as_a_message_has() -> None:
    assert len(WINDOWS_S) == NUM_WINDOWS
    assert list(WINDOWS_S) == sorted(set(WINDOWS_S))


def test_a_session_that_goes_on_is_reused_within_its_gap_and_lives_once() -> None:
    reuse = ContextReuse()
    count(reuse, 1, 30_000, 0.0)
    count(reuse, 1, 36_000, 40.0, cached=30_000)
    count(reuse, 1, 42_000, 130.0, cached=36_000)
    counts = reuse.take(130.0)
    assert (counts.prompt_tokens, counts.missing_tokens, counts.first_cached) == (108_000, 42_000, 0)
    assert within(counts.reused, 30.0) == 0
    assert within(counts.reused, 45.0) == 30_000
    assert within(counts.reused, 100.0) == 66_000
    assert set(counts.live) == {42_000}, "all of it was used just now"
    later = reuse.take(200.0)
    assert (later.prompt_tokens, sum(later.reused)) == (0, 0)
    assert within(later.live, 50.0) == 0
    assert within(later.live, 76.0) == 42_000


def test_a_common_head_lives_once_where_workers_had_it_cached() -> None:
    reuse = ContextReuse()
    for session in range(1, 11):
        count(reuse, session, 52_000, float(session), cached=50_000 if session > 1 else 0, head=50_000)
    counts = reuse.take(11.0)
    assert counts.first_cached == 9 * 50_000
    assert max(counts.live) == 52_000 + 9 * 2_000


def test_a_context_that_was_evicted_is_still_known() -> None:
    reuse = ContextReuse()
    count(reuse, 1, 30_000, 0.0)
    count(reuse, 1, 36_000, 20.0, cached=0)
    counts = reuse.take(20.0)
    assert within(counts.reused, 22.0) == 30_000
    assert counts.missing_tokens == 66_000
    assert max(counts.live) == 36_000


def test_two_gateways_that_share_a_session_count_its_tokens_once() -> None:
    gateways = [ContextReuse(), ContextReuse()]
    for turn in range(8):
        count(gateways[turn % 2], 1, 30_000 + 5_000 * turn, 10.0 * turn, cached=25_000 + 5_000 * turn if turn else 0)
    assert sum(gateway.take(70.0).live[-1] for gateway in gateways) == 65_000


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9_999), st.floats(0, 500), st.integers(0, 9_999)), max_size=30)
)
def test_counts_are_monotone_bounded_and_fit_a_message(turns: list[tuple[int, int, float, int]]) -> None:
    reuse, now = ContextReuse(capacity=5), 0.0
    for session, tokens, gap_s, cached in turns:
        now += gap_s
        count(reuse, session, tokens, now, cached=min(cached, tokens))
    counts = reuse.take(now)
    assert isinstance(counts, ContextCounts)
    assert len(counts.reused) == len(counts.live) == NUM_WINDOWS
    for values in (counts.reused, counts.live):
        assert list(values) == sorted(values)
    assert counts.live[-1] <= 5 * 9_999
    assert counts.reused[-1] + counts.first_cached <= 2 * counts.prompt_tokens
    assert counts.prompt_tokens == sum(tokens for _, tokens, _, _ in turns)


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    reuse = ContextReuse()
    reuse.count([(b"a", 10)], 10, 0, 10, 0.0)
    reuse.count([(b"b", 20), (b"a", 10)], 20, 0, 20, 1.0)
    reuse.count([(b"a", 10), (b"b", 20)], 20, 0, 20, 2.0)
    reuse.count([(b"a", 10)], 10, 0, 10, 3.0)
    assert reuse.take(3.0).prompt_tokens == 60
