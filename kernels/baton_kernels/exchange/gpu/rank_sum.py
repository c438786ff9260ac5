"""Sums over ranks in Triton: in one shot, where every rank adds up everything, or in two, where each adds up a part and
reads the others'."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.exchange.gpu.signals import end_turn, meet, slot_of
from baton_kernels.exchange.rank_region import PROGRAMS, RankRegion, wide_dtype


@dataclass(frozen=True, slots=True)
class Launch:
    """How a sum is launched."""

    programs: int = PROGRAMS
    """The most programs; fewer where there is less to do."""
    block: int = 2048
    """Elements that a program adds up at a time."""
    warps: int = 8


LAUNCH = Launch()
LARGE = Launch(block=8192, warps=16)
"""For sums of 1 MiB and more: two H200s add 33.5 MB in two shots in 137 us, where blocks of 2,048 take 162."""
ALIGNED = 64
"""Parts of a two-shot sum begin at multiples of it: loads stay wide."""
WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit
def part_of(addresses_ptr, rank, turn, like_ptr, SECOND: tl.constexpr):
    """A rank's slot as elements of the type of `like_ptr`."""
    slot = slot_of(addresses_ptr, rank, turn, SECOND).to(tl.pointer_type(like_ptr.dtype.element_ty))
    return tl.multiple_of(slot, 16)


@triton.jit
def sum_of_parts(addresses_ptr, turn, like_ptr, place, inside, RANKS: tl.constexpr, WIDE: tl.constexpr):
    """Σ_r x_r at these places, in the order of the ranks, rounded once to the type of `like_ptr`."""
    total = tl.load(part_of(addresses_ptr, 0, turn, like_ptr, False) + place, mask=inside, other=0.0, volatile=True)
    total = total.to(WIDE)
    for rank in tl.static_range(1, RANKS):
        part = part_of(addresses_ptr, rank, turn, like_ptr, False)
        total += tl.load(part + place, mask=inside, other=0.0, volatile=True).to(WIDE)
    return total.to(like_ptr.dtype.element_ty)


@triton.jit(do_not_specialize=["programs"])
def _one_shot_kernel(
    x_ptr, out_ptr, addresses_ptr, state_ptr, size, programs, most_looks,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    turn = tl.load(state_ptr + tl.program_id(0))
    if first < size:
        own = part_of(addresses_ptr, RANK, turn, x_ptr, False)
        for start in range(first, size, programs * BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(own + place, tl.load(x_ptr + place, mask=place < size), mask=place < size)
        meet(addresses_ptr, state_ptr, 2 * turn + 1, most_looks, RANK, RANKS)
        for start in range(first, size, programs * BLOCK):
            place = start + tl.arange(0, BLOCK)
            total = sum_of_parts(addresses_ptr, turn, x_ptr, place, place < size, RANKS, WIDE)
            tl.store(out_ptr + place, total, mask=place < size)
    end_turn(state_ptr, turn, programs)


@triton.jit(do_not_specialize=["programs"])
def _two_shot_kernel(
    x_ptr, out_ptr, addresses_ptr, state_ptr, size, part, programs, most_looks,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each rank adds up `part` elements. Program p has the same places of every part at every rank."""
    first = tl.program_id(0) * BLOCK
    turn = tl.load(state_ptr + tl.program_id(0))
    if first < part:
        own = part_of(addresses_ptr, RANK, turn, x_ptr, False)
        for rank in tl.static_range(RANKS):
            for start in range(first, part, programs * BLOCK):
                within = start + tl.arange(0, BLOCK)
                place, inside = rank * part + within, (within < part) & (rank * part + within < size)
                tl.store(own + place, tl.load(x_ptr + place, mask=inside), mask=inside)
        meet(addresses_ptr, state_ptr, 2 * turn + 1, most_looks, RANK, RANKS)
        sums = part_of(addresses_ptr, RANK, turn, x_ptr, True)
        for start in range(first, part, programs * BLOCK):
            within = start + tl.arange(0, BLOCK)
            place, inside = RANK * part + within, (within < part) & (RANK * part + within < size)
            total = sum_of_parts(addresses_ptr, turn, x_ptr, place, inside, RANKS, WIDE)
            tl.store(sums + within, total, mask=inside)
        meet(addresses_ptr, state_ptr, 2 * turn + 2, most_looks, RANK, RANKS)
        for rank in tl.static_range(RANKS):
            sums_of = part_of(addresses_ptr, rank, turn, x_ptr, True)
            for start in range(first, part, programs * BLOCK):
                within = start + tl.arange(0, BLOCK)
                place, inside = rank * part + within, (within < part) & (rank * part + within < size)
                tl.store(out_ptr + place, tl.load(sums_of + within, mask=inside, volatile=True), mask=inside)
    end_turn(state_ptr, turn, programs)


def one_shot(x: Tensor, out: Tensor, region: RankRegion, launch: Launch = LAUNCH) -> None:
    """Fill `out` [n] from x [n], which fits into a slot."""
    if x.numel():
        programs = min(launch.programs, triton.cdiv(x.numel(), launch.block))
        _one_shot_kernel[(programs,)](
            x, out, region.addresses, region.state, x.numel(), programs, region.most_looks,
            region.rank, region.ranks, launch.block, WIDE[wide_dtype(x.dtype)], num_warps=launch.warps,
        )  # fmt: skip


def two_shot(x: Tensor, out: Tensor, region: RankRegion, launch: Launch = LAUNCH) -> None:
    """As `one_shot`, for large tensors."""
    if x.numel():
        part = -(-x.numel() // (region.ranks * ALIGNED)) * ALIGNED
        programs = min(launch.programs, triton.cdiv(part, launch.block))
        _two_shot_kernel[(programs,)](
            x, out, region.addresses, region.state, x.numel(), part, programs, region.most_looks,
            region.rank, region.ranks, launch.block, WIDE[wide_dtype(x.dtype)], num_warps=launch.warps,
        )  # fmt: skip
