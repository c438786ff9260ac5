"""Mixtures of experts for few tokens an expert on Hopper, in Gluon: each expert's weights stream by once.

Pairs of a token and an expert are sorted by expert (`expert_sort.py`). A row block is up to X_ROWS rows of one
expert. Programs stay and go through tiles, BLOCK_N features of a row block each: one warp fetches weights and x by TMA,
through all its tiles without a pause, and a warpgroup multiplies (`row_block_tiles.py`).

The matrix unit takes 64 rows. Rows after X_ROWS are whatever shared memory holds there; their results are not stored.
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
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import PANEL, SHARED_BYTES, boxes, make_barriers
from baton_kernels.experts.expert_inputs import BiasedStacks, PlainStacks, Routing
from baton_kernels.experts.gpu.expert_sort import Sorted, sort_by_expert
from baton_kernels.experts.gpu.row_block_tiles import end_of_rows, expert_of, fetch_tiles, first_row
from baton_kernels.experts.gpu.tile_results import clamped_gate, lines_of_columns, rounded, sigmoid
from baton_kernels.launching.dependent_launch import after_previous, chain

LARGE_TILES_FROM, LIBRARY_BEYOND = 64, 512
"""Pairs of a token and an expert, for each expert: from the first number on large tiles are faster, as arithmetic takes
the time; beyond the second the library's grouped product is, unless biases are added."""
LARGE_ROWS = 128
LEAST_ROWS = gl.constexpr(64)
"""Least rows of a warpgroup."""
PLAIN, SWIGLU, CLAMPED = gl.constexpr(0), gl.constexpr(1), gl.constexpr(2)
"""Gates of a product: none, silu(gate) · up, or gpt-oss' clamped gate."""
BLOCK = 1024


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """Tile of a program, and how many programs share a multiprocessor."""

    rows: int
    """Rows of a row block: 8 to 128."""
    block_n: int
    """Features a tile; gated: of gate and of up. 16 to 256."""
    panels: int
    """Columns of a step, in panels of 64."""
    programs: int
    registers: int
    """Registers of a thread, before the fetching warp gives some away."""

    @property
    def warps(self) -> int:
        """Warps that multiply, 16 rows each."""
        return int(max(LEAST_ROWS.value, self.rows)) // 16

    def stages(self, sides: int) -> int:
        """Steps under way, as many as fit into shared memory."""
        step_bytes = self.panels * (sides * self.block_n + self.rows) * PANEL.value * 2
        tail_bytes = max(0, LEAST_ROWS.value - self.rows) * PANEL.value * 2
        return int((SHARED_BYTES // self.programs - 1024 - tail_bytes) // step_bytes)


@gluon.jit
def _multiply(
    bias_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, steps, BLOCKS, limit, alpha,
    AHEAD: gl.constexpr, BLOCK_N: gl.constexpr, PANELS: gl.constexpr, STAGES: gl.constexpr, GATE: gl.constexpr,
    BIAS: gl.constexpr,
):  # fmt: skip
    SIDES: gl.constexpr = 1 if GATE == PLAIN else 2
    X_ROWS: gl.constexpr = x_boxes.shape[1]
    ROWS: gl.constexpr = LEAST_ROWS if X_ROWS < LEAST_ROWS else X_ROWS
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [ROWS // 16, 1], [16, BLOCK_N, 16])
    dtype: gl.constexpr = x_boxes.dtype
    if not AHEAD:
        gdc_wait()
    items = gl.load(table) * tiles
    c = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        total = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
        up = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
        for i in range(steps):
            stage = c % STAGES
            mbarrier.wait(ready.index(stage), (c // STAGES) & 1)
            for panel in gl.static_range(PANELS):
                x = x_boxes.index(stage * PANELS + panel)._reinterpret(dtype, [ROWS, PANEL], x_boxes.layout)
                w = w_boxes.index(stage * SIDES * PANELS + panel)
                total = warpgroup_mma(x, w.permute((1, 0)), total, is_async=True)
                if SIDES == 2:
                    w = w_boxes.index((stage * SIDES + 1) * PANELS + panel)
                    up = warpgroup_mma(x, w.permute((1, 0)), up, is_async=True)
            if SIDES == 2:
                total, up = warpgroup_mma_wait(SIDES * PANELS, [total, up])
            else:
                total = warpgroup_mma_wait(SIDES * PANELS, [total])
            # The step before this one has been multiplied.
            mbarrier.arrive(free.index((c + STAGES - 1) % STAGES), count=1, pred=i > 0)
            c += 1
        if SIDES == 2:
            total, up = warpgroup_mma_wait(0, [total, up])
        else:
            total = warpgroup_mma_wait(0, [total])
        mbarrier.arrive(free.index((c + STAGES - 1) % STAGES), count=1)

        block = item // tiles
        expert = expert_of(table, block)
        first = first_row(table, block, BLOCKS)
        end = end_of_rows(table, block, BLOCKS)
        if BIAS:
            column = (item % tiles) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
            is_column = column < features
            biases = bias_ptr + expert * SIDES * features + column
            total += gl.load(biases, mask=is_column, other=0.0).to(gl.float32)[None, :]
            if SIDES == 2:
                up += gl.load(biases + features, mask=is_column, other=0.0).to(gl.float32)[None, :]
        if SIDES == 2:  # rounded where the separate ops round
            gate, up = rounded(total), rounded(up)
            if GATE == SWIGLU:
                total = rounded(gate * sigmoid(gate)) * up
            else:
                total = clamped_gate(gate, up, limit, alpha)
        if AHEAD:
            gdc_wait()
        LINES: gl.constexpr = lines_of_columns(ROWS, BLOCK_N)
        column = (item % tiles) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LINES))
        row = gl.arange(0, ROWS, gl.SliceLayout(1, LINES))
        is_row = (row < X_ROWS) & (first + row < end)
        place = (first + row).to(gl.int64)[:, None] * features + column[None, :]
        done = gl.convert_layout(total.to(dtype), LINES)
        gl.store(out_ptr + place, done, mask=is_row[:, None] & (column < features)[None, :])


@gluon.jit(do_not_specialize=["BLOCKS"])
def _product_kernel(
    x, weight, bias_ptr, out_ptr, table, tiles, features, steps, BLOCKS, limit, alpha, AHEAD: gl.constexpr,
    BLOCK_N: gl.constexpr, PANELS: gl.constexpr, STAGES: gl.constexpr, GATE: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    if AHEAD:
        gdc_launch_dependents()
    dtype: gl.constexpr = weight.dtype
    SIDES: gl.constexpr = 1 if GATE == PLAIN else 2
    SHARED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    X_ROWS: gl.constexpr = x.block_shape[0]
    TAIL: gl.constexpr = LEAST_ROWS // X_ROWS - 1 if X_ROWS < LEAST_ROWS else 0
    BYTES: gl.constexpr = (SIDES * BLOCK_N + X_ROWS) * PANELS * PANEL * 2
    w_boxes = gl.allocate_shared_memory(dtype, [STAGES * SIDES * PANELS, BLOCK_N, PANEL], SHARED)
    x_boxes = gl.allocate_shared_memory(dtype, [STAGES * PANELS + TAIL, X_ROWS, PANEL], SHARED)
    ready, free = make_barriers(STAGES, 1)
    gl.warp_specialize(
        [
            (_multiply, (bias_ptr, out_ptr, table, w_boxes, x_boxes, ready, free, tiles, features, steps, BLOCKS,
                         limit, alpha, AHEAD, BLOCK_N, PANELS, STAGES, GATE, BIAS)),
            (fetch_tiles, (weight, x, table, w_boxes, x_boxes, ready, free, tiles, features, steps, BLOCKS, AHEAD,
                           PANELS, PANELS, SIDES, BYTES)),
        ],
        [1],
        [40],
    )  # fmt: skip


@triton.jit
def _sum_kernel(
    rows_ptr, place_ptr, shares_ptr, out_ptr, H, K: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    after_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(K):
        row = tl.load(place_ptr + token * K + choice).to(tl.int64)
        y = tl.load(rows_ptr + row * H + column, mask=column < H, other=0.0).to(tl.float32)
        total += tl.load(shares_ptr + token * K + choice) * y
    tl.store(out_ptr + token * H + column, total.to(out_ptr.dtype.element_ty), mask=column < H)


def streamed_experts(x: Tensor, stacks: PlainStacks | BiasedStacks, routing: Routing) -> Tensor:
    """As `baton_kernels.experts.experts.experts`. All contiguous, H and F multiples of 8."""
    if not x.shape[0]:
        return torch.empty_like(x)
    count, pairs = stacks.count, routing.pairs
    rows = row_block(pairs, count) if pairs < LARGE_TILES_FROM * count else LARGE_ROWS
    plan = sort_by_expert(x, routing.experts, count, rows)
    if isinstance(stacks, BiasedStacks):
        clamp = stacks.limit, stacks.alpha
        inner = expert_products(plan.x, plan, stacks.gate_up, stacks.gate_up_bias, CLAMPED.value, clamp)
        down_bias: Tensor | None = stacks.down_bias
    else:
        inner = expert_products(plan.x, plan, stacks.gate_up, None, SWIGLU.value)
        down_bias = None
    out = expert_products(inner, plan, stacks.down, down_bias, PLAIN.value, is_table_older=True)
    return sum_of_experts(out, plan.place, routing.shares)


def row_block(pairs: int, count: int) -> int:
    """Rows of a block, so that most of `count` experts have one: twice the mean, 8 to 64."""
    return int(min(LEAST_ROWS.value, max(8, triton.next_power_of_2(2 * pairs // count))))


def experts_config(rows: int, sides: int) -> ExpertsConfig:
    """Tiles of 64 features, so that two programs share a multiprocessor; of large row blocks as many as two warpgroups
    have registers for."""
    if rows == LARGE_ROWS:
        return ExpertsConfig(rows, 256 // sides, 1, 1, 168)
    return ExpertsConfig(rows, 64, 1 if sides == 2 else 2, 2, 128)


def expert_products(
    x: Tensor, plan: Sorted, weight: Tensor, bias: Tensor | None, gate: int, clamp: tuple[float, float] = (0.0, 0.0),
    is_table_older: bool = False,
) -> Tensor:  # fmt: skip
    """x [P, K] in the plan's order by each row's expert, weight [E, N, K], bias [E, N] → [P, N], or [P, N / 2] of a
    gate. `is_table_older` than the kernel before: then weights are fetched while that one still runs."""
    pairs, columns = x.shape
    sides = 1 if gate == PLAIN.value else 2
    features = weight.shape[1] // sides
    config = experts_config(plan.x_rows, sides)
    out = torch.empty(pairs, features, dtype=x.dtype, device=x.device)
    limit, alpha = clamp
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    _product_kernel[(config.programs * multiprocessors,)](
        boxes(x, plan.x_rows, PANEL.value),
        boxes(weight.view(-1, columns), config.block_n, PANEL.value),
        weight if bias is None else bias, out, plan.table, triton.cdiv(features, config.block_n), features,
        triton.cdiv(columns, config.panels * PANEL.value), (plan.table.shape[0] - 1) // 3, limit, alpha,
        is_table_older, config.block_n, config.panels, config.stages(sides), gate, bias is not None,
        num_warps=config.warps, maxnreg=config.registers, launch_pdl=True,
    )  # fmt: skip
    return out


def sum_of_experts(rows: Tensor, place: Tensor, shares: Tensor, out: Tensor | None = None) -> Tensor:
    """rows [P, H], each pair's at its place, shares [T, k] → [T, H], into `out` if given."""
    tokens, per_token = shares.shape
    hidden = rows.shape[1]
    if out is None:
        out = torch.empty(tokens, hidden, dtype=rows.dtype, device=rows.device)
    launch = chain(rows)
    _sum_kernel[(tokens, triton.cdiv(hidden, BLOCK))](
        rows, place, shares, out, hidden, per_token, BLOCK, bool(launch), **launch
    )
    return out
