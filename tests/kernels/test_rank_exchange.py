"""Exchanges between ranks, rank by rank, with what the others would have left in their regions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.exchange.rank_exchange import (
    is_lost,
    rank_gather,
    rank_gather_reference,
    rank_sum,
    rank_sum_norm,
    rank_sum_norm_reference,
    rank_sum_reference,
)
from baton_kernels.exchange.rank_region import PROGRAMS, RankRegion
from baton_testing.kernels.rank_regions import RankRegions, wrapped

TYPES = [torch.float32, torch.bfloat16, torch.float16]


def same(results: list[Tensor], expected: Tensor) -> bool:
    """All ranks have the same bits, which are the expected ones. The interpreter truncates bfloat16."""
    if expected.dtype == torch.bfloat16 and not expected.is_cuda:
        torch.testing.assert_close(results[0], expected, rtol=2**-6, atol=2**-6)
        expected = results[0]
    return all(torch.equal(result, expected) for result in results)


def parts_of(ranks: int, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[Tensor]:
    draw = torch.Generator().manual_seed(ranks)
    return [torch.randn(shape, generator=draw).to(dtype).to(device) for _ in range(ranks)]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("ranks", "shape"), [(2, (1,)), (2, (5, 1, 1024)), (3, (3, 40)), (8, (3, 40))], ids=str)
def test_every_rank_has_the_same_sum(
    triton_device: str, ranks: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    parts = parts_of(ranks, shape, dtype, triton_device)
    sums = RankRegions(ranks, triton_device).run(parts, rank_sum)
    assert same(sums, rank_sum_reference(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("ranks", "size"), [(2, 5000), (3, 1), (3, 5000), (3, 64)])
def test_sums_in_two_shots_are_those_in_one(triton_device: str, ranks: int, size: int, dtype: torch.dtype) -> None:
    from baton_kernels.exchange.gpu.rank_sum import two_shot

    def call(x: Tensor, region: RankRegion) -> Tensor:
        out = torch.full_like(x, float("nan"))
        two_shot(x, out, region)
        return out

    parts = parts_of(ranks, (size,), dtype, triton_device)
    assert same(RankRegions(ranks, triton_device, turn=1).run(parts, call), rank_sum_reference(parts))


@pytest.mark.parametrize("shots", ["one_shot", "two_shot"])
@pytest.mark.parametrize(("programs", "block"), [(1, 256), (3, 64), (128, 128)])
def test_sums_are_the_same_however_they_are_launched(triton_device: str, programs: int, block: int, shots: str) -> None:
    """Programs that were not launched have counted the turn too: the next exchange may need them."""
    from baton_kernels.exchange.gpu import rank_sum as on_gpu

    def call(x: Tensor, region: RankRegion) -> Tensor:
        out = torch.full_like(x, float("nan"))
        getattr(on_gpu, shots)(x, out, region, on_gpu.Launch(programs, block, 4))
        return out

    parts = parts_of(2, (1000,), torch.float32, triton_device)
    regions = RankRegions(2, triton_device, turn=6)
    assert same(regions.run(parts, call), rank_sum_reference(parts))
    assert regions.states[1].tolist() == [7] * PROGRAMS + [0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_large_sums_are_exact(ranks: int, dtype: torch.dtype) -> None:
    parts = parts_of(ranks, (1031, 1537), dtype, "cuda")
    assert same(RankRegions(ranks, "cuda", turn=1).run(parts, rank_sum), rank_sum_reference(parts))


@pytest.mark.parametrize("is_pushed", [False, True], ids=["read", "pushed"])
@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.float32), (1, torch.float16), (PROGRAMS + 3, torch.bfloat16)])
def test_sum_residual_and_norm_together_are_what_they_are_one_by_one(
    triton_device: str, rows: int, dtype: torch.dtype, is_pushed: bool
) -> None:
    from baton_kernels.exchange.gpu.pushed_sum import pushed_sum_norm

    sum_norm = pushed_sum_norm if is_pushed else rank_sum_norm
    parts = parts_of(2, (rows, 96), dtype, triton_device)
    residual, weight = parts_of(2, (rows, 96), dtype, triton_device)[1], torch.rand(96, device=triton_device).to(dtype)
    expected, total = rank_sum_norm_reference(parts, residual, weight, 1e-5)
    residuals: list[Tensor] = []

    def call(x: Tensor, region: RankRegion) -> Tensor:
        normed, added = sum_norm(x, residual, weight, 1e-5, region)
        residuals.append(added)
        return normed

    first, second = RankRegions(2, triton_device).run(parts, call)
    assert torch.equal(first, second)
    assert same(residuals, total)
    torch.testing.assert_close(first, expected, rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("ranks", "shape"), [(2, (1, 1)), (2, (4, 1)), (3, (7, 33)), (2, (2, 3, 700))], ids=str)
def test_parts_come_in_the_order_of_the_ranks(
    triton_device: str, ranks: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    parts = parts_of(ranks, shape, torch.float32, triton_device)
    parts = [(part * 1e6).to(dtype) if dtype == torch.int64 else part.to(dtype) for part in parts]
    gathered = RankRegions(ranks, triton_device).run(parts, rank_gather)
    assert all(torch.equal(whole, rank_gather_reference(parts)) for whole in gathered)


@pytest.mark.parametrize("turn", [2**30 - 1, 2**31 - 1, -1])
def test_turns_go_on_when_their_numbers_wrap_around(triton_device: str, turn: int) -> None:
    parts = parts_of(2, (3, 40), torch.float32, triton_device)
    regions = RankRegions(2, triton_device, turn)
    assert same(regions.run(parts, rank_sum), rank_sum_reference(parts))
    assert regions.states[0].tolist() == [wrapped(turn + 1)] * PROGRAMS + [0]
    assert regions.signals(0)[0, 1].item() == wrapped(2 * turn + 1)


def test_a_rank_that_does_not_arrive_is_lost_for_good(triton_device: str) -> None:
    parts = parts_of(2, (3, 40), torch.float32, triton_device)
    regions = RankRegions(2, triton_device)
    rank_sum(parts[0], regions.of(0))
    assert is_lost(regions.of(0))
    assert not is_lost(regions.of(1))
    regions.signals(0).fill_(1000)
    rank_sum(parts[0], regions.of(0))
    assert is_lost(regions.of(0))


@pytest.mark.parametrize("turns_ago", [1, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 2])
def test_a_signal_of_a_turn_before_is_not_enough(triton_device: str, turns_ago: int) -> None:
    """Programs that small exchanges do not need signal nothing meanwhile: 2^30 turns are half a day of decode steps."""
    parts = parts_of(2, (3, 40), torch.float32, triton_device)
    turn = wrapped(5 + turns_ago)
    regions = RankRegions(2, triton_device, turn)
    regions.signals(0).fill_(2 * 5 + 2)
    rank_sum(parts[0], regions.of(0))
    assert is_lost(regions.of(0))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("ranks", "size"), [(2, 2), (2, 5000), (4, 1026)])
def test_pushed_sums_are_exact_and_leave_empty_places(
    triton_device: str, ranks: int, size: int, dtype: torch.dtype
) -> None:
    from baton_kernels.exchange.gpu.pushed_sum import pushed_sum

    def call(x: Tensor, region: RankRegion) -> Tensor:
        out = torch.full_like(x, float("nan"))
        pushed_sum(x, out, region, 512)
        return out

    parts = parts_of(ranks, (size,), dtype, triton_device)
    regions = RankRegions(ranks, triton_device, turn=3)
    assert same(regions.run(parts, call), rank_sum_reference(parts))
    own = regions.landings(ranks - 1)
    assert bool((own[: ranks - 1] == 0xFF).all())
    sent = regions.landings(0)[ranks - 1].view(dtype)[:size]
    assert torch.equal(sent, parts[ranks - 1])
    assert not is_lost(regions.of(0))


def test_words_that_look_empty_are_sent_as_other_ones(triton_device: str) -> None:
    from baton_kernels.exchange.gpu.pushed_sum import pushed_sum

    parts = parts_of(2, (64,), torch.float32, triton_device)
    parts[0].view(torch.int32)[5] = -1
    regions = RankRegions(2, triton_device)
    put = regions.landings(0)[1]
    put[: parts[1].nbytes].copy_(parts[1].view(torch.uint8))
    out = torch.zeros_like(parts[0])
    pushed_sum(parts[0], out, regions.of(0))
    assert bool(out[5].isnan())
    assert torch.equal(out.isnan(), parts[0].isnan())
    assert regions.landings(1)[0].view(torch.int32)[5].item() == 0x7FFF7FFF


def test_pushed_words_that_never_land_are_given_up(triton_device: str) -> None:
    from baton_kernels.exchange.gpu.pushed_sum import pushed_sum

    parts = parts_of(2, (64,), torch.float32, triton_device)
    regions = RankRegions(2, triton_device)
    pushed_sum(parts[0], torch.zeros_like(parts[0]), regions.of(0))
    assert is_lost(regions.of(0))
