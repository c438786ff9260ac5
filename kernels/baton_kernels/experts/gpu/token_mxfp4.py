"""Experts in MXFP4 of few tokens on Hopper, in Gluon: two kernels, without sorting and without a sum after them.

Each pair of a token and an expert reads its expert's weights, as in `experts.py`. The warps of a program share a row's
lines, and only their sums go through shared memory (`mxfp4_line.py` says how a line is multiplied).

Gluon is Triton's experimental interface. A warp's product has to find its operands where threads loaded them, and only
Gluon says where that is. Two kernels in plain Triton were slower than sorting. The other kernels for Hopper need Gluon
too: with a Triton that lacks it a worker on Hopper fails while it warms up, before it is ready.
`tests/kernels/test_hopper_compiles.py` fails when a new Triton has other names.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.widening import MXFP4_BACK
from baton_kernels.experts.expert_inputs import Mxfp4Stacks, Routing
from baton_kernels.experts.gpu.mxfp4_line import (
    WORDS,
    add_line,
    factors_of_line,
    sums_of_rows,
    weights_of_line,
    x_of_line,
)

FEATURES = gl.constexpr(16)
"""Features of gate, and as many of up, a program: the rows of a warp's product."""
OUTPUTS = gl.constexpr(8)
"""A program: a warp's product has those of two experts."""
EXPERTS_A_PAIR, MOST_PAIRS = 2, 28
"""From this many experts for each pair of a token and an expert on, and up to this many pairs, this way costs less than
sorting: its time grows with the pairs, that of sorted ones with the experts that they meet."""


@gluon.jit
def _token_gate_up_kernel(
    x_ptr, values_ptr, scales_ptr, bias_ptr, experts_ptr, inner_ptr, K, H, F, limit, alpha, LINES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    THREADS: gl.constexpr = 32 * WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WORDS], [32, 1], [WARPS, 1], [1, 0])
    thread = gl.arange(0, THREADS, gl.SliceLayout(1, LAYOUT))
    quarter = thread % 4
    pair = gl.program_id(1)
    row = gl.program_id(0) * FEATURES + thread % 32 // 4
    gdc_wait()
    expert = gl.load(experts_ptr + pair)
    values = values_ptr + expert * 2 * F * LINES * 16 + row * 16
    scales = scales_ptr + expert * 2 * F * LINES + row
    x_ptr += pair // K * (H // 2)
    gate = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
    up = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
    for first in gl.static_range(0, LINES, WARPS):
        last = first + WARPS >= LINES
        line = first + thread // 32
        gate0 = weights_of_line(values, 2 * F, line, quarter, LINES, last, LAYOUT)
        gate1 = weights_of_line(values + 8 * 16, 2 * F, line, quarter, LINES, last, LAYOUT)
        up0 = weights_of_line(values + F * 16, 2 * F, line, quarter, LINES, last, LAYOUT)
        up1 = weights_of_line(values + (F + 8) * 16, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_gate0 = factors_of_line(scales, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_gate1 = factors_of_line(scales + 8, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_up0 = factors_of_line(scales + F, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_up1 = factors_of_line(scales + F + 8, 2 * F, line, quarter, LINES, last, LAYOUT)
        x = x_of_line(x_ptr, H, line, quarter, last, LAYOUT)
        gate = add_line(gate, gate0, gate1, of_gate0, of_gate1, x)
        up = add_line(up, up0, up1, of_up0, of_up1, x)
    # All eight columns of a product are the same, so that the four threads of a row have one of its four sums each.
    gate0, gate1 = sums_of_rows(gate, LAYOUT)
    up0, up1 = sums_of_rows(up, LAYOUT)
    own = gl.where(quarter < 2, gl.where(quarter == 0, gate0, gate1), gl.where(quarter == 2, up0, up1))
    sums = gl.sum(own.reshape([WARPS, 32]), 0) * MXFP4_BACK
    PAIRED: gl.constexpr = gl.BlockedLayout([1, 1, 2], [8, 4, 1], [1, 1, WARPS], [2, 1, 0])
    both = gl.convert_layout(sums.reshape([8, 2, 2]).permute((0, 2, 1)), PAIRED)
    gate, up = gl.split(both)  # [8, 2]: feature g, and g + 8
    ROW: gl.constexpr = gate.type.layout
    feature = gl.arange(0, 8, gl.SliceLayout(1, ROW))[:, None] + 8 * gl.arange(0, 2, gl.SliceLayout(0, ROW))[None, :]
    feature += gl.program_id(0) * FEATURES
    biases = bias_ptr + expert * 2 * F + feature
    dtype: gl.constexpr = inner_ptr.dtype.element_ty
    gate += gl.load(biases).to(gl.float32)
    up += gl.load(biases + F).to(gl.float32)
    gate = gl.minimum(gate.to(dtype).to(gl.float32), limit)  # rounded where the separate ops round
    up = gl.minimum(gl.maximum(up.to(dtype).to(gl.float32), -limit), limit)
    inner = gate / (1.0 + gl.exp(gl.minimum(-alpha * gate, 80.0))) * (up + 1.0)
    gl.store(inner_ptr + pair * F + feature, inner.to(dtype))


@gluon.jit
def _token_down_kernel(
    inner_ptr, values_ptr, scales_ptr, bias_ptr, shares_ptr, experts_ptr, out_ptr, H, F, K: gl.constexpr,
    LINES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """All chosen experts of a token, weighted and added.

    A product's rows are outputs of two experts, and so are its columns: each quarter of it belongs to one of both, and
    two quarters are what is wanted."""
    gdc_launch_dependents()
    THREADS: gl.constexpr = 32 * WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WORDS], [32, 1], [WARPS, 1], [1, 0])
    thread = gl.arange(0, THREADS, gl.SliceLayout(1, LAYOUT))
    quarter = thread % 4
    token = gl.program_id(1)
    row = gl.program_id(0) * OUTPUTS + thread % 32 // 4
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    gdc_wait()
    SUMS: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [1, WARPS], [1, 0])
    output = gl.program_id(0) * OUTPUTS + gl.arange(0, 8, gl.SliceLayout(1, SUMS))
    sum_of_all = gl.zeros([8], gl.float32, gl.SliceLayout(1, SUMS))
    for group in gl.static_range(0, K, 4):
        own = gl.zeros([THREADS], gl.float32, gl.SliceLayout(1, LAYOUT))
        for choice in gl.static_range(group, min(group + 4, K), 2):
            second = min(choice + 1, K - 1)
            expert0 = gl.load(experts_ptr + token * K + choice) * H * LINES
            expert1 = gl.load(experts_ptr + token * K + second) * H * LINES
            values0 = values_ptr + expert0 * 16 + row * 16
            values1 = values_ptr + expert1 * 16 + row * 16
            column_choice = gl.where(thread % 32 < 16, choice, second)
            x_ptr = inner_ptr + (token * K + column_choice) * (F // 2)
            total = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
            for first in gl.static_range(0, LINES, WARPS):
                last = first + WARPS >= LINES
                line = first + thread // 32
                one = weights_of_line(values0, H, line, quarter, LINES, last, LAYOUT)
                other = weights_of_line(values1, H, line, quarter, LINES, last, LAYOUT)
                of_one = factors_of_line(scales_ptr + expert0 + row, H, line, quarter, LINES, last, LAYOUT)
                of_other = factors_of_line(scales_ptr + expert1 + row, H, line, quarter, LINES, last, LAYOUT)
                x = x_of_line(x_ptr, F, line, quarter, last, LAYOUT)
                total = add_line(total, one, other, of_one, of_other, x)
            row0, row1 = sums_of_rows(total, LAYOUT)
            own = gl.where(quarter % 2 == (choice - group) // 2, gl.where(quarter < 2, row0, row1), own)
        at = gl.arange(0, 4, gl.SliceLayout(0, SUMS))
        place = group + at % 2 * 2 + at // 2
        known = place < K
        share = gl.load(shares_ptr + token * K + place, mask=known, other=0.0)
        expert = gl.load(experts_ptr + token * K + place, mask=known, other=0)
        bias = gl.load(bias_ptr + (expert * H)[None, :] + output[:, None]).to(gl.float32)
        y = gl.convert_layout(gl.sum(own.reshape([WARPS, 8, 4]), 0), SUMS) * MXFP4_BACK + bias
        sum_of_all += gl.sum(y.to(dtype).to(gl.float32) * share[None, :], 1)
    gl.store(out_ptr + token * H + output, sum_of_all.to(dtype))


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """Warps of a program of gate and up, and of one of down, which share a row's lines; and registers of a thread."""

    gate_warps: int = 8
    gate_registers: int = 80
    down_warps: int = 4
    down_registers: int = 168


SERVED = TokenConfig()


def reads_alone(tokens: int, per_token: int, count: int) -> bool:
    """Decide if tokens that take `per_token` of `count` experts each are served this way: two seldom share an expert,
    and one token alone never does."""
    pairs = tokens * per_token
    return tokens <= 1 or (pairs * EXPERTS_A_PAIR <= count and pairs <= MOST_PAIRS)


def token_experts_mxfp4(x: Tensor, stacks: Mxfp4Stacks, routing: Routing, config: TokenConfig = SERVED) -> Tensor:
    """As `baton_kernels.experts.experts.experts` for few tokens in bfloat16, which read their experts each. All
    contiguous, H and F multiples of 16."""
    (shares, experts), gate_up, down = routing, stacks.gate_up, stacks.down
    (tokens, hidden), per_token, features = x.shape, experts.shape[1], down.columns
    inner = torch.empty(tokens * per_token, features, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    if not tokens:
        return out
    of_gate, of_down = (stack.values.shape[1] for stack in (gate_up, down))
    _token_gate_up_kernel[(features // int(FEATURES.value), tokens * per_token)](
        x.view(torch.int32), gate_up.values.view(torch.int32), gate_up.scales.view(torch.int32), stacks.gate_up_bias,
        experts, inner, per_token, hidden, features, stacks.limit, stacks.alpha, of_gate, config.gate_warps,
        num_warps=config.gate_warps, maxnreg=config.gate_registers, launch_pdl=True,
    )  # fmt: skip
    _token_down_kernel[(hidden // int(OUTPUTS.value), tokens)](
        inner.view(torch.int32), down.values.view(torch.int32), down.scales.view(torch.int32), stacks.down_bias, shares,
        experts, out, hidden, features, per_token, of_down, config.down_warps, num_warps=config.down_warps,
        maxnreg=config.down_registers, launch_pdl=True,
    )  # fmt: skip
    return out
