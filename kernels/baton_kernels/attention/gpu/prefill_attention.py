"""Paged prefill attention in Triton: one program per tile of query rows of one kv head, online softmax over the
visible context.

The rows of a tile are (token, head of the group) pairs, token-major, so that one load of K and V serves the whole
group whatever its size. Tiles of keys that no row sees are not visited; rows see keys by position, so prefix and
window need no other case.

The grid counts the tiles of all chunks in a row and depends on shapes only: a program finds its chunk on the device
(`nth_tile`), so a captured graph serves any chunks that fit. Programs beyond the last tile end at once.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attention.attention_inputs import KvLayer, PrefillRows
from baton_kernels.attention.gpu.dot_dtype import dot_dtype

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    block_m: int
    """Query rows a tile: (token, head of the group) pairs."""
    block_n: int
    """Tokens a tile."""
    warps: int
    stages: int


HALF_PRECISION = PrefillConfig(64, 64, 4, 3)
LONG = PrefillConfig(128, 64, 4, 3)
LONG_TOKENS = 6_144
"""From here on wider tiles pay: fewer loads weigh more than the last wave's idle multiprocessors."""
FULL_PRECISION = PrefillConfig(64, 64, 4, 2)
MAX_GROUP = 64


CHUNK_LANES = tl.constexpr(16)
"""Chunks that `nth_tile` looks at together."""


def most_tiles(rows: int, chunks: int, tile_tokens: int) -> int:
    """Count the most tiles that `chunks` chunks with `rows` rows together may have."""
    return (rows + chunks * (tile_tokens - 1)) // tile_tokens


@triton.jit
def nth_tile(place, starts_ptr, chunks, TOKENS: tl.constexpr):
    """(chunk, tile within it, chunk's first row, its rows) of the tile at a place among those of all chunks, each
    chunk's last tile first: it sees the most keys. No rows: there are fewer tiles."""
    chunk = 0
    passed = 0
    tiles_before = 0
    for first in range(0, chunks, CHUNK_LANES):
        number = first + tl.arange(0, CHUNK_LANES)
        is_chunk = number < chunks
        begin = tl.load(starts_ptr + number, mask=is_chunk, other=0)
        tiles = tl.cdiv(tl.load(starts_ptr + number + 1, mask=is_chunk, other=0) - begin, TOKENS)  # [CHUNK_LANES]
        is_before = is_chunk & (tiles_before + tl.cumsum(tiles, 0) <= place)
        chunk += tl.sum(is_before.to(tl.int32), 0)
        passed += tl.sum(tl.where(is_before, tiles, 0), 0)
        tiles_before += tl.sum(tiles, 0)
    query_begin = tl.load(starts_ptr + chunk)
    query_len = tl.load(starts_ptr + chunk + 1, mask=chunk < chunks, other=query_begin) - query_begin
    return chunk, tl.cdiv(query_len, TOKENS) - 1 - (place - passed), query_begin, query_len


@triton.jit
def _visit(
    q, maximum, total, weighted, head_ptr, table_ptr, start, end, position, block_stride, scale, window,
    D: tl.constexpr, KV_HEADS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    WINDOW: tl.constexpr, DOT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One tile of keys and values of the online softmax, in powers of two."""
    tile = tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_D)
    token = start + tile
    is_token = token < end
    if BLOCK_TOKENS % BLOCK_N == 0:  # a tile lies within one block
        block = tl.load(table_ptr + start // BLOCK_TOKENS).to(tl.int64)
        place = block * block_stride + (start % BLOCK_TOKENS) * D + tile * D  # [BLOCK_N]
    else:
        blocks = tl.load(table_ptr + token // BLOCK_TOKENS, mask=is_token, other=0)  # [BLOCK_N]
        place = blocks.to(tl.int64) * block_stride + (token % BLOCK_TOKENS) * D
    key_ptr = head_ptr + place[:, None] + lane[None, :]
    value_ptr = key_ptr + KV_HEADS * BLOCK_TOKENS * D
    if MASKED or D != BLOCK_D:
        is_loaded = is_token[:, None] & (lane < D)[None, :]
        key = tl.load(key_ptr, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
        value = tl.load(value_ptr, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
    else:
        key = tl.load(key_ptr).to(DOT)  # [BLOCK_N, D]
        value = tl.load(value_ptr).to(DOT)  # [BLOCK_N, D]
    scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
    if MASKED:
        distance = position[:, None] - token[None, :]
        is_seen = distance >= 0
        if WINDOW:
            is_seen = is_seen & (distance < window)
        scores = tl.where(is_seen, scores, float("-inf"))
    raised = tl.maximum(maximum, tl.max(scores, axis=1))
    # A row may see nothing of a window's first tile: its maximum stays -inf, its weights must be 0 and not NaN.
    floor = tl.where(raised == float("-inf"), 0.0, raised) if MASKED else raised
    weights = tl.exp2(scores - floor[:, None])
    shrink = tl.exp2(maximum - floor)
    total = total * shrink + tl.sum(weights, axis=1)
    weighted = weighted * shrink[:, None] + tl.dot(weights.to(DOT), value, input_precision="ieee")
    return raised, total, weighted


@triton.jit(do_not_specialize=["chunks", "table_stride", "layer", "window"])
def _prefill_kernel(
    q_ptr, pool_ptr, tables_ptr, starts_ptr, lens_ptr, scales_ptr, sinks_ptr, out_ptr,
    chunks, table_stride, block_stride, layer, layer_stride, scale, window,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
    SCALED: tl.constexpr, SINKS: tl.constexpr, LOG2E: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    chunk, tile, query_begin, query_len = nth_tile(tl.program_id(0), starts_ptr, chunks, TOKENS)
    if query_len == 0:
        return
    kv_head = tl.program_id(1)
    sequence = chunk.to(tl.int64)
    prefix = tl.load(lens_ptr + sequence) - query_len
    value_scale = 1.0
    if SCALED:
        of_head = scales_ptr + layer * 2 * KV_HEADS + kv_head
        scale *= tl.load(of_head)
        value_scale = tl.load(of_head + KV_HEADS)

    row = tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_D)
    is_lane = lane < D
    query = tile * TOKENS + row // GROUP  # [BLOCK_M]
    position = prefix + query
    is_query = (row < TOKENS * GROUP) & (query < query_len)
    is_row = is_query[:, None] & is_lane[None, :]
    place = ((query_begin + query).to(tl.int64) * Q_HEADS + kv_head * GROUP + row % GROUP) * D
    q = tl.load(q_ptr + place[:, None] + lane[None, :], mask=is_row, other=0.0).to(DOT)  # [BLOCK_M, D]

    first = 0
    if WINDOW:
        first = tl.maximum(prefix + tile * TOKENS - window + 1, 0) // BLOCK_N * BLOCK_N
    end = prefix + tl.minimum(tile * TOKENS + TOKENS, query_len)
    maximum = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:
        maximum = tl.load(sinks_ptr + kv_head * GROUP + row % GROUP) * LOG2E
        total = tl.full([BLOCK_M], 1.0, tl.float32)
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # Tokens before `border` are seen by every row: their tiles need no mask.
    border = first
    if not WINDOW:
        border = (prefix + tile * TOKENS + 1) // BLOCK_N * BLOCK_N
    table_ptr = tables_ptr + sequence * table_stride
    head_ptr = pool_ptr + layer.to(tl.int64) * layer_stride + kv_head * BLOCK_TOKENS * D
    for start in range(first, border, BLOCK_N):
        maximum, total, weighted = _visit(
            q, maximum, total, weighted, head_ptr, table_ptr, start, end, position, block_stride, scale, window,
            D, KV_HEADS, BLOCK_TOKENS, BLOCK_N, BLOCK_D, WINDOW, DOT, False,
        )  # fmt: skip
    for start in range(border, end, BLOCK_N):
        maximum, total, weighted = _visit(
            q, maximum, total, weighted, head_ptr, table_ptr, start, end, position, block_stride, scale, window,
            D, KV_HEADS, BLOCK_TOKENS, BLOCK_N, BLOCK_D, WINDOW, DOT, True,
        )  # fmt: skip

    if SCALED:
        weighted *= value_scale
    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out_ptr + place[:, None] + lane[None, :], result.to(out_ptr.dtype.element_ty), mask=is_row)


def paged_prefill_attention_triton(
    q: Tensor,
    kv: KvLayer,
    rows: PrefillRows,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
    sinks: Tensor | None = None,
    config: PrefillConfig | None = None,
) -> Tensor:
    """As `baton_kernels.attention.prefill_attention.paged_prefill_attention`. Raises ValueError when a kv head has
    more query heads than a tile has rows."""
    kv_pool, block_tables = kv.pool, rows.block_tables
    tokens, q_heads, head_dim = q.shape
    _, _, _, kv_heads, block_tokens, _ = kv_pool.shape
    group = q_heads // kv_heads
    if group > MAX_GROUP:
        raise ValueError(f"{group} query heads per kv head; the prefill kernel takes at most {MAX_GROUP}")
    out = torch.empty_like(q) if out is None else out
    chunks = rows.context_lens.shape[0]
    config = config or _choose(q.dtype, tokens)
    if tiles := most_tiles(tokens, chunks, config.block_m // group):
        _prefill_kernel[(tiles, kv_heads)](
            q.contiguous(), kv_pool, block_tables, rows.query_starts, rows.context_lens,
            rows.context_lens if kv.scales is None else kv.scales,
            out if sinks is None else sinks, out,
            chunks, block_tables.stride(0), kv_pool.stride(0), kv.layer, kv_pool.stride(1), scale * LOG2_E, window or 0,
            q_heads, kv_heads, head_dim, block_tokens,
            config.block_m, config.block_n, max(16, triton.next_power_of_2(head_dim)), window is not None, dot_dtype(q),
            kv.scales is not None, sinks is not None, LOG2_E, num_warps=config.warps, num_stages=config.stages,
        )  # fmt: skip
    return out


def _choose(dtype: torch.dtype, tokens: int) -> PrefillConfig:
    if dtype == torch.float32:
        return FULL_PRECISION
    return LONG if tokens >= LONG_TOKENS else HALF_PRECISION
