"""The sum over ranks, the residual addition and the RMSNorm after it in one kernel: one row a program at a time."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.exchange.gpu.rank_sum import WIDE, part_of, sum_of_parts
from baton_kernels.exchange.gpu.signals import end_turn, meet
from baton_kernels.exchange.rank_region import PROGRAMS, RankRegion, wide_dtype


@triton.jit(do_not_specialize=["programs"])
def _sum_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, addresses_ptr, state_ptr, rows, programs, eps, most_looks,
    H: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    turn = tl.load(state_ptr + first)
    column = tl.arange(0, BLOCK)
    inside = column < H
    if first < rows:
        own = part_of(addresses_ptr, RANK, turn, x_ptr, False)
        for row in range(first, rows, programs):
            place = row * H + column
            tl.store(own + place, tl.load(x_ptr + place, mask=inside), mask=inside)
        weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)  # [H]
        meet(addresses_ptr, state_ptr, 2 * turn + 1, most_looks, RANK, RANKS)
        for row in range(first, rows, programs):
            place = row * H + column
            x = sum_of_parts(addresses_ptr, turn, x_ptr, place, inside, RANKS, WIDE)
            residual = tl.load(residual_ptr + place, mask=inside, other=0.0)
            x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
            tl.store(total_ptr + place, x, mask=inside)
            x32 = x.to(tl.float32)
            scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, axis=0) / H + eps)
            normed = ((x32 * scale).to(x.dtype).to(tl.float32) * weight).to(x.dtype)
            tl.store(out_ptr + place, normed, mask=inside)
    end_turn(state_ptr, turn, programs)


def sum_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, region: RankRegion, warps: int | None = None
) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.exchange.rank_exchange.rank_sum_norm`. `warps`: of each program; None: by the rows' length."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    rows, hidden = residual.shape
    if rows:
        block = triton.next_power_of_2(hidden)
        programs = min(rows, PROGRAMS)
        _sum_norm_kernel[(programs,)](
            x, residual, weight, out, total, region.addresses, region.state, rows, programs, eps, region.most_looks,
            hidden, region.rank, region.ranks, block, WIDE[wide_dtype(x.dtype)],
            num_warps=warps or min(8, max(4, block // 512)),
        )  # fmt: skip
    return out, total
