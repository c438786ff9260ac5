"""Attention of prompt chunks over the paged pool: variable lengths, causal, grouped heads, prefix, sliding window.

    out[i] = softmax(scale · q[i] · K[:p+1]ᵀ) · V[:p+1]        p = position of query i

Query i of sequence n sits at position p = context_lens[n] - query_len + i, query_len = query_starts[n+1] -
query_starts[n]; the chunk's own K and V are already in the pool. With a window w it sees only positions j with p -
j < w. Query head h reads kv head h // (q_heads / kv_heads).

Bytes: reads T·Hq·D queries and, per tile of query rows, the 2·Hkv·D·context elements of K and V; writes T·Hq·D.
FLOPs: 4·Hq·D per visible (query, key) pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.cpu.compiled.attention import compiled_attention
from baton_kernels.cpu.prefill_attention import PrefillIndex, paged_prefill_attention_cpu, prefill_index
from baton_kernels.kv_scales import check_scales
from baton_kernels.paged_context import read_context

__all__ = ["PrefillIndex", "paged_prefill_attention", "paged_prefill_attention_reference", "prefill_index"]


def paged_prefill_attention_reference(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    block_tables: Tensor,
    query_starts: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """The formula above, one sequence at a time, in float32. Shapes as in `paged_prefill_attention`."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // kv_pool.shape[3]
    starts = query_starts.tolist()
    for n, context_len in enumerate(context_lens.tolist()):
        begin, end = starts[n], starts[n + 1]
        if begin == end:
            continue
        key, value = read_context(kv_pool, layer, block_tables[n], context_len, kv_scales)
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
    index: PrefillIndex | None = None,
    max_query_len: int | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Attention of N chunks: q [T, Hq, D] → [T, Hq, D].

    kv_pool [blocks, layers, 2, Hkv, block_tokens, D]; block_tables [N, max_blocks] int32; query_starts [N+1] int32;
    context_lens [N] int32, this chunk included. Table entries beyond a sequence's blocks and slots beyond its
    context are never used, whatever they hold. On the CPU an `index` made by `prefill_index` once a step saves its
    part of every layer; on a GPU `max_query_len`, an upper bound of the chunks' lengths, saves reading query_starts
    back. A float8 pool comes with its kv_scales (`kv_scales.py`); its contexts are brought to q's dtype first.
    """
    check_scales(kv_pool, kv_scales)
    if q.is_cuda:
        from baton_kernels.gpu.prefill_attention import paged_prefill_attention_triton
        from baton_kernels.gpu.prefill_attention_hopper import paged_prefill_attention_hopper, suits_hopper

        if kv_scales is not None:
            from baton_kernels.gpu.kv_dequantise import dequantise_contexts

            kv_pool, block_tables = dequantise_contexts(kv_pool, layer, block_tables, context_lens, kv_scales, q.dtype)
            layer = 0
        if suits_hopper(q, kv_pool, window):
            return paged_prefill_attention_hopper(
                q, kv_pool, layer, block_tables, query_starts, context_lens, scale, max_query_len
            )
        return paged_prefill_attention_triton(
            q, kv_pool, layer, block_tables, query_starts, context_lens, scale, window, max_query_len
        )
    if index is None and (compiled := compiled_attention(q, kv_pool)) is not None:
        return compiled(q, kv_pool, layer, block_tables, query_starts, context_lens, scale, window)
    index = index or prefill_index(kv_pool, block_tables, query_starts, context_lens, window)
    return paged_prefill_attention_cpu(q, kv_pool, layer, scale, index)
