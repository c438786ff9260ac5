"""Pairs of a token and an expert sorted by expert, rows of x with them, and the table of row blocks, on the device.

Up to some thousand pairs, a program for each counts the pairs that come before its own, and copies its row. For more,
the pairs of each expert are counted in each chunk; sums of these counts say where a chunk's pairs of an expert begin;
each pair counts those before it in its own chunk; and rows are copied by a kernel of their own.

Rows are copied as they are, or rounded to 8 bits on the way, as `rounded_activations` does.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.dense.gpu.rounded_activations import GREATEST, greatest_of_rows, rounded_codes
from baton_kernels.dense.quantised_weight import GROUP
from baton_kernels.launching.dependent_launch import after_previous, chain

FEW_PAIRS = 4096
"""Most pairs for which scanning all of them costs less than another kernel."""
MAX_PAIRS = 65_536
"""Most pairs that are sorted at once. More are split by the caller: their rows would take gigabytes."""
CHUNK = 1024
"""Pairs that are counted together."""
PLACED = 64
"""Pairs of a chunk that a program places."""
BLOCK = 1024
"""Columns of x that a program copies at a time."""
COPIED, OF_ROWS, OF_GROUPS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""Ways to write rows: copied, or as codes with a scale a row or one for each 128 columns."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """Pairs sorted by expert."""

    x: Tensor  # [P, H]: of each pair, its token's row; when rounded its codes, in stored order
    place: Tensor  # int32 [P]: where a pair stands
    table: Tensor  # int32 [1 + 3 · B]: row blocks there are; of each its expert, first row, end of its expert's rows
    x_rows: int
    scales: Tensor | None = None  # float32 of rounded rows: [1, P], or of groups [⌈H/128⌉, P]


@triton.jit
def _copy_row(
    x_ptr, rows_ptr, scale_ptr, pair, place, PAIRS, K, H, BLOCK: tl.constexpr, ROUNDING: tl.constexpr,
    TOP: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    source = x_ptr + (pair // K).to(tl.int64) * H
    target = rows_ptr + place.to(tl.int64) * H
    if ROUNDING == COPIED:
        for start in range(0, H, BLOCK):
            column = start + tl.arange(0, BLOCK)
            tl.store(target + column, tl.load(source + column, mask=column < H), mask=column < H)
    else:
        group = tl.arange(0, BLOCK // WIDTH)
        column = group[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
        x = tl.load(source + column, mask=column < H, other=0.0).to(tl.float32)  # [groups, WIDTH] of [H]
        greatest = greatest_of_rows(x)
        codes = rounded_codes(x, greatest, rows_ptr.dtype.element_ty, TOP, BLOCK // WIDTH, WIDTH)
        tl.store(target + column, codes, mask=column < H)
        scales = scale_ptr + group.to(tl.int64) * PAIRS + place
        tl.store(scales, greatest / TOP, mask=group * WIDTH < H)


@triton.jit
def _write_table(table_ptr, counts, BLOCKS, X_ROWS: tl.constexpr, BINS: tl.constexpr):
    """Write the row blocks of experts that have `counts` [BINS] pairs each."""
    expert = tl.arange(0, BINS)
    ends = tl.cumsum(counts, 0)
    starts = ends - counts
    blocks = (counts + (X_ROWS - 1)) // X_ROWS
    first = tl.cumsum(blocks, 0) - blocks
    tl.store(table_ptr, tl.sum(blocks, 0))
    for block in range(tl.max(blocks, 0)):
        entry = table_ptr + 1 + first + block
        is_there = block < blocks
        tl.store(entry, expert, mask=is_there)
        tl.store(entry + BLOCKS, starts + block * X_ROWS, mask=is_there)
        tl.store(entry + 2 * BLOCKS, ends, mask=is_there)


@triton.jit(do_not_specialize=["PAIRS", "BLOCKS"])
def _sort_kernel(
    x_ptr, experts_ptr, rows_ptr, scale_ptr, place_ptr, table_ptr, PAIRS, K, H, BLOCKS,
    X_ROWS: tl.constexpr, ALL: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr, ROUNDING: tl.constexpr,
    TOP: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    pair = tl.program_id(0)
    number = tl.arange(0, ALL)
    taken = tl.load(experts_ptr + number, mask=number < PAIRS, other=BINS).to(tl.int32)  # [ALL] of [PAIRS]
    if pair < PAIRS:
        own = tl.load(experts_ptr + pair).to(tl.int32)
        before = (taken < own) | ((taken == own) & (number < pair))
        place = tl.sum(before.to(tl.int32), 0)
        tl.store(place_ptr + pair, place)
        _copy_row(x_ptr, rows_ptr, scale_ptr, pair, place, PAIRS, K, H, BLOCK, ROUNDING, TOP, WIDTH)
    else:
        _write_table(table_ptr, tl.histogram(taken, BINS, mask=number < PAIRS), BLOCKS, X_ROWS, BINS)


@triton.jit(do_not_specialize=["PAIRS"])
def _count_kernel(
    experts_ptr, counts_ptr, PAIRS, BINS: tl.constexpr, CHUNK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    after_previous(CHAINED)
    number = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    taken = tl.load(experts_ptr + number, mask=number < PAIRS, other=0).to(tl.int32)
    counts = tl.histogram(taken, BINS, mask=number < PAIRS)
    tl.store(counts_ptr + tl.program_id(0) * BINS + tl.arange(0, BINS), counts)


@triton.jit(do_not_specialize=["BLOCKS", "CHUNKS"])
def _starts_kernel(
    counts_ptr, starts_ptr, table_ptr, BLOCKS, CHUNKS, X_ROWS: tl.constexpr, ALL: tl.constexpr, BINS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Find where the pairs of each expert in each chunk begin, and write the table. One program."""
    after_previous(CHAINED)
    chunk, expert = tl.arange(0, ALL)[:, None], tl.arange(0, BINS)[None, :]
    is_there = chunk < CHUNKS
    counts = tl.load(counts_ptr + chunk * BINS + expert, mask=is_there, other=0)  # [ALL, BINS] of [CHUNKS, BINS]
    totals = tl.sum(counts, 0)
    starts = (tl.cumsum(totals, 0) - totals)[None, :] + tl.cumsum(counts, 0) - counts
    tl.store(starts_ptr + chunk * BINS + expert, starts, mask=is_there)
    _write_table(table_ptr, totals, BLOCKS, X_ROWS, BINS)


@triton.jit(do_not_specialize=["PAIRS"])
def _place_kernel(
    experts_ptr, starts_ptr, place_ptr, PAIRS, BINS: tl.constexpr, CHUNK: tl.constexpr, PLACED: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    chunk = tl.program_id(0)
    number = chunk * CHUNK + tl.arange(0, CHUNK)
    pair = chunk * CHUNK + tl.program_id(1) * PLACED + tl.arange(0, PLACED)
    taken = tl.load(experts_ptr + number, mask=number < PAIRS, other=-1).to(tl.int32)  # [CHUNK]
    own = tl.load(experts_ptr + pair, mask=pair < PAIRS, other=0).to(tl.int32)  # [PLACED]
    before = (taken[None, :] == own[:, None]) & (number[None, :] < pair[:, None])
    place = tl.load(starts_ptr + chunk * BINS + own) + tl.sum(before.to(tl.int32), 1)
    tl.store(place_ptr + pair, place, mask=pair < PAIRS)


@triton.jit(do_not_specialize=["PAIRS"])
def _copy_kernel(
    x_ptr, rows_ptr, scale_ptr, place_ptr, PAIRS, K, H, BLOCK: tl.constexpr, ROUNDING: tl.constexpr,
    TOP: tl.constexpr, WIDTH: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    pair = tl.program_id(0)
    _copy_row(x_ptr, rows_ptr, scale_ptr, pair, tl.load(place_ptr + pair), PAIRS, K, H, BLOCK, ROUNDING, TOP, WIDTH)


def bins_of_sort(pairs: int) -> tuple[bool, int]:
    """Decide if pairs are counted by chunks, and how many counts or pairs a program loads: each has a kernel."""
    if pairs <= FEW_PAIRS:
        return False, max(16, int(triton.next_power_of_2(pairs)))
    return True, int(triton.next_power_of_2(triton.cdiv(pairs, CHUNK)))


def sort_by_expert(
    x: Tensor, experts: Tensor, count: int, x_rows: int, codes: torch.dtype | None = None, in_groups: bool = False
) -> Sorted:
    """x [T, H] and experts [T, k] of `count`, both contiguous, T · k up to MAX_PAIRS; row blocks of up to `x_rows`.

    `codes`, a dtype of GREATEST, rounds rows, whole or `in_groups` of 128 columns.
    """
    (tokens, per_token), hidden = experts.shape, x.shape[1]
    pairs, bins = tokens * per_token, max(16, triton.next_power_of_2(count))
    blocks = min(pairs, count + pairs // x_rows)
    rows = torch.empty(pairs, hidden, dtype=codes or x.dtype, device=x.device)
    place = torch.empty(pairs, dtype=torch.int32, device=x.device)
    table = torch.empty(1 + 3 * blocks, dtype=torch.int32, device=x.device)
    scales, block, rounding, width = None, BLOCK, COPIED, BLOCK
    if codes is not None:
        block = max(GROUP, triton.next_power_of_2(hidden))
        rounding, width = (OF_GROUPS, GROUP) if in_groups else (OF_ROWS, block)
        scales = row_scales(triton.cdiv(hidden, width), pairs, x_rows, x.device)
    top = GREATEST[codes] if codes is not None else 0.0
    of_rows = (block, rounding.value, top, width)
    of_scales = place if scales is None else scales
    launch = chain(x)
    if pairs <= FEW_PAIRS:
        _sort_kernel[(pairs + 1,)](
            x, experts, rows, of_scales, place, table, pairs, per_token, hidden, blocks, x_rows,
            bins_of_sort(pairs)[1], bins, *of_rows, bool(launch), **launch
        )  # fmt: skip
        return Sorted(rows, place, table, x_rows, scales)
    chunks = triton.cdiv(pairs, CHUNK)
    counts, starts = (torch.empty(chunks, bins, dtype=torch.int32, device=x.device) for _ in range(2))
    chained = bool(launch)
    _count_kernel[(chunks,)](experts, counts, pairs, bins, CHUNK, chained, **launch)
    _starts_kernel[(1,)](
        counts, starts, table, blocks, chunks, x_rows, bins_of_sort(pairs)[1], bins, chained, num_warps=8, **launch
    )
    placed = min(CHUNK, PLACED)
    _place_kernel[(chunks, CHUNK // placed)](experts, starts, place, pairs, bins, CHUNK, placed, chained, **launch)
    _copy_kernel[(pairs,)](x, rows, of_scales, place, pairs, per_token, hidden, *of_rows, chained, **launch)
    return Sorted(rows, place, table, x_rows, scales)


def row_scales(groups: int, pairs: int, x_rows: int, device: torch.device) -> Tensor:
    """float32 [groups, P] with spare room at the end: a whole row block may be read."""
    room = torch.empty(groups * pairs + x_rows, dtype=torch.float32, device=device)
    return room[: groups * pairs].view(groups, pairs)
