"""Paged prefill attention in Triton: one program per tile of query rows of one kv head, online softmax over the
visible context.

The rows of a tile are (token, head of the group) pairs, token-major, so that one load of K and V serves the whole
group whatever its size. Tiles of keys that no row sees are not visited; rows see keys by position, so prefix and
window need no other case.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dot_dtype import dot_dtype

BLOCK_M = 64
BLOCK_N = 64


@triton.jit
def _prefill_kernel(
    q_ptr, pool_ptr, tables_ptr, starts_ptr, lens_ptr, out_ptr,
    table_stride, block_stride, layer_offset, scale, window,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = Q_HEADS // KV_HEADS
    TOKENS: tl.constexpr = BLOCK_M // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    query_begin = tl.load(starts_ptr + sequence)
    query_len = tl.load(starts_ptr + sequence + 1) - query_begin
    if tile * TOKENS >= query_len:
        return
    prefix = tl.load(lens_ptr + sequence) - query_len

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
    weighted = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(first, end, BLOCK_N):
        token = start + tl.arange(0, BLOCK_N)
        is_token = token < end
        block = tl.load(
            tables_ptr + sequence * table_stride + token // BLOCK_TOKENS, mask=is_token, other=0
        )  # [BLOCK_N]
        source = block.to(tl.int64) * block_stride + layer_offset
        source += (kv_head * BLOCK_TOKENS + token % BLOCK_TOKENS) * D
        is_loaded = is_token[:, None] & is_lane[None, :]
        key_ptr = pool_ptr + source[:, None] + lane[None, :]
        key = tl.load(key_ptr, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
        value = tl.load(key_ptr + KV_HEADS * BLOCK_TOKENS * D, mask=is_loaded, other=0.0).to(DOT)  # [BLOCK_N, D]
        scores = tl.dot(q, tl.trans(key), input_precision="ieee") * scale
        distance = position[:, None] - token[None, :]
        is_seen = distance >= 0
        if WINDOW:
            is_seen = is_seen & (distance < window)
        scores = tl.where(is_seen, scores, float("-inf"))
        raised = tl.maximum(maximum, tl.max(scores, axis=1))
        # A row may see nothing of a window's first tile: its maximum stays -inf, its weights must be 0 and not NaN.
        floor = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp(scores - floor[:, None])
        shrink = tl.exp(maximum - floor)
        total = total * shrink + tl.sum(weights, axis=1)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(DOT), value, input_precision="ieee")
        maximum = raised

    result = weighted / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out_ptr + place[:, None] + lane[None, :], result.to(out_ptr.dtype.element_ty), mask=is_row)


def paged_prefill_attention_triton(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    max_query_len: int | None = None,
) -> Tensor:
    """As `baton_kernels.prefill_attention.paged_prefill_attention`. Raises ValueError when a kv head has more query
    heads than a tile has rows."""
    _, q_heads, head_dim = q.shape
    _, _, _, kv_heads, block_tokens, _ = kv_pool.shape
    group = q_heads // kv_heads
    if group > BLOCK_M:
        raise ValueError(f"{group} query heads per kv head; the prefill kernel takes at most {BLOCK_M}")
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    longest = int(query_starts.diff().max()) if max_query_len is None else max_query_len
    if longest == 0:
        return out
    sequences = context_lens.shape[0]
    _prefill_kernel[(triton.cdiv(longest, BLOCK_M // group), kv_heads, sequences)](
        q.contiguous(), kv_pool, block_tables, query_starts, context_lens, out,
        block_tables.stride(0), kv_pool.stride(0), layer * kv_pool.stride(1), scale, window or 0,
        q_heads, kv_heads, head_dim, block_tokens,
        BLOCK_M, BLOCK_N, max(16, triton.next_power_of_2(head_dim)), window is not None, dot_dtype(q),
        num_warps=4,
    )  # fmt: skip
    return out
