"""Mixtures of experts with 8 bits on both sides for many tokens an expert, in Gluon on Hopper.

Many tokens are bound by arithmetic, which is twice as fast in 8 bits. Rows of x are rounded where they are sorted by
expert (`expert_sort.py`), with a scale a row, or one for each 128 columns where weights have blocks. Sums of integers
are exact. Those of e4m3 are float32; with blocks each 128 columns are added up separately, and scaled.

Programs stay and go through tiles of 128 rows by twice 128 features: of gate and of up, or neighbours. One warp
fetches. Between the two products rows are rounded again: with blocks immediately, as a tile has all 128 features of a
group; with channels by a separate kernel, as a row's greatest value is known only when all tiles are done.

The fetching loop is this kernel's own: each stage has two barriers, and row blocks take turns.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import LINE, SHARED_BYTES, boxes, copy_panels
from baton_kernels.dense.gpu.rounded_activations import quantise_rows
from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.experts.expert_inputs import QuantisedStacks, Routing
from baton_kernels.experts.gpu.expert_sort import row_scales, sort_by_expert
from baton_kernels.experts.gpu.row_block_tiles import end_of_rows, expert_of, first_row
from baton_kernels.experts.gpu.streamed_experts import sum_of_experts

ROUNDED_FROM: int | None = 48
"""Pairs of a token and an expert, for each expert, from which rows are rounded; None: never."""
ROWS = 128
"""Rows of a row block."""
TOP = gl.constexpr(448.0)
"""e4m3's greatest."""
WARPS, REGISTERS = 4, 168
"""Warps of each half that multiplies, and registers of a thread before the fetching warp gives some away."""
STEP_BYTES = (ROWS + 2 * 128) * 128
STAGES = (SHARED_BYTES - 2048) // STEP_BYTES
MANY_TILES, TURN = 32, 8
"""From MANY_TILES tiles a row block on, weights do not stay in the L2 cache until the next block: TURN blocks take
turns."""


@gluon.jit
def _place(item, blocks, tiles, TURN: gl.constexpr):
    """Row block and tile of it: TURN row blocks go through a tile before the next one."""
    first = item // (TURN * tiles) * TURN
    turn = gl.minimum(blocks - first, TURN)
    rest = item - first * tiles
    return first + rest % turn, rest // turn


@gluon.jit
def _added(total, part, scale):
    """total + part · scale [R], and not later: without the barrier that an empty instruction is to the compiler, it
    keeps `part` alive along with the next one, for which there are no registers."""
    total += part * scale[:, None]
    return gl.inline_asm_elementwise("", "=f,0", [total], gl.float32, is_pure=False, pack=1)


@gluon.jit
def _fetch(
    x, weight, table, w_boxes, x_boxes, ready, free, tiles, features, steps, ROW_BLOCKS, STAGES: gl.constexpr,
    GATED: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    BYTES: gl.constexpr = (x_boxes.shape[1] + LINE) * LINE
    gdc_wait()
    gdc_launch_dependents()
    blocks = gl.load(table)
    c = 0
    for item in range(gl.program_id(0), blocks * tiles, gl.num_programs(0)):
        block, tile = _place(item, blocks, tiles, TURN)
        expert = expert_of(table, block)
        row = first_row(table, block, ROW_BLOCKS)
        if GATED:
            feature = expert * 2 * features + tile * LINE
            second = feature + features
        else:
            feature = expert * features + tile * 2 * LINE
            second = feature + LINE
        for i in range(steps):
            stage = c % STAGES
            mbarrier.wait(free.index(stage), ((c // STAGES) & 1) ^ 1)
            bar = ready.index(stage * 2)
            mbarrier.expect(bar, BYTES)
            copy_panels(x, row, i, x_boxes, stage, bar, 1)
            copy_panels(weight, feature, i, w_boxes, stage * 2, bar, 1)
            bar = ready.index(stage * 2 + 1)
            mbarrier.expect(bar, LINE * LINE)
            copy_panels(weight, second, i, w_boxes, stage * 2 + 1, bar, 1)
            c += 1


@gluon.jit
def _multiply(
    row_scale_ptr, scale_ptr, out_ptr, out_scale_ptr, table, w_boxes, x_boxes, ready, free, rows, tiles, features,
    steps, ROW_BLOCKS, STAGES: gl.constexpr, GATED: gl.constexpr, BLOCKS: gl.constexpr, TURN: gl.constexpr,
    UPPER: gl.constexpr,
):  # fmt: skip
    """A warpgroup's half of each tile: the rows of the upper half of a row block, or of the lower one."""
    R: gl.constexpr = x_boxes.shape[1] // 2
    SKIPPED: gl.constexpr = 0 if UPPER else R
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [R // 16, 1], [16, LINE, 32])
    STORED: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16], [0, 32], [0, 64]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [R, LINE],
    )  # fmt: skip
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    SUM: gl.constexpr = gl.int32 if w_boxes.dtype == gl.int8 else gl.float32
    row = gl.arange(0, R, gl.SliceLayout(1, MMA))
    column = gl.arange(0, LINE, gl.SliceLayout(0, MMA))
    gdc_wait()
    blocks = gl.load(table)
    c = 0
    for item in range(gl.program_id(0), blocks * tiles, gl.num_programs(0)):
        block, tile = _place(item, blocks, tiles, TURN)
        expert = expert_of(table, block)
        first = first_row(table, block, ROW_BLOCKS) + SKIPPED
        is_row = first + row < end_of_rows(table, block, ROW_BLOCKS)
        if GATED:
            feature = tile * LINE
            both = 2 * features
            second = features + feature
        else:
            feature = tile * 2 * LINE
            both = features
            second = feature + LINE
        if BLOCKS:
            total = gl.zeros([R, LINE], gl.float32, MMA)
            up = gl.zeros([R, LINE], gl.float32, MMA)
            empty = gl.zeros([R, LINE], gl.float32, MMA)
            scales = scale_ptr + (expert * both + feature) // LINE * steps
            second_scales = scale_ptr + (expert * both + gl.minimum(second, both - LINE)) // LINE * steps
            row_scales = row_scale_ptr + first + row  # including rows of other experts after this one's
            for i in range(steps):
                stage = c % STAGES
                # Before the wait, which no load passes.
                row_scale = gl.load(row_scales + i * rows)
                s0 = gl.load(scales + i)
                s1 = gl.load(second_scales + i)
                mbarrier.wait(ready.index(stage * 2), (c // STAGES) & 1)
                x = x_boxes.index(stage).slice(SKIPPED, R, dim=0)
                w = w_boxes.index(stage * 2).permute((1, 0))
                part = warpgroup_mma(x, w, empty, use_acc=False, is_async=True)
                part = warpgroup_mma_wait(0, [part])
                total = _added(total, part, row_scale * s0)
                mbarrier.wait(ready.index(stage * 2 + 1), (c // STAGES) & 1)
                w = w_boxes.index(stage * 2 + 1).permute((1, 0))
                part = warpgroup_mma(x, w, empty, use_acc=False, is_async=True)
                part = warpgroup_mma_wait(0, [part])
                mbarrier.arrive(free.index(stage), count=1)
                up = _added(up, part, row_scale * s1)
                c += 1
        else:
            sums = gl.zeros([R, LINE], SUM, MMA)
            others = gl.zeros([R, LINE], SUM, MMA)
            for i in range(steps):
                stage = c % STAGES
                mbarrier.wait(ready.index(stage * 2), (c // STAGES) & 1)
                mbarrier.wait(ready.index(stage * 2 + 1), (c // STAGES) & 1)
                x = x_boxes.index(stage).slice(SKIPPED, R, dim=0)
                sums = warpgroup_mma(x, w_boxes.index(stage * 2).permute((1, 0)), sums, is_async=True)
                others = warpgroup_mma(x, w_boxes.index(stage * 2 + 1).permute((1, 0)), others, is_async=True)
                sums, others = warpgroup_mma_wait(2, [sums, others])
                # The step before this one has been multiplied.
                mbarrier.arrive(free.index((c + STAGES - 1) % STAGES), count=1, pred=i > 0)
                c += 1
            sums, others = warpgroup_mma_wait(0, [sums, others])
            mbarrier.arrive(free.index((c + STAGES - 1) % STAGES), count=1)
            row_scale = gl.load(row_scale_ptr + first + row, mask=is_row, other=0.0)
            scales = scale_ptr + expert * both + column
            s0 = gl.load(scales + feature, mask=feature + column < (features if GATED else both), other=0.0)
            s1 = gl.load(scales + second, mask=second + column < both, other=0.0)
            total = sums.to(gl.float32) * (row_scale[:, None] * s0[None, :])
            up = others.to(gl.float32) * (row_scale[:, None] * s1[None, :])

        place = (first + row).to(gl.int64)[:, None] * features
        if not GATED:
            inside = is_row[:, None] & (feature + column < features)[None, :]
            gl.store(out_ptr + place + (feature + column)[None, :], total.to(dtype), mask=inside)
            inside = is_row[:, None] & (second + column < features)[None, :]
            gl.store(out_ptr + place + (second + column)[None, :], up.to(dtype), mask=inside)
        elif BLOCKS:
            inner = total / (1.0 + gl.exp(-total)) * up
            greatest = gl.maximum(gl.max(gl.abs(inner), 1), 1e-12)
            gl.store(out_scale_ptr + tile * rows + first + row, greatest / TOP, mask=is_row)
            codes = (inner * (TOP / greatest)[:, None]).to(gl.float8e4nv)
            # In stored order a thread's columns 2q, 2q + 1, 2q + 8 and 2q + 9 of every 16 are neighbours: one store.
            codes = codes.reshape([R, LINE // 16, 2, 4, 2]).permute((0, 1, 3, 4, 2)).reshape([R, LINE])
            codes = gl.convert_layout(codes, STORED)
            line = first + gl.arange(0, R, gl.SliceLayout(1, STORED))
            at = feature + gl.arange(0, LINE, gl.SliceLayout(0, STORED))
            end = end_of_rows(table, block, ROW_BLOCKS)
            gl.store(out_ptr + line.to(gl.int64)[:, None] * features + at[None, :], codes, mask=(line < end)[:, None])
        else:  # rounded where the separate ops round
            gate = total.to(dtype).to(gl.float32)
            inner = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32) * up.to(dtype).to(gl.float32)
            inside = is_row[:, None] & (feature + column < features)[None, :]
            gl.store(out_ptr + place + (feature + column)[None, :], inner.to(dtype), mask=inside)


@gluon.jit(do_not_specialize=["rows", "ROW_BLOCKS"])
def _rounded_stack_kernel(
    x, weight, row_scale_ptr, scale_ptr, out_ptr, out_scale_ptr, table, rows, tiles, features, steps, ROW_BLOCKS,
    STAGES: gl.constexpr, GATED: gl.constexpr, BLOCKS: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    R: gl.constexpr = x.block_shape[0]
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * 2, LINE, LINE], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [STAGES, R, LINE], x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES * 2, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage * 2), count=1)
        mbarrier.init(ready.index(stage * 2 + 1), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (row_scale_ptr, scale_ptr, out_ptr, out_scale_ptr, table, w_boxes, x_boxes, ready, free, rows,
                         tiles, features, steps, ROW_BLOCKS, STAGES, GATED, BLOCKS, TURN, True)),
            (_multiply, (row_scale_ptr, scale_ptr, out_ptr, out_scale_ptr, table, w_boxes, x_boxes, ready, free, rows,
                         tiles, features, steps, ROW_BLOCKS, STAGES, GATED, BLOCKS, TURN, False)),
            (_fetch, (x, weight, table, w_boxes, x_boxes, ready, free, tiles, features, steps, ROW_BLOCKS, STAGES,
                      GATED, TURN)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


def rounds(stacks: QuantisedStacks, pairs: int) -> bool:
    """Decide if this many pairs of a token and an expert are multiplied in 8 bits, as the weights are. Packing notes
    which checkpoints round activations (`QuantisedWeight.rounds_inputs`)."""
    gate_up, down = stacks.gate_up, stacks.down
    known = gate_up.rounds_inputs and down.rounds_inputs and gate_up.bits == down.bits == 8
    alike = gate_up.values.dtype == down.values.dtype and gate_up.has_blocks == down.has_blocks
    return known and alike and ROUNDED_FROM is not None and pairs >= ROUNDED_FROM * gate_up.values.shape[0]


def codes_of(stack: QuantisedStack) -> torch.dtype:
    """Dtype of the rows that a stack is multiplied with."""
    return torch.int8 if stack.values.dtype == torch.int8 else torch.float8_e4m3fn


def rounded_experts_gluon(x: Tensor, stacks: QuantisedStacks, routing: Routing) -> Tensor:
    """As `baton_kernels.experts.experts.rounded_experts_reference`: two stacks of 8 bits that are stored alike, up to
    MAX_PAIRS pairs of a token and an expert. All contiguous."""
    gate_up, down = stacks.gate_up, stacks.down
    codes = codes_of(gate_up)
    plan = sort_by_expert(x, routing.experts, stacks.count, ROWS, codes, gate_up.has_blocks)
    assert plan.scales is not None
    pairs, inner = plan.x.shape[0], gate_up.values.shape[1] // 2
    between = torch.empty(pairs, inner, dtype=codes if gate_up.has_blocks else x.dtype, device=x.device)
    if gate_up.has_blocks:
        scales = row_scales(inner // LINE.value, pairs, ROWS, x.device)
        multiply_codes(plan.x, plan.scales, plan.table, gate_up, between, scales, gated=True)
    else:
        multiply_codes(plan.x, plan.scales, plan.table, gate_up, between, plan.scales, gated=True)
        between, scales = quantise_rows(between, codes)
    out = torch.empty(pairs, x.shape[1], dtype=x.dtype, device=x.device)
    multiply_codes(between, scales, plan.table, down, out, scales, gated=False)
    return sum_of_experts(out, plan.place, routing.shares)


def multiply_codes(
    x: Tensor, row_scales: Tensor, table: Tensor, stack: QuantisedStack, out: Tensor, out_scales: Tensor, *, gated: bool
) -> None:
    """Codes x [P, K] by each row's expert: out [P, N], or gated [P, N / 2]."""
    _, both, columns = stack.values.shape
    features = both // 2 if gated else both
    tiles = triton.cdiv(features, LINE.value if gated else 2 * LINE.value)
    values = stack.values.view(-1, columns).view(x.dtype)
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    _rounded_stack_kernel[(multiprocessors,)](
        boxes(x, ROWS, LINE.value), boxes(values, LINE.value, LINE.value), row_scales, stack.scales,
        out, out_scales, table, x.shape[0], tiles, features, triton.cdiv(columns, LINE.value),
        (table.shape[0] - 1) // 3, STAGES, gated, stack.has_blocks, TURN if tiles > MANY_TILES else 1,
        num_warps=WARPS, maxnreg=REGISTERS, launch_pdl=True,
    )  # fmt: skip
