"""The walk of streamed expert products through their tiles, in Gluon.

A tile is a number of features of one row block, which is up to a number of rows of one expert. Programs stay and take
every n-th tile; the weights of all their tiles pass through one ring without a pause (`pipeline.py`). The device makes
the table of row blocks (`expert_sort.py`), so the host never waits to learn how many tiles there are.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.dense.gpu.pipeline import copy_panels, fill_ring


@gluon.jit
def expert_of(table, block):
    """Read a row block's expert."""
    return gl.load(table + 1 + block)


@gluon.jit
def first_row(table, block, ROW_BLOCKS):
    """Read where a row block begins."""
    return gl.load(table + 1 + ROW_BLOCKS + block)


@gluon.jit
def end_of_rows(table, block, ROW_BLOCKS):
    """Read where the rows of a row block's expert end."""
    return gl.load(table + 1 + 2 * ROW_BLOCKS + block)


@gluon.jit
def item_of_step(step, steps):
    """Find a step of this program: its item (a tile of a row block), and the step within that."""
    return gl.program_id(0) + (step // steps) * gl.num_programs(0), step % steps


@gluon.jit
def copy_rows(step, stage, bar, x, table, x_boxes, tiles, steps, ROW_BLOCKS, PANELS: gl.constexpr):
    """Start the copies of a step's x."""
    item, i = item_of_step(step, steps)
    copy_panels(x, first_row(table, item // tiles, ROW_BLOCKS), i, x_boxes, stage * PANELS, bar, PANELS)


@gluon.jit
def copy_expert_weight(
    step, stage, bar, weight, table, w_boxes, tiles, features, steps, PANELS: gl.constexpr, SIDES: gl.constexpr,
    BYTES: gl.constexpr,
):  # fmt: skip
    """Start the copies of a step's weights: of gate and up when SIDES is 2."""
    item, i = item_of_step(step, steps)
    feature = expert_of(table, item // tiles) * SIDES * features + (item % tiles) * w_boxes.shape[1]
    mbarrier.expect(bar, BYTES)
    for side in gl.static_range(SIDES):
        copy_panels(weight, feature + side * features, i, w_boxes, (stage * SIDES + side) * PANELS, bar, PANELS)


@gluon.jit
def fill_ring_by_tiles(
    copy_weight, weight, x, table, x_boxes, ready, free, tiles, steps, ROW_BLOCKS,
    X_PANELS: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    """Copy all steps of all tiles of this program. AHEAD: the table is older than the kernel before, so weights may be
    fetched while that one still runs."""
    if not AHEAD:
        gdc_wait()
        gdc_launch_dependents()
    items = gl.load(table) * tiles
    own = gl.maximum(items - gl.program_id(0) + gl.num_programs(0) - 1, 0) // gl.num_programs(0) * steps
    fill_ring(
        copy_weight, weight, copy_rows, (x, table, x_boxes, tiles, steps, ROW_BLOCKS, X_PANELS),
        ready, free, own, AHEAD,
    )  # fmt: skip


@gluon.jit
def fetch_tiles(
    weight, x, table, w_boxes, x_boxes, ready, free, tiles, features, steps, ROW_BLOCKS, AHEAD: gl.constexpr,
    PANELS: gl.constexpr, X_PANELS: gl.constexpr, SIDES: gl.constexpr, BYTES: gl.constexpr,
):  # fmt: skip
    """Fetch for a product whose weights have no scales of their own in the ring."""
    fill_ring_by_tiles(
        copy_expert_weight, (weight, table, w_boxes, tiles, features, steps, PANELS, SIDES, BYTES), x, table, x_boxes,
        ready, free, tiles, steps, ROW_BLOCKS, X_PANELS, AHEAD,
    )  # fmt: skip
