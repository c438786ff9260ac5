"""The ranks that exchange heads, and the coverage of a hand-over between several ranks."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_kv_transfer.ranks.tensor_parallel import RankLinks, RankPeer, heads_of, local_heads, rank_epoch, rank_pairs
from baton_kv_transfer.ranks.unit_coverage import UnitCoverage
from baton_wire.errors import UnfitPairError
from baton_wire.kv_shape import PoolPart, Units

RANKS = (1, 2, 4, 8)
CASES = list(product(RANKS, RANKS, (1, 2, 4, 8, 16, 40)))
WORKER = b"w" * 16


@pytest.mark.parametrize(("prefill", "decode", "kv_heads"), CASES)
def test_every_head_of_every_decode_rank_comes_from_one_rank_that_holds_it(
    prefill: int, decode: int, kv_heads: int
) -> None:
    pairs = rank_pairs(kv_heads, prefill, decode)
    assert len({(pair.prefill, pair.decode) for pair in pairs}) == len(pairs)
    for rank in range(decode):
        sent = [head for pair in pairs if pair.decode == rank for head in pair.heads]
        assert sent == list(heads_of(kv_heads, decode, rank))
    for pair in pairs:
        assert set(pair.heads) <= set(heads_of(kv_heads, prefill, pair.prefill))
        held = range(len(heads_of(kv_heads, prefill, pair.prefill)))
        assert set(local_heads(kv_heads, prefill, pair.prefill, pair.heads)) <= set(held)


@pytest.mark.parametrize(("prefill", "decode", "kv_heads"), CASES)
def test_ranks_that_hold_the_same_heads_share_the_sending(prefill: int, decode: int, kv_heads: int) -> None:
    load: Counter[int] = Counter()
    for pair in rank_pairs(kv_heads, prefill, decode):
        load[pair.prefill] += len(pair.heads)
    copies = max(1, decode // kv_heads)
    for head in range(kv_heads):
        holders = [rank for rank in range(prefill) if head in heads_of(kv_heads, prefill, rank)]
        if len(holders) > 1:
            assert max(load[rank] for rank in holders) <= -(-copies // len(holders))


def test_heads_that_no_number_of_ranks_divides_are_refused_by_name() -> None:
    with pytest.raises(UnfitPairError, match="tensor_parallel: 4 ranks for 6 KV heads"):
        rank_pairs(6, 2, 4)


def test_every_rank_has_a_name_of_its_own_and_the_first_the_worker_s() -> None:
    names = [rank_epoch(WORKER, rank) for rank in range(8)]
    assert names[0] == WORKER
    assert len(set(names)) == 8
    assert all(len(name) == len(WORKER) for name in names)


def test_a_worker_is_known_while_any_of_its_links_stands() -> None:
    links = RankLinks()
    needed = {(0, 0), (1, 0)}
    links.up(0, RankPeer(WORKER, 1))
    assert not links.are_up(WORKER, needed)
    links.up(1, RankPeer(WORKER, 1))
    assert links.are_up(WORKER, needed)
    links.down(0, RankPeer(WORKER, 1))
    assert links.ranks_of(WORKER) == 1
    assert not links.are_up(WORKER, needed)
    links.down(1, RankPeer(WORKER, 1))
    assert links.ranks_of(WORKER) is None


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.sampled_from((1, 2, 4)),
    st.integers(0, 5),
    st.integers(0, 6),
    st.sampled_from(({0: range(2)}, {1: range(1), 3: range(1, 2)}, {0: range(1), 1: range(1, 2)})),
    st.randoms(use_true_random=False),
)
def test_coverage_is_complete_with_the_last_missing_unit_and_not_before(groups, first, units, sources, random) -> None:  # type: ignore[no-untyped-def]
    layers = 4
    coverage = UnitCoverage(layers, first, first + units, sources)
    step = layers // groups
    cells = list(product(sources, range(0, layers, step), range(first, first + units)))
    random.shuffle(cells)
    for source, layer, unit in cells:
        assert coverage.gap() is not None
        part = PoolPart(layer, layer + step, sources[source].start, sources[source].stop)
        assert coverage.add(source, of(part, unit))
        assert not coverage.add(source, of(part, unit)), "twice"
        assert not coverage.add(source, of(PoolPart(layer, layer + step, 5, 6), unit)), "other heads"
        assert not coverage.add(7, of(part, unit)), "another rank"
        assert not coverage.add(source, of(part, first + units)), "outside"
    assert coverage.gap() is None


def of(part: PoolPart, unit: int) -> Units:
    return Units((), 1, unit, unit + 1, part)
