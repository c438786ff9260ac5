"""Attention of one new token per sequence over the paged pool: grouped query heads, sliding window.

    out[n] = softmax(scale · q[n] · K[:c]ᵀ) · V[:c]        c = context_lens[n], the current token included

With a window w only positions c - w ≤ j < c are seen. A row with context 0 (padding) gives zeros.
Query head h reads kv head h // (q_heads / kv_heads).

Bytes: 2·Hkv·D elements of K and V per context token: the whole cost. Q and the output are N·Hq·D each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.cpu.compiled.attention import compiled_attention, single_row_starts
from baton_kernels.cpu.decode_attention import DecodeIndex, decode_index, paged_decode_attention_cpu
from baton_kernels.kv_scales import check_scales
from baton_kernels.paged_context import read_context

__all__ = ["DecodeIndex", "decode_index", "paged_decode_attention", "paged_decode_attention_reference"]


def paged_decode_attention_reference(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """The formula above, one sequence at a time, in float32. Shapes as in `paged_decode_attention`."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // kv_pool.shape[3]
    for n, context_len in enumerate(context_lens.tolist()):
        if context_len == 0:
            continue
        first = 0 if window is None else max(0, context_len - window)
        key, value = read_context(kv_pool, layer, block_tables[n], context_len, kv_scales)
        key = key[:, first:].float().repeat_interleave(groups, 0)
        value = value[:, first:].float().repeat_interleave(groups, 0)
        scores = torch.einsum("hd,hjd->hj", q[n].float(), key) * scale
        out[n] = torch.einsum("hj,hjd->hd", scores.softmax(-1), value).to(q.dtype)
    return out


def paged_decode_attention(
    q: Tensor,
    kv_pool: Tensor,
    layer: int,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    index: DecodeIndex | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Attention of N sequences: q [N, Hq, D] → [N, Hq, D].

    kv_pool [blocks, layers, 2, Hkv, block_tokens, D]; block_tables [N, max_blocks] int32; context_lens [N] int32,
    the current token included. Table entries beyond a sequence's blocks and slots beyond its context are never
    used, whatever they hold. On the CPU an `index` made by `decode_index` once a step (same tables, lengths and
    window) saves its part of every layer; elsewhere it is ignored. A float8 pool comes with its kv_scales
    (`kv_scales.py`).
    """
    check_scales(kv_pool, kv_scales)
    if q.is_cuda:
        from baton_kernels.gpu.decode_attention import paged_decode_attention_triton

        return paged_decode_attention_triton(
            q, kv_pool, layer, block_tables, context_lens, scale, window, kv_scales=kv_scales
        )
    if index is None and (compiled := compiled_attention(q, kv_pool)) is not None:
        starts = single_row_starts(q.shape[0])
        return compiled(q, kv_pool, layer, block_tables, starts, context_lens, scale, window)
    index = index or decode_index(kv_pool, block_tables, context_lens, q.shape[1], window)
    return paged_decode_attention_cpu(q, kv_pool, layer, scale, index)
