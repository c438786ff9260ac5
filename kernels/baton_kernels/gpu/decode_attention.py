"""Paged decode attention in Triton: split-KV with a merge, the query heads of one kv head packed into the rows of
one product.

Grid (kv head, sequence, split), so that sequences begin in their order, all heads of one together. Each program runs
the online softmax over its share of the context and leaves a partial result (maximum, sum, weighted values, float32);
the merge kernel joins the splits. The grid depends on shapes only, so a captured graph serves every length.

Few sequences have equally many splits each. Among many the contexts differ: one of 4,000 tokens in one piece took as
long as all the others together. So a first kernel deals out *seats* once a step, in proportion to lengths, and the
grid is (kv head, seat). A sequence with one seat writes its result at once; padding has none.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attention_inputs import DecodeRows, KvLayer
from baton_kernels.gpu.dependent_launch import after_previous, chain
from baton_kernels.gpu.dot_dtype import dot_dtype

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    block_n: int
    """Tokens a tile."""
    warps: int
    stages: int


BLOCK_N = 64
ONE_WAVE = DecodeConfig(BLOCK_N, 2, 5)
"""Up to two programs a multiprocessor, and float8 always: each keeps more loads under way."""
MANY = DecodeConfig(BLOCK_N, 2, 3)
FEW = 4
MAX_SPLITS = 32
SEATS_A_WAVE = 2
"""Where sequences alone fill the GPU, pieces are so much finer: those that end early make room."""
PROGRAMS_WANTED = 264
"""Two programs for each of an H200's 132 multiprocessors; float8 tiles are half as large, so four."""


@triton.jit(do_not_specialize=["table_stride", "layer", "splits", "window"])
def _decode_split_kernel(
    q_ptr, pool_ptr, tables_ptr, lens_ptr, scales_ptr, sinks_ptr, maximum_ptr, sum_ptr, partial_ptr,
    out_ptr, seats_ptr, table_stride, block_stride, layer, layer_stride, scale, window, splits,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    ONE_SPLIT: tl.constexpr, SCALED: tl.constexpr, SINKS: tl.constexpr, LOG2E: tl.constexpr, CHAINED: tl.constexpr,
    SEATED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    seat = sequence
    if SEATED:
        taken = seats_ptr + sequence * 3
        sequence = tl.load(taken).to(tl.int64)
        split = tl.load(taken + 1)
        splits = tl.load(taken + 2)
        if sequence < 0:
            return
    group = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_D)
    is_lane = lane < D
    head = sequence * Q_HEADS + kv_head * GROUP + group  # [BLOCK_M]
    is_row = (group < GROUP)[:, None] & is_lane[None, :]
    q = tl.load(q_ptr + head[:, None] * D + lane[None, :], mask=is_row, other=0.0).to(DOT)  # [BLOCK_M, D]

    value_scale = 1.0
    if SCALED:
        of_head = scales_ptr + layer * 2 * KV_HEADS + kv_head
        scale *= tl.load(of_head)
        value_scale = tl.load(of_head + KV_HEADS)
    length = tl.load(lens_ptr + sequence)
    visible = 0
    if WINDOW:
        visible = tl.maximum(length - window, 0)
    first = visible // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(length - first, splits), BLOCK_N) * BLOCK_N
    begin = first + split * share
    end = tl.minimum(begin + share, length)

    tile = tl.arange(0, BLOCK_N)
    table_ptr = tables_ptr + sequence * table_stride
    head_offset = layer.to(tl.int64) * layer_stride + kv_head * BLOCK_TOKENS * D
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:  # of the first split alone
        sink = tl.load(sinks_ptr + kv_head * GROUP + group, mask=group < GROUP, other=0.0) * LOG2E
        maximum = tl.where(split == 0, sink, maximum)
        total = tl.where(split == 0, 1.0, total)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(begin, end, BLOCK_N):
        token = start + tile
        is_seen = (token < end) & (token >= visible)
        if BLOCK_TOKENS % BLOCK_N == 0:  # a tile lies within one block
            block = tl.load(table_ptr + start // BLOCK_TOKENS).to(tl.int64)
            place = block * block_stride + head_offset + (start % BLOCK_TOKENS) * D + tile * D  # [BLOCK_N]
        elif BLOCK_N % BLOCK_TOKENS == 0:  # of some whole blocks, whose numbers are the same for all threads
            page = start // BLOCK_TOKENS
            block = tl.load(table_ptr + page)
            for nth in tl.static_range(1, BLOCK_N // BLOCK_TOKENS):
                next_block = tl.load(table_ptr + tl.minimum(page + nth, (end - 1) // BLOCK_TOKENS))
                block = tl.where(tile < nth * BLOCK_TOKENS, block, next_block)  # [BLOCK_N]
            place = block.to(tl.int64) * block_stride + head_offset + (tile % BLOCK_TOKENS) * D
        else:
            blocks = tl.load(table_ptr + token // BLOCK_TOKENS, mask=is_seen, other=0)  # [BLOCK_N]
            place = blocks.to(tl.int64) * block_stride + head_offset + (token % BLOCK_TOKENS) * D
        is_loaded = is_seen[:, None]
        if D != BLOCK_D:
            is_loaded = is_loaded & is_lane[None, :]
        key_ptr = pool_ptr + place[:, None] + lane[None, :]
        key = tl.load(key_ptr, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
        value = tl.load(key_ptr + KV_HEADS * BLOCK_TOKENS * D, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
        scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        raised = tl.maximum(maximum, tl.max(scores, axis=1))
        # A tile may lie outside the window whole: its maximum stays -inf, its weights must be 0 and not NaN.
        floor = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - floor[:, None])
        shrink = tl.exp2(maximum - floor)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(DOT), value, input_precision="ieee")
        maximum = raised

    if SCALED:
        weighted *= value_scale
    if ONE_SPLIT:
        result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(partial_ptr + head[:, None] * D + lane[None, :], result.to(partial_ptr.dtype.element_ty), mask=is_row)
        return
    out = head * splits + split  # [BLOCK_M]
    is_part = group < GROUP
    if SEATED:
        out = seat * Q_HEADS + kv_head * GROUP + group
        result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
        place = head[:, None] * D + lane[None, :]
        tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), mask=is_row & (splits == 1))
        is_part = is_part & (splits > 1)
        is_row = is_row & (splits > 1)
    tl.store(maximum_ptr + out, maximum, mask=is_part)
    tl.store(sum_ptr + out, total, mask=is_part)
    tl.store(partial_ptr + out[:, None] * D + lane[None, :], weighted, mask=is_row)


@triton.jit(do_not_specialize=["sequences", "seats", "spare"])
def _seats_kernel(
    lens_ptr, seats_ptr, rows_ptr, sequences, seats, spare,
    BLOCK_N: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_SEATS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK_ROWS)
    is_row = row < sequences
    length = tl.load(lens_ptr + row, mask=is_row, other=0)
    # A sequence has a seat, and one more for each further share of all tokens: never more than sequences + spare.
    share = tl.maximum(tl.cdiv(tl.sum(length, axis=0), spare), 2 * BLOCK_N)
    count = tl.minimum(tl.maximum((length + share // 4) // share, 1), MOST)
    count = tl.where(length > 0, count, 0)
    end = tl.cumsum(count, axis=0)
    first = end - count
    tl.store(rows_ptr + row * 2, first, mask=is_row)
    tl.store(rows_ptr + row * 2 + 1, count, mask=is_row)
    for split in range(0, MOST):
        taken = seats_ptr + (first + split) * 3
        tl.store(taken, row, mask=split < count)
        tl.store(taken + 1, split, mask=split < count)
        tl.store(taken + 2, count, mask=split < count)
    seat = tl.arange(0, BLOCK_SEATS)
    tl.store(seats_ptr + seat * 3, -1, mask=(seat >= tl.sum(count, axis=0)) & (seat < seats))


@triton.jit
def _seated_merge_kernel(
    maximum_ptr, sum_ptr, partial_ptr, out_ptr, rows_ptr,
    Q_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_D: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = tl.load(rows_ptr + sequence * 2).to(tl.int64)
    count = tl.load(rows_ptr + sequence * 2 + 1)
    if count == 1:
        return
    split = tl.arange(0, BLOCK_SPLITS)
    lane = tl.arange(0, BLOCK_D)
    is_split = split < count
    place = (first + split) * Q_HEADS + head
    maximum = tl.load(maximum_ptr + place, mask=is_split, other=float("-inf"))  # [splits]
    total = tl.load(sum_ptr + place, mask=is_split, other=0.0)  # [splits]
    is_loaded = is_split[:, None] & (lane < D)[None, :]
    partial = tl.load(partial_ptr + place[:, None] * D + lane[None, :], mask=is_loaded, other=0.0)  # [splits, D]
    highest = tl.max(maximum, axis=0)
    weight = tl.where(
        maximum == float("-inf"), 0.0, tl.exp2(maximum - tl.where(highest == float("-inf"), 0.0, highest))
    )
    denominator = tl.sum(weight * total, axis=0)
    merged = tl.sum(weight[:, None] * partial, axis=0) / tl.where(denominator == 0.0, 1.0, denominator)
    row = sequence * Q_HEADS + head
    tl.store(out_ptr + row * D + lane, merged.to(out_ptr.dtype.element_ty), mask=lane < D)


@triton.jit(do_not_specialize=["splits"])
def _decode_merge_kernel(
    maximum_ptr, sum_ptr, partial_ptr, out_ptr, splits,
    D: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_D: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, BLOCK_SPLITS)
    lane = tl.arange(0, BLOCK_D)
    is_split = split < splits
    maximum = tl.load(maximum_ptr + row * splits + split, mask=is_split, other=float("-inf"))  # [splits]
    total = tl.load(sum_ptr + row * splits + split, mask=is_split, other=0.0)  # [splits]
    is_loaded = is_split[:, None] & (lane < D)[None, :]
    place = (row * splits + split)[:, None] * D + lane[None, :]
    partial = tl.load(partial_ptr + place, mask=is_loaded, other=0.0)  # [splits, D]
    highest = tl.max(maximum, axis=0)
    # An empty split has maximum -inf and weighs nothing; so does every split of an empty context.
    weight = tl.where(
        maximum == float("-inf"), 0.0, tl.exp2(maximum - tl.where(highest == float("-inf"), 0.0, highest))
    )
    denominator = tl.sum(weight * total, axis=0)
    merged = tl.sum(weight[:, None] * partial, axis=0) / tl.where(denominator == 0.0, 1.0, denominator)
    tl.store(out_ptr + row * D + lane, merged.to(out_ptr.dtype.element_ty), mask=lane < D)


def paged_decode_attention_triton(
    q: Tensor,
    kv: KvLayer,
    rows: DecodeRows,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
    sinks: Tensor | None = None,
    splits: int | None = None,
    config: DecodeConfig | None = None,
) -> Tensor:
    """As `baton_kernels.decode_attention.paged_decode_attention`; `splits` is chosen from the shapes unless given."""
    kv_pool, kv_scales, block_tables = kv.pool, kv.scales, rows.block_tables
    sequences, q_heads, head_dim = q.shape
    _, _, _, kv_heads, block_tokens, _ = kv_pool.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if sequences == 0:
        return out
    wanted = PROGRAMS_WANTED if kv_scales is None else 2 * PROGRAMS_WANTED
    if splits is None and window is None and sequences > FEW:
        return _seated(q, kv, rows, scale, out, sinks, wanted, config)
    splits = splits or _choose_splits(sequences * kv_heads, wanted, block_tables.shape[1] * block_tokens)
    in_one_wave = sequences * kv_heads * splits <= wanted
    config = config or (ONE_WAVE if in_one_wave or kv_scales is not None else MANY)
    heads = sequences * q_heads
    # Launched ahead, this many programs are spread unevenly: 8.3 ms a step at 32 × 4k against 8.1.
    launch = {} if sequences > FEW and in_one_wave else chain(q)
    maximum = torch.empty(heads, splits, dtype=torch.float32, device=q.device)
    total = torch.empty_like(maximum)
    partial = out if splits == 1 else torch.empty(heads, splits, head_dim, dtype=torch.float32, device=q.device)
    block_d = max(16, triton.next_power_of_2(head_dim))
    _decode_split_kernel[(kv_heads, sequences, splits)](
        q.contiguous(), kv_pool, block_tables, rows.context_lens, maximum if kv_scales is None else kv_scales,
        maximum if sinks is None else sinks, maximum, total, partial, out, maximum,
        block_tables.stride(0), kv_pool.stride(0), kv.layer, kv_pool.stride(1), scale * LOG2_E, window or 0, splits,
        q_heads, kv_heads, head_dim, block_tokens,
        max(16, triton.next_power_of_2(q_heads // kv_heads)), config.block_n, block_d, window is not None,
        dot_dtype(q, kv_pool), splits == 1, kv_scales is not None,
        sinks is not None, LOG2_E, bool(launch), False,
        num_warps=config.warps, num_stages=config.stages, **launch,
    )  # fmt: skip
    if splits > 1:
        _decode_merge_kernel[(heads,)](
            maximum,
            total,
            partial,
            out,
            splits,
            head_dim,
            triton.next_power_of_2(max(MAX_SPLITS, splits)),  # one kernel for any context
            block_d,
            bool(launch),
            num_warps=2,
            **launch,
        )
    return out


@dataclass(frozen=True, slots=True)
class _Seats:
    """Who sits where in one step."""

    seats: Tensor
    """[seats, 3] int32: sequence (-1: nobody), split, splits of the sequence."""
    rows: Tensor
    """[sequences, 2] int32: first seat, number of seats."""


def _seats(lens: Tensor, spare: int) -> _Seats:
    """Every sequence has a seat; long ones share `spare` more by their lengths."""
    sequences = lens.numel()
    count = sequences + spare
    seats = torch.empty(count, 3, dtype=torch.int32, device=lens.device)
    rows = torch.empty(sequences, 2, dtype=torch.int32, device=lens.device)
    block_rows = max(64, triton.next_power_of_2(sequences))
    blocks = (block_rows, triton.next_power_of_2(block_rows + spare))
    _seats_kernel[(1,)](lens, seats, rows, sequences, count, spare, BLOCK_N, *blocks, MAX_SPLITS, num_warps=4)
    return _Seats(seats, rows)


def _seated(
    q: Tensor,
    kv: KvLayer,
    rows: DecodeRows,
    scale: float,
    out: Tensor,
    sinks: Tensor | None,
    wanted: int,
    config: DecodeConfig | None,
) -> Tensor:
    """Attention of sequences whose splits follow their lengths, dealt out for the first layer of a step."""
    kv_pool, kv_scales, block_tables = kv.pool, kv.scales, rows.block_tables
    sequences, q_heads, head_dim = q.shape
    _, _, _, kv_heads, block_tokens, _ = kv_pool.shape
    in_one_wave = sequences * kv_heads <= wanted
    spare = max(1, (1 if in_one_wave else SEATS_A_WAVE) * wanted // kv_heads)
    dealt = rows.memo.once(("seats", spare), lambda: _seats(rows.context_lens, spare))
    config = config or (ONE_WAVE if in_one_wave or kv_scales is not None else MANY)
    launch = {} if in_one_wave else chain(q)
    seats = sequences + spare
    maximum = torch.empty(seats, q_heads, dtype=torch.float32, device=q.device)
    total = torch.empty_like(maximum)
    partial = torch.empty(seats, q_heads, head_dim, dtype=torch.float32, device=q.device)
    block_d = max(16, triton.next_power_of_2(head_dim))
    _decode_split_kernel[(kv_heads, seats, 1)](
        q.contiguous(), kv_pool, block_tables, rows.context_lens, maximum if kv_scales is None else kv_scales,
        maximum if sinks is None else sinks, maximum, total, partial, out, dealt.seats,
        block_tables.stride(0), kv_pool.stride(0), kv.layer, kv_pool.stride(1), scale * LOG2_E, 0, 1,
        q_heads, kv_heads, head_dim, block_tokens,
        max(16, triton.next_power_of_2(q_heads // kv_heads)), config.block_n, block_d, False,
        dot_dtype(q, kv_pool), False, kv_scales is not None,
        sinks is not None, LOG2_E, bool(launch), True,
        num_warps=config.warps, num_stages=config.stages, **launch,
    )  # fmt: skip
    _seated_merge_kernel[(sequences, q_heads)](
        *(maximum, total, partial, out, dealt.rows, q_heads, head_dim, MAX_SPLITS, block_d, bool(launch)),
        num_warps=2,
        **launch,
    )
    return out


def _choose_splits(programs: int, wanted: int, longest: int) -> int:
    """Enough programs to fill the GPU, and no split shorter than two tiles of the longest context that the tables
    can hold."""
    return max(1, min(MAX_SPLITS, wanted // programs, longest // (2 * BLOCK_N)))
