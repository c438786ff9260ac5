"""Sums and exchanges between processes that share memory: same bits everywhere, any size, a lost rank."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from baton_engine.collectives.collective import RankLostError, RankShare
from baton_engine.collectives.shared_memory_collective import (
    SLOT_BYTES,
    CollectiveParts,
    SharedMemoryCollective,
)

T = TypeVar("T")


def in_ranks(ranks: int, work: Callable[[SharedMemoryCollective], T], deadline_s: float = 60.0) -> list[T]:
    """What `work` returns at each rank; each rank has maps and descriptors of its own, as in a process of its own."""
    parts = CollectiveParts.create(ranks)
    groups = [
        CollectiveParts.attach([os.dup(descriptor) for descriptor in parts.descriptors], ranks) for _ in range(ranks)
    ]
    try:
        with ThreadPoolExecutor(ranks) as threads:
            futures = [
                threads.submit(work, SharedMemoryCollective(RankShare(rank, ranks), group, deadline_s))
                for rank, group in enumerate(groups)
            ]
            return [future.result(120) for future in futures]
    finally:
        for group in (parts, *groups):
            group.close()


def tensor_of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_rank_gets_the_same_bits_added_up_in_the_order_of_the_ranks(ranks: int, dtype: torch.dtype) -> None:
    sums = in_ranks(
        ranks, lambda collective: collective.all_reduce(tensor_of(collective.share.rank, 5, 7, dtype=dtype))
    )
    expected = tensor_of(0, 5, 7, dtype=dtype).float()
    for rank in range(1, ranks):
        expected = expected + tensor_of(rank, 5, 7, dtype=dtype).float()
    for total in sums:
        assert total.dtype == dtype
        assert torch.equal(total, expected.to(dtype))


@pytest.mark.parametrize("count", [0, 1, SLOT_BYTES // 4 - 1, SLOT_BYTES // 4, SLOT_BYTES // 4 + 1, 3 * SLOT_BYTES])
def test_tensors_of_any_size_pass(count: int) -> None:
    sums = in_ranks(
        2, lambda collective: collective.all_reduce(torch.arange(count, dtype=torch.float32) + collective.share.rank)
    )
    expected = 2 * torch.arange(count, dtype=torch.float32) + 1
    assert all(torch.equal(total, expected) for total in sums)


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3), (0, 3)])
def test_the_last_dimension_is_gathered_in_the_order_of_the_ranks(shape: tuple[int, ...]) -> None:
    gathered = in_ranks(3, lambda collective: collective.all_gather(tensor_of(collective.share.rank, *shape)))
    expected = torch.cat([tensor_of(rank, *shape) for rank in range(3)], dim=-1)
    assert all(torch.equal(tensor, expected) for tensor in gathered)


def test_tensors_that_are_not_contiguous_and_of_integers_pass() -> None:
    def work(collective: SharedMemoryCollective) -> tuple[Tensor, Tensor]:
        turned = tensor_of(collective.share.rank, 4, 6).T
        return collective.all_reduce(turned), collective.all_gather(torch.tensor([[collective.share.rank]]))

    for total, ids in in_ranks(2, work):
        assert torch.equal(total, (tensor_of(0, 4, 6) + tensor_of(1, 4, 6)).T)
        assert ids.tolist() == [[0, 1]]


def test_thousands_of_exchanges_of_both_kinds_never_mix() -> None:
    def work(collective: SharedMemoryCollective) -> bool:
        rank = collective.share.rank
        for turn in range(2_000):
            size = 1 + turn % 37
            total = collective.all_reduce(torch.full((size,), float(turn * 3 + rank)))
            assert torch.equal(total, torch.full((size,), float(turn * 9 + 3)))
            assert collective.all_gather(torch.tensor([turn + rank])).tolist() == [turn, turn + 1, turn + 2]
        return True

    assert all(in_ranks(3, work))


def test_a_sum_works_within_and_outside_of_inference_mode() -> None:
    def work(collective: SharedMemoryCollective) -> Tensor:
        with torch.inference_mode():
            inside = collective.all_reduce(torch.ones(3))
        return collective.all_reduce(torch.ones(3)) + inside

    assert all(total.tolist() == [4.0] * 3 for total in in_ranks(2, work))


def test_a_rank_that_does_not_arrive_is_reported_by_number() -> None:
    def work(collective: SharedMemoryCollective) -> str:
        if collective.share.rank == 1:
            return "away"
        with pytest.raises(RankLostError, match=r"rank 1 did not arrive at an exchange within 0\.05 s"):
            collective.all_reduce(torch.ones(3))
        return "reported"

    assert in_ranks(2, work, deadline_s=0.05) == ["reported", "away"]


def test_ranks_that_exchange_tensors_of_different_sizes_are_told_apart() -> None:
    both = threading.Barrier(2)

    def work(collective: SharedMemoryCollective) -> bool:
        with pytest.raises(RankLostError, match=r"rank \d exchanged \d+ bytes in turn 0, rank \d \d+ in turn 0"):
            collective.all_reduce(torch.ones(3 + collective.share.rank))
        both.wait(60)
        return True

    assert all(in_ranks(2, work))
