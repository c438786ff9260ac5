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
    at_once: int = 4
    """Programs that a multiprocessor runs at once."""


BLOCK_N = 64
DEEP = DecodeConfig(BLOCK_N, 2, 7)
"""For up to two programs a multiprocessor, of float8 four: each keeps more loads under way."""
SHALLOW = DecodeConfig(BLOCK_N, 2, 3)
"""For more programs, of float8 six."""
DEEP_WAVE, SHALLOW_WAVE = (4 * 132, 43.5), (6 * 132, 57.4)
"""Programs of float8 that an H200 runs at once, and the µs that they take for 1,100 tokens each."""
FEW = 4
MULTIPROCESSORS = 132
MAX_SPLITS = 32
SEATS_A_WAVE = 2
"""Where sequences alone fill the GPU, pieces are so much finer: those that end early make room."""
PROGRAMS_WANTED = 264
"""Two programs for each of an H200's 132 multiprocessors; float8 tiles are half as large, so four."""

MERGED = 4096
"""Values of partial results that a program holds at once, which takes registers."""
LEAST_WORDS = 16
"""Of a head, from which products of a fourth of it are as wide as the matrix unit's."""

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
"""Of one word of two tokens: its bytes side by side, as halves."""


@triton.jit
def _merge(
    maximum_ptr, sum_ptr, partial_ptr, out_ptr, first, shift, stride, splits,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Partial results first + split · stride + head of GROUP heads → out [GROUP, D]; the first one lies `shift` on."""
    lane = tl.arange(0, BLOCK_D)
    head = tl.arange(0, HEADS)
    is_head = head < GROUP
    highest = tl.full([HEADS], float("-inf"), tl.float32)
    denominator = tl.zeros([HEADS], tl.float32)
    merged = tl.zeros([HEADS, BLOCK_D], tl.float32)
    for start in range(0, splits, CHUNK):
        split = start + tl.arange(0, CHUNK)
        place = first + (split * stride + tl.where(split == 0, shift, 0))[:, None] + head[None, :]  # [CHUNK, HEADS]
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


@triton.jit
def _attend(
    q_ptr, pool_ptr, table_ptr, scales_ptr, sinks_ptr, kv_head, sequence, begin, end, visible, is_first,
    block_stride, layer, layer_stride, scale,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, DOT: tl.constexpr, SCALED: tl.constexpr,
    SINKS: tl.constexpr, LOG2E: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Tokens begin … end of a sequence, those before `visible` left out: maximum and sum [BLOCK_M], weighted values
    [BLOCK_M, BLOCK_D]. Sinks count for its first piece."""
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
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
    tile = tl.arange(0, BLOCK_N)
    head_offset = layer.to(tl.int64) * layer_stride + kv_head * BLOCK_TOKENS * D
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:  # of the first piece alone
        sink = tl.load(sinks_ptr + kv_head * GROUP + group, mask=group < GROUP, other=0.0) * LOG2E
        maximum = tl.where(is_first, sink, maximum)
        total = tl.where(is_first, 1.0, total)
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
    return maximum, total, weighted


@triton.jit
def _store(
    out_ptr, weighted, total, sequence, kv_head,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """What a sequence in one piece comes to."""
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    group, lane = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    head = sequence * Q_HEADS + kv_head * GROUP + group
    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    is_row = (group < GROUP)[:, None] & (lane < D)[None, :]
    tl.store(out_ptr + head[:, None] * D + lane[None, :], result.to(out_ptr.dtype.element_ty), mask=is_row)


@triton.jit
def _leave(
    maximum_ptr, sum_ptr, partial_ptr, maximum, total, weighted, piece, kv_head,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A partial result, at its piece's place."""
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    group, lane = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    own = piece * Q_HEADS + kv_head * GROUP + group  # [pieces, Q_HEADS]
    tl.store(maximum_ptr + own, maximum, mask=group < GROUP)
    tl.store(sum_ptr + own, total, mask=group < GROUP)
    is_row = (group < GROUP)[:, None] & (lane < D)[None, :]
    tl.store(partial_ptr + own[:, None] * D + lane[None, :], weighted, mask=is_row)


@triton.jit(do_not_specialize=["table_stride", "layer", "splits", "window"])
def _decode_split_kernel(
    q_ptr, pool_ptr, tables_ptr, lens_ptr, scales_ptr, sinks_ptr, maximum_ptr, sum_ptr, partial_ptr,
    out_ptr, table_stride, block_stride, layer, layer_stride, scale, window, splits,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    SCALED: tl.constexpr, SINKS: tl.constexpr, LOG2E: tl.constexpr, CHAINED: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    length = tl.load(lens_ptr + sequence)
    visible = 0
    if WINDOW:
        visible = tl.maximum(length - window, 0)
    first = visible // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(length - first, splits), BLOCK_N) * BLOCK_N
    begin = first + split * share
    end = tl.minimum(begin + share, length)
    maximum, total, weighted = _attend(
        q_ptr, pool_ptr, tables_ptr + sequence * table_stride, scales_ptr, sinks_ptr, kv_head, sequence, begin, end,
        visible, split == 0, block_stride, layer, layer_stride, scale,
        Q_HEADS, KV_HEADS, D, BLOCK_TOKENS, BLOCK_M, BLOCK_N, BLOCK_D, DOT, SCALED, SINKS, LOG2E, WORDS)  # fmt: skip
    if splits == 1:
        _store(out_ptr, weighted, total, sequence, kv_head, Q_HEADS, KV_HEADS, D, BLOCK_M, BLOCK_D)
    else:
        piece = sequence * splits + split
        _leave(maximum_ptr, sum_ptr, partial_ptr, maximum, total, weighted, piece, kv_head,
               Q_HEADS, KV_HEADS, D, BLOCK_M, BLOCK_D)  # fmt: skip


@triton.jit
def _begin_of(seat, seats, tiles):
    """First of all tiles that is a seat's."""
    return tl.where(tiles > 2 * seats, (seat.to(tl.int64) * tiles // seats).to(tl.int32), tl.minimum(2 * seat, tiles))


@triton.jit
def _seat_of(tile, seats, tiles):
    """Whose a tile is: `_begin_of` backwards."""
    return tl.where(tiles > 2 * seats, (((tile.to(tl.int64) + 1) * seats - 1) // tiles).to(tl.int32), tile // 2)


@triton.jit(do_not_specialize=["table_stride", "layer", "sequences", "seats"])
def _decode_seat_kernel(
    q_ptr, pool_ptr, tables_ptr, lens_ptr, scales_ptr, sinks_ptr, maximum_ptr, sum_ptr, partial_ptr,
    out_ptr, starts_ptr, first_ptr, arrived_ptr, table_stride, block_stride, layer, layer_stride, scale, sequences,
    seats,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, DOT: tl.constexpr,
    SCALED: tl.constexpr, SINKS: tl.constexpr, LOG2E: tl.constexpr, CHAINED: tl.constexpr,
    WORDS: tl.constexpr, HEADS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    seat = tl.program_id(1)
    tiles = tl.load(starts_ptr + sequences)
    here, beyond = _begin_of(seat, seats, tiles), _begin_of(seat + 1, seats, tiles)
    row = tl.load(first_ptr + seat)
    tile = here
    while tile < beyond:
        sequence = row.to(tl.int64)
        start, stop = tl.load(starts_ptr + sequence), tl.load(starts_ptr + sequence + 1)
        begin = (tile - start) * BLOCK_N
        end = tl.minimum((tl.minimum(stop, beyond) - start) * BLOCK_N, tl.load(lens_ptr + sequence))
        maximum, total, weighted = _attend(
            q_ptr, pool_ptr, tables_ptr + sequence * table_stride, scales_ptr, sinks_ptr, kv_head, sequence, begin,
            end, 0, tile == start, block_stride, layer, layer_stride, scale,
            Q_HEADS, KV_HEADS, D, BLOCK_TOKENS, BLOCK_M, BLOCK_N, BLOCK_D, DOT, SCALED, SINKS, LOG2E, WORDS
        )  # fmt: skip
        if tile == start and stop <= beyond:
            _store(out_ptr, weighted, total, sequence, kv_head, Q_HEADS, KV_HEADS, D, BLOCK_M, BLOCK_D)
        else:
            # A seat leaves at most two pieces: of the sequence that it begins in, and of that which it ends in.
            piece = seat * 2 + (tile > here).to(tl.int32)
            _leave(maximum_ptr, sum_ptr, partial_ptr, maximum, total, weighted, piece, kv_head,
                   Q_HEADS, KV_HEADS, D, BLOCK_M, BLOCK_D)  # fmt: skip
            tl.debug_barrier()  # all threads' results lie there before the program says so
            counter_ptr = arrived_ptr + sequence * KV_HEADS + kv_head
            before = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
            first_seat = _seat_of(start, seats, tiles)
            pieces = _seat_of(stop - 1, seats, tiles) - first_seat + 1
            if before == pieces - 1:
                tl.store(counter_ptr, 0)
                shift = tl.where(start > _begin_of(first_seat, seats, tiles), Q_HEADS, 0)
                out = out_ptr + (sequence * Q_HEADS + kv_head * GROUP) * D
                _merge(maximum_ptr, sum_ptr, partial_ptr, out, first_seat * 2 * Q_HEADS + kv_head * GROUP, shift,
                       2 * Q_HEADS, pieces, GROUP, D, BLOCK_D, HEADS, CHUNK)  # fmt: skip
        tile = tl.minimum(stop, beyond)
        row += 1


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
    _merge(maximum_ptr, sum_ptr, partial_ptr, out_ptr, first, 0, Q_HEADS, splits, 1, D, BLOCK_D, 1, BLOCK_SPLITS)


@triton.jit(do_not_specialize=["sequences", "seats"])
def _seats_kernel(
    lens_ptr, starts_ptr, first_ptr, sequences, seats,
    BLOCK_N: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_SEATS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BLOCK_ROWS)
    length = tl.load(lens_ptr + row, mask=row < sequences, other=0)
    # A row of padding has a tile, too: somebody writes its zeros.
    count = tl.where(row < sequences, tl.maximum(tl.cdiv(length, BLOCK_N), 1), 0)
    tiles = tl.sum(count, axis=0)
    start = tl.cumsum(count, axis=0) - count
    tl.store(starts_ptr + row, start, mask=row < sequences)
    tl.store(starts_ptr + sequences, tiles)
    for chunk in tl.static_range(0, BLOCK_SEATS, CHUNK):
        seat = chunk + tl.arange(0, CHUNK)
        begin = _begin_of(seat, seats, tiles)
        is_before = (start[None, :] <= begin[:, None]) & (row < sequences)[None, :]
        tl.store(first_ptr + seat, tl.sum(is_before.to(tl.int32), axis=1) - 1, mask=seat < seats)


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
    sequences = q.shape[0]
    _, _, _, kv_heads, block_tokens, _ = kv.pool.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if sequences == 0:
        return out
    seated = splits is None and window is None and sequences > FEW
    wanted = PROGRAMS_WANTED if kv.scales is None else 2 * PROGRAMS_WANTED
    longest = rows.block_tables.shape[1] * block_tokens
    splits = 1 if seated else splits or _choose_splits(sequences * kv_heads, wanted, longest)
    programs = sequences * kv_heads * splits
    config = config or _config(kv, programs, seated)
    seats = max(1, config.at_once * MULTIPROCESSORS // kv_heads)
    # Windows of many sequences were never measured launched ahead.
    launch = chain(q) if seated or sequences <= FEW or programs > wanted else {}
    q_heads, head_dim = q.shape[1:]
    group, block_d = q_heads // kv_heads, max(16, triton.next_power_of_2(head_dim))
    heads = triton.next_power_of_2(group)
    pieces = 2 * seats if seated else sequences * splits
    maximum = torch.empty(pieces, q_heads, dtype=torch.float32, device=q.device)
    total = torch.empty_like(maximum)
    partial = torch.empty(pieces, q_heads, head_dim, dtype=torch.float32, device=q.device)
    tensors = (
        q.contiguous(), kv.pool, rows.block_tables, rows.context_lens, maximum if kv.scales is None else kv.scales,
        maximum if sinks is None else sinks, maximum, total, partial, out,
    )  # fmt: skip
    sizes = (rows.block_tables.stride(0), kv.pool.stride(0), kv.layer, kv.pool.stride(1), scale * LOG2_E)
    shapes = (q_heads, kv_heads, head_dim, block_tokens, max(16, heads), config.block_n, block_d)
    in_words = kv.scales is not None and head_dim % 4 == 0 and block_d >= 4 * LEAST_WORDS
    dot, forms = dot_dtype(q, kv.pool), (kv.scales is not None, sinks is not None, LOG2_E, bool(launch), in_words)
    options = {"num_warps": config.warps, "num_stages": config.stages, **launch}
    if seated:
        starts, first = rows.memo.once(("seats", seats), lambda: _seats(rows.context_lens, seats))
        size = sequences * kv_heads
        arrived = rows.memo.once(("arrived", size), lambda: torch.zeros(size, dtype=torch.int32, device=q.device))
        _decode_seat_kernel[(kv_heads, seats)](
            *tensors, starts, first, arrived, *sizes, sequences, seats, *shapes, dot, *forms, heads,
            max(1, MERGED // (heads * block_d)), **options,
        )  # fmt: skip
        return out
    _decode_split_kernel[(kv_heads, sequences, splits)](
        *tensors, *sizes, window or 0, splits, *shapes, window is not None, dot, *forms, **options
    )
    if splits > 1:
        most = triton.next_power_of_2(max(MAX_SPLITS, splits))  # one kernel for any context
        _decode_merge_kernel[(sequences, q_heads)](
            maximum, total, partial, out, splits, q_heads, head_dim, most, block_d, bool(launch), num_warps=2, **launch
        )
    return out


def _config(kv: KvLayer, programs: int, seated: bool) -> DecodeConfig:
    if kv.scales is None:
        return DEEP if programs <= PROGRAMS_WANTED else SHALLOW
    deep, shallow = (triton.cdiv(programs, at_once) * us for at_once, us in (DEEP_WAVE, SHALLOW_WAVE))
    return DEEP if deep <= shallow else SHALLOW


def _seats(lens: Tensor, seats: int) -> tuple[Tensor, Tensor]:
    """Tiles of BLOCK_N tokens, at least one a sequence: where each sequence's begin among all, int32 [N + 1], and the
    sequence that each seat begins in, int32 [seats]. Seats have equally many tiles, but at least two."""
    sequences = lens.numel()
    starts = torch.empty(sequences + 1, dtype=torch.int32, device=lens.device)
    first = torch.empty(seats, dtype=torch.int32, device=lens.device)
    block_rows = max(64, triton.next_power_of_2(sequences))
    chunk = max(1, min(triton.next_power_of_2(seats), 16_384 // block_rows))
    _seats_kernel[(1,)](
        lens, starts, first, sequences, seats, BLOCK_N, block_rows, triton.next_power_of_2(seats), chunk, num_warps=8
    )
    return starts, first


def _choose_splits(programs: int, wanted: int, longest: int) -> int:
    """Enough programs to fill the GPU, and no split shorter than two tiles of the longest context that the tables
    can hold."""
    return max(1, min(MAX_SPLITS, wanted // programs, longest // (2 * BLOCK_N)))
