"""Paged decode attention in Triton: split-KV with a merge, the query heads of one kv head packed into the rows of
one product.

Grid (kv head, sequence, split), so that sequences begin in their order, all heads of one together. Each program runs
the online softmax over its share of the context and leaves a partial result (maximum, sum, weighted values, float32).
A second kernel joins the splits. The grid depends on shapes only, so a captured graph serves every length.

Few sequences have equally many splits each. Among many the contexts differ: one of 4,000 tokens in one piece took as
long as all the others together. So a first kernel deals out *seats* once a step, in proportion to lengths, the longest
pieces first, and the grid is (kv head, seat). A sequence with one seat writes its result at once, as padding does its
zeros. Of others the last program of a kv head to arrive joins the splits, in their order, so that the same bits come
out each time: most sequences have nothing to join, and a kernel for them all took 4 to 9 µs to find that out. One
sequence's 32 splits are joined faster by a kernel, by as many programs as there are heads.

float8 keys become halves as their product wants them. Values lie across it: a thread would have to gather single bytes.
So they are read in words of 4 neighbours, two tokens' words are turned into four pairs, and four products have a fourth
of the head's dimensions each, every fourth one.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer
from baton_kernels.attention.gpu.decode_seats import deal_seats
from baton_kernels.attention.gpu.dot_dtype import dot_dtype
from baton_kernels.launching.dependent_launch import after_previous, chain

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    block_n: int
    """Tokens a tile."""
    warps: int
    stages: int


BLOCK_N = 64
DEEP = DecodeConfig(BLOCK_N, 2, 7)
"""For up to two programs a multiprocessor, of float8 four: each keeps more loads under way."""
SHALLOW = DecodeConfig(BLOCK_N, 2, 3)
"""For more programs, of float8 six."""
DEEP_WAVE, SHALLOW_WAVE = (4 * 132, 43.5), (6 * 132, 57.4)
"""Programs of float8 that an H200 runs at once, and the µs that they take for 1,100 tokens each."""
FEW = 4
MAX_SPLITS = 32
SEATS_A_WAVE = 2
"""Factor by which pieces are finer where sequences alone fill the GPU: a piece that ends early frees its place."""
PROGRAMS_WANTED = 264
"""Two programs for each of an H200's 132 multiprocessors; float8 tiles are half as large, so four."""

MERGED = 4096
"""Values of partial results that a program holds at once, which takes registers."""
LEAST_WORDS = 16
"""Least words of a head with which products of a fourth of it are as wide as the matrix unit's."""

_FOUR_PAIRS: tl.constexpr = tl.constexpr("""{
    .reg .b32 low, high;
    .reg .b16 a, b, c, d;
    prmt.b32 low, $4, $5, 0x5140;
    prmt.b32 high, $4, $5, 0x7362;
    mov.b32 {a, b}, low;
    mov.b32 {c, d}, high;
    cvt.rn.f16x2.e4m3x2 $0, a;
    cvt.rn.f16x2.e4m3x2 $1, b;
    cvt.rn.f16x2.e4m3x2 $2, c;
    cvt.rn.f16x2.e4m3x2 $3, d;
}""")
"""Pairs the bytes of one word of two tokens each and widens them to float16."""


@triton.jit
def _merge(
    maximum_ptr, sum_ptr, partial_ptr, out_ptr, first, stride, splits,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Partial results first + split · stride + head of GROUP heads → out [GROUP, D]."""
    lane = tl.arange(0, BLOCK_D)
    head = tl.arange(0, HEADS)
    is_head = head < GROUP
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    denominator = tl.zeros([HEADS], tl.float32)
    merged = tl.zeros([HEADS, BLOCK_D], tl.float32)
    for start in range(0, splits, CHUNK):
        split = start + tl.arange(0, CHUNK)
        place = first + split[:, None] * stride + head[None, :]  # [CHUNK, HEADS]
        known = (split < splits)[:, None] & is_head[None, :]
        maximum = tl.load(maximum_ptr + place, mask=known, other=float("-inf"), cache_modifier=".cg")
        total = tl.load(sum_ptr + place, mask=known, other=0.0, cache_modifier=".cg")
        inside = known[:, :, None] & (lane < D)[None, None, :]
        parts_ptr = partial_ptr + place[:, :, None] * D + lane[None, None, :]
        partial = tl.load(parts_ptr, mask=inside, other=0.0, cache_modifier=".cg")  # [CHUNK, HEADS, D]
        raised = tl.maximum(highest, tl.max(maximum, axis=0))
        # An empty split has maximum -inf and weighs nothing; so does every split of an empty context.
        floor = tl.where(raised == float("-inf"), 0.0, raised)
        weight = tl.exp2(maximum - floor[None, :])
        shrink = tl.exp2(highest - floor)
        denominator = denominator * shrink + tl.sum(weight * total, axis=0)
        merged = merged * shrink[:, None] + tl.sum(weight[:, :, None] * partial, axis=0)
        highest = raised
    merged = merged / tl.where(denominator == 0.0, 1.0, denominator)[:, None]
    place = head[:, None] * D + lane[None, :]
    tl.store(out_ptr + place, merged.to(out_ptr.dtype.element_ty), mask=is_head[:, None] & (lane < D)[None, :])


@triton.jit(do_not_specialize=["table_stride", "layer", "splits", "window"])
def _decode_split_kernel(
    q_ptr, pool_ptr, tables_ptr, lens_ptr, scales_ptr, sinks_ptr, maximum_ptr, sum_ptr, partial_ptr,
    out_ptr, seats_ptr, arrived_ptr, table_stride, block_stride, layer, layer_stride, scale, window, splits,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    SCALED: tl.constexpr, SINKS: tl.constexpr, LOG2E: tl.constexpr, CHAINED: tl.constexpr, SEATED: tl.constexpr,
    WORDS: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    seat = sequence * splits + split
    if SEATED:
        seat = sequence
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
    weighted = tl.zeros([BLOCK_M, BLOCK_D // 4 if WORDS else BLOCK_D], tl.float32)
    second, third, fourth = weighted, weighted, weighted
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
        scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_seen[None, :], scores, float("-inf"))
        raised = tl.maximum(maximum, tl.max(scores, axis=1))
        # A tile may lie outside the window whole: its maximum stays -inf, its weights must be 0 and not NaN.
        floor = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - floor[:, None])
        shrink = tl.exp2(maximum - floor)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted *= shrink[:, None]
        weights = weights.to(DOT)
        if WORDS:
            word = tl.arange(0, BLOCK_D // 4)
            is_word = is_seen[:, None]
            if D != BLOCK_D:
                is_word = is_word & (word < D // 4)[None, :]
            word_ptr = (pool_ptr + place).to(tl.pointer_type(tl.uint32))[:, None] + word[None, :]
            words = tl.load(word_ptr + KV_HEADS * BLOCK_TOKENS * D // 4, mask=is_word, other=0)  # [BLOCK_N, D / 4]
            halves: tl.constexpr = (tl.float16, tl.float16, tl.float16, tl.float16)
            v0, v1, v2, v3 = tl.inline_asm_elementwise(_FOUR_PAIRS, "=r,=r,=r,=r,r,r", [words], halves, True, 2)
            weighted += tl.dot(weights, v0)
            second = second * shrink[:, None] + tl.dot(weights, v1)
            third = third * shrink[:, None] + tl.dot(weights, v2)
            fourth = fourth * shrink[:, None] + tl.dot(weights, v3)
        else:
            value = tl.load(key_ptr + KV_HEADS * BLOCK_TOKENS * D, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
            weighted += tl.dot(weights, value, input_precision="ieee")
        maximum = raised

    if WORDS:
        weighted = tl.reshape(tl.join(tl.join(weighted, third), tl.join(second, fourth)), (BLOCK_M, BLOCK_D))
    if SCALED:
        weighted *= value_scale
    if splits == 1:
        result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + head[:, None] * D + lane[None, :], result.to(out_ptr.dtype.element_ty), mask=is_row)
    else:
        row = seat * Q_HEADS + kv_head * GROUP  # [seats, Q_HEADS]
        own = row + group
        tl.store(maximum_ptr + own, maximum, mask=group < GROUP)
        tl.store(sum_ptr + own, total, mask=group < GROUP)
        tl.store(partial_ptr + own[:, None] * D + lane[None, :], weighted, mask=is_row)
        if SEATED:
            tl.debug_barrier()  # all threads' results lie there before the program says so
            counter_ptr = arrived_ptr + sequence * KV_HEADS + kv_head
            before = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
            if before < splits - 1:
                return
            tl.store(counter_ptr, 0)
            first_head = sequence * Q_HEADS + kv_head * GROUP
            _merge(maximum_ptr, sum_ptr, partial_ptr, out_ptr + first_head * D, row - split * Q_HEADS, Q_HEADS, splits,
                   GROUP, D, BLOCK_D, HEADS, CHUNK)  # fmt: skip


@triton.jit(do_not_specialize=["splits"])
def _decode_merge_kernel(
    maximum_ptr, sum_ptr, partial_ptr, out_ptr, splits,
    Q_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_D: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    out_ptr += (sequence * Q_HEADS + head) * D
    first = sequence * splits * Q_HEADS + head
    _merge(maximum_ptr, sum_ptr, partial_ptr, out_ptr, first, Q_HEADS, splits, 1, D, BLOCK_D, 1, BLOCK_SPLITS)


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
    """As `baton_kernels.attention.decode_attention.paged_decode_attention`; `splits` is chosen from the shapes unless
    given."""
    sequences = q.shape[0]
    _, _, _, kv_heads, block_tokens, _ = kv.pool.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if sequences == 0:
        return out
    wanted = PROGRAMS_WANTED if kv.scales is None else 2 * PROGRAMS_WANTED
    if splits is None and window is None and sequences > FEW:
        _seated(q, kv, rows, scale, out, sinks, wanted, config)
        return out
    splits = splits or _choose_splits(sequences * kv_heads, wanted, rows.block_tables.shape[1] * block_tokens)
    grid, programs = (kv_heads, sequences, splits), sequences * kv_heads * splits
    # Windows of many sequences were never measured launched ahead.
    launch = {} if sequences > FEW and programs <= wanted else chain(q)
    _launch(q, kv, rows, scale, window, out, sinks, grid, None, config or _config(kv, programs), launch)
    return out


def _seated(
    q: Tensor,
    kv: KvLayer,
    rows: DecodeRows,
    scale: float,
    out: Tensor,
    sinks: Tensor | None,
    wanted: int,
    config: DecodeConfig | None,
) -> None:
    """Attention of sequences whose splits follow their lengths, dealt out for the first layer of a step."""
    sequences, kv_heads = q.shape[0], kv.pool.shape[3]
    in_one_wave = sequences * kv_heads <= wanted
    spare = max(1, (1 if in_one_wave else SEATS_A_WAVE) * wanted // kv_heads)
    seats = rows.memo.once(("seats", spare), lambda: deal_seats(rows.context_lens, spare, BLOCK_N, MAX_SPLITS))
    grid, chosen = (kv_heads, len(seats), 1), config or _config(kv, sequences * kv_heads)
    _launch(q, kv, rows, scale, None, out, sinks, grid, seats, chosen, chain(q))


def _config(kv: KvLayer, programs: int) -> DecodeConfig:
    if kv.scales is None:
        return DEEP if programs <= PROGRAMS_WANTED else SHALLOW
    deep, shallow = (triton.cdiv(programs, at_once) * us for at_once, us in (DEEP_WAVE, SHALLOW_WAVE))
    return DEEP if deep <= shallow else SHALLOW


def _launch(
    q: Tensor,
    kv: KvLayer,
    rows: DecodeRows,
    scale: float,
    window: int | None,
    out: Tensor,
    sinks: Tensor | None,
    grid: tuple[int, int, int],
    seats: Tensor | None,
    config: DecodeConfig,
    launch: dict[str, bool],
) -> None:
    """Launch over a grid of (kv heads, sequences, splits), or (kv heads, seats, 1)."""
    kv_pool, kv_scales, block_tables = kv.pool, kv.scales, rows.block_tables
    sequences, q_heads, head_dim = q.shape
    _, _, _, kv_heads, block_tokens, _ = kv_pool.shape
    group, block_d = q_heads // kv_heads, max(16, triton.next_power_of_2(head_dim))
    heads = triton.next_power_of_2(group)
    arrived = None
    if seats is not None:
        size = sequences * kv_heads
        arrived = rows.memo.once(("arrived", size), lambda: torch.zeros(size, dtype=torch.int32, device=q.device))
    pieces, splits = grid[1] * grid[2], grid[2]
    maximum = torch.empty(pieces, q_heads, dtype=torch.float32, device=q.device)
    total = torch.empty_like(maximum)
    partial = torch.empty(pieces, q_heads, head_dim, dtype=torch.float32, device=q.device)
    in_words = kv_scales is not None and head_dim % 4 == 0 and block_d >= 4 * LEAST_WORDS
    _decode_split_kernel[grid](
        q.contiguous(), kv_pool, block_tables, rows.context_lens, maximum if kv_scales is None else kv_scales,
        maximum if sinks is None else sinks, maximum, total, partial, out, seats,
        arrived, block_tables.stride(0), kv_pool.stride(0), kv.layer, kv_pool.stride(1), scale * LOG2_E, window or 0,
        splits, q_heads, kv_heads, head_dim, block_tokens, max(16, heads), config.block_n, block_d,
        window is not None, dot_dtype(q, kv_pool), kv_scales is not None, sinks is not None, LOG2_E, bool(launch),
        seats is not None, in_words, heads, max(1, MERGED // (heads * block_d)),
        num_warps=config.warps, num_stages=config.stages, **launch,
    )  # fmt: skip
    if splits > 1:
        most = triton.next_power_of_2(max(MAX_SPLITS, splits))  # one kernel for any context
        _decode_merge_kernel[(sequences, q_heads)](
            maximum, total, partial, out, splits, q_heads, head_dim, most, block_d, bool(launch), num_warps=2, **launch
        )


def _choose_splits(programs: int, wanted: int, longest: int) -> int:
    """Enough programs to fill the GPU, and no split shorter than two tiles of the longest context that the tables
    can hold."""
    return max(1, min(MAX_SPLITS, wanted // programs, longest // (2 * BLOCK_N)))
