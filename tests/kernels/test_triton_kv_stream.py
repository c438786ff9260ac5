"""Triton checksum, pack, scatter and block copy against the references: to the bit, for any bit pattern."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from baton_kernels.kv.kv_checksum import kv_checksums_reference
from baton_kernels.kv.kv_copy import pack_kv_reference, scatter_kv, scatter_kv_reference
from baton_kernels.kv.kv_units import UnitRange, stream_view


def random_pool(shape: tuple[int, ...], device: str, seed: int = 0) -> Tensor:
    words = torch.randint(-(2**31), 2**31, (math.prod(shape) // 2,), generator=torch.Generator().manual_seed(seed))
    return words.int().view(torch.bfloat16).view(shape).to(device)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize("unit_tokens", [16, 4])
@pytest.mark.parametrize("shape", [(5, 3, 2, 2, 16, 8), (5, 1, 2, 3, 16, 24), (5, 1, 2, 5, 16, 128)], ids=str)
def test_kernels_move_and_sum_the_same_bytes(triton_device: str, shape: tuple[int, ...], unit_tokens: int) -> None:
    from baton_kernels.kv.gpu.kv_copy import kv_checksums_triton, pack_kv_triton, scatter_kv_triton

    pool, blocks = random_pool(shape, triton_device), torch.tensor([4, 1, 2], dtype=torch.int32, device=triton_device)
    units = UnitRange(unit_tokens, 1, 32 // unit_tokens + 1)
    args = (pool, blocks, units)
    sums = kv_checksums_reference(*args)
    assert torch.equal(kv_checksums_triton(pool, blocks, units), sums)

    size = units.count * shape[1] * 2 * shape[3] * unit_tokens * shape[5]
    expected, got = (torch.zeros(size, dtype=torch.bfloat16, device=triton_device) for _ in range(2))
    packed_sums, landed_sums = torch.zeros_like(sums), torch.zeros_like(sums)
    pack_kv_reference(*args, expected)
    pack_kv_triton(pool, blocks, units, stream_view(got, pool, units), packed_sums)
    assert same_bytes(got, expected)
    assert torch.equal(packed_sums, sums)

    expected_pool, got_pool = (random_pool(shape, triton_device, seed=1) for _ in range(2))
    targets = torch.tensor([0, 3, 4], device=triton_device)
    scatter_kv_reference(expected, expected_pool, targets, units)
    scatter_kv_triton(stream_view(got, pool, units), got_pool, targets, units, landed_sums)
    assert same_bytes(got_pool, expected_pool)
    assert torch.equal(landed_sums, sums)


@pytest.mark.parametrize("heads", [slice(0, 1), slice(1, 3), slice(2, 4)], ids=str)
def test_some_heads_of_a_pool_move_as_a_pool_of_those_heads(triton_device: str, heads: slice) -> None:
    from baton_kernels.kv.gpu.kv_copy import kv_checksums_triton, pack_kv_triton, scatter_kv_triton

    pool, blocks = random_pool((5, 3, 2, 4, 16, 8), triton_device), torch.tensor([4, 1], device=triton_device)
    part, units = pool[:, :, :, heads], UnitRange(4, 1, 7)
    sums = kv_checksums_reference(part.contiguous(), blocks, units)
    assert torch.equal(kv_checksums_triton(part, blocks, units), sums)
    expected, got = (torch.zeros(6 * part[0].numel() // 4, dtype=pool.dtype, device=triton_device) for _ in range(2))
    pack_kv_reference(part.contiguous(), blocks, units, expected)
    pack_kv_triton(part, blocks, units, stream_view(got, part, units), None)
    assert same_bytes(got, expected)
    expected_pool, got_pool = (random_pool((5, 3, 2, 4, 16, 8), triton_device, seed=1) for _ in range(2))
    landed = expected_pool[:, :, :, heads].contiguous()
    scatter_kv_reference(expected, landed, blocks, units)
    expected_pool[:, :, :, heads] = landed
    scatter_kv_triton(stream_view(got, part, units), got_pool[:, :, :, heads], blocks, units, None)
    assert same_bytes(got_pool, expected_pool)


def test_scatter_without_checksums_moves_the_same_bytes(triton_device: str) -> None:
    from baton_kernels.kv.gpu.kv_copy import pack_kv_triton, scatter_kv_triton

    source, target = (random_pool((3, 2, 2, 1, 16, 8), triton_device, seed) for seed in (0, 1))
    blocks, units = torch.tensor([2, 0], device=triton_device), UnitRange(16, 0, 2)
    stream = torch.zeros(2 * source[0].numel(), dtype=torch.bfloat16, device=triton_device)
    pack_kv_triton(source, blocks, units, stream_view(stream, source, units), None)
    scatter_kv_triton(stream_view(stream, source, units), target, blocks, units, None)
    assert same_bytes(target[[2, 0]], source[[2, 0]])
    assert same_bytes(target[1], random_pool((3, 2, 2, 1, 16, 8), triton_device, 1)[1])


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_stream_of_layer_groups_lands_as_its_groups_one_by_one(triton_device: str, groups: int) -> None:
    from baton_kernels.kv.gpu.kv_copy import scatter_kv_triton

    shape = (5, 6, 2, 2, 16, 8)
    blocks, units, per = torch.tensor([4, 1, 2], device=triton_device), UnitRange(4, 1, 9), 6 // groups
    stream = random_pool((8 * 6 * 2 * 2 * 4 * 8,), triton_device)
    expected, got = (random_pool(shape, triton_device, seed=1) for _ in range(2))
    sums, got_sums = (torch.zeros(groups, 8, per, 2, dtype=torch.int64, device=triton_device) for _ in range(2))
    for group, part in enumerate(stream.view(groups, -1)):
        pool = expected[:, group * per : (group + 1) * per]
        scatter_kv_reference(part, pool, blocks, units, sums[group])
    scatter_kv(stream, got, blocks, units, got_sums, groups)
    assert same_bytes(got, expected)
    assert torch.equal(got_sums, sums)
    if triton_device == "cpu":  # the interpreter is asked for by name
        again, again_sums = random_pool(shape, triton_device, seed=1), torch.zeros_like(sums)
        view = stream_view(stream, again, units)
        scatter_kv_triton(view, again, blocks, units, again_sums, groups)
        assert same_bytes(again, expected)
        assert torch.equal(again_sums, sums)


def test_copied_blocks_equal_their_sources_and_others_stay(triton_device: str) -> None:
    from baton_kernels.kv.gpu.kv_copy import copy_blocks_triton

    pool = random_pool((6, 2, 2, 3, 16, 24), triton_device)
    before = pool.clone()
    copy_blocks_triton(pool, torch.tensor([1, 3]), torch.tensor([5, 0]))
    for block, source in enumerate([3, 1, 2, 3, 4, 1]):
        assert same_bytes(pool[block], before[source])
