"""Mixtures of experts with weights of 8 and 4 bits on Hopper, in Gluon: each expert's bytes stream by once.

As in `streamed_mxfp4.py`, programs stay and walk through tiles of row blocks, and weights are the register operand of
W xᵀ. As in `streamed_quantised.py`, codes become bfloat16 in registers, exactly. A channel's scale multiplies the whole
sum, that of a block or a group the sum of its 128 columns.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import LINE, PANEL, SHARED_BYTES, boxes, make_barriers
from baton_kernels.dense.gpu.widening import as_operand, widen_bytes, widen_int4
from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.dense.quantised_weight import GROUP
from baton_kernels.experts.expert_inputs import QuantisedStacks, Routing
from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS, Sorted, sort_by_expert
from baton_kernels.experts.gpu.rounded_stacks import rounded_experts_gluon, rounds
from baton_kernels.experts.gpu.row_block_tiles import end_of_rows, expert_of, fetch_tiles, first_row
from baton_kernels.experts.gpu.streamed_experts import LARGE_TILES_FROM, PLAIN, SWIGLU, row_block, sum_of_experts

LARGEST_TILES_FROM = 120
"""Pairs for each expert: from 128 (Mixtral) or 256 (Qwen3-30B-A3B) on rows of 128 are faster with blocks too. Lower, so
that a worker's warm-up reaches it."""


@gluon.jit
def _widened(w_boxes, box, half: gl.constexpr, MMA: gl.constexpr):
    """Half of a side's step as an operand, [FEATURES, 64]."""
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    return widen_bytes(w_boxes.index(box).slice(half * PANEL, PANEL, dim=1).load(STORED), MMA)


@gluon.jit
def _finish(
    total, up, out_ptr, table, item, tiles, features, ROW_BLOCKS, AHEAD: gl.constexpr, SIDES: gl.constexpr,
    dtype: gl.constexpr,
):  # fmt: skip
    """Gate and store a tile of sums [FEATURES, R]."""
    MMA: gl.constexpr = total.type.layout
    first = first_row(table, item // tiles, ROW_BLOCKS)
    end = end_of_rows(table, item // tiles, ROW_BLOCKS)
    column = (item % tiles) * total.shape[0] + gl.arange(0, total.shape[0], gl.SliceLayout(1, MMA))
    row = gl.arange(0, total.shape[1], gl.SliceLayout(0, MMA))
    if SIDES == 2:  # rounded where the separate ops round
        gate = total.to(dtype).to(gl.float32)
        total = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32) * up.to(dtype).to(gl.float32)
    if AHEAD:
        gdc_wait()
    place = (first + row).to(gl.int64)[None, :] * features + column[:, None]
    gl.store(out_ptr + place, total.to(dtype), mask=(first + row < end)[None, :] & (column < features)[:, None])


@gluon.jit
def _multiply(
    scale_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
    AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BLOCKS: gl.constexpr,
):  # fmt: skip
    FEATURES: gl.constexpr = w_boxes.shape[1]
    R: gl.constexpr = x_boxes.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [FEATURES // 16, 1], [16, R, 16])
    empty = gl.zeros([FEATURES, R], gl.float32, MMA)
    if not AHEAD:
        gdc_wait()
    items = gl.load(table) * tiles
    c = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        expert = expert_of(table, item // tiles)
        feature = expert * SIDES * features + (item % tiles) * FEATURES
        total = gl.zeros([FEATURES, R], gl.float32, MMA)
        up = gl.zeros([FEATURES, R], gl.float32, MMA)
        for i in range(lines):
            stage = c % STAGES
            if BLOCKS:  # before the wait, which no load passes
                s0 = gl.load(scale_ptr + feature // LINE * lines + i)
                s1 = gl.load(scale_ptr + (feature + (SIDES - 1) * features) // LINE * lines + i)
            mbarrier.wait(ready.index(stage), (c // STAGES) & 1)
            x0 = x_boxes.index(stage * 2).permute((1, 0))
            x1 = x_boxes.index(stage * 2 + 1).permute((1, 0))
            # Operands have to outlive their products: a wait that does not name them lets their registers be reused.
            w0 = _widened(w_boxes, stage * SIDES, 0, MMA)
            part = warpgroup_mma(w0, x0, empty if BLOCKS else total, use_acc=not BLOCKS, is_async=True)
            w1 = _widened(w_boxes, stage * SIDES, 1, MMA)
            part = warpgroup_mma(w1, x1, part, is_async=True)
            if SIDES == 2:
                w2 = _widened(w_boxes, stage * 2 + 1, 0, MMA)
                if BLOCKS:
                    part, w0, w1 = warpgroup_mma_wait(0, [part, w0, w1])
                    total += part * s0
                part2 = warpgroup_mma(w2, x0, empty if BLOCKS else up, use_acc=not BLOCKS, is_async=True)
                w3 = _widened(w_boxes, stage * 2 + 1, 1, MMA)
                part2 = warpgroup_mma(w3, x1, part2, is_async=True)
                if BLOCKS:
                    part2, w2, w3 = warpgroup_mma_wait(0, [part2, w2, w3])
                    up += part2 * s1
                else:
                    total, w0, w1 = warpgroup_mma_wait(2, [part, w0, w1])
                    up, w2, w3 = warpgroup_mma_wait(0, [part2, w2, w3])
            else:
                part, w0, w1 = warpgroup_mma_wait(0, [part, w0, w1])
                total = total + part * s0 if BLOCKS else part
            mbarrier.arrive(free.index(stage), count=1)
            c += 1

        if not BLOCKS:
            line = gl.arange(0, FEATURES, gl.SliceLayout(1, MMA))
            is_column = (item % tiles) * FEATURES + line < features
            total *= gl.load(scale_ptr + feature + line, mask=is_column, other=0.0)[:, None]
            if SIDES == 2:
                up *= gl.load(scale_ptr + features + feature + line, mask=is_column, other=0.0)[:, None]
        _finish(total, up, out_ptr, table, item, tiles, features, ROW_BLOCKS, AHEAD, SIDES, x_boxes.dtype)


@gluon.jit
def _add_groups(
    total, w_boxes, x_boxes, box, stage, scales, zeros, known, both, first, second, ZEROS: gl.constexpr,
    MMA: gl.constexpr,
):  # fmt: skip
    """total + the product of a side's step of 4 bits: two groups of 128 columns, of which `first` and `second` say
    whether they are there."""
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    low = gl.zeros([total.shape[0], total.shape[1]], gl.float32, MMA)
    high = gl.zeros([total.shape[0], total.shape[1]], gl.float32, MMA)
    s0 = gl.load(scales, mask=known & first, other=0.0).to(gl.float32)
    s1 = gl.load(scales + both, mask=known & second, other=0.0).to(gl.float32)
    w_box = w_boxes.index(box)
    raw0 = w_box.slice(0, PANEL, dim=1).load(STORED)
    raw1 = w_box.slice(PANEL, PANEL, dim=1).load(STORED)
    if ZEROS:
        z0 = gl.load(zeros, mask=known & first, other=0.0)
        z1 = gl.load(zeros + both, mask=known & second, other=0.0)
        z0 = gl.expand_dims(gl.convert_layout(z0, gl.SliceLayout(1, STORED)), 1).broadcast_to(raw0.shape)
        z1 = gl.expand_dims(gl.convert_layout(z1, gl.SliceLayout(1, STORED)), 1).broadcast_to(raw0.shape)
    else:
        z0 = gl.full(raw0.shape, 136.0, gl.bfloat16, STORED)
        z1 = z0
    w0, w1 = widen_int4(raw0, z0, z1)
    w0, w1 = as_operand(w0, MMA), as_operand(w1, MMA)
    low = warpgroup_mma(w0, x_boxes.index(stage * 4).permute((1, 0)), low, use_acc=False, is_async=True)
    high = warpgroup_mma(w1, x_boxes.index(stage * 4 + 2).permute((1, 0)), high, use_acc=False, is_async=True)
    w2, w3 = widen_int4(raw1, z0, z1)
    w2, w3 = as_operand(w2, MMA), as_operand(w3, MMA)
    low = warpgroup_mma(w2, x_boxes.index(stage * 4 + 1).permute((1, 0)), low, is_async=True)
    high = warpgroup_mma(w3, x_boxes.index(stage * 4 + 3).permute((1, 0)), high, is_async=True)
    low, high, w0, w1, w2, w3 = warpgroup_mma_wait(0, [low, high, w0, w1, w2, w3])
    return total + low * s0[:, None] + high * s1[:, None]


@gluon.jit
def _multiply_int4(
    scale_ptr, zero_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, lines, groups, ROW_BLOCKS,
    AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, ZEROS: gl.constexpr,
):  # fmt: skip
    FEATURES: gl.constexpr = w_boxes.shape[1]
    R: gl.constexpr = x_boxes.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [FEATURES // 16, 1], [16, R, 16])
    if not AHEAD:
        gdc_wait()
    items = gl.load(table) * tiles
    both = SIDES * features
    c = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        column = (item % tiles) * FEATURES + gl.arange(0, FEATURES, gl.SliceLayout(1, MMA))
        known = column < features
        group = expert_of(table, item // tiles) * groups
        total = gl.zeros([FEATURES, R], gl.float32, MMA)
        up = gl.zeros([FEATURES, R], gl.float32, MMA)
        for i in range(lines):
            stage = c % STAGES
            place = (group + 2 * i) * both + column
            first, second = 2 * i < groups, 2 * i + 1 < groups
            mbarrier.wait(ready.index(stage), (c // STAGES) & 1)
            total = _add_groups(total, w_boxes, x_boxes, stage * SIDES, stage, scale_ptr + place, zero_ptr + place,
                                known, both, first, second, ZEROS, MMA)  # fmt: skip
            if SIDES == 2:
                place += features
                up = _add_groups(up, w_boxes, x_boxes, stage * 2 + 1, stage, scale_ptr + place, zero_ptr + place,
                                 known, both, first, second, ZEROS, MMA)  # fmt: skip
            mbarrier.arrive(free.index(stage), count=1)
            c += 1
        _finish(total, up, out_ptr, table, item, tiles, features, ROW_BLOCKS, AHEAD, SIDES, x_boxes.dtype)


@gluon.jit(do_not_specialize=["ROW_BLOCKS"])
def _stack_kernel(
    x, weight, scale_ptr, zero_ptr, out_ptr, table, tiles, features, lines, groups, ROW_BLOCKS,
    AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BLOCKS: gl.constexpr, BITS: gl.constexpr,
    ZEROS: gl.constexpr,
):  # fmt: skip
    if AHEAD:
        gdc_launch_dependents()
    R: gl.constexpr = x.block_shape[0]
    FEATURES: gl.constexpr = weight.block_shape[0]
    PANELS: gl.constexpr = 16 // BITS
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * SIDES, FEATURES, LINE], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [STAGES * PANELS, R, PANEL], x.layout)
    BYTES: gl.constexpr = SIDES * FEATURES * LINE + 2 * PANELS * R * PANEL
    ready, free = make_barriers(STAGES, 1)
    if BITS == 4:
        gl.warp_specialize(
            [
                (_multiply_int4, (scale_ptr, zero_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features,
                                  lines, groups, ROW_BLOCKS, AHEAD, STAGES, SIDES, ZEROS)),
                (fetch_tiles, (weight, x, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
                               AHEAD, 1, PANELS, SIDES, BYTES)),
            ],
            [1],
            [40],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (scale_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, lines,
                             ROW_BLOCKS, AHEAD, STAGES, SIDES, BLOCKS)),
                (fetch_tiles, (weight, x, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
                               AHEAD, 1, PANELS, SIDES, BYTES)),
            ],
            [1],
            [40],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Tile of a program, and how many programs share a multiprocessor."""

    rows: int
    """Rows of a row block: 8 to 128."""
    features: int
    """Features of a tile; gated: of gate and of up. 16 for each warp, a divisor of a block's."""
    programs: int
    registers: int
    """Registers of a thread, before the fetching warp gives some away."""

    def stages(self, sides: int, bits: int) -> int:
        """Steps under way, as many as fit into shared memory."""
        step = sides * self.features * LINE.value + 32 // bits * self.rows * PANEL.value
        return int(min(12, (SHARED_BYTES // self.programs - 2048) // step))


def stack_config(pairs: int, count: int, has_blocks: bool, bits: int) -> StackConfig:
    """Choose tiles for this many pairs of a token and one of `count` experts. Sums of blocks take registers in
    addition to the whole sums."""
    if bits == 8 and pairs >= LARGE_TILES_FROM * count:
        return StackConfig(64 if has_blocks and pairs < LARGEST_TILES_FROM * count else 128, 128, 1, 168)
    return StackConfig(row_block(pairs, count), 64, 2, 128)


def quantised_experts_gluon(
    x: Tensor, stacks: QuantisedStacks, routing: Routing, config: StackConfig | None = None
) -> Tensor:
    """As `baton_kernels.experts.experts.experts`, in pieces of up to MAX_PAIRS pairs. With a config rows keep their 16
    bits."""
    tokens, per_token = routing.experts.shape
    if not tokens:
        return torch.empty_like(x)
    if routing.pairs > MAX_PAIRS:
        pieces = (torch.split(tensor, MAX_PAIRS // per_token) for tensor in (x, *routing))
        return torch.cat(
            [quantised_experts_gluon(rows, stacks, Routing(s, e), config) for rows, s, e in zip(*pieces, strict=True)]
        )
    if config is None and rounds(stacks, routing.pairs):
        return rounded_experts_gluon(x, stacks, routing)
    gate_up, down = stacks.gate_up, stacks.down
    config = config or stack_config(routing.pairs, stacks.count, gate_up.has_blocks, min(gate_up.bits, down.bits))
    plan = sort_by_expert(x, routing.experts, stacks.count, config.rows)
    inner = _product(plan.x, plan, gate_up, SWIGLU.value, config, is_table_older=False)
    out = _product(inner, plan, down, PLAIN.value, config, is_table_older=True)
    return sum_of_experts(out, plan.place, routing.shares)


def _product(
    x: Tensor, plan: Sorted, weight: QuantisedStack, gate: int, config: StackConfig, is_table_older: bool
) -> Tensor:
    sides = 1 if gate == PLAIN.value else 2
    _, both, size = weight.values.shape
    features = both // sides
    out = torch.empty(x.shape[0], features, dtype=x.dtype, device=x.device)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    zeros = weight.scales if weight.zeros is None else weight.zeros
    _stack_kernel[(config.programs * multiprocessors,)](
        boxes(x, config.rows, PANEL.value), boxes(weight.values.view(-1, size), config.features, LINE.value),
        weight.scales, zeros, out, plan.table, triton.cdiv(features, config.features), features,
        triton.cdiv(size, LINE.value), triton.cdiv(weight.columns, GROUP), (plan.table.shape[0] - 1) // 3,
        is_table_older, config.stages(sides, weight.bits), sides, weight.has_blocks, weight.bits,
        weight.zeros is not None, num_warps=config.features // 16, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out
