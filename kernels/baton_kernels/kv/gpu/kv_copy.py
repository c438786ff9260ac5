"""Checksum, pack, scatter and block copy in Triton: KV as 32-bit words, one program per piece, sums from the same
loads."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.kv.kv_units import UnitRange
from baton_kernels.sampling.gpu.integer_hash import splitmix64

BLOCK = 2048


@triton.jit(do_not_specialize=["group_sides"])
def _piece_kernel(
    pool_ptr, stream_ptr, blocks_ptr, sums_ptr, first_unit, block_words, side_words, group_sides,
    HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, UNIT_TOKENS: tl.constexpr, ROW_WORDS: tl.constexpr,
    BLOCK: tl.constexpr, PACK: tl.constexpr, SCATTER: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """The stream holds all units of the first `group_sides` sides, then all of the next. The pool's heads are HEADS
    adjacent ones of a side, which has `side_words` with all."""
    PIECE: tl.constexpr = HEADS * UNIT_TOKENS * ROW_WORDS
    HEAD_WORDS: tl.constexpr = UNIT_TOKENS * ROW_WORDS
    UNITS_A_BLOCK: tl.constexpr = BLOCK_TOKENS // UNIT_TOKENS
    nth = tl.program_id(0)
    side = tl.program_id(1)  # layer · 2 + (K, V)
    unit = first_unit + nth
    block = tl.load(blocks_ptr + unit // UNITS_A_BLOCK).to(tl.int64)
    piece = block * block_words + side * side_words + unit % UNITS_A_BLOCK * HEAD_WORDS
    group = side // group_sides
    place = (group.to(tl.int64) * tl.num_programs(0) + nth) * group_sides + side % group_sides
    in_stream = place * PIECE
    sums = tl.zeros([BLOCK], tl.int64)
    for start in range(0, PIECE, BLOCK):
        word = start + tl.arange(0, BLOCK)
        inside = word < PIECE
        in_pool = piece + word // HEAD_WORDS * (BLOCK_TOKENS * ROW_WORDS) + word % HEAD_WORDS
        if SCATTER:
            words = tl.load(stream_ptr + in_stream + word, mask=inside, other=0)  # [BLOCK] of [PIECE]
            tl.store(pool_ptr + in_pool, words, mask=inside)
        else:
            words = tl.load(pool_ptr + in_pool, mask=inside, other=0)  # [BLOCK] of [PIECE]
        if PACK:
            tl.store(stream_ptr + in_stream + word, words, mask=inside)
        if SUM:
            coefficient = splitmix64((word + 1).to(tl.uint64)) | 1
            sums += words.to(tl.int64) * coefficient.to(tl.int64, bitcast=True)
    if SUM:
        tl.store(sums_ptr + place, tl.sum(sums, axis=0))


@triton.jit
def _copy_blocks_kernel(pool_ptr, sources_ptr, targets_ptr, block_words, BLOCK: tl.constexpr):
    nth = tl.program_id(0)
    source = tl.load(sources_ptr + nth).to(tl.int64) * block_words
    target = tl.load(targets_ptr + nth).to(tl.int64) * block_words
    word = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = word < block_words
    tl.store(pool_ptr + target + word, tl.load(pool_ptr + source + word, mask=inside), mask=inside)  # [BLOCK]


def kv_checksums_triton(kv_pool: Tensor, blocks: Tensor, units: UnitRange) -> Tensor:
    """[units, layers, 2] int64."""
    sums = torch.empty(units.count, kv_pool.shape[1], 2, dtype=torch.int64, device=kv_pool.device)
    _launch(kv_pool, blocks, units, None, sums, scatter=False)
    return sums


def pack_kv_triton(kv_pool: Tensor, blocks: Tensor, units: UnitRange, stream: Tensor, checksums: Tensor | None) -> None:
    """stream [units, layers, 2, kv_heads, unit_tokens, head_dim]."""
    _launch(kv_pool, blocks, units, stream, checksums, scatter=False)


def scatter_kv_triton(
    stream: Tensor, kv_pool: Tensor, blocks: Tensor, units: UnitRange, checksums: Tensor | None, groups: int = 1
) -> None:
    """stream [groups, units, layers / groups, 2, kv_heads, unit_tokens, head_dim]. The checksums are of the stream, as
    read."""
    _launch(kv_pool, blocks, units, stream, checksums, scatter=True, groups=groups)


def _launch(
    kv_pool: Tensor,
    blocks: Tensor,
    units: UnitRange,
    stream: Tensor | None,
    sums: Tensor | None,
    scatter: bool,
    groups: int = 1,
) -> None:
    _, layers, _, heads, block_tokens, _ = kv_pool.shape
    if units.count == 0:
        return
    pool_words = kv_pool.view(torch.int32)
    row_words = pool_words.shape[5]
    _piece_kernel[(units.count, 2 * layers)](
        pool_words,
        pool_words if stream is None else stream.view(torch.int32),
        blocks.to(kv_pool.device), pool_words if sums is None else sums, units.first, *pool_words.stride()[0:3:2],
        2 * layers // groups, heads, block_tokens, units.tokens, row_words,
        min(BLOCK, triton.next_power_of_2(heads * units.tokens * row_words)),
        stream is not None and not scatter, scatter, sums is not None,
    )  # fmt: skip


def copy_blocks_triton(kv_pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """As `baton_kernels.kv.kv_copy.copy_blocks`."""
    if sources.numel() == 0:
        return
    words = kv_pool.view(kv_pool.shape[0], -1).view(torch.int32)
    block = min(BLOCK, triton.next_power_of_2(words.shape[1]))
    grid = (sources.numel(), triton.cdiv(words.shape[1], block))
    _copy_blocks_kernel[grid](words, sources.to(words.device), targets.to(words.device), words.shape[1], block)
