"""Mixtures of experts with weights of 8 and 4 bits on Hopper, in Gluon: each expert's bytes stream by once.

As in `streamed_mxfp4.py` programs stay and go through tiles of row blocks, after a table that the device makes, and
weights are the register operand of W xᵀ. As in `streamed_quantised.py` codes become bfloat16 in registers, exactly. A
channel's scale multiplies the whole sum, that of a block or a group the sum of its 128 columns.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.streamed_linear import SHARED_BYTES
from baton_kernels.dense.gpu.streamed_quantised import _WIDEN_E4M3, _WIDEN_INT4, _WIDEN_INT8, _as_operand
from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.dense.quantised_weight import GROUP
from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS, Sorted, sort_by_expert
from baton_kernels.experts.gpu.rounded_stacks import rounded_experts_gluon, rounds
from baton_kernels.experts.gpu.streamed_experts import LARGE_TILES_FROM, PLAIN, SWIGLU, row_block, sum_of_experts

LARGEST_TILES_FROM = 120
"""Pairs for each expert: from 128 (Mixtral) or 256 (Qwen3-30B-A3B) on rows of 128 are faster with blocks too. Lower, so
that a worker's warm-up reaches it."""
LINE = gl.constexpr(128)
"""Bytes, a step: so many columns, or twice as many of 4 bits."""
PANEL = gl.constexpr(64)
"""Columns of x in 128 bytes."""


@gluon.jit
def _copy_weight(
    weight, table, w_boxes, ready, c, tiles, features, lines, STAGES: gl.constexpr, SIDES: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    item = gl.program_id(0) + (c // lines) * gl.num_programs(0)
    i, stage = c % lines, c % STAGES
    feature = gl.load(table + 1 + item // tiles) * SIDES * features + (item % tiles) * w_boxes.shape[1]
    mbarrier.expect(ready.index(stage), BYTES)
    for side in gl.static_range(SIDES):
        place = [feature + side * features, i * LINE]
        tma.async_copy_global_to_shared(weight, place, ready.index(stage), w_boxes.index(stage * SIDES + side))


@gluon.jit
def _copy_x(x, table, x_boxes, ready, c, tiles, lines, ROW_BLOCKS, STAGES: gl.constexpr):
    PANELS: gl.constexpr = x_boxes.shape[0] // STAGES
    item = gl.program_id(0) + (c // lines) * gl.num_programs(0)
    i, stage = c % lines, c % STAGES
    row = gl.load(table + 1 + ROW_BLOCKS + item // tiles)
    for panel in gl.static_range(PANELS):
        place = [row, (i * PANELS + panel) * PANEL]
        tma.async_copy_global_to_shared(x, place, ready.index(stage), x_boxes.index(stage * PANELS + panel))


@gluon.jit
def _fetch(
    x, weight, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
    AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    if not AHEAD:
        gdc_wait()
        gdc_launch_dependents()
    items = gl.load(table) * tiles
    own = gl.maximum(items - gl.program_id(0) + gl.num_programs(0) - 1, 0) // gl.num_programs(0) * lines
    ahead = gl.minimum(own, STAGES)
    for c in range(ahead):
        _copy_weight(weight, table, w_boxes, ready, c, tiles, features, lines, STAGES, SIDES, BYTES)
    if AHEAD:
        gdc_wait()
    for c in range(ahead):
        _copy_x(x, table, x_boxes, ready, c, tiles, lines, ROW_BLOCKS, STAGES)
    for c in range(ahead, own):
        mbarrier.wait(free.index(c % STAGES), ((c // STAGES) & 1) ^ 1)
        _copy_weight(weight, table, w_boxes, ready, c, tiles, features, lines, STAGES, SIDES, BYTES)
        _copy_x(x, table, x_boxes, ready, c, tiles, lines, ROW_BLOCKS, STAGES)


@gluon.jit
def _widened(w_boxes, box, half: gl.constexpr, MMA: gl.constexpr):
    """Half of a side's step as an operand, [FEATURES, 64]."""
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    WIDEN: gl.constexpr = _WIDEN_INT8 if w_boxes.dtype == gl.int8 else _WIDEN_E4M3
    raw = w_boxes.index(box).slice(half * PANEL, PANEL, dim=1).load(STORED)
    w = gl.inline_asm_elementwise(WIDEN, "=r,=r,r", [raw], gl.bfloat16, is_pure=True, pack=4)
    return _as_operand(w, OPERAND)


@gluon.jit
def _finish(
    total, up, out_ptr, table, item, tiles, features, ROW_BLOCKS, AHEAD: gl.constexpr, SIDES: gl.constexpr,
    dtype: gl.constexpr,
):  # fmt: skip
    """Gate and store a tile of sums [FEATURES, R]."""
    MMA: gl.constexpr = total.type.layout
    first = gl.load(table + 1 + ROW_BLOCKS + item // tiles)
    end = gl.load(table + 1 + 2 * ROW_BLOCKS + item // tiles)
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
        expert = gl.load(table + 1 + item // tiles)
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
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
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
    w0, w1 = gl.inline_asm_elementwise(
        _WIDEN_INT4, "=&r,=&r,=&r,=&r,r,r,r,r,r", [raw0, z0, z1], (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4
    )
    w0, w1 = _as_operand(w0, OPERAND), _as_operand(w1, OPERAND)
    low = warpgroup_mma(w0, x_boxes.index(stage * 4).permute((1, 0)), low, use_acc=False, is_async=True)
    high = warpgroup_mma(w1, x_boxes.index(stage * 4 + 2).permute((1, 0)), high, use_acc=False, is_async=True)
    w2, w3 = gl.inline_asm_elementwise(
        _WIDEN_INT4, "=&r,=&r,=&r,=&r,r,r,r,r,r", [raw1, z0, z1], (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4
    )
    w2, w3 = _as_operand(w2, OPERAND), _as_operand(w3, OPERAND)
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
        group = gl.load(table + 1 + item // tiles) * groups
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
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    fence_async_shared()
    if BITS == 4:
        gl.warp_specialize(
            [
                (_multiply_int4, (scale_ptr, zero_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features,
                                  lines, groups, ROW_BLOCKS, AHEAD, STAGES, SIDES, ZEROS)),
                (_fetch, (x, weight, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS, AHEAD,
                          STAGES, SIDES, BYTES)),
            ],
            [1],
            [40],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (scale_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, lines,
                             ROW_BLOCKS, AHEAD, STAGES, SIDES, BLOCKS)),
                (_fetch, (x, weight, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS, AHEAD,
                          STAGES, SIDES, BYTES)),
            ],
            [1],
            [40],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What a program computes at a time, and how many share a multiprocessor."""

    rows: int
    """Of a row block: 8 to 128."""
    features: int
    """Of a tile; gated: of gate and of up. 16 for each warp, a divisor of a block's."""
    programs: int
    registers: int
    """Of a thread, before those that fetch give theirs away."""

    def stages(self, sides: int, bits: int) -> int:
        """Steps under way, as many as fit into shared memory."""
        step = sides * self.features * LINE.value + 32 // bits * self.rows * PANEL.value
        return int(min(12, (SHARED_BYTES // self.programs - 2048) // step))


def stack_config(pairs: int, count: int, has_blocks: bool, bits: int) -> StackConfig:
    """For so many pairs of a token and one of `count` experts. Sums of blocks take registers beside the whole ones."""
    if bits == 8 and pairs >= LARGE_TILES_FROM * count:
        return StackConfig(64 if has_blocks and pairs < LARGEST_TILES_FROM * count else 128, 128, 1, 168)
    return StackConfig(row_block(pairs, count), 64, 2, 128)


def quantised_experts_gluon(
    x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor,
    config: StackConfig | None = None,
) -> Tensor:  # fmt: skip
    """As `baton_kernels.experts.experts.quantised_experts`, in pieces of up to MAX_PAIRS pairs. With a config rows
    keep their 16 bits."""
    tokens, per_token = experts.shape
    if not tokens:
        return torch.empty_like(x)
    if experts.numel() > MAX_PAIRS:
        pieces = (torch.split(each, MAX_PAIRS // per_token) for each in (x, shares, experts))
        return torch.cat(
            [quantised_experts_gluon(x, gate_up, down, s, e, config) for x, s, e in zip(*pieces, strict=True)]
        )
    if config is None and rounds(gate_up, down, experts.numel()):
        return rounded_experts_gluon(x, gate_up, down, shares, experts)
    count = gate_up.values.shape[0]
    config = config or stack_config(experts.numel(), count, gate_up.has_blocks, min(gate_up.bits, down.bits))
    plan = sort_by_expert(x, experts, count, config.rows)
    inner = _product(plan.x, plan, gate_up, SWIGLU.value, config, is_table_older=False)
    out = _product(inner, plan, down, PLAIN.value, config, is_table_older=True)
    return sum_of_experts(out, plan.place, shares)


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
        _boxes(x, config.rows, PANEL.value), _boxes(weight.values.view(-1, size), config.features, LINE.value),
        weight.scales, zeros, out, plan.table, triton.cdiv(features, config.features), features,
        triton.cdiv(size, LINE.value), triton.cdiv(weight.columns, GROUP), (plan.table.shape[0] - 1) // 3,
        is_table_older, config.stages(sides, weight.bits), sides, weight.has_blocks, weight.bits,
        weight.zeros is not None, num_warps=config.features // 16, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


def _boxes(tensor: Tensor, height: int, width: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(128, 8 * tensor.element_size(), 2)
    rows, columns = tensor.shape
    return TensorDescriptor(tensor, [rows, columns], [columns, 1], [height, width], layout)
