"""Attention of one new token per sequence over the paged pool: grouped query heads, sliding window.

    out[n] = softmax(scale · q[n] · K[:c]ᵀ) · V[:c]        c = context_lens[n], the current token included

A head with a sink s has one weight exp(s) more in its softmax's sum, which no value is read for.
With a window w only positions c - w ≤ j < c are seen. A row with context 0 (padding) gives zeros.
Query head h reads kv head h // (q_heads / kv_heads).

Bytes: 2·Hkv·D elements of K and V per context token: the whole cost. Q and the output are N·Hq·D each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer
from baton_kernels.attention.cpu.compiled_attention import compiled_attention, single_row_starts
from baton_kernels.attention.cpu.decode_attention import paged_decode_attention_cpu
from baton_kernels.attention.paged_context import read_context, softmax_with_sinks


def paged_decode_attention_reference(
    q: Tensor, kv: KvLayer, rows: DecodeRows, scale: float, window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """The formula above, one sequence at a time, in float32. Shapes as in `paged_decode_attention`."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // kv.pool.shape[3]
    for n, context_len in enumerate(rows.context_lens.tolist()):
        if context_len == 0:
            continue
        first = 0 if window is None else max(0, context_len - window)
        key, value = read_context(kv, rows.block_tables[n], context_len)
        key = key[:, first:].float().repeat_interleave(groups, 0)
        value = value[:, first:].float().repeat_interleave(groups, 0)
        scores = torch.einsum("hd,hjd->hj", q[n].float(), key) * scale
        out[n] = torch.einsum("hj,hjd->hd", softmax_with_sinks(scores, sinks), value).to(q.dtype)
    return out


def paged_decode_attention(
    q: Tensor,
    kv: KvLayer,
    rows: DecodeRows,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of N sequences: q [N, Hq, D] → [N, Hq, D], in `out` if given. Slots beyond a context are never used.

    sinks [Hq] float32."""
    if q.is_cuda:
        from baton_kernels.attention.gpu.decode_attention import paged_decode_attention_triton

        return paged_decode_attention_triton(q, kv, rows, scale, window, out, sinks)
    if (compiled := compiled_attention(q, kv.pool, sinks is not None)) is not None:
        starts = single_row_starts(q.shape[0])
        return compiled(q, kv, rows.block_tables, starts, rows.context_lens, scale, window, out, sinks)
    attended = paged_decode_attention_cpu(q, kv, rows, scale, window, sinks)
    return attended if out is None else out.copy_(attended)
