"""The pool's bytes: regions, checksums, and pack and scatter between pools of unequal block sizes."""

from __future__ import annotations

import struct

import pytest
import torch

from baton_engine.memory.kv_pool import KvPool
from baton_wire.kv_shape import KvGeometry, PoolPart, Units

CPU = torch.device("cpu")


def units(blocks: list[int], tokens: int, first: int, end: int) -> Units:
    return Units(blocks, tokens, first, end, PoolPart(0, 3, 0, 2))


def random_pool(
    block_tokens: int,
    num_blocks: int = 12,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    *,
    with_checksums: bool = True,
) -> KvPool:
    geometry = KvGeometry(3, 2, 8, dtype.itemsize, block_tokens)
    pool = KvPool(geometry, num_blocks, dtype, CPU, with_checksums=with_checksums)
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


def tokens_of(pool: KvPool, blocks: list[int]) -> torch.Tensor:
    """KV of a block table in logical order: [layers, 2, kv_heads, tokens, head_dim]."""
    return torch.cat([pool.tensor[block] for block in blocks], dim=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("from_tokens", "to_tokens"), [(16, 16), (16, 4), (4, 16), (16, 32), (64, 16)])
def test_what_is_packed_in_one_pool_stands_in_another_after_scatter(
    from_tokens: int, to_tokens: int, dtype: torch.dtype
) -> None:
    unit, total = min(from_tokens, to_tokens), 128
    source, target = random_pool(from_tokens, 40, dtype), random_pool(to_tokens, 40, dtype, seed=1)
    table = list(range(5, 5 + total // from_tokens))[::-1]
    landing = list(range(7, 7 + 2 * (total // to_tokens), 2)) if to_tokens > 4 else list(range(3, 35))
    first, end = 32 // unit, 96 // unit
    before = tokens_of(target, landing).clone()
    stream = bytearray((end - first) * unit * source.geometry.token_bytes)
    source.pack(units(table, unit, first, end), memoryview(stream))
    checksums = target.scatter(memoryview(stream), units(landing, unit, first, end))
    after, expected = tokens_of(target, landing), tokens_of(source, table)
    assert torch.equal(after[..., 32:96, :], expected[..., 32:96, :])
    assert torch.equal(after[..., :32, :], before[..., :32, :])
    assert torch.equal(after[..., 96:, :], before[..., 96:, :])
    assert (
        checksums
        == source.checksums(units(table, unit, first, end))
        == target.checksums(units(landing, unit, first, end))
    )
    assert len(checksums) == (end - first) * 3 * 2 * 8
    unchecked = random_pool(to_tokens, 40, dtype, seed=1, with_checksums=False)
    assert unchecked.scatter(memoryview(stream), units(landing, unit, first, end)) == b""
    assert torch.equal(tokens_of(unchecked, landing), after)


def test_a_flipped_bit_anywhere_changes_the_checksum_of_its_piece_only() -> None:
    source, target = random_pool(8), random_pool(8, seed=1)
    stream = bytearray(2 * 8 * source.geometry.token_bytes)
    source.pack(units([4, 9], 8, 0, 2), memoryview(stream))
    good = source.checksums(units([4, 9], 8, 0, 2))
    piece_bytes = len(stream) // (len(good) // 8)
    for position in range(0, len(stream), 97):
        stream[position] ^= 1 << (position % 8)
        checksums = target.scatter(memoryview(stream), units([1, 2], 8, 0, 2))
        changed = [
            i for i, pair in enumerate(zip(*map(as_words, (good, checksums)), strict=True)) if pair[0] != pair[1]
        ]
        assert changed == [position // piece_bytes]
        stream[position] ^= 1 << (position % 8)


def test_swapped_pieces_and_swapped_words_are_noticed() -> None:
    source = random_pool(8)
    stream = bytearray(2 * 8 * source.geometry.token_bytes)
    source.pack(units([4, 9], 8, 0, 2), memoryview(stream))
    good = source.checksums(units([4, 9], 8, 0, 2))
    half = len(stream) // 2
    for swapped in (stream[half:] + stream[:half], stream[4:8] + stream[:4] + stream[8:]):
        assert random_pool(8, seed=1).scatter(memoryview(swapped), units([1, 2], 8, 0, 2)) != good


def test_the_region_is_the_pool_itself() -> None:
    pool = random_pool(8, dtype=torch.bfloat16)
    region = pool.region()
    assert region is not None
    assert region.nbytes == 12 * pool.geometry.block_bytes
    region[:] = bytes(region.nbytes)
    assert not pool.tensor.any()


def test_a_unit_that_is_a_whole_block_lies_in_the_region_as_in_the_stream() -> None:
    pool = random_pool(8)
    stream = bytearray(pool.geometry.block_bytes)
    pool.pack(units([3, 7], 8, 1, 2), memoryview(stream))
    start = 7 * pool.geometry.block_bytes
    region = pool.region()
    assert region is not None
    assert region[start : start + len(stream)] == stream


def test_a_read_only_stream_is_accepted() -> None:
    source, target = random_pool(8), random_pool(8, seed=1)
    stream = bytearray(8 * source.geometry.token_bytes)
    source.pack(units([4], 8, 0, 1), memoryview(stream))
    assert target.scatter(memoryview(bytes(stream)), units([2], 8, 0, 1)) == source.checksums(units([4], 8, 0, 1))
    assert torch.equal(target.tensor[2], source.tensor[4])


def test_nothing_to_move_has_no_checksums() -> None:
    pool = random_pool(8)
    pool.pack(units([1], 8, 1, 1), memoryview(bytearray()))
    assert pool.checksums(units([1], 8, 1, 1)) == pool.scatter(memoryview(b""), units([1], 8, 1, 1)) == b""


def test_blocks_are_copied_with_all_layers() -> None:
    pool = random_pool(8)
    pool.copy_blocks([3, 5], [0, 1])
    assert torch.equal(pool.tensor[:2], pool.tensor[[3, 5]])


@pytest.mark.parametrize(
    ("unit", "first", "end", "named"),
    [
        (3, 0, 1, "unit_tokens"),
        (8, 0, 3, "units"),
        (8, 2, 1, "units"),
        (16, 0, 1, "unit_tokens"),
        (0, 0, 1, "unit_tokens"),
    ],
)
def test_a_range_outside_the_blocks_is_refused(unit: int, first: int, end: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        random_pool(8).checksums(units([1, 2], unit, first, end))


def test_a_stream_of_another_length_is_refused() -> None:
    pool = random_pool(8)
    with pytest.raises(ValueError, match="stream"):
        pool.scatter(memoryview(bytearray(10)), units([1], 8, 0, 1))
    with pytest.raises(ValueError):
        pool.scatter(memoryview(bytearray(16)), units([1], 8, 0, 1))


def test_a_pool_that_does_not_fit_says_what_it_asked_for() -> None:
    geometry = KvGeometry(32, 8, 128, 4, 16)
    with pytest.raises(MemoryError, match=r"KV cache: 1000000000 blocks of 4194304 bytes"):
        KvPool(geometry, 1_000_000_000, torch.float32, CPU)
    with pytest.raises(ValueError, match="element_bytes: 4"):
        KvPool(geometry, 1, torch.bfloat16, CPU)


def as_words(checksums: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(checksums) // 8}Q", checksums)
