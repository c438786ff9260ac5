"""Mixtures of experts with weights of 8 bits on Hopper, in Gluon: each expert's bytes stream by once.

As in `streamed_mxfp4.py` programs stay and go through tiles of row blocks, after a table that the device makes, and
weights are the register operand of W xᵀ. As in `streamed_quantised.py` bytes become bfloat16 in registers, exactly. A
channel's scale multiplies the whole sum, a block's the sum of its 128 columns.
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

from baton_kernels.gpu.expert_sort import MAX_PAIRS, Sorted, sort_by_expert
from baton_kernels.gpu.streamed_experts import LARGE_TILES_FROM, PLAIN, SWIGLU, row_block, sum_of_experts
from baton_kernels.gpu.streamed_linear import SHARED_BYTES
from baton_kernels.gpu.streamed_mxfp4 import _as_operand, _copy_x
from baton_kernels.gpu.streamed_quantised import _WIDEN_E4M3, _WIDEN_INT8
from baton_kernels.quantised_stack import QuantisedStack

LARGEST_TILES_FROM = 256
"""Pairs for each expert: from there on rows of 128 are faster with blocks too."""
LINE = gl.constexpr(128)
"""Bytes and columns, a step."""
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
def _multiply(
    scale_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
    AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BLOCKS: gl.constexpr,
):  # fmt: skip
    FEATURES: gl.constexpr = w_boxes.shape[1]
    R: gl.constexpr = x_boxes.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [FEATURES // 16, 1], [16, R, 16])
    dtype: gl.constexpr = x_boxes.dtype
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

        first = gl.load(table + 1 + ROW_BLOCKS + item // tiles)
        end = gl.load(table + 1 + 2 * ROW_BLOCKS + item // tiles)
        line = gl.arange(0, FEATURES, gl.SliceLayout(1, MMA))
        column = (item % tiles) * FEATURES + line
        row = gl.arange(0, R, gl.SliceLayout(0, MMA))
        is_column = column < features
        if not BLOCKS:
            total *= gl.load(scale_ptr + feature + line, mask=is_column, other=0.0)[:, None]
        if SIDES == 2:  # rounded where the separate ops round
            if not BLOCKS:
                up *= gl.load(scale_ptr + features + feature + line, mask=is_column, other=0.0)[:, None]
            gate = total.to(dtype).to(gl.float32)
            total = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32) * up.to(dtype).to(gl.float32)
        if AHEAD:
            gdc_wait()
        place = (first + row).to(gl.int64)[None, :] * features + column[:, None]
        gl.store(out_ptr + place, total.to(dtype), mask=(first + row < end)[None, :] & is_column[:, None])


@gluon.jit(do_not_specialize=["ROW_BLOCKS"])
def _stack_kernel(
    x, weight, scale_ptr, out_ptr, table, tiles, features, lines, ROW_BLOCKS,
    AHEAD: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BLOCKS: gl.constexpr,
):  # fmt: skip
    if AHEAD:
        gdc_launch_dependents()
    R: gl.constexpr = x.block_shape[0]
    FEATURES: gl.constexpr = weight.block_shape[0]
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * SIDES, FEATURES, LINE], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [STAGES * 2, R, PANEL], x.layout)
    BYTES: gl.constexpr = SIDES * FEATURES * LINE + 4 * R * PANEL
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (scale_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, lines, ROW_BLOCKS,
                         AHEAD, STAGES, SIDES, BLOCKS)),
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

    def stages(self, sides: int) -> int:
        """Steps under way, as many as fit into shared memory."""
        step = sides * self.features * LINE.value + 4 * self.rows * PANEL.value
        return int(min(12, (SHARED_BYTES // self.programs - 2048) // step))


def stack_config(pairs: int, count: int, has_blocks: bool) -> StackConfig:
    """For so many pairs of a token and one of `count` experts. Sums of blocks take registers beside the whole ones."""
    if pairs >= LARGE_TILES_FROM * count:
        return StackConfig(64 if has_blocks and pairs < LARGEST_TILES_FROM * count else 128, 128, 1, 168)
    return StackConfig(row_block(pairs, count), 64, 2, 128)


def quantised_experts_gluon(
    x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor,
    config: StackConfig | None = None,
) -> Tensor:  # fmt: skip
    """As `baton_kernels.experts.quantised_experts`, in pieces of up to MAX_PAIRS pairs."""
    tokens, per_token = experts.shape
    if not tokens:
        return torch.empty_like(x)
    if experts.numel() > MAX_PAIRS:
        pieces = (torch.split(each, MAX_PAIRS // per_token) for each in (x, shares, experts))
        return torch.cat([quantised_experts_gluon(x, gate_up, down, s, e) for x, s, e in zip(*pieces, strict=True)])
    count = gate_up.values.shape[0]
    config = config or stack_config(experts.numel(), count, gate_up.has_blocks)
    plan = sort_by_expert(x, experts, count, config.rows)
    inner = _product(plan.x, plan, gate_up, SWIGLU.value, config, is_table_older=False)
    out = _product(inner, plan, down, PLAIN.value, config, is_table_older=True)
    return sum_of_experts(out, plan.place, shares)


def _product(
    x: Tensor, plan: Sorted, weight: QuantisedStack, gate: int, config: StackConfig, is_table_older: bool
) -> Tensor:
    sides = 1 if gate == PLAIN.value else 2
    _, both, columns = weight.values.shape
    features = both // sides
    out = torch.empty(x.shape[0], features, dtype=x.dtype, device=x.device)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    _stack_kernel[(config.programs * multiprocessors,)](
        _boxes(x, config.rows, PANEL.value), _boxes(weight.values.view(-1, columns), config.features, LINE.value),
        weight.scales, out, plan.table, triton.cdiv(features, config.features), features,
        triton.cdiv(columns, LINE.value), (plan.table.shape[0] - 1) // 3, is_table_older, config.stages(sides), sides,
        weight.has_blocks, num_warps=config.features // 16, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


def _boxes(tensor: Tensor, height: int, width: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(128, 8 * tensor.element_size(), 2)
    rows, columns = tensor.shape
    return TensorDescriptor(tensor, [rows, columns], [columns, 1], [height, width], layout)
