"""Drivers of workers of several ranks over real sockets: every decode rank gets its heads, whole and unchanged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from baton_kv_transfer.decode.peers import Acceptor
from baton_kv_transfer.decode.records import DecodeState
from baton_kv_transfer.handover import Reservation
from baton_kv_transfer.prefill.peers import Dialler
from baton_kv_transfer.ranks.tensor_parallel import heads_of
from baton_testing.kv_transfer.builders import FAST, GEOMETRY, eventually, first_tokens, heads_from, key_directory
from baton_testing.kv_transfer.transfer_pair import (
    Pair,
    Request,
    cut_to_ranks,
    decode_worker,
    pairs,
    prefill_worker,
    soon,
)
from baton_testing.ranks.cells import CELLS, RankCell, run_cell
from baton_wire.errors import UnfitPairError
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry, KvGroup
from baton_wire.messages.values import Reason, RequestKey

ALWAYS = [RankCell(2, 1, 1), RankCell(1, 2, 1, 1), RankCell(1, 1, 2)]
"""One KV head that two prefill ranks hold, and whose decode worker has one rank, ends vLLM's decode engine."""


@pytest.fixture
def keys(tmp_path: Path) -> KeyDirectory:
    return key_directory(tmp_path / "keys")


@pytest.fixture
def pair(keys: KeyDirectory) -> Pair:
    return pairs(keys)


def chosen(seed: int, count: int) -> list[RankCell]:
    """Some cells by seed."""
    others = [cell for cell in CELLS if cell not in ALWAYS]
    return ALWAYS + random.Random(seed).sample(others, count - len(ALWAYS))


@pytest.mark.parametrize("cell", chosen(seed=56, count=12), ids=str)
async def test_every_decode_rank_gets_its_heads(keys: KeyDirectory, cell: RankCell) -> None:
    """In blocks of unequal sizes, layer by layer, with prefixes that are there already."""
    await run_cell(cell, 56, keys)


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (2, 1), (1, 2), (4, 8)])
async def test_both_sides_are_empty_when_all_has_landed(pair: Pair, prefill: int, decode: int) -> None:
    geometry = replace(GEOMETRY, kv_heads=4)
    async with pair({"geometry": geometry, "ranks": prefill}, {"geometry": geometry, "ranks": decode}) as (p, d):
        for tokens in (5, 23):
            request = Request(p, d, tokens=tokens)
            for step in (request.open, request.expect, request.compute_all, request.draw):
                step()
            await request.landed()
        assert [tokens for _, tokens in d.record.landed] == [first_tokens(0)] * 2
        await eventually(lambda: d.transfer.stats().handovers.ended == {"landed": 2})
        await eventually(lambda: p.transfer.stats().handovers.ended == {"done": 2})
        landing = d.transfer.stats().handovers.landing
        assert landing.free_bytes == landing.total_bytes
        assert p.record.reports == []
        both = 8 * geometry.block_bytes * max(1, decode // 4)  # of each head to every rank that holds it
        await eventually(lambda: p.transfer.stats().bytes_sent == d.transfer.stats().bytes_received == both)


@pytest.mark.parametrize(("prefill", "decode"), [(2, 1), (1, 2), (4, 2), (2, 4)])
@pytest.mark.parametrize("end", [37, 64])
async def test_kv_groups_with_a_window_are_cut_by_heads_too(pair: Pair, prefill: int, decode: int, end: int) -> None:
    """Of the layers with a window only the blocks that the next token sees are moved, at every rank."""
    groups = (KvGroup(None, (0, 2)), KvGroup(16, (1, 3)))
    geometry = replace(GEOMETRY, kv_heads=4, layers=2, groups=groups)
    async with pair({"geometry": geometry, "ranks": prefill}, {"geometry": geometry, "ranks": decode}) as (p, d):
        request, count = Request(p, d, tokens=4), 2 * -(-end // 4)
        blocks = random.Random(end).sample(range(64), count)
        p.pool.fill(blocks)
        cut_to_ranks(p, blocks)
        request.tokens, request.source, request.target = end, tuple(blocks), tuple(reversed(blocks))
        before = [pool.block(block) for pool in d.pools for block in request.target]
        request.expect()
        request.open()
        p.transfer.computed(request.key, end, request.source)
        request.draw()
        await eventually(lambda: d.record.landed or d.record.failed)
        assert d.record.failed == []
        first_seen_block = (end - 16 + 1) // 4
        for at, (source, target) in enumerate(zip(request.source, request.target, strict=True)):
            is_moved = at % 2 == 0 or at // 2 >= first_seen_block
            for rank, pool in enumerate(d.pools):
                mine = heads_from(p.pool.block(source), geometry, heads_of(4, decode, rank))
                expected = mine if is_moved else before[rank * count + at]
                assert pool.block(target) == expected, (rank, at)


@pytest.mark.parametrize("make", [prefill_worker, decode_worker])
@pytest.mark.parametrize("ranks", [3, 5, 6])
def test_a_degree_that_does_not_fit_the_heads_is_refused_before_anything_starts(
    keys: KeyDirectory, make: Callable[..., object], ranks: int
) -> None:
    fault = f"tensor_parallel: {ranks} ranks for 8 KV heads: one must divide the other"
    with pytest.raises(UnfitPairError, match=fault):
        make(keys, geometry=replace(GEOMETRY, kv_heads=8), ranks=ranks)


@pytest.mark.parametrize("side", ["prefill", "decode"])
async def test_a_peer_whose_degree_does_not_fit_never_pairs_and_both_numbers_are_named(
    pair: Pair, side: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Another release, or a broken one, sends a degree that this model's heads do not have."""
    geometry = replace(GEOMETRY, kv_heads=8)
    async with pair({"geometry": geometry, "ranks": 2}, {"geometry": geometry, "ranks": 4}) as (p, d):
        links: Dialler | Acceptor = p.transfer._dialler if side == "prefill" else d.transfer._acceptor
        links._hello = msgspec.structs.replace(links._hello, tensor_parallel=3)
        request = Request(p, d, tokens=5)
        request.open()
        request.expect()
        await eventually(lambda: p.record.reports)
        _, reason, detail = p.record.reports[0]
        assert reason is Reason.UNFIT_PAIR
        own, peer = (3, 4) if side == "prefill" else (2, 3)
        assert f"tensor_parallel: {own} here, {peer} there: 3 ranks do not fit 8 KV heads" in detail
        assert await request.ended() is Reason.PEER_LOST
        assert d.transfer.stats().links == 0
    assert "3 ranks do not fit 8 KV heads" in caplog.text


async def test_a_leg_takes_at_most_sixteen_puts(pair: Pair) -> None:
    geometry = KvGeometry(layers=64, kv_heads=8, head_dim=8, element_bytes=2, block_tokens=8)
    config = replace(FAST, group_bytes=1)
    options = ({"geometry": geometry, "ranks": 4}, {"geometry": geometry, "ranks": 2})
    async with pair({**options[0], "config": config}, {**options[1], "config": config}) as (p, d):
        puts: Counter[int] = Counter()
        carry = p.transfer._carrier.add
        p.transfer._carrier.add = lambda put: (puts.update([put.key.rank]), carry(put))  # type: ignore[assignment]
        request = Request(p, d, tokens=37)
        request.expect()
        await eventually(lambda: d.transfer.stats().handovers.by_state[DecodeState.LINKING])
        request.compute(37)
        request.draw()
        request.open()
        await request.landed()
        assert len(puts) == 4
        assert max(puts.values()) <= 16


@pytest.mark.parametrize(("prefill", "decode"), [(2, 1), (1, 2), (2, 2)])
async def test_a_flipped_bit_at_one_rank_lands_at_none(pair: Pair, prefill: int, decode: int) -> None:
    async with pair({"ranks": prefill}, {"ranks": decode}) as (p, d):
        request = Request(p, d, tokens=23)

        def flip(stream: memoryview) -> None:
            stream[len(stream) // 2] ^= 0x10

        d.pools[-1].spoil = flip
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        assert await request.ended() is Reason.KV_CORRUPT
        assert "checksum of unit" in d.record.failed[0][2]


@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (1, 2), (4, 2)])
async def test_kv_of_a_lost_decode_worker_goes_on_to_one_of_another_degree(
    pair: Pair, keys: KeyDirectory, ranks: tuple[int, int]
) -> None:
    geometry = replace(GEOMETRY, kv_heads=4)
    config = replace(FAST, kept_s=20.0)
    first, second = ranks
    other = decode_worker(keys, geometry=geometry, config=config, ranks=second)
    options = {"geometry": geometry, "config": config}
    async with pair({**options, "ranks": 2}, {**options, "ranks": first}) as (p, d):
        await other.transfer.start()
        try:
            request = Request(p, d, tokens=23)
            for step in (request.open, request.expect, lambda: request.compute(9)):
                step()
            await eventually(lambda: "granted" in request.calls)
            await d.transfer.stop()
            await eventually(lambda: p.record.reports)
            assert p.record.released == []
            request.compute_all()
            request.draw()
            again = RequestKey(request.id, 2)
            other.transfer.expected(again, p.epoch, Reservation(23, 0, request.target, (0,), soon()))
            p.transfer.retargeted(request.key, 2, other.ref, soon())
            await eventually(lambda: other.record.landed and p.record.released)
            assert other.record.landed == [(again, first_tokens(0))]
            request.decode = other
            request.compare()
        finally:
            await other.transfer.stop()
