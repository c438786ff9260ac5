"""Mixtures of experts in MXFP4 on Hopper, in Gluon: each expert's four bits stream by once.

As in `streamed_experts.py` programs stay and walk through tiles of row blocks. As in
`streamed_int4.py` weights are the register operand of W xᵀ: codes become bfloat16 in registers and are scaled there,
exactly, since scales are powers of two.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import SHARED_BYTES, boxes, copy_panels, make_barriers
from baton_kernels.dense.gpu.widening import MXFP4_BACK, MXFP4_FACTOR, as_operand, widen_mxfp4
from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_kernels.experts.expert_inputs import Mxfp4Stacks, Routing
from baton_kernels.experts.gpu.expert_sort import Sorted, sort_by_expert
from baton_kernels.experts.gpu.row_block_tiles import (
    end_of_rows,
    expert_of,
    fill_ring_by_tiles,
    first_row,
    item_of_step,
)
from baton_kernels.experts.gpu.streamed_experts import row_block, sum_of_experts

WIDTH = gl.constexpr(64)
"""Bytes of a line: 128 columns, a step."""
BLOCKS = gl.constexpr(4)
"""Blocks of 32 columns a step."""
LARGE_TILES_FROM = 128
"""For each expert: from there on large tiles are faster, where the matrix unit takes longer than widening."""


@gluon.jit
def _copy_weight(
    step, stage, bar, weight, scale, table, w_boxes, scale_boxes, tiles, features, lines, SIDES: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    item, i = item_of_step(step, lines)
    expert = expert_of(table, item // tiles)
    feature = (item % tiles) * w_boxes.shape[1]
    mbarrier.expect(bar, BYTES)
    for side in gl.static_range(SIDES):
        first = feature + side * features
        box = stage * SIDES + side
        copy_panels(weight, expert * SIDES * features + first, i, w_boxes, box, bar, 1)
        tma.async_copy_global_to_shared(scale, [expert * lines + i, first], bar, scale_boxes.index(box))


@gluon.jit
def _fetch(
    x, weight, scale, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
    AHEAD: gl.constexpr, SIDES: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    fill_ring_by_tiles(
        _copy_weight, (weight, scale, table, w_boxes, scale_boxes, tiles, features, lines, SIDES, BYTES),
        x, table, x_boxes, ready, free, tiles, lines, ROW_BLOCKS, 2, AHEAD,
    )  # fmt: skip


@gluon.jit
def _scale(exponents, BLOCK: gl.constexpr, shape: gl.constexpr):
    """Factors of a block, bfloat16 of a shape [features, …]: exponents stand where bfloat16 has its own."""
    power = (((exponents >> (8 * BLOCK)) & 255) + MXFP4_FACTOR) << 7
    return gl.expand_dims(power.to(gl.int16).to(gl.bfloat16, bitcast=True), 1).broadcast_to(shape)


@gluon.jit
def _widened(w_boxes, scale_boxes, box, half: gl.constexpr, MMA: gl.constexpr):
    """Half of a side's step as two operands, scaled: [FEATURES, 32] of bytes, their low and their high codes."""
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    exponents = scale_boxes.index(box).reshape([scale_boxes.shape[2]]).load(gl.SliceLayout(1, STORED))
    raw = w_boxes.index(box).slice(half * 32, 32, dim=1).load(STORED)
    low, high = _scale(exponents, half, raw.shape), _scale(exponents, 2 + half, raw.shape)
    w0, w1 = widen_mxfp4(raw, low, high)
    return as_operand(w0, MMA), as_operand(w1, MMA)


@gluon.jit
def _add_product(total, w0, w1, x_boxes, stage, half: gl.constexpr):
    """total + W xᵀ of what was widened."""
    x0 = x_boxes.index(stage * 2).slice(half * 32, 32, dim=1).permute((1, 0))
    x1 = x_boxes.index(stage * 2 + 1).slice(half * 32, 32, dim=1).permute((1, 0))
    total = warpgroup_mma(w0, x0, total, is_async=True)
    return warpgroup_mma(w1, x1, total, is_async=True)


@gluon.jit
def _multiply(
    bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines, ROW_BLOCKS, limit,
    alpha, AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr,
):  # fmt: skip
    FEATURES: gl.constexpr = w_boxes.shape[1]
    R: gl.constexpr = x_boxes.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [FEATURES // 16, 1], [16, R, 16])
    dtype: gl.constexpr = x_boxes.dtype
    if not AHEAD:
        gdc_wait()
    items = gl.load(table) * tiles
    c = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        total = gl.zeros([FEATURES, R], gl.float32, MMA)
        up = gl.zeros([FEATURES, R], gl.float32, MMA)
        for _ in range(lines):
            stage = c % STAGES
            mbarrier.wait(ready.index(stage), (c // STAGES) & 1)
            # Operands have to outlive their products: a wait that does not name them lets their registers be reused.
            w0, w1 = _widened(w_boxes, scale_boxes, stage * SIDES, 0, MMA)
            total = _add_product(total, w0, w1, x_boxes, stage, 0)
            w2, w3 = _widened(w_boxes, scale_boxes, stage * SIDES, 1, MMA)
            total = _add_product(total, w2, w3, x_boxes, stage, 1)
            total, w0, w1 = warpgroup_mma_wait(2, [total, w0, w1])
            if SIDES == 2:
                w0, w1 = _widened(w_boxes, scale_boxes, stage * 2 + 1, 0, MMA)
                up = _add_product(up, w0, w1, x_boxes, stage, 0)
                total, w2, w3 = warpgroup_mma_wait(2, [total, w2, w3])
                w2, w3 = _widened(w_boxes, scale_boxes, stage * 2 + 1, 1, MMA)
                up = _add_product(up, w2, w3, x_boxes, stage, 1)
                up, w0, w1 = warpgroup_mma_wait(2, [up, w0, w1])
                up, w2, w3 = warpgroup_mma_wait(0, [up, w2, w3])
            else:
                total, w2, w3 = warpgroup_mma_wait(0, [total, w2, w3])
            mbarrier.arrive(free.index(stage), count=1)
            c += 1

        expert = expert_of(table, item // tiles)
        first = first_row(table, item // tiles, ROW_BLOCKS)
        end = end_of_rows(table, item // tiles, ROW_BLOCKS)
        column = (item % tiles) * FEATURES + gl.arange(0, FEATURES, gl.SliceLayout(1, MMA))
        row = gl.arange(0, R, gl.SliceLayout(0, MMA))
        is_column = column < features
        biases = bias_ptr + expert * SIDES * features + column
        total = total * MXFP4_BACK + gl.load(biases, mask=is_column, other=0.0).to(gl.float32)[:, None]
        if SIDES == 2:  # rounded where the separate ops round
            up = up * MXFP4_BACK + gl.load(biases + features, mask=is_column, other=0.0).to(gl.float32)[:, None]
            gate = gl.minimum(total.to(dtype).to(gl.float32), limit)
            up = gl.minimum(gl.maximum(up.to(dtype).to(gl.float32), -limit), limit)
            total = gate / (1.0 + gl.exp(gl.minimum(-alpha * gate, 80.0))) * (up + 1.0)
        if AHEAD:
            gdc_wait()
        place = (first + row).to(gl.int64)[None, :] * features + column[:, None]
        gl.store(out_ptr + place, total.to(dtype), mask=(first + row < end)[None, :] & is_column[:, None])


@gluon.jit(do_not_specialize=["ROW_BLOCKS"])
def _product_kernel(
    x, weight, scale, bias_ptr, out_ptr, table, tiles, features, lines, ROW_BLOCKS, limit, alpha,
    FEATURES: gl.constexpr, AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr,
):  # fmt: skip
    if AHEAD:
        gdc_launch_dependents()
    R: gl.constexpr = x.block_shape[0]
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * SIDES, FEATURES, WIDTH], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [STAGES * 2, R, WIDTH], x.layout)
    scale_boxes = gl.allocate_shared_memory(scale.dtype, [STAGES * SIDES, 1, FEATURES], scale.layout)
    BYTES: gl.constexpr = SIDES * FEATURES * (WIDTH + BLOCKS) + 4 * R * WIDTH
    ready, free = make_barriers(STAGES, 1)
    gl.warp_specialize(
        [
            (_multiply, (bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                         ROW_BLOCKS, limit, alpha, AHEAD, STAGES, SIDES)),
            (_fetch, (x, weight, scale, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                      ROW_BLOCKS, AHEAD, SIDES, BYTES)),
        ],
        [1],
        [40],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mxfp4Config:
    """Tile of a program, and how many programs share a multiprocessor."""

    rows: int
    """Rows of a row block: 8 to 128."""
    features: int
    """Features of a tile; gated: of gate and of up. 16 for each warp."""
    programs: int
    registers: int
    """Registers of a thread, before the fetching warp gives some away."""

    def stages(self, sides: int) -> int:
        """Steps under way, as many as fit into shared memory."""
        step = sides * self.features * (WIDTH.value + BLOCKS.value) + 4 * self.rows * WIDTH.value
        return int(min(12, (SHARED_BYTES // self.programs - 2048) // step))


LARGE_TILES = Mxfp4Config(128, 128, 1, 168)
SMALL_TILES = {
    8: Mxfp4Config(8, 64, 3, 80),
    **{rows: Mxfp4Config(rows, 256, 1, 96) for rows in (16, 32)},
    64: Mxfp4Config(64, 64, 2, 128),
}
"""Tiles by rows of a block. With 8 rows sums take few registers, so that three programs hide more of the way to memory;
of 16 and 32 rows each tile reads x again, so fewer, wider tiles cost less."""


def mxfp4_config(pairs: int, count: int) -> Mxfp4Config:
    """Choose tiles for this many pairs of a token and one of `count` experts."""
    if pairs >= LARGE_TILES_FROM * count:
        return LARGE_TILES
    return SMALL_TILES[row_block(pairs, count)]


def mxfp4_experts(
    x: Tensor, stacks: Mxfp4Stacks, routing: Routing, config: Mxfp4Config | None = None, out: Tensor | None = None
) -> Tensor:
    """As `baton_kernels.experts.experts.experts`, into `out` if given. All contiguous, H and F multiples of 16."""
    if not x.shape[0]:
        return torch.empty_like(x)
    config = config or mxfp4_config(routing.pairs, stacks.count)
    plan = sort_by_expert(x, routing.experts, stacks.count, config.rows)
    clamp = stacks.limit, stacks.alpha
    inner = _product(plan.x, plan, stacks.gate_up, stacks.gate_up_bias, clamp, config, is_table_older=False)
    rows = _product(inner, plan, stacks.down, stacks.down_bias, None, config, is_table_older=True)
    return sum_of_experts(rows, plan.place, routing.shares, out)


def _product(
    x: Tensor, plan: Sorted, weight: Mxfp4Stack, bias: Tensor, clamp: tuple[float, float] | None,
    config: Mxfp4Config, is_table_older: bool,
) -> Tensor:  # fmt: skip
    """x [P, K] by each row's expert, plus bias → [P, N], or gated with `clamp` (limit and alpha) [P, N / 2]."""
    pairs = x.shape[0]
    sides, (limit, alpha) = (1, (0.0, 0.0)) if clamp is None else (2, clamp)
    _, both, size = weight.values.shape
    features = both // sides
    out = torch.empty(pairs, features, dtype=x.dtype, device=x.device)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    values = weight.values.view(-1, size)
    _product_kernel[(config.programs * multiprocessors,)](
        boxes(x, config.rows, WIDTH.value), boxes(values, config.features, WIDTH.value, 64),
        boxes(weight.scales.view(torch.int32).view(-1, both), 1, config.features, 0), bias, out, plan.table,
        triton.cdiv(features, config.features), features, size // int(WIDTH.value), (plan.table.shape[0] - 1) // 3,
        limit, alpha, config.features, is_table_older, config.stages(sides), sides, num_warps=config.features // 16,
        maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out
