"""y = x Wᵀ for up to 128 rows on Hopper, in Gluon: the weights stream through shared memory at the memory's speed.

A program computes BLOCK_N features of all rows (gated: BLOCK_N of gate and the same of up). One warp fetches tiles of W
and x by TMA, a warpgroup for each 64 rows multiplies. The fetching warp fills its whole ring with weights before it
waits for the kernel that makes x: the memory stays busy while small kernels run between two products.

The matrix unit takes 64 rows of x. Shared memory holds X_ROWS of each tile; below 64, the remaining
rows are whatever shared memory holds after them, and their results are not stored.
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
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import PANEL, boxes, copy_panels, fill_ring, make_barriers

MAX_ROWS = 128
"""Every program reads all of x from L2: beyond 64 rows this pays only where a program has many features."""
ROWS = gl.constexpr(64)
"""Rows that a warpgroup multiplies."""


@dataclass(frozen=True, slots=True)
class StreamedConfig:
    block_n: int
    """Features a program: 16 to 256."""
    panels: int
    """Columns of a tile, in panels of 64."""
    stages: int
    """Tiles under way."""

    def shared_bytes(self, rows: int, sides: int) -> int:
        """Count the shared memory that a program takes for `rows` rows of x."""
        x_rows = _x_rows(rows)
        tiles = self.stages * self.panels * (sides * self.block_n + x_rows)
        return int((tiles + max(ROWS.value, x_rows) - x_rows) * PANEL.value * 2 + 1024)


@gluon.jit
def _copy_weight(
    step, stage, bar, weight, w_boxes, feature, features, PANELS: gl.constexpr, SIDES: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    mbarrier.expect(bar, BYTES)
    for side in gl.static_range(SIDES):
        copy_panels(weight, feature + side * features, step, w_boxes, (stage * SIDES + side) * PANELS, bar, PANELS)


@gluon.jit
def _copy_x(step, stage, bar, x, x_boxes, PANELS: gl.constexpr):
    copy_panels(x, 0, step, x_boxes, stage * PANELS, bar, PANELS)


@gluon.jit
def _fetch(
    weight, x, w_boxes, x_boxes, ready, free, feature, features, steps,
    PANELS: gl.constexpr, SIDES: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    fill_ring(
        _copy_weight, (weight, w_boxes, feature, features, PANELS, SIDES, BYTES), _copy_x, (x, x_boxes, PANELS),
        ready, free, steps, True,
    )  # fmt: skip


@gluon.jit
def _multiply(
    bias_ptr, out_ptr, w_boxes, x_boxes, ready, free, feature, features, rows, steps, HALF: gl.constexpr,
    BLOCK_N: gl.constexpr, PANELS: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    dtype: gl.constexpr = x_boxes.dtype
    total = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    up = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    for i in range(steps):
        stage = i % STAGES
        mbarrier.wait(ready.index(stage), (i // STAGES) & 1)
        for panel in gl.static_range(PANELS):
            x = x_boxes.index(stage * PANELS + panel)
            if x_boxes.shape[1] > ROWS:
                x = x.slice(HALF * ROWS, ROWS, dim=0)
            else:
                x = x._reinterpret(dtype, [ROWS, PANEL], x_boxes.layout)
            w = w_boxes.index(stage * SIDES * PANELS + panel)
            total = warpgroup_mma(x, w.permute((1, 0)), total, is_async=True)
            if SIDES == 2:
                w = w_boxes.index((stage * SIDES + 1) * PANELS + panel)
                up = warpgroup_mma(x, w.permute((1, 0)), up, is_async=True)
        if SIDES == 2:
            total, up = warpgroup_mma_wait(SIDES * PANELS, [total, up])
        else:
            total = warpgroup_mma_wait(SIDES * PANELS, [total])
        # The tile before this one has been multiplied.
        mbarrier.arrive(free.index((i + STAGES - 1) % STAGES), count=1, pred=i > 0)
    if SIDES == 2:
        total, up = warpgroup_mma_wait(0, [total, up])
    else:
        total = warpgroup_mma_wait(0, [total])

    column = feature + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    row = HALF * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    is_column = column < features
    if BIAS:
        total += gl.load(bias_ptr + column, mask=is_column, other=0.0).to(gl.float32)[None, :]
        if SIDES == 2:
            up += gl.load(bias_ptr + features + column, mask=is_column, other=0.0).to(gl.float32)[None, :]
    if SIDES == 2:  # rounded where the separate ops round
        gate = total.to(dtype).to(gl.float32)
        total = (gate / (1.0 + gl.exp(-gate))).to(dtype).to(gl.float32) * up.to(dtype).to(gl.float32)
    gdc_wait()
    place = row.to(gl.int64)[:, None] * features + column[None, :]
    gl.store(out_ptr + place, total.to(dtype), mask=(row < rows)[:, None] & is_column[None, :])


@gluon.jit(do_not_specialize=["rows"])
def _streamed_kernel(
    x, weight, bias_ptr, out_ptr, rows, features, steps,
    BLOCK_N: gl.constexpr, PANELS: gl.constexpr, STAGES: gl.constexpr, SIDES: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    dtype: gl.constexpr = weight.dtype
    SHARED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    X_ROWS: gl.constexpr = x.block_shape[0]
    HALVES: gl.constexpr = (X_ROWS + ROWS - 1) // ROWS
    TAIL: gl.constexpr = ROWS * HALVES // X_ROWS - 1
    BYTES: gl.constexpr = (SIDES * BLOCK_N + X_ROWS) * PANELS * PANEL * 2
    w_boxes = gl.allocate_shared_memory(dtype, [STAGES * SIDES * PANELS, BLOCK_N, PANEL], SHARED)
    x_boxes = gl.allocate_shared_memory(dtype, [STAGES * PANELS + TAIL, X_ROWS, PANEL], SHARED)
    ready, free = make_barriers(STAGES, HALVES)
    feature = gl.program_id(0) * BLOCK_N
    if HALVES == 2:
        gl.warp_specialize(
            [
                (_multiply, (bias_ptr, out_ptr, w_boxes, x_boxes, ready, free, feature, features, rows, steps, 0,
                             BLOCK_N, PANELS, STAGES, SIDES, BIAS)),
                (_multiply, (bias_ptr, out_ptr, w_boxes, x_boxes, ready, free, feature, features, rows, steps, 1,
                             BLOCK_N, PANELS, STAGES, SIDES, BIAS)),
                (_fetch, (weight, x, w_boxes, x_boxes, ready, free, feature, features, steps, PANELS, SIDES, BYTES)),
            ],
            [4, 1],
            [216, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (bias_ptr, out_ptr, w_boxes, x_boxes, ready, free, feature, features, rows, steps, 0,
                             BLOCK_N, PANELS, STAGES, SIDES, BIAS)),
                (_fetch, (weight, x, w_boxes, x_boxes, ready, free, feature, features, steps, PANELS, SIDES, BYTES)),
            ],
            [1],
            [40],
        )  # fmt: skip


def streamed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, config: StreamedConfig, swiglu: bool = False
) -> Tensor:
    """x Wᵀ + bias, with `swiglu` silu of its first half times the second: x [T, K] contiguous, T up to MAX_ROWS, weight
    [N, K], K a multiple of 8, both bfloat16 or float16 → [T, N], or [T, N / 2] with `swiglu`."""
    rows, columns = x.shape
    features = weight.shape[0] // (2 if swiglu else 1)
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device)
    _streamed_kernel[(triton.cdiv(features, config.block_n),)](
        boxes(x, _x_rows(rows), PANEL.value),
        boxes(weight, config.block_n, PANEL.value),
        weight if bias is None else bias, out, rows, features, triton.cdiv(columns, config.panels * PANEL.value),
        config.block_n, config.panels, config.stages, 2 if swiglu else 1, bias is not None,
        num_warps=4, maxnreg=128 if rows <= ROWS.value else 152, launch_pdl=True,
    )  # fmt: skip
    return out


def _x_rows(rows: int) -> int:
    return max(8, int(triton.next_power_of_2(rows)))
