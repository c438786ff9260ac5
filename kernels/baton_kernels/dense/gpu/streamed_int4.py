"""y = x Wᵀ for tens of rows on Hopper, in Gluon, with weights of 4 bits: as fast as what there is to multiply.

`streamed_quantised.py` is for few rows, where the weights' bytes are all that counts. Here x counts as well: every
program reads all of it from L2. So a program computes 256 outputs (gated: 128 of gate and of up), by two warpgroups.
Weights are the register operand of W xᵀ. They are widened and scaled in bfloat16, which rounds as bringing them back
would, so that one sum takes all columns and the matrix unit never pauses for a scale.

Products with few outputs are split by columns; a second kernel adds the shares in their order.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import boxes, fill_ring, make_barriers
from baton_kernels.dense.gpu.widening import as_operand, widen_scaled_int4
from baton_kernels.dense.quantised_weight import QuantisedWeight
from baton_kernels.launching.dependent_launch import after_previous

MAX_ROWS = 128
FEW_ROWS = 32
"""Up to this many rows, only the weights' bytes count."""
FEATURES = gl.constexpr(128)
"""Outputs of a sum; a program has two."""
WIDTH = gl.constexpr(64)
"""Bytes of a weight's line in a step: 64 columns of each of two groups."""
SHARED_BYTES = 224 * 1024
"""Shared memory of a multiprocessor for steps under way."""
MULTIPROCESSORS = 132
ADDED = 1024
"""Values a program of the second kernel."""


@dataclass(frozen=True, slots=True)
class Int4Config:
    stages: int
    """Steps under way."""
    splits: int
    """Programs that share the columns."""


@gluon.jit
def _copy_weight(
    step, stage, bar, weight, scale, zero, w_boxes, scale_boxes, zero_boxes, first_step, feature, other,
    ZEROS: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(bar, BYTES)
    own = first_step + step
    for side in gl.static_range(2):
        first = feature + side * other
        tma.async_copy_global_to_shared(weight, [first, own * WIDTH], bar, w_boxes.index(stage * 2 + side))
        for plane in gl.static_range(2):
            place = [own // 2 * 2 + plane, first]
            box = (stage * 2 + side) * 2 + plane
            tma.async_copy_global_to_shared(scale, place, bar, scale_boxes.index(box))
            if ZEROS:
                tma.async_copy_global_to_shared(zero, place, bar, zero_boxes.index(box))


@gluon.jit
def _copy_x(step, stage, bar, x, x_boxes, first_step):
    own = first_step + step
    row = gl.program_id(2) * x.block_shape[0]
    for plane in gl.static_range(2):
        column = own // 2 * 256 + plane * 128 + own % 2 * 64
        tma.async_copy_global_to_shared(x, [row, column], bar, x_boxes.index(stage * 2 + plane))


@gluon.jit
def _fetch(
    x, weight, scale, zero, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, feature, other, first, steps,
    ZEROS: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    fill_ring(
        _copy_weight, (weight, scale, zero, w_boxes, scale_boxes, zero_boxes, first, feature, other, ZEROS, BYTES),
        _copy_x, (x, x_boxes, first), ready, free, steps, True,
    )  # fmt: skip


@gluon.jit
def _widened(w_boxes, scale_boxes, zero_boxes, box, MMA: gl.constexpr, ZEROS: gl.constexpr):
    """A side's weights of a step as two operands, scaled: [FEATURES, 64] of each group."""
    STORED: gl.constexpr = gl.DotOperandLayout(0, MMA, 4)
    LINES: gl.constexpr = gl.SliceLayout(1, STORED)
    raw = w_boxes.index(box).load(STORED)
    s0 = gl.expand_dims(scale_boxes.index(box * 2).reshape([FEATURES]).load(LINES), 1).broadcast_to(raw.shape)
    s1 = gl.expand_dims(scale_boxes.index(box * 2 + 1).reshape([FEATURES]).load(LINES), 1).broadcast_to(raw.shape)
    if ZEROS:
        z0 = gl.expand_dims(zero_boxes.index(box * 2).reshape([FEATURES]).load(LINES), 1).broadcast_to(raw.shape)
        z1 = gl.expand_dims(zero_boxes.index(box * 2 + 1).reshape([FEATURES]).load(LINES), 1).broadcast_to(raw.shape)
    else:
        z0 = gl.full(raw.shape, 136.0, gl.bfloat16, STORED)
        z1 = z0
    w0, w1 = widen_scaled_int4(raw, z0, z1, s0, s1)
    return as_operand(w0, MMA), as_operand(w1, MMA)


@gluon.jit
def _multiply(
    bias_ptr, out_ptr, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, feature, features, other, rows, steps,
    STAGES: gl.constexpr, ZEROS: gl.constexpr, BIAS: gl.constexpr, GATED: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    R: gl.constexpr = x_boxes.shape[1]
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, R, 16])
    total = gl.zeros([FEATURES, R], gl.float32, MMA)
    up = gl.zeros([FEATURES, R], gl.float32, MMA)
    for i in range(steps):
        stage = i % STAGES
        mbarrier.wait(ready.index(stage), (i // STAGES) & 1)
        x0 = x_boxes.index(stage * 2).permute((1, 0))
        x1 = x_boxes.index(stage * 2 + 1).permute((1, 0))
        w0, w1 = _widened(w_boxes, scale_boxes, zero_boxes, stage * 2, MMA, ZEROS)
        total = warpgroup_mma(w0, x0, total, is_async=True)
        total = warpgroup_mma(w1, x1, total, is_async=True)
        w2, w3 = _widened(w_boxes, scale_boxes, zero_boxes, stage * 2 + 1, MMA, ZEROS)
        up = warpgroup_mma(w2, x0, up, is_async=True)
        up = warpgroup_mma(w3, x1, up, is_async=True)
        # Operands have to outlive their products: a wait that does not name them lets their registers be reused.
        total, w0, w1 = warpgroup_mma_wait(2, [total, w0, w1])
        up, w2, w3 = warpgroup_mma_wait(0, [up, w2, w3])
        mbarrier.arrive(free.index(stage), count=1)

    column = feature + gl.arange(0, FEATURES, gl.SliceLayout(1, MMA))
    row = gl.program_id(2) * R + gl.arange(0, R, gl.SliceLayout(0, MMA))
    last = features if GATED else features - other
    if SPLIT:
        gdc_wait()
        out_ptr += gl.program_id(1).to(gl.int64) * rows * features
        place = row.to(gl.int64)[None, :] * features + column[:, None]
        is_row = (row < rows)[None, :]
        gl.store(out_ptr + place, total, mask=is_row & (column < features)[:, None])
        gl.store(out_ptr + place + other, up, mask=is_row & (column < last)[:, None])
    else:
        dtype: gl.constexpr = out_ptr.dtype.element_ty
        if BIAS:
            total += gl.load(bias_ptr + column, mask=column < features, other=0.0).to(gl.float32)[:, None]
            up += gl.load(bias_ptr + other + column, mask=column < last, other=0.0).to(gl.float32)[:, None]
        gdc_wait()
        place = row.to(gl.int64)[None, :] * features + column[:, None]
        is_row = (row < rows)[None, :]
        if GATED:  # rounded where the separate ops round
            gate = total.to(dtype).to(gl.float32)
            total = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32) * up.to(dtype).to(gl.float32)
        else:
            gl.store(out_ptr + place + other, up.to(dtype), mask=is_row & (column < last)[:, None])
        gl.store(out_ptr + place, total.to(dtype), mask=is_row & (column < features)[:, None])


@gluon.jit(do_not_specialize=["rows", "features", "steps"])
def _int4_kernel(
    x, weight, scale, zero, bias_ptr, out_ptr, rows, features, steps,
    STAGES: gl.constexpr, ZEROS: gl.constexpr, BIAS: gl.constexpr, GATED: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    R: gl.constexpr = x.block_shape[0]
    w_boxes = gl.allocate_shared_memory(weight.dtype, [STAGES * 2, FEATURES, WIDTH], weight.layout)
    x_boxes = gl.allocate_shared_memory(x.dtype, [STAGES * 2, R, WIDTH], x.layout)
    scale_boxes = gl.allocate_shared_memory(scale.dtype, [STAGES * 4, 1, FEATURES], scale.layout)
    zero_boxes = scale_boxes
    if ZEROS:
        zero_boxes = gl.allocate_shared_memory(zero.dtype, [STAGES * 4, 1, FEATURES], zero.layout)
    BYTES: gl.constexpr = 2 * FEATURES * WIDTH + 2 * R * WIDTH * 2 + 4 * FEATURES * (4 if ZEROS else 2)
    ready, free = make_barriers(STAGES, 1)
    if GATED:
        feature = gl.program_id(0) * FEATURES
        other = features
    else:
        feature = gl.program_id(0) * (2 * FEATURES)
        other = FEATURES
    first = gl.program_id(1) * steps
    gl.warp_specialize(
        [
            (_multiply, (bias_ptr, out_ptr, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, feature, features,
                         other, rows, steps, STAGES, ZEROS, BIAS, GATED, SPLIT)),
            (_fetch, (x, weight, scale, zero, w_boxes, x_boxes, scale_boxes, zero_boxes, ready, free, feature, other,
                      first, steps, ZEROS, BYTES)),
        ],
        [1],
        [24],
    )  # fmt: skip


@triton.jit
def _add_kernel(parts_ptr, bias_ptr, out_ptr, SIZE, N, SPLITS: tl.constexpr, BIAS: tl.constexpr, ADDED: tl.constexpr):
    after_previous(True)
    place = tl.program_id(0).to(tl.int64) * ADDED + tl.arange(0, ADDED)
    inside = place < SIZE
    total = tl.zeros([ADDED], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + split * SIZE + place, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + place % N, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)


def streamed_int4(x: Tensor, weight: QuantisedWeight, bias: Tensor | None, gated: bool) -> Tensor:
    """As `baton_kernels.dense.quantised_linear.quantised_linear` with 4 bits, for rows of bfloat16, features (of a
    side when gated) a multiple of 8. More than MAX_ROWS rows read the weight again."""
    features = weight.values.shape[0] // (2 if gated else 1)
    out = torch.empty(x.shape[0], features, dtype=x.dtype, device=x.device)
    # A piece has a power of two of rows.
    at_once = len(x) if is_one_launch(len(x)) else MAX_ROWS
    for rows, target in zip(torch.split(x, at_once), torch.split(out, at_once), strict=True):
        multiply(rows, weight, bias, gated, target, int4_config(rows.shape[0], weight, gated))
    return out


def is_one_launch(rows: int) -> bool:
    """Decide if rows go in one launch: the last of their pieces is not mostly padding."""
    return rows <= MAX_ROWS or not 0 < rows % MAX_ROWS <= MAX_ROWS // 2


def multiply(
    x: Tensor, weight: QuantisedWeight, bias: Tensor | None, gated: bool, out: Tensor, config: Int4Config
) -> None:
    """Rows, in pieces of up to MAX_ROWS, into `out`; `gated` ones in one split."""
    rows, features = out.shape
    programs = triton.cdiv(features, FEATURES.value * (1 if gated else 2))
    target = out
    if config.splits > 1:
        target = torch.empty(config.splits, rows, features, dtype=torch.float32, device=x.device)
    scales, zeros = weight.scales, weight.scales if weight.zeros is None else weight.zeros
    _int4_kernel[(programs, config.splits, pieces_of(rows))](
        boxes(x, x_rows(rows), WIDTH.value), boxes(weight.values, FEATURES.value, WIDTH.value, 64),
        boxes(scales, 1, FEATURES.value, 0), boxes(zeros, 1, FEATURES.value, 0), x if bias is None else bias, target,
        rows, features, triton.cdiv(steps_of(weight), config.splits), config.stages, weight.zeros is not None,
        bias is not None, gated, config.splits > 1, num_warps=8, maxnreg=168, launch_pdl=True,
    )  # fmt: skip
    if config.splits > 1:
        _add_kernel[(triton.cdiv(rows * features, ADDED),)](
            target, x if bias is None else bias, out, rows * features, features, config.splits, bias is not None,
            ADDED, launch_pdl=True,
        )  # fmt: skip


def pays(rows: int, weight: QuantisedWeight, gated: bool) -> bool:
    """Decide if this kernel is faster than the one for few rows and than bringing the weight back, as measured."""
    wide = gated or weight.values.shape[0] > 4096
    return (FEW_ROWS < rows <= MAX_ROWS // 2 and wide) or MAX_ROWS // 2 < rows <= 2 * MAX_ROWS


def int4_config(rows: int, weight: QuantisedWeight, gated: bool) -> Int4Config:
    """All the steps under way that fit; programs for about every multiprocessor, with eight steps or more."""
    step = 2 * FEATURES.value * WIDTH.value + 4 * x_rows(rows) * WIDTH.value + 8 * FEATURES.value
    step += 0 if weight.zeros is None else 8 * FEATURES.value
    programs = triton.cdiv(weight.values.shape[0], 2 * FEATURES.value) * pieces_of(rows)
    splits = 1 if gated else max(1, min(8, MULTIPROCESSORS // programs, steps_of(weight) // 8))
    return Int4Config(SHARED_BYTES // step, splits)


def steps_of(weight: QuantisedWeight) -> int:
    """Two a line of 128 bytes, which may end in a group of nothing."""
    return weight.values.shape[1] // int(WIDTH.value)


def x_rows(rows: int) -> int:
    """Rows of a box of x."""
    return max(8, int(triton.next_power_of_2(min(rows, MAX_ROWS))))


def pieces_of(rows: int) -> int:
    """Number of boxes that the rows of x take."""
    return int(triton.cdiv(rows, MAX_ROWS))
