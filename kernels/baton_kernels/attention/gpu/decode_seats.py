"""Seats of a decode step's attention in Triton: pieces of contexts, in proportion to lengths, the longest first."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COMPARED = 256 * 256
"""Pairs of sequences whose pieces are compared at a time; Triton takes up to 2**20."""


@triton.jit
def _count(length, share, MOST: tl.constexpr):
    """A sequence has a seat, and one more for each further share of all tokens: never more than sequences + spare."""
    return tl.minimum(tl.maximum((length + share // 4) // share, 1), MOST)


@triton.jit(do_not_specialize=["sequences", "seats", "spare"])
def _seats_kernel(
    lens_ptr, seats_ptr, sequences, seats, spare,
    BLOCK_N: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_SEATS: tl.constexpr, CHUNK: tl.constexpr,
    MOST: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK_ROWS)
    is_row = row < sequences
    length = tl.load(lens_ptr + row, mask=is_row, other=0)
    share = tl.maximum(tl.cdiv(tl.sum(length, axis=0), spare), 2 * BLOCK_N)
    count = _count(length, share, MOST)
    piece = tl.cdiv(length, count)
    count = tl.where(is_row, count, 0)
    # Long pieces begin first: with the rows in their order one that began last kept the GPU waiting.
    first = tl.zeros([BLOCK_ROWS], tl.int32)
    for start in range(0, BLOCK_ROWS, CHUNK):
        other = start + tl.arange(0, CHUNK)
        other_length = tl.load(lens_ptr + other, mask=other < sequences, other=0)
        other_count = _count(other_length, share, MOST)
        other_piece = tl.cdiv(other_length, other_count)
        is_earlier = (other_piece[None, :] == piece[:, None]) & (other[None, :] < row[:, None])
        is_before = ((other_piece[None, :] > piece[:, None]) | is_earlier) & (other < sequences)[None, :]
        first += tl.sum(tl.where(is_before, other_count[None, :], 0), axis=1)
    for split in range(0, MOST):
        taken = seats_ptr + (first + split) * 3
        tl.store(taken, row, mask=split < count)
        tl.store(taken + 1, split, mask=split < count)
        tl.store(taken + 2, count, mask=split < count)
    seat = tl.arange(0, BLOCK_SEATS)
    tl.store(seats_ptr + seat * 3, -1, mask=(seat >= tl.sum(count, axis=0)) & (seat < seats))


def deal_seats(lens: Tensor, spare: int, block_n: int, most: int) -> Tensor:
    """lens [N] int32 → [seats, 3] int32: sequence (-1: none), split, splits of the sequence, the longest pieces
    first. Every sequence has a seat; long ones share `spare` more by their lengths, up to `most` each. Splits are as
    long as two tiles of `block_n` tokens, or longer."""
    sequences = lens.numel()
    seats = torch.empty(sequences + spare, 3, dtype=torch.int32, device=lens.device)
    block_rows = max(64, triton.next_power_of_2(sequences))
    blocks = (block_rows, triton.next_power_of_2(block_rows + spare))
    chunk = min(block_rows, COMPARED // block_rows)
    _seats_kernel[(1,)](lens, seats, sequences, len(seats), spare, block_n, *blocks, chunk, most, num_warps=8)
    return seats
