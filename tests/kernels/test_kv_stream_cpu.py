"""Checksum, pack, scatter and block copy: against plain integer arithmetic, and CPU paths against the references."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from torch import Tensor

from baton_kernels.kv.cpu import kv_copy
from baton_kernels.kv.kv_checksum import kv_checksums, kv_checksums_reference
from baton_kernels.kv.kv_copy import copy_blocks, pack_kv, pack_kv_reference, scatter_kv, scatter_kv_reference
from baton_kernels.kv.kv_units import UnitRange

MASK = (1 << 64) - 1


def splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def checksum_by_hand(data: bytes) -> int:
    words: tuple[int, ...] = struct.unpack(f"<{len(data) // 4}i", data)
    return sum(word * (splitmix64(i + 1) | 1) for i, word in enumerate(words)) & MASK


def random_pool(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random bits, NaN patterns included: KV is moved as bytes."""
    size = torch.tensor([], dtype=dtype).element_size()
    count = math.prod(shape) * size
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).byte().view(dtype).view(shape)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def test_splitmix64_gives_the_published_values() -> None:
    # First outputs of the reference generator seeded with 1234567: state advances by the golden gamma.
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("unit_tokens", [16, 8, 1])
def test_checksums_are_the_formula_over_the_stream_bytes(unit_tokens: int, dtype: torch.dtype) -> None:
    pool = random_pool((4, 3, 2, 2, 16, 8), dtype)
    blocks = torch.tensor([2, 0, 3], dtype=torch.int32)
    units = UnitRange(unit_tokens, 1, 2 * 16 // unit_tokens)
    sums = kv_checksums(pool, blocks, units)
    assert torch.equal(sums, kv_checksums_reference(pool, blocks, units))
    stream = torch.empty(units.count * 3 * 2 * 2 * unit_tokens * 8, dtype=dtype)
    pack_kv(pool, blocks, units, stream)
    data = stream.view(torch.uint8).numpy().tobytes()
    piece = len(data) // sums.numel()
    by_hand = [checksum_by_hand(data[i : i + piece]) for i in range(0, len(data), piece)]
    assert [value & MASK for value in sums.flatten().tolist()] == by_hand


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("unit_tokens", [16, 4])
@pytest.mark.parametrize("shape", [(5, 3, 2, 2, 16, 8), (5, 2, 2, 3, 16, 24), (5, 1, 2, 1, 64, 128)], ids=str)
def test_pack_and_scatter_equal_their_references(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], unit_tokens: int, is_compiled: bool
) -> None:
    if not is_compiled:
        monkeypatch.setattr(kv_copy, "suits_copy", lambda row_words: False)
    pool, blocks = random_pool(shape, torch.bfloat16), torch.tensor([4, 1, 2])
    _, layers, _, heads, block_tokens, head_dim = shape
    units = UnitRange(unit_tokens, 1, 2 * block_tokens // unit_tokens + 1)
    size = units.count * layers * 2 * heads * unit_tokens * head_dim
    args = (pool, blocks, units)
    expected, got = torch.zeros(size, dtype=torch.bfloat16), torch.ones(size, dtype=torch.bfloat16)
    expected_sums, got_sums = (torch.full((units.count, layers, 2), fill) for fill in (1, 2))
    pack_kv_reference(*args, expected, expected_sums)
    pack_kv(*args, got, got_sums)
    assert same_bytes(expected, got)
    assert torch.equal(expected_sums, got_sums)
    assert torch.equal(expected_sums, kv_checksums(*args))

    targets = torch.tensor([0, 3, 4])
    expected_pool, got_pool = random_pool(shape, torch.bfloat16, 1), random_pool(shape, torch.bfloat16, 1)
    landed = torch.zeros_like(got_sums)
    scatter_kv_reference(expected, expected_pool, targets, units)
    scatter_kv(got, got_pool, targets, units, landed)
    assert same_bytes(expected_pool, got_pool)
    assert torch.equal(landed, got_sums)


def test_pack_of_whole_blocks_is_the_blocks_bytes() -> None:
    pool = random_pool((3, 2, 2, 2, 16, 8), torch.float32)
    stream = torch.empty(2 * pool[0].numel())
    pack_kv(pool, torch.tensor([2, 0]), UnitRange(16, 0, 2), stream)
    assert same_bytes(stream, torch.cat((pool[2].flatten(), pool[0].flatten())))


def test_an_empty_range_moves_nothing() -> None:
    pool = random_pool((2, 2, 2, 1, 16, 8), torch.float32)
    before = pool.clone()
    scatter_kv(torch.empty(0), pool, torch.tensor([0]), UnitRange(16, 1, 1), torch.empty(0, 2, 2, dtype=torch.int64))
    assert same_bytes(pool, before)
    assert kv_checksums(pool, torch.tensor([0]), UnitRange(16, 1, 1)).shape == (0, 2, 2)


def test_any_flipped_bit_swap_or_shift_changes_a_checksum() -> None:
    pool, block = random_pool((1, 1, 2, 2, 4, 8), torch.float32), torch.tensor([0])
    words = pool[0, 0, 0].view(-1).view(torch.int32)
    original = kv_checksums(pool, block, UnitRange(4, 0, 1))[0, 0, 0].item()
    seen = {original}
    for i in range(words.numel()):
        for bit in range(32):
            flip = 1 << bit if bit < 31 else -(1 << 31)
            words[i] ^= flip
            seen.add(kv_checksums(pool, block, UnitRange(4, 0, 1))[0, 0, 0].item())
            words[i] ^= flip
    assert len(seen) == 1 + 32 * words.numel()
    swapped = words.clone()
    words[0], words[1] = swapped[1].item(), swapped[0].item()
    assert kv_checksums(pool, block, UnitRange(4, 0, 1))[0, 0, 0].item() != original
    words.copy_(swapped.roll(1))
    assert kv_checksums(pool, block, UnitRange(4, 0, 1))[0, 0, 0].item() != original


@pytest.mark.parametrize(
    ("unit_tokens", "first", "end", "message"),
    [
        (3, 0, 1, "unit_tokens is 3"),
        (0, 0, 1, "unit_tokens is 0"),
        (16, -1, 1, r"units \[-1, 1\)"),
        (16, 2, 1, r"units \[2, 1\)"),
        (8, 0, 5, r"units \[0, 5\) of 8 tokens lie outside 2 blocks"),
    ],
)
def test_a_range_that_does_not_fit_is_refused(unit_tokens: int, first: int, end: int, message: str) -> None:
    pool = random_pool((3, 1, 2, 1, 16, 8), torch.float32)
    with pytest.raises(ValueError, match=message):
        kv_checksums(pool, torch.tensor([0, 1]), UnitRange(unit_tokens, first, end))


def test_a_stream_of_another_size_or_dtype_is_refused() -> None:
    pool = random_pool((3, 1, 2, 1, 16, 8), torch.float32)
    for stream in (torch.empty(255), torch.empty(256, dtype=torch.float16)):
        with pytest.raises(ValueError, match="stream holds"):
            scatter_kv(stream, pool, torch.tensor([0]), UnitRange(16, 0, 1))


def test_odd_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number of 4-byte words"):
        kv_checksums(torch.zeros(1, 1, 2, 1, 16, 9, dtype=torch.bfloat16), torch.tensor([0]), UnitRange(16, 0, 1))


def test_copied_blocks_equal_their_sources_and_others_stay() -> None:
    pool = random_pool((6, 2, 2, 1, 16, 8), torch.float32)
    before = pool.clone()
    copy_blocks(pool, torch.tensor([1, 3]), torch.tensor([5, 0]))
    for block, source in enumerate([3, 1, 2, 3, 4, 1]):
        assert same_bytes(pool[block], before[source])
