"""y = x Wᵀ for few rows on Hopper, in Gluon, with weights of 8 or 4 bits that stream at the memory's speed.

As in `streamed_linear.py` one warp keeps a ring of tiles full by TMA. It fills the ring with weights before it waits
for the kernel that makes x. Here the weights are the register operand of W xᵀ: warps read the lines of a tile, widen
them to bfloat16 in registers and multiply. Widened values never return to shared memory.

A program computes `features` outputs of all rows (gated: that many of gate and of up), or with `splits` a share of
their columns. Then the last program to arrive adds the shares in their order, so a product repeats bit by bit.

A split product counts arrivals in the weight itself: a weight takes part in one product at a time.
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

from baton_kernels.dense.gpu.pipeline import LINE, PANEL, boxes, copy_panels, make_barriers
from baton_kernels.dense.gpu.widening import as_operand, widen_bytes, widen_int4
from baton_kernels.dense.quantised_weight import QuantisedWeight

MAX_ROWS = 64
MOST_ROWS = 128
"""Most rows of 8 bits with a scale for each channel: one sum over all columns leaves registers for them."""
_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
"""Barrier of a program's threads; Triton 3.7 renamed it."""


@dataclass(frozen=True, slots=True)
class QuantisedConfig:
    features: int
    """Outputs a program: 64 or 128; gated 64."""
    lines: int
    """Lines of 128 bytes side by side in a tile."""
    stages: int
    """Tiles under way."""
    splits: int
    """Programs that share the columns."""
    per_sm: int
    """Programs that a multiprocessor has registers for."""


@gluon.jit
def _copy_weight(
    stage, bar, weight, scale, zero, w_boxes, scale_boxes, zero_boxes, tile, feature, features,
    SIDES: gl.constexpr, LINES: gl.constexpr, PLANES: gl.constexpr, GROUPED: gl.constexpr, ZEROS: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    F: gl.constexpr = weight.block_shape[0]
    mbarrier.expect(bar, BYTES)
    for side in gl.static_range(SIDES):
        first = feature + side * features
        for line in gl.static_range(LINES):
            box = w_boxes.index(stage * LINES + line).slice(side * F, F, dim=0)
            tma.async_copy_global_to_shared(weight, [first, (tile * LINES + line) * LINE], bar, box)
        for group in gl.static_range(LINES * PLANES):
            place = [tile * (LINES * PLANES) + group, first]
            if GROUPED:
                box = scale_boxes.index(stage * (LINES * PLANES) + group).slice(side * F, F, dim=1)
                tma.async_copy_global_to_shared(scale, place, bar, box)
            if ZEROS:
                box = zero_boxes.index(stage * (LINES * PLANES) + group).slice(side * F, F, dim=1)
                tma.async_copy_global_to_shared(zero, place, bar, box)


@gluon.jit
def _fetch(
    x, weight, scale, zero, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, feature, features, tile, steps,
    SIDES: gl.constexpr, LINES: gl.constexpr, PLANES: gl.constexpr, GROUPED: gl.constexpr, ZEROS: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    """Copy all tiles of a program, as `pipeline.fill_ring` does. This kernel has its own loop because it counts stages:
    with stages found from steps, some products of 64 rows took 2 to 4 % longer."""
    STAGES: gl.constexpr = free.shape[0]
    PANELS: gl.constexpr = LINES * PLANES * 2
    ahead = gl.minimum(steps, STAGES)
    for i in range(ahead):
        _copy_weight(i, ready.index(i), weight, scale, zero, w_boxes, scale_boxes, zero_boxes, tile + i, feature,
                     features, SIDES, LINES, PLANES, GROUPED, ZEROS, BYTES)  # fmt: skip
    gdc_wait()
    for i in range(ahead):
        copy_panels(x, 0, tile + i, x_boxes, i * PANELS, ready.index(i), PANELS)
    stage = 0
    phase = 0
    for i in range(ahead, steps):
        mbarrier.wait(free.index(stage), phase)
        _copy_weight(stage, ready.index(stage), weight, scale, zero, w_boxes, scale_boxes, zero_boxes, tile + i,
                     feature, features, SIDES, LINES, PLANES, GROUPED, ZEROS, BYTES)  # fmt: skip
        copy_panels(x, 0, tile + i, x_boxes, stage * PANELS, ready.index(stage), PANELS)
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1


@gluon.jit
def _sum_tiles(
    w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, steps,
    STAGES: gl.constexpr, LINES: gl.constexpr, PLANES: gl.constexpr, GROUPED: gl.constexpr, ZEROS: gl.constexpr,
):  # fmt: skip
    """The products of all tiles, [outputs, rows]."""
    M: gl.constexpr = w_boxes.shape[1]
    N: gl.constexpr = x_boxes.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [M // 16, 1], [16, N, 16])
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    total = gl.zeros([M, N], gl.float32, MMA)
    empty = gl.zeros([M, N], gl.float32, MMA)
    stage = 0
    phase = 0
    for _ in range(steps):
        mbarrier.wait(ready.index(stage), phase)
        for line in gl.static_range(LINES):
            place = stage * LINES + line
            box = w_boxes.index(place)
            if PLANES == 1:
                part = empty
                for half in gl.static_range(2):
                    raw = box.slice(half * 64, 64, dim=1).load(STORED)
                    w = widen_bytes(raw, MMA)
                    x = x_boxes.index(place * 2 + half).permute((1, 0))
                    if GROUPED:
                        part = warpgroup_mma(w, x, part, use_acc=half > 0, is_async=True)
                    else:
                        total = warpgroup_mma(w, x, total, is_async=True)
                if GROUPED:
                    scale = scale_boxes.index(place).reshape([M]).load(gl.SliceLayout(1, MMA)).to(gl.float32)
                    part = warpgroup_mma_wait(0, [part])
                    total += part * scale[:, None]
                elif line == LINES - 1:
                    total = warpgroup_mma_wait(0, [total])
                elif N >= 32:  # widened values of a line take registers
                    total = warpgroup_mma_wait(1, [total])
            else:
                low = empty
                high = empty
                if ZEROS:
                    z0 = zero_boxes.index(place * 2).reshape([M]).load(gl.SliceLayout(1, STORED))
                    z1 = zero_boxes.index(place * 2 + 1).reshape([M]).load(gl.SliceLayout(1, STORED))
                for half in gl.static_range(2):
                    raw = box.slice(half * 64, 64, dim=1).load(STORED)
                    if ZEROS:
                        first = gl.expand_dims(z0, 1).broadcast_to(raw.shape)
                        second = gl.expand_dims(z1, 1).broadcast_to(raw.shape)
                    else:
                        first = gl.full(raw.shape, 136.0, gl.bfloat16, STORED)
                        second = first
                    w0, w1 = widen_int4(raw, first, second)
                    x0 = x_boxes.index(place * 4 + half).permute((1, 0))
                    x1 = x_boxes.index(place * 4 + 2 + half).permute((1, 0))
                    low = warpgroup_mma(as_operand(w0, MMA), x0, low, use_acc=half > 0, is_async=True)
                    high = warpgroup_mma(as_operand(w1, MMA), x1, high, use_acc=half > 0, is_async=True)
                    if half == 0 and N >= 16:  # as above
                        low, high = warpgroup_mma_wait(0, [low, high])
                s0 = scale_boxes.index(place * 2).reshape([M]).load(gl.SliceLayout(1, MMA)).to(gl.float32)
                s1 = scale_boxes.index(place * 2 + 1).reshape([M]).load(gl.SliceLayout(1, MMA)).to(gl.float32)
                low, high = warpgroup_mma_wait(0, [low, high])
                total += low * s0[:, None] + high * s1[:, None]
        mbarrier.arrive(free.index(stage), count=1)
        stage += 1
        if stage == STAGES:
            stage = 0
            phase ^= 1
    return total


@gluon.jit
def _finish(
    total, up, bias_ptr, out_ptr, feature, features, rows,
    F: gl.constexpr, SIDES: gl.constexpr, BIAS: gl.constexpr, R: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    column = feature + gl.arange(0, F, gl.SliceLayout(1, OUT))
    row = gl.arange(0, R, gl.SliceLayout(0, OUT))
    is_column = column < features
    if BIAS:
        total += gl.load(bias_ptr + column, mask=is_column, other=0.0).to(gl.float32)[:, None]
        if SIDES == 2:
            up += gl.load(bias_ptr + features + column, mask=is_column, other=0.0).to(gl.float32)[:, None]
    if SIDES == 2:  # rounded where the separate ops round
        gate = total.to(dtype).to(gl.float32)
        total = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32) * up.to(dtype).to(gl.float32)
    place = row.to(gl.int64)[None, :] * features + column[:, None]
    gl.store(out_ptr + place, total.to(dtype), mask=(row < rows)[None, :] & is_column[:, None])


@gluon.jit
def _multiply(
    channel_ptr, bias_ptr, out_ptr, parts_ptr, arrived_ptr, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free,
    feature, features, rows, steps,
    F: gl.constexpr, SIDES: gl.constexpr, STAGES: gl.constexpr, LINES: gl.constexpr, PLANES: gl.constexpr,
    GROUPED: gl.constexpr, ZEROS: gl.constexpr, BIAS: gl.constexpr, R: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    M: gl.constexpr = F * SIDES
    PAIR: gl.constexpr = gl.BlockedLayout([1, 1, 2], [32, 1, 1], [M // 16, 1, 1], [2, 0, 1])
    OUT: gl.constexpr = gl.SliceLayout(2, PAIR)
    total = _sum_tiles(w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, steps,
                       STAGES, LINES, PLANES, GROUPED, ZEROS)  # fmt: skip
    if not GROUPED:
        line = gl.arange(0, M, gl.SliceLayout(1, total.type.layout))
        column = feature + line // F * features + line % F
        total *= gl.load(channel_ptr + column, mask=feature + line % F < features, other=0.0)[:, None]
    if SIDES == 2:
        total, up = gl.split(gl.convert_layout(total.reshape([2, F, R]).permute((1, 2, 0)), PAIR))
    else:
        total = gl.convert_layout(total, OUT)
        up = total
    gdc_wait()
    if SPLITS == 1:
        _finish(total, up, bias_ptr, out_ptr, feature, features, rows, F, SIDES, BIAS, R, OUT)
    else:
        cell = gl.arange(0, F, gl.SliceLayout(1, OUT))[:, None] + F * gl.arange(0, R, gl.SliceLayout(0, OUT))[None, :]
        parts_ptr += gl.program_id(0) * (SPLITS * SIDES * F * R)
        mine = parts_ptr + gl.program_id(1) * (SIDES * F * R)
        gl.store(mine + cell, total)
        if SIDES == 2:
            gl.store(mine + F * R + cell, up)
        _barrier()
        before = gl.atomic_add(arrived_ptr + gl.program_id(0), 1, sem="acq_rel")
        if before == SPLITS - 1:
            total = gl.zeros([F, R], gl.float32, OUT)
            up = gl.zeros([F, R], gl.float32, OUT)
            for split in gl.static_range(SPLITS):
                theirs = parts_ptr + split * (SIDES * F * R) + cell
                total += gl.load(theirs, cache_modifier=".cg")
                if SIDES == 2:
                    up += gl.load(theirs + F * R, cache_modifier=".cg")
            gl.store(arrived_ptr + gl.program_id(0), 0)
            _finish(total, up, bias_ptr, out_ptr, feature, features, rows, F, SIDES, BIAS, R, OUT)


@gluon.jit(do_not_specialize=["rows", "features", "steps"])
def _quantised_kernel(
    x, weight, scale, zero, channel_ptr, bias_ptr, out_ptr, parts_ptr, arrived_ptr, rows, features, steps,
    SIDES: gl.constexpr, STAGES: gl.constexpr, LINES: gl.constexpr, PLANES: gl.constexpr, GROUPED: gl.constexpr,
    ZEROS: gl.constexpr, BIAS: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    R: gl.constexpr = x.block_shape[0]
    F: gl.constexpr = weight.block_shape[0]
    M: gl.constexpr = F * SIDES
    GROUPS: gl.constexpr = STAGES * LINES * PLANES
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * LINES, M, LINE], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [GROUPS * 2, R, PANEL], x.layout)
    BYTES: gl.constexpr = LINES * (M * LINE + R * PLANES * 256)
    scale_boxes = x_boxes
    zero_boxes = x_boxes
    SCALE_BYTES: gl.constexpr = scale.dtype.primitive_bitwidth // 8 if GROUPED else 0
    ZERO_BYTES: gl.constexpr = 2 if ZEROS else 0
    if GROUPED:
        scale_boxes = gl.allocate_shared_memory(scale.dtype, [GROUPS, 1, M], scale.layout)
    if ZEROS:
        zero_boxes = gl.allocate_shared_memory(zero.dtype, [GROUPS, 1, M], zero.layout)
    ready, free = make_barriers(STAGES, 1)
    feature = gl.program_id(0) * F
    tile = gl.program_id(1) * steps
    gl.warp_specialize(
        [
            (_multiply, (channel_ptr, bias_ptr, out_ptr, parts_ptr, arrived_ptr, w_boxes, x_boxes, scale_boxes,
                         zero_boxes, ready, free, feature, features, rows, steps,
                         F, SIDES, STAGES, LINES, PLANES, GROUPED, ZEROS, BIAS, R, SPLITS)),
            (_fetch, (x, weight, scale, zero, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, feature, features,
                      tile, steps, SIDES, LINES, PLANES, GROUPED, ZEROS,
                      BYTES + LINES * PLANES * M * (SCALE_BYTES + ZERO_BYTES))),
        ],
        [1],
        [24],
    )  # fmt: skip


def streamed_quantised(
    x: Tensor, weight: QuantisedWeight, bias: Tensor | None, config: QuantisedConfig, gated: bool = False
) -> Tensor:
    """As `baton_kernels.dense.quantised_linear.quantised_linear`, for 1 to MAX_ROWS rows of bfloat16, or MOST_ROWS."""
    rows, sides = x.shape[0], 2 if gated else 1
    features, f, splits = weight.values.shape[0] // sides, config.features, config.splits
    programs = triton.cdiv(features, f)
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    parts = out
    if splits > 1:
        parts = torch.empty(programs, splits, sides * f * x_rows(rows), dtype=torch.float32, device=x.device)
    grouped = weight.scales.dim() == 2
    values = boxes(weight.values, f, LINE.value)
    # With the warp that fetches, a program's warps are rounded up to warpgroups.
    registers = min(168 if rows > MAX_ROWS else 128, 65536 // (config.per_sm * (2 * f * sides + 128)) // 8 * 8)
    _quantised_kernel[(programs, splits)](
        boxes(x, x_rows(rows), PANEL.value), values,
        boxes(weight.scales, 1, f, 0) if grouped else values,
        values if weight.zeros is None else boxes(weight.zeros, 1, f, 0),
        weight.scales, x if bias is None else bias, out, parts, weight.arrived, rows, features,
        triton.cdiv(weight.values.shape[1], LINE.value * config.lines * splits),
        sides, config.stages, config.lines, 8 // weight.bits, grouped, weight.zeros is not None, bias is not None,
        splits, num_warps=f * sides // 16, maxnreg=registers, launch_pdl=True,
    )  # fmt: skip
    return out


def x_rows(rows: int) -> int:
    """Rows of a tile of x."""
    return max(8, int(triton.next_power_of_2(rows)))
