"""Tensors of all ranks side by side, in Triton."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.exchange.gpu.rank_sum import part_of
from baton_kernels.exchange.gpu.signals import end_turn, meet
from baton_kernels.exchange.rank_region import PROGRAMS, RankRegion

BLOCK = 1024


@triton.jit(do_not_specialize=["programs"])
def _gather_kernel(
    x_ptr, out_ptr, addresses_ptr, state_ptr, size, width, out_stride, programs, most_looks,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    turn = tl.load(state_ptr + tl.program_id(0))
    if first < size:
        own = part_of(addresses_ptr, RANK, turn, x_ptr, False)
        for start in range(first, size, programs * BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(own + place, tl.load(x_ptr + place, mask=place < size), mask=place < size)
        meet(addresses_ptr, state_ptr, 2 * turn + 1, most_looks, RANK, RANKS)
        for rank in tl.static_range(RANKS):
            part = part_of(addresses_ptr, rank, turn, x_ptr, False)
            for start in range(first, size, programs * BLOCK):
                place = start + tl.arange(0, BLOCK)
                target = (place // width).to(tl.int64) * out_stride + rank * width + place % width
                values = tl.load(part + place, mask=place < size, volatile=True)
                tl.store(out_ptr + target, values, mask=place < size)
    end_turn(state_ptr, turn, programs)


def gather(x: Tensor, out: Tensor, region: RankRegion) -> None:
    """Fill `out` [rows, ranks · n], rows of any stride, from x [rows, n], which is contiguous and fits into a slot."""
    if x.numel():
        programs = min(PROGRAMS, triton.cdiv(x.numel(), BLOCK))
        _gather_kernel[(programs,)](
            x.contiguous(), out, region.addresses, region.state, x.numel(), x.shape[1], out.stride(0),
            programs, region.most_looks, region.rank, region.ranks, BLOCK,
        )  # fmt: skip
