"""Attention of prompt chunks over the paged pool: variable lengths, causal, grouped heads, prefix, sliding window.

    out[i] = softmax(scale · q[i] · K[:p+1]ᵀ) · V[:p+1]        p = position of query i

Query i of sequence n sits at position p = context_lens[n] - query_len + i, query_len = query_starts[n+1] -
query_starts[n]; the chunk's own K and V are already in the pool. With a window w it sees only positions j with p -
j < w. A head with a sink s has one weight exp(s) more in its softmax's sum.
Query head h reads kv head h // (q_heads / kv_heads).

Bytes: reads T·Hq·D queries and, per tile of query rows, the 2·Hkv·D·context elements of K and V; writes T·Hq·D.
FLOPs: 4·Hq·D per visible (query, key) pair.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import KvLayer, PrefillRows
from baton_kernels.attention.cpu.compiled_attention import compiled_attention
from baton_kernels.attention.cpu.prefill_attention import paged_prefill_attention_cpu
from baton_kernels.attention.paged_context import read_context, softmax_with_sinks

DIRECT_ROWS = 1_024
"""Most rows for which a float8 pool is read directly, tile by tile: no buffer is sized by the contexts' lengths, which
a captured graph does not know."""


def paged_prefill_attention_reference(
    q: Tensor, kv: KvLayer, rows: PrefillRows, scale: float, window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """The formula above, one sequence at a time, in float32. Shapes as in `paged_prefill_attention`."""
    out = torch.zeros_like(q)
    groups = q.shape[1] // kv.pool.shape[3]
    starts = rows.query_starts.tolist()
    for n, context_len in enumerate(rows.context_lens.tolist()):
        begin, end = starts[n], starts[n + 1]
        if begin == end:
            continue
        key, value = read_context(kv, rows.block_tables[n], context_len)
        key, value = key.float().repeat_interleave(groups, 0), value.float().repeat_interleave(groups, 0)
        scores = torch.einsum("ihd,hjd->hij", q[begin:end].float(), key) * scale
        position = torch.arange(context_len - (end - begin), context_len, device=q.device)[:, None]
        distance = position - torch.arange(context_len, device=q.device)[None, :]
        visible = distance >= 0 if window is None else (distance >= 0) & (distance < window)
        probabilities = softmax_with_sinks(scores.masked_fill(~visible, float("-inf")), sinks)
        out[begin:end] = torch.einsum("hij,hjd->ihd", probabilities, value).to(q.dtype)
    return out


def paged_prefill_attention(
    q: Tensor,
    kv: KvLayer,
    rows: PrefillRows,
    scale: float,
    window: int | None = None,
    out: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of N chunks: q [T, Hq, D] → [T, Hq, D]. Slots beyond a context are never used. sinks [Hq] float32.

    Rows before the first chunk and after the last are skipped: they stay unchanged in `out`, if given.
    Contexts of a float8 pool are brought to q's dtype first when there are more than DIRECT_ROWS rows.
    """
    if q.is_cuda:
        from baton_kernels.attention.gpu.prefill_attention import paged_prefill_attention_triton
        from baton_kernels.attention.gpu.prefill_attention_hopper import paged_prefill_attention_hopper, suits_hopper

        if kv.scales is not None and q.shape[0] > DIRECT_ROWS:
            from baton_kernels.attention.gpu.kv_dequantise import dequantise_contexts

            kv, tables = dequantise_contexts(kv, rows.block_tables, rows.context_lens, q.dtype)
            rows = replace(rows, block_tables=tables)
        if suits_hopper(q, kv.pool, window):
            return paged_prefill_attention_hopper(q, kv, rows, scale, window, out, sinks)
        return paged_prefill_attention_triton(q, kv, rows, scale, window, out, sinks)
    if (compiled := compiled_attention(q, kv.pool, sinks is not None)) is not None:
        return compiled(q, kv, rows.block_tables, rows.query_starts, rows.context_lens, scale, window, out, sinks)
    attended = paged_prefill_attention_cpu(q, kv, rows, scale, window, sinks)
    if out is None:
        return attended
    first, end = int(rows.query_starts[0]), int(rows.query_starts[-1])
    out[first:end] = attended[first:end]
    return out
