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
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
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
from baton_kernels.experts.gpu.tile_results import clamped_gate, lines_of_features, rounded

WIDTH = gl.constexpr(64)
"""Bytes of a line: 128 columns, a step."""
BLOCKS = gl.constexpr(4)
"""Blocks of 32 columns a step."""
GROUPS = gl.constexpr(2)
"""Warpgroups that multiply, each some features of a tile: one widens while the other multiplies."""
MOST_OF_WARPS = gl.constexpr(16)
"""Most rows that are multiplied by single warps. Of more, the warpgroup's products read x less often."""
LARGE_ROWS = gl.constexpr(128)
LARGE_TILES_FROM = 32
"""For each expert: from there on large tiles are faster."""


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
        copy_panels(weight, (expert * lines + i) * SIDES * features + first, 0, w_boxes, box, bar, 1)
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
    """Factors of a block, each twice in an int32, of a shape [features, …]: exponents stand where bfloat16 has its
    own."""
    pair = ((exponents >> (8 * BLOCK)) & 255) * 0x00800080 + (MXFP4_FACTOR << 7) * 0x00010001
    return gl.expand_dims(pair, 1).broadcast_to(shape)


@gluon.jit
def _widened(
    w_boxes, scale_boxes, box, half: gl.constexpr, GROUP: gl.constexpr, FEATURES: gl.constexpr, MMA: gl.constexpr
):  # fmt: skip
    """Half of a side's step as two operands, scaled: [FEATURES, 32] of bytes, their low and their high codes."""
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    exponents = scale_boxes.index(box).reshape([scale_boxes.shape[2]]).slice(GROUP * FEATURES, FEATURES, dim=0)
    exponents = exponents.load(gl.SliceLayout(1, STORED))
    raw = w_boxes.index(box).slice(GROUP * FEATURES, FEATURES, dim=0).slice(half * 32, 32, dim=1).load(STORED)
    low, high = _scale(exponents, half, raw.shape), _scale(exponents, 2 + half, raw.shape)
    w0, w1 = widen_mxfp4(raw, low, high)
    return as_operand(w0, MMA), as_operand(w1, MMA)


@gluon.jit
def _add_product(total, w0, w1, x_boxes, stage, half: gl.constexpr, R: gl.constexpr):
    """total + W xᵀ of what was widened and of the first R rows of x, by the warpgroup."""
    x0 = x_boxes.index(stage * 2).slice(0, R, dim=0).slice(half * 32, 32, dim=1).permute((1, 0))
    x1 = x_boxes.index(stage * 2 + 1).slice(0, R, dim=0).slice(half * 32, 32, dim=1).permute((1, 0))
    total = warpgroup_mma(w0, x0, total, is_async=True)
    return warpgroup_mma(w1, x1, total, is_async=True)


@gluon.jit
def _add_product_of_warps(total, w0, w1, x_boxes, stage, half: gl.constexpr):
    """The same by each warp alone, which waits for no other."""
    X: gl.constexpr = gl.DotOperandLayout(1, total.type.layout, 2)
    x0 = x_boxes.index(stage * 2).slice(half * 32, 32, dim=1).permute((1, 0)).load(X)
    x1 = x_boxes.index(stage * 2 + 1).slice(half * 32, 32, dim=1).permute((1, 0)).load(X)
    return mma_v2(w1, x1, mma_v2(w0, x0, total))


@gluon.jit
def _multiply_tile(
    c, item, bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
    limit, alpha, AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, R: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A warpgroup's features of a tile of up to R rows, whose steps begin with the program's step c."""
    FEATURES: gl.constexpr = w_boxes.shape[1] // GROUPS
    OF_WARPS: gl.constexpr = R <= MOST_OF_WARPS
    VERSION: gl.constexpr = 2 if OF_WARPS else 3
    SHAPE: gl.constexpr = [16, 8] if OF_WARPS else [16, R, 16]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([VERSION, 0], [FEATURES // 16, 1], SHAPE)
    dtype: gl.constexpr = x_boxes.dtype
    total = gl.zeros([FEATURES, R], gl.float32, MMA)
    up = gl.zeros([FEATURES, R], gl.float32, MMA)
    for i in range(lines):
        stage = (c + i) % STAGES
        mbarrier.wait(ready.index(stage), ((c + i) // STAGES) & 1)
        if OF_WARPS:
            for half in gl.static_range(2):
                w0, w1 = _widened(w_boxes, scale_boxes, stage * SIDES, half, GROUP, FEATURES, MMA)
                total = _add_product_of_warps(total, w0, w1, x_boxes, stage, half)
                if SIDES == 2:
                    w0, w1 = _widened(w_boxes, scale_boxes, stage * 2 + 1, half, GROUP, FEATURES, MMA)
                    up = _add_product_of_warps(up, w0, w1, x_boxes, stage, half)
        else:
            # Operands have to outlive their products: a wait that does not name them lets their registers be reused.
            w0, w1 = _widened(w_boxes, scale_boxes, stage * SIDES, 0, GROUP, FEATURES, MMA)
            total = _add_product(total, w0, w1, x_boxes, stage, 0, R)
            w2, w3 = _widened(w_boxes, scale_boxes, stage * SIDES, 1, GROUP, FEATURES, MMA)
            total = _add_product(total, w2, w3, x_boxes, stage, 1, R)
            total, w0, w1 = warpgroup_mma_wait(2, [total, w0, w1])
            if SIDES == 2:
                w0, w1 = _widened(w_boxes, scale_boxes, stage * 2 + 1, 0, GROUP, FEATURES, MMA)
                up = _add_product(up, w0, w1, x_boxes, stage, 0, R)
                total, w2, w3 = warpgroup_mma_wait(2, [total, w2, w3])
                w2, w3 = _widened(w_boxes, scale_boxes, stage * 2 + 1, 1, GROUP, FEATURES, MMA)
                up = _add_product(up, w2, w3, x_boxes, stage, 1, R)
                up, w0, w1 = warpgroup_mma_wait(2, [up, w0, w1])
                up, w2, w3 = warpgroup_mma_wait(0, [up, w2, w3])
            else:
                total, w2, w3 = warpgroup_mma_wait(0, [total, w2, w3])
        mbarrier.arrive(free.index(stage), count=1)

    expert = expert_of(table, item // tiles)
    first = first_row(table, item // tiles, ROW_BLOCKS)
    end = end_of_rows(table, item // tiles, ROW_BLOCKS)
    first_feature = ((item % tiles) * GROUPS + GROUP) * FEATURES
    column = first_feature + gl.arange(0, FEATURES, gl.SliceLayout(1, MMA))
    is_column = column < features
    biases = bias_ptr + expert * SIDES * features + column
    total = total * MXFP4_BACK + gl.load(biases, mask=is_column, other=0.0).to(gl.float32)[:, None]
    if SIDES == 2:  # rounded where the separate ops round
        up = up * MXFP4_BACK + gl.load(biases + features, mask=is_column, other=0.0).to(gl.float32)[:, None]
        total = clamped_gate(rounded(total), rounded(up), limit, alpha)
    if AHEAD:
        gdc_wait()
    done = total.to(dtype)
    if not OF_WARPS:
        done = gl.convert_layout(done, lines_of_features(FEATURES, R))
    LINES: gl.constexpr = done.type.layout
    column = first_feature + gl.arange(0, FEATURES, gl.SliceLayout(1, LINES))
    row = gl.arange(0, R, gl.SliceLayout(0, LINES))
    place = (first + row).to(gl.int64)[None, :] * features + column[:, None]
    gl.store(out_ptr + place, done, mask=(first + row < end)[None, :] & (column < features)[:, None])


@gluon.jit
def _multiply(
    bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines, ROW_BLOCKS, limit,
    alpha, AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A warpgroup's features of all tiles. Large row blocks that are not full are multiplied as what they hold."""
    R: gl.constexpr = x_boxes.shape[1]
    if not AHEAD:
        gdc_wait()
    blocks = gl.load(table)
    # A program without tiles reads the last row block, not what comes after the table.
    block = gl.minimum(gl.program_id(0) // tiles, blocks - 1)
    rows = end_of_rows(table, block, ROW_BLOCKS) - first_row(table, block, ROW_BLOCKS)
    c = 0
    for item in range(gl.program_id(0), blocks * tiles, gl.num_programs(0)):
        # Of the next tile, before they are wanted.
        block = gl.minimum((item + gl.num_programs(0)) // tiles, blocks - 1)
        next_rows = end_of_rows(table, block, ROW_BLOCKS) - first_row(table, block, ROW_BLOCKS)
        if R == LARGE_ROWS and rows <= R // 4:
            _multiply_tile(
                c, item, bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                ROW_BLOCKS, limit, alpha, AHEAD, STAGES, SIDES, R // 4, GROUP,
            )  # fmt: skip
        elif R == LARGE_ROWS and rows <= R // 2:
            _multiply_tile(
                c, item, bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                ROW_BLOCKS, limit, alpha, AHEAD, STAGES, SIDES, R // 2, GROUP,
            )  # fmt: skip
        else:
            _multiply_tile(
                c, item, bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                ROW_BLOCKS, limit, alpha, AHEAD, STAGES, SIDES, R, GROUP,
            )  # fmt: skip
        rows = next_rows
        c += lines


# With a single line known while compiling, ptxas 12.8 leaves a descriptor of the largest tiles unset.
@gluon.jit(do_not_specialize=["ROW_BLOCKS", "lines"])
def _product_kernel(
    x, weight, scale, bias_ptr, out_ptr, table, tiles, features, lines, ROW_BLOCKS, limit, alpha,
    FEATURES: gl.constexpr, AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    if AHEAD:
        gdc_launch_dependents()
    R: gl.constexpr = x.block_shape[0]
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * SIDES, FEATURES, WIDTH], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [STAGES * 2, R, WIDTH], x.layout)
    scale_boxes = gl.allocate_shared_memory(scale.dtype, [STAGES * SIDES, 1, FEATURES], scale.layout)
    BYTES: gl.constexpr = SIDES * FEATURES * (WIDTH + BLOCKS) + 4 * R * WIDTH
    ready, free = make_barriers(STAGES, GROUPS)
    gl.warp_specialize(
        [
            (_multiply, (bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                         ROW_BLOCKS, limit, alpha, AHEAD, STAGES, SIDES, 0)),
            (_multiply, (bias_ptr, out_ptr, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                         ROW_BLOCKS, limit, alpha, AHEAD, STAGES, SIDES, 1)),
            (_fetch, (x, weight, scale, table, w_boxes, x_boxes, scale_boxes, ready, free, tiles, features, lines,
                      ROW_BLOCKS, AHEAD, SIDES, BYTES)),
        ],
        [4, 1],
        [REGISTERS, 40],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mxfp4Config:
    """Tile of a program, and how many programs share a multiprocessor."""

    rows: int
    """Rows of a row block: 8 to 32, or LARGE_ROWS."""
    features: int
    """Features of a tile, half for each warpgroup, 16 for each warp; gated: of gate and of up."""
    programs: int
    registers: int
    """Registers of a thread, before the fetching warp gives some away."""
    group_registers: int
    """Registers of a thread that multiplies, after that."""

    def stages(self, sides: int) -> int:
        """Steps under way, as many as fit into shared memory."""
        step = sides * self.features * (WIDTH.value + BLOCKS.value) + 4 * self.rows * WIDTH.value
        return int(min(12, (SHARED_BYTES // self.programs - 2048) // step))


LARGE_TILES = Mxfp4Config(int(LARGE_ROWS.value), 128, 1, 168, 232)
SMALL_TILES = {rows: Mxfp4Config(rows, 128, 2, 80, 96) for rows in (8, 16, 32)}
"""Tiles by rows of a block."""


def mxfp4_config(pairs: int, count: int) -> Mxfp4Config:
    """Choose tiles for this many pairs of a token and one of `count` experts."""
    if pairs >= LARGE_TILES_FROM * count:
        return LARGE_TILES
    return SMALL_TILES[min(max(SMALL_TILES), row_block(pairs, count))]


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
    _, lines, both, _ = weight.values.shape
    features = both // sides
    out = torch.empty(pairs, features, dtype=x.dtype, device=x.device)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    values = weight.values.view(-1, int(WIDTH.value))
    _product_kernel[(config.programs * multiprocessors,)](
        boxes(x, config.rows, WIDTH.value), boxes(values, config.features, WIDTH.value, 64),
        boxes(weight.scales.view(torch.int32).view(-1, both), 1, config.features, 0), bias, out, plan.table,
        triton.cdiv(features, config.features), features, lines, (plan.table.shape[0] - 1) // 3,
        limit, alpha, config.features, is_table_older, config.stages(sides), sides, config.group_registers,
        num_warps=config.features // 16 // int(GROUPS.value), maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out
