"""Experts in MXFP4 of a few tokens on Hopper, in Gluon: blocks of up to eight rows, without shared memory for weights.

Pairs of a token and an expert are sorted as for `streamed_mxfp4.py`. A warp's product is that of `token_mxfp4.py`: its
eight columns, which are the same for a token alone, are the rows of a block here. A program has 16 features of one
block; its warps share their lines.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.gpu.expert_sort import Sorted, sort_by_expert
from baton_kernels.gpu.streamed_experts import sum_of_experts
from baton_kernels.gpu.token_mxfp4 import (
    _BACK,
    FEATURES,
    LINE_PRODUCT_OF_COLUMNS,
    WORDS,
    _add_line,
    _factors,
    _weights_of_line,
    _x_of_line,
)
from baton_kernels.mxfp4_weight import Mxfp4Stack

BLOCK_ROWS = 8
"""Columns of a warp's product."""


@gluon.jit(do_not_specialize=["BLOCKS"])
def _block_kernel(
    x_ptr, values_ptr, scales_ptr, bias_ptr, table_ptr, out_ptr, columns, features, BLOCKS, limit, alpha,
    SIDES: gl.constexpr, LINES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    THREADS: gl.constexpr = 32 * WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WORDS], [32, 1], [WARPS, 1], [1, 0])
    thread = gl.arange(0, THREADS, gl.SliceLayout(1, LAYOUT))
    quarter, own = thread % 4, thread % 32 // 4
    block = gl.program_id(1)
    gdc_wait()
    if block >= gl.load(table_ptr):
        return
    expert = gl.load(table_ptr + 1 + block).to(gl.int64)
    start = gl.load(table_ptr + 1 + BLOCKS + block)
    end = gl.load(table_ptr + 1 + 2 * BLOCKS + block)
    row = gl.program_id(0) * FEATURES + own
    values = values_ptr + expert * SIDES * features * LINES * 16 + row * LINES * 16
    scales = scales_ptr + expert * SIDES * features * LINES + row
    x_ptr += gl.minimum(start + own, end - 1) * (columns // 2)
    total = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
    up = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
    for first in gl.static_range(0, LINES, WARPS):
        last = first + WARPS >= LINES
        line = first + thread // 32
        one = _weights_of_line(values, line, quarter, LINES, last, LAYOUT)
        other = _weights_of_line(values + 8 * LINES * 16, line, quarter, LINES, last, LAYOUT)
        of_one = _factors(scales, SIDES * features, line, quarter, LINES, last, LAYOUT)
        of_other = _factors(scales + 8, SIDES * features, line, quarter, LINES, last, LAYOUT)
        if SIDES == 2:
            up0 = _weights_of_line(values + features * LINES * 16, line, quarter, LINES, last, LAYOUT)
            up1 = _weights_of_line(values + (features + 8) * LINES * 16, line, quarter, LINES, last, LAYOUT)
            of_up0 = _factors(scales + features, SIDES * features, line, quarter, LINES, last, LAYOUT)
            of_up1 = _factors(scales + features + 8, SIDES * features, line, quarter, LINES, last, LAYOUT)
        x = _x_of_line(x_ptr, columns, line, quarter, last, LAYOUT)
        total = _add_line(total, one, other, of_one, of_other, x, LINE_PRODUCT_OF_COLUMNS)
        if SIDES == 2:
            up = _add_line(up, up0, up1, of_up0, of_up1, x, LINE_PRODUCT_OF_COLUMNS)
    SUMS: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [WARPS, 1], [1, 0])
    lane = gl.arange(0, 32, gl.SliceLayout(1, SUMS))[:, None]
    at = gl.arange(0, WORDS, gl.SliceLayout(0, SUMS))[None, :]
    feature = gl.program_id(0) * FEATURES + lane // 4 + 8 * (at // 2)
    out_row = start + lane % 4 * 2 + at % 2
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    biases = bias_ptr + expert * SIDES * features + feature
    total = gl.convert_layout(gl.sum(total.reshape([WARPS, 32, WORDS]), 0), SUMS) * _BACK
    total += gl.load(biases).to(gl.float32)
    if SIDES == 2:  # rounded where the separate ops round
        up = gl.convert_layout(gl.sum(up.reshape([WARPS, 32, WORDS]), 0), SUMS) * _BACK
        up += gl.load(biases + features).to(gl.float32)
        gate = gl.minimum(total.to(dtype).to(gl.float32), limit)
        up = gl.minimum(gl.maximum(up.to(dtype).to(gl.float32), -limit), limit)
        total = gate / (1.0 + gl.exp(gl.minimum(-alpha * gate, 80.0))) * (up + 1.0)
    gl.store(out_ptr + out_row * features + feature, total.to(dtype), mask=out_row < end)


@dataclass(frozen=True, slots=True)
class BlockConfig:
    """Warps of a program, which share a row's lines, and registers of a thread."""

    warps: int
    registers: int


def block_product(
    x: Tensor, plan: Sorted, weight: Mxfp4Stack, bias: Tensor, sides: int, limit: float, alpha: float,
    config: BlockConfig,
) -> Tensor:  # fmt: skip
    """x [P, K] in the plan's order by each row's expert → [P, N]; with two sides, gate and up, [P, N / 2]."""
    pairs, columns = x.shape
    features, blocks = weight.values.shape[1] // sides, (plan.table.shape[0] - 1) // 3
    out = torch.empty(pairs, features, dtype=x.dtype, device=x.device)
    _block_kernel[(features // int(FEATURES.value), blocks)](
        x.view(torch.int32), weight.values.view(torch.int32), weight.scales.view(torch.int32), bias, plan.table, out,
        columns, features, blocks, limit, alpha, sides, weight.values.shape[2] // 64, config.warps,
        num_warps=config.warps, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


def few_experts_mxfp4(
    x: Tensor, gate_up: Mxfp4Stack, down: Mxfp4Stack, biases: tuple[Tensor, Tensor], shares: Tensor, experts: Tensor,
    limit: float, alpha: float, config: BlockConfig,
) -> Tensor:  # fmt: skip
    """As `baton_kernels.experts.biased_experts` in bfloat16. All contiguous, H and F multiples of 16."""
    if not x.shape[0]:
        return torch.empty_like(x)
    plan = sort_by_expert(x, experts, gate_up.values.shape[0], BLOCK_ROWS)
    inner = block_product(plan.x, plan, gate_up, biases[0], 2, limit, alpha, config)
    out = block_product(inner, plan, down, biases[1], 1, 0.0, 0.0, config)
    return sum_of_experts(out, plan.place, shares)
