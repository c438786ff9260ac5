"""Paged prefill attention for Hopper, in Gluon: one warp fetches K and V by TMA, two or three warpgroups compute.

Each warpgroup owns 64 rows ((token, head of the group) pairs, token-major) of a tile and walks the keys from the last
to the first, so that the masked tiles come first. While the product of one tile's weights with V runs, the warpgroup
computes the next tile's weights: matrix units and exponentials are busy at once. Three warpgroups start their products
in turns, so that they do not all wait for the matrix unit, and then all for exponentials.

With a window tiles before the first row's are not fetched, and those that only some rows see come last, masked. A sink
is a weight that each row's sum begins with.

TMA brings whole blocks. Slots beyond the context may hold anything, NaN too: their keys are masked, and their values
are set to zero in shared memory before the first product.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# ruff: noqa: RUF005 - Gluon unpacks no tuples

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from baton_kernels.attention.attention_inputs import KvLayer, PrefillRows
from baton_kernels.attention.gpu.prefill_attention import CHUNK_LANES, most_tiles

LOG2_E = gl.constexpr(1.4426950408889634)
ROWS = gl.constexpr(64)
"""Rows that one warpgroup multiplies."""
STAGES = gl.constexpr(2)
PANEL = gl.constexpr(64)
"""Columns of a TMA box: 128 bytes, as wide as the swizzle."""
WARPGROUPS = {64: 3, 128: 2, 256: 2}
"""Warpgroups that compute, by the sizes of heads that there are: as many as have registers for their tiles."""
LEAST_SEEN = 65_536
"""Least product of a window and a head's size: below it the plain kernel is faster, with more, smaller programs."""
TILE_TOKENS = {64: 128, 128: 128, 256: 64}
"""Tokens a tile, by the sizes of heads that there are."""


@gluon.jit
def _fetch(
    KV_HEADS: gl.constexpr, D: gl.constexpr, BLOCK_TOKENS: gl.constexpr, BLOCK_ROWS: gl.constexpr, pool, table_ptr,
    k_boxes, v_boxes, k_ready, k_free, v_ready, v_free, tiles, visits, first_page, last_page, head_row,
):  # fmt: skip
    BLOCK_N: gl.constexpr = 128 if D <= 128 else 64
    PAGES: gl.constexpr = BLOCK_N // BLOCK_TOKENS
    PANELS: gl.constexpr = D // PANEL
    for i in range(visits):
        stage = i % STAGES
        phase = (i // STAGES) & 1
        # Before the waits, which no load passes.
        rows = ()
        for page in gl.static_range(PAGES):
            place = (tiles - 1 - i) * PAGES + page
            # Before the window: a box outside of the pool is filled with zeros.
            block = gl.where(place < first_page, -1, gl.load(table_ptr + gl.minimum(place, last_page)))
            rows += (block * BLOCK_ROWS + head_row,)  # type: ignore[assignment]
        for side in gl.static_range(2):
            boxes = v_boxes if side else k_boxes
            ready = (v_ready if side else k_ready).index(stage)
            free = (v_free if side else k_free).index(stage)
            mbarrier.wait(free, phase ^ 1)
            mbarrier.expect(ready, BLOCK_N * D * 2)
            for page in gl.static_range(PAGES):
                row = rows[page] + side * KV_HEADS * BLOCK_TOKENS
                for panel in gl.static_range(PANELS):
                    box = boxes.index((stage * PANELS + panel) * PAGES + page)
                    tma.async_copy_global_to_shared(pool, [row, panel * PANEL], ready, box)


@gluon.jit
def _row_max(s):
    """Greatest of each row of scores. By tiles of eight columns first: sums in one chain would wait for each other."""
    tiles = s.reshape([s.shape[0], s.shape[1] // 8, 8])
    return gl.convert_layout(gl.max(gl.max(tiles, 1), 1), gl.SliceLayout(1, s.type.layout))


@gluon.jit
def _row_sum(s):
    """Sum of each row of weights, as `_row_max`."""
    tiles = s.reshape([s.shape[0], s.shape[1] // 8, 8])
    return gl.convert_layout(gl.sum(gl.sum(tiles, 1), 1), gl.SliceLayout(1, s.type.layout))


@gluon.jit
def _pack_pairs(weights, dtype: gl.constexpr):
    """Round weights [R, N] to 16 bits, two in a register [R, N / 2]: as single values they would be taken apart and put
    together again on their way to the next round of the loop."""
    low, high = weights.reshape([weights.shape[0], weights.shape[1] // 2, 2]).split()
    PACK: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;" if dtype == gl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(PACK, "=r,r,r", [low, high], dtype=gl.uint32, is_pure=True, pack=1)


@gluon.jit
def _as_operand(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Weights [R, N] that `_pack_pairs` packed, as the operand of a product."""
    low = pairs.to(gl.uint16).to(dtype, bitcast=True)
    high = (pairs >> 16).to(gl.uint16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2]), LAYOUT)


@gluon.jit
def _softmax(s, maximum, total, scale, position, token, window, WINDOW: gl.constexpr, MASKED: gl.constexpr):
    """Weights of a tile in powers of two: (weights, new maximum, new sum, factor of what was summed before)."""
    if MASKED:
        is_seen = token[None, :] <= position[:, None]
        if WINDOW:
            is_seen = is_seen & (token[None, :] > position[:, None] - window)
        s = gl.where(is_seen, s, float("-inf"))
    raised = gl.maximum(maximum, _row_max(s) * scale)
    # A row may see nothing of the first tile: its maximum stays -inf, its weights must be 0 and not NaN.
    floor = gl.where(raised == float("-inf"), 0.0, raised) if MASKED else raised
    weights = gl.exp2(s * scale - floor[:, None])
    shrink = gl.exp2(maximum - floor)
    return weights, raised, total * shrink + _row_sum(weights), shrink


@gluon.jit
def _advance(
    i, q_tile, k_tiles, v_tiles, k_ready, k_free, v_ready, v_free, turns, pairs, result, maximum, total, scale,
    position, token, window, S_LAYOUT: gl.constexpr, W_LAYOUT: gl.constexpr, O_LAYOUT: gl.constexpr,
    WINDOW: gl.constexpr, MASKED: gl.constexpr, NUMBER: gl.constexpr, WARPGROUPS: gl.constexpr,
):  # fmt: skip
    """Scores and weights of visit i while visit i - 1 is multiplied with V."""
    BLOCK_N: gl.constexpr = k_tiles.shape[1]
    stage = i % STAGES
    before = (i - 1) % STAGES
    mbarrier.wait(k_ready.index(stage), (i // STAGES) & 1)
    empty = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    weights = _as_operand(pairs, q_tile.dtype, W_LAYOUT)
    if WARPGROUPS == 3:  # warpgroup 0 begins, so its wait is for the round before
        mbarrier.wait(turns.index(NUMBER), ((i - 1) & 1) ^ (1 if NUMBER == 0 else 0))
    s = warpgroup_mma(q_tile, k_tiles.index(stage).permute((1, 0)), empty, use_acc=False, is_async=True)
    result = warpgroup_mma(weights, v_tiles.index(before), result, is_async=True)
    if WARPGROUPS == 3:
        mbarrier.arrive(turns.index((NUMBER + 1) % WARPGROUPS), count=1)
    s = warpgroup_mma_wait(1, [s])
    mbarrier.arrive(k_free.index(stage), count=1)
    raw, maximum, total, shrink = _softmax(s, maximum, total, scale, position, token, window, WINDOW, MASKED)
    # Both the wait for the next values and `raw` among the operands keep the compilers from moving the weights'
    # arithmetic behind the end of the product that it is to overlap.
    mbarrier.wait(v_ready.index(stage), (i // STAGES) & 1)
    result, raw, weights = warpgroup_mma_wait(0, [result, raw, weights])
    pairs = _pack_pairs(raw, q_tile.dtype)
    mbarrier.arrive(v_free.index(before), count=1)
    result *= gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
    return pairs, result, maximum, total


@gluon.jit
def _attend(
    NUMBER: gl.constexpr, Q_HEADS: gl.constexpr, KV_HEADS: gl.constexpr, WINDOW: gl.constexpr, SINKS: gl.constexpr,
    q_ptr, sinks_ptr, out_ptr, q_tile, k_tiles, v_tiles, k_ready, k_free, v_ready, v_free, turns, tiles, masked_tiles,
    whole, visits, length, prefix, tile, query_begin, query_len, kv_head, scale, window,
):  # fmt: skip
    D: gl.constexpr = q_tile.shape[1]
    WARPGROUPS: gl.constexpr = turns.shape[0]
    GROUP: gl.constexpr = Q_HEADS // KV_HEADS
    TOKENS: gl.constexpr = WARPGROUPS * ROWS // GROUP
    BLOCK_N: gl.constexpr = k_tiles.shape[1]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    W_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    V_COPY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])

    row = NUMBER * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, COPY))
    query = tile * TOKENS + row // GROUP
    is_query = (row < TOKENS * GROUP) & (query < query_len)
    lane = gl.arange(0, D, gl.SliceLayout(0, COPY))
    place = ((query_begin + query).to(gl.int64) * Q_HEADS + kv_head * GROUP + row % GROUP) * D
    q = gl.load(q_ptr + place[:, None] + lane[None, :], mask=is_query[:, None], other=0.0)
    q_tile.store(q)
    fence_async_shared()

    own = NUMBER * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
    position = prefix + tile * TOKENS + own // GROUP
    token = (tiles - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_LAYOUT))
    mbarrier.wait(v_ready.index(0), 0)
    if tiles * BLOCK_N > length:
        slot = (tiles - 1) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, V_COPY))
        value = v_tiles.index(0).load(V_COPY)
        v_tiles.index(0).store(gl.where((slot < length)[:, None], value, 0.0))
        fence_async_shared()

    mbarrier.wait(k_ready.index(0), 0)
    empty = gl.zeros([ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    s = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), empty, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, [s])
    mbarrier.arrive(k_free.index(0), count=1)
    maximum = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, S_LAYOUT))
    total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, S_LAYOUT))
    if SINKS:
        maximum = gl.load(sinks_ptr + kv_head * GROUP + own % GROUP) * LOG2_E
        total = gl.full([ROWS], 1.0, gl.float32, gl.SliceLayout(1, S_LAYOUT))
    raw, maximum, total, _ = _softmax(s, maximum, total, scale, position, token, window, WINDOW, True)
    pairs = _pack_pairs(raw, q_tile.dtype)
    result = gl.zeros([ROWS, D], gl.float32, O_LAYOUT)
    for i in range(1, masked_tiles):
        token -= BLOCK_N
        pairs, result, maximum, total = _advance(
            i, q_tile, k_tiles, v_tiles, k_ready, k_free, v_ready, v_free, turns, pairs, result, maximum, total, scale,
            position, token, window, S_LAYOUT, W_LAYOUT, O_LAYOUT, WINDOW, True, NUMBER, WARPGROUPS,
        )  # fmt: skip
    for i in range(masked_tiles, whole):
        pairs, result, maximum, total = _advance(
            i, q_tile, k_tiles, v_tiles, k_ready, k_free, v_ready, v_free, turns, pairs, result, maximum, total, scale,
            position, token, window, S_LAYOUT, W_LAYOUT, O_LAYOUT, WINDOW, False, NUMBER, WARPGROUPS,
        )  # fmt: skip
    if WINDOW:
        token -= gl.maximum(whole - masked_tiles, 0) * BLOCK_N
        for i in range(gl.maximum(masked_tiles, whole), visits):
            token -= BLOCK_N
            pairs, result, maximum, total = _advance(
                i, q_tile, k_tiles, v_tiles, k_ready, k_free, v_ready, v_free, turns, pairs, result, maximum, total,
                scale, position, token, window, S_LAYOUT, W_LAYOUT, O_LAYOUT, WINDOW, True, NUMBER, WARPGROUPS,
            )  # fmt: skip
    last = (visits - 1) % STAGES
    weights = _as_operand(pairs, q_tile.dtype, W_LAYOUT)
    result = warpgroup_mma(weights, v_tiles.index(last), result, is_async=True)
    result = warpgroup_mma_wait(0, [result])

    total = gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT))
    result = result / gl.where(total == 0.0, 1.0, total)[:, None]
    q_tile.store(result.to(q_tile.dtype))
    gl.store(out_ptr + place[:, None] + lane[None, :], q_tile.load(COPY), mask=is_query[:, None])


@gluon.jit
def _add(left, right):
    return left + right


@gluon.jit
def _nth_tile(place, starts_ptr, chunks, TOKENS: gl.constexpr):
    """As `nth_tile` of the plain kernel."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    chunk = 0
    passed = 0
    tiles_before = 0
    for first in range(0, chunks, CHUNK_LANES):
        number = first + gl.arange(0, CHUNK_LANES, LANES)
        is_chunk = number < chunks
        begin = gl.load(starts_ptr + number, mask=is_chunk, other=0)
        tiles = gl.cdiv(gl.load(starts_ptr + number + 1, mask=is_chunk, other=0) - begin, TOKENS)
        is_before = is_chunk & (tiles_before + gl.associative_scan(tiles, 0, _add) <= place)
        chunk += gl.sum(is_before.to(gl.int32), 0)
        passed += gl.sum(gl.where(is_before, tiles, 0), 0)
        tiles_before += gl.sum(tiles, 0)
    query_begin = gl.load(starts_ptr + chunk)
    query_len = gl.load(starts_ptr + chunk + 1, mask=chunk < chunks, other=query_begin) - query_begin
    return chunk, gl.cdiv(query_len, TOKENS) - 1 - (place - passed), query_begin, query_len


@gluon.jit(do_not_specialize=["chunks", "table_stride", "layer", "window"])
def _prefill_hopper_kernel(
    q_ptr, pool, tables_ptr, starts_ptr, lens_ptr, sinks_ptr, out_ptr, chunks, table_stride, layer, scale, window,
    Q_HEADS: gl.constexpr, KV_HEADS: gl.constexpr, D: gl.constexpr, BLOCK_TOKENS: gl.constexpr,
    LAYERS: gl.constexpr, WINDOW: gl.constexpr, SINKS: gl.constexpr, WARPGROUPS: gl.constexpr,
):  # fmt: skip
    GROUP: gl.constexpr = Q_HEADS // KV_HEADS
    TOKENS: gl.constexpr = WARPGROUPS * ROWS // GROUP
    BLOCK_N: gl.constexpr = 128 if D <= 128 else 64
    PAGES: gl.constexpr = BLOCK_N // BLOCK_TOKENS
    kv_head = gl.program_id(0)
    sequence, tile, query_begin, query_len = _nth_tile(gl.program_id(1), starts_ptr, chunks, TOKENS)
    if query_len > 0:
        length = gl.load(lens_ptr + sequence)
        prefix = length - query_len
        first = prefix + tile * TOKENS
        end = prefix + gl.minimum(tile * TOKENS + TOKENS, query_len)
        tiles = gl.cdiv(end, BLOCK_N)
        # Tokens up to `first` are seen by every row: their tiles need no mask, unless the last row's window begins
        # within them or behind.
        masked_tiles = gl.maximum(tiles - (first + 1) // BLOCK_N, 1)
        visits = tiles
        whole = tiles
        first_page = 0
        if WINDOW:
            # Blocks before the window may belong to another sequence, or hold no numbers.
            first_page = gl.maximum(first - window + 1, 0) // BLOCK_TOKENS
            visits = tiles - gl.maximum(first - window + 1, 0) // BLOCK_N
            whole = tiles - gl.cdiv(gl.maximum(end - window, 0), BLOCK_N)

        MMA_SHARED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
        BOXES: gl.constexpr = STAGES * PAGES * (D // PANEL)
        dtype: gl.constexpr = pool.dtype
        k_boxes = gl.allocate_shared_memory(dtype, [BOXES, BLOCK_TOKENS, PANEL], pool.layout)
        v_boxes = gl.allocate_shared_memory(dtype, [BOXES, BLOCK_TOKENS, PANEL], pool.layout)
        k_tiles = k_boxes._reinterpret(dtype, [STAGES, BLOCK_N, D], MMA_SHARED)
        v_tiles = v_boxes._reinterpret(dtype, [STAGES, BLOCK_N, D], MMA_SHARED)
        q_tiles = gl.allocate_shared_memory(dtype, [WARPGROUPS, ROWS, D], MMA_SHARED)
        k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        turns = gl.allocate_shared_memory(gl.int64, [WARPGROUPS, 1], mbarrier.MBarrierLayout())
        for number in gl.static_range(WARPGROUPS):
            mbarrier.init(turns.index(number), count=1)
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_ready.index(stage), count=1)
            mbarrier.init(v_ready.index(stage), count=1)
            mbarrier.init(k_free.index(stage), count=WARPGROUPS)
            mbarrier.init(v_free.index(stage), count=WARPGROUPS)
        fence_async_shared()

        table_ptr = tables_ptr + sequence.to(gl.int64) * table_stride
        last_page = (length - 1) // BLOCK_TOKENS
        head_row = (layer * 2 * KV_HEADS + kv_head) * BLOCK_TOKENS
        BLOCK_ROWS: gl.constexpr = LAYERS * 2 * KV_HEADS * BLOCK_TOKENS
        # Constants lose their kind in variables and on the right of a `+`, so neither they nor the lists are joined.
        shared = (
            k_tiles, v_tiles, k_ready, k_free, v_ready, v_free, turns, tiles, masked_tiles, whole, visits, length,
            prefix, tile, query_begin, query_len, kv_head, scale, window,
        )  # fmt: skip
        fetched = (
            pool, table_ptr, k_boxes, v_boxes, k_ready, k_free, v_ready, v_free, tiles, visits, first_page, last_page,
            head_row,
        )  # fmt: skip
        gl.warp_specialize(
            [
                (_attend, (0, Q_HEADS, KV_HEADS, WINDOW, SINKS, q_ptr, sinks_ptr, out_ptr, q_tiles.index(0)) + shared),
                (_attend, (1, Q_HEADS, KV_HEADS, WINDOW, SINKS, q_ptr, sinks_ptr, out_ptr, q_tiles.index(1)) + shared),
                (_attend, (2, Q_HEADS, KV_HEADS, WINDOW, SINKS, q_ptr, sinks_ptr, out_ptr, q_tiles.index(2)) + shared),
                (_fetch, (KV_HEADS, D, BLOCK_TOKENS, BLOCK_ROWS) + fetched),
            ] if WARPGROUPS == 3 else [
                (_attend, (0, Q_HEADS, KV_HEADS, WINDOW, SINKS, q_ptr, sinks_ptr, out_ptr, q_tiles.index(0)) + shared),
                (_attend, (1, Q_HEADS, KV_HEADS, WINDOW, SINKS, q_ptr, sinks_ptr, out_ptr, q_tiles.index(1)) + shared),
                (_fetch, (KV_HEADS, D, BLOCK_TOKENS, BLOCK_ROWS) + fetched),
            ],
            [4, 4, 1] if WARPGROUPS == 3 else [4, 1],
            [160, 160, 24] if WARPGROUPS == 3 else [240, 24],
        )  # fmt: skip


def suits_hopper(q: Tensor, kv_pool: Tensor, window: int | None) -> bool:
    """Decide if `paged_prefill_attention_hopper` takes these tensors and is the faster kernel."""
    _, _, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    return (
        (window is None or window * head_dim >= LEAST_SEEN)
        and q.dtype in (torch.bfloat16, torch.float16)
        and kv_pool.dtype == q.dtype
        and block_tokens in (16, 32, 64, 128)
        and block_tokens <= TILE_TOKENS.get(head_dim, 0)
        and q.shape[1] // kv_heads <= ROWS.value
        and q.is_cuda
        and torch.cuda.get_device_capability(q.device)[0] == 9
    )


def paged_prefill_attention_hopper(
    q: Tensor,
    kv: KvLayer,
    rows: PrefillRows,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """As `baton_kernels.attention.prefill_attention.paged_prefill_attention`, for tensors that `suits_hopper`
    accepts."""
    tokens, q_heads, head_dim = q.shape
    _, layers, _, kv_heads, block_tokens, _ = kv.pool.shape
    out = torch.empty_like(q) if out is None else out
    box = [block_tokens, PANEL.value]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    pool_rows = TensorDescriptor.from_tensor(kv.pool.view(-1, head_dim), box, layout)
    tables, starts, lens = rows.block_tables, rows.query_starts, rows.context_lens
    chunks = lens.shape[0]
    warpgroups = WARPGROUPS[head_dim]
    if tiles := most_tiles(tokens, chunks, warpgroups * ROWS.value // (q_heads // kv_heads)):
        _prefill_hopper_kernel[(kv_heads, tiles)](
            q.contiguous(), pool_rows, tables, starts, lens, out if sinks is None else sinks, out, chunks,
            tables.stride(0), kv.layer, scale * LOG2_E.value, window or 0, q_heads, kv_heads, head_dim, block_tokens,
            layers, window is not None, sinks is not None, warpgroups, num_warps=4,
        )  # fmt: skip
    return out
