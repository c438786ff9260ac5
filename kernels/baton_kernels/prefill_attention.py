"""Attention of prompt chunks over the paged pool: variable lengths, causal, grouped query heads, prefix, sliding window.

    out[i] = softmax(scale · q[i] · K[:p+1]ᵀ) · V[:p+1]        p = position of query i

Query i of sequence n sits at position p = context_len[n] - query_len[n] + i, with query_len[n] = query_starts[n+1] - query_starts[n];
the chunk's own K and V are already in the pool. With a window w it sees only positions j with p - j < w.
Query head h reads kv head h // (q_heads / kv_heads).

Bytes: reads T·Hq·D queries and, per tile of query rows, the 2·Hkv·D·context elements of K and V before them; writes T·Hq·D.
FLOPs: 4·Hq·D per visible (query, key) pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.paged_context import read_context


def paged_prefill_attention_reference(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """The formula above, one sequence at a time, in float32. Shapes as in `paged_prefill_attention`."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // kv_pool.shape[3]
    starts = query_starts.tolist()
    for n, context_len in enumerate(context_lens.tolist()):
        begin, end = starts[n], starts[n + 1]
        if begin == end:
            continue
        key, value = read_context(kv_pool, layer, block_tables[n], context_len)
        key, value = key.float().repeat_interleave(groups, 0), value.float().repeat_interleave(groups, 0)
        scores = torch.einsum("ihd,hjd->hij", q[begin:end].float(), key) * scale
        position = torch.arange(context_len - (end - begin), context_len, device=q.device)[:, None]
        distance = position - torch.arange(context_len, device=q.device)[None, :]
        visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        probabilities = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hij,hjd->ihd", probabilities, value).to(q.dtype)
    return out


def paged_prefill_attention(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attention of N chunks: q [T, q_heads, head_dim], kv_pool [blocks, layers, 2, kv_heads, block_tokens, head_dim],
    block_tables [N, max_blocks] int32, query_starts [N+1] int32, context_lens [N] int32 (this chunk included) → [T, q_heads, head_dim].

    Table entries beyond a sequence's blocks and slots beyond its context are never used, whatever they hold.
    """
    return paged_prefill_attention_reference(q, kv_pool, layer, block_tables, query_starts, context_lens, scale, window)
