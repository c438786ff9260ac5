"""Prefill attention on the CPU: gather a sequence's K and V, then scaled_dot_product_attention with grouped query
heads.

Neighbouring sequences of equal shape share one call. A chunk without prefix uses the causal kernel (it skips half
the work); a prefix or a window takes an additive mask. The gathered rows and masks are the same for every layer and
made once a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from baton_kernels.attention.attention_inputs import KvLayer, PrefillRows

GATHER_BYTES = 16 * 2**20
"""Most K and V gathered for one call of several sequences: below the size at which malloc hands out fresh, unmapped
pages."""


@dataclass(frozen=True, slots=True)
class PrefillRun:
    """Neighbouring sequences with equal query and context lengths."""

    begin: int
    """First query row; the run covers members · queries rows."""
    members: int
    queries: int
    chunks: Tensor
    """Pool chunks (block_tokens · head_dim elements, layer 0) of [K, V][member][kv_head][block], flat int64."""
    first: int
    """Gathered slots before the first one that any query sees."""
    keys: int
    """Keys after those."""
    mask: Tensor | None
    """[queries, keys], 0 or -inf; None: plain causal, queries == keys."""


@dataclass(frozen=True, slots=True)
class PrefillIndex:
    """Indices that all layers of one prefill step share. Valid until a block table or a length changes."""

    runs: tuple[PrefillRun, ...]
    reach: int
    """Pool chunks from a layer's first K head to its last V head."""


def prefill_index(kv_pool: Tensor, rows: PrefillRows, window: int | None = None) -> PrefillIndex:
    """Index of one prefill step for all layers: arguments as in `paged_prefill_attention`."""
    starts, contexts = rows.query_starts.tolist(), rows.context_lens.tolist()
    shapes = [(end - begin, context) for begin, end, context in zip(starts, starts[1:], contexts, strict=False)]
    token_bytes = kv_pool.stride(0) * kv_pool.element_size() // (kv_pool.shape[1] * kv_pool.shape[4])
    runs = []
    for (queries, context), members in groupby(range(len(shapes)), key=shapes.__getitem__):
        if queries == 0:
            continue
        numbers = list(members)
        together = max(1, GATHER_BYTES // (context * token_bytes))
        for at in range(0, len(numbers), together):
            part = numbers[at : at + together]
            tables = rows.block_tables[part[0] : part[-1] + 1]
            runs.append(_run(kv_pool, tables, starts[part[0]], queries, context, window))
    layer_chunks = 2 * kv_pool.shape[3]
    return PrefillIndex(tuple(runs), ((kv_pool.shape[0] - 1) * kv_pool.shape[1] + 1) * layer_chunks)


def _run(kv_pool: Tensor, tables: Tensor, begin: int, queries: int, context: int, window: int | None) -> PrefillRun:
    _, layers, _, kv_heads, block_tokens, _ = kv_pool.shape
    seen_from = 0 if window is None else max(0, context - queries - window + 1)
    first_block = seen_from // block_tokens
    tables = tables[:, first_block : -(-context // block_tokens)].long()
    head_chunks = torch.arange(2 * kv_heads).view(2, 1, kv_heads, 1)
    chunks = tables[None, :, None, :] * (layers * 2 * kv_heads) + head_chunks
    mask = None
    if context > queries or (window is not None and window < context):
        position = torch.arange(context - queries, context)[:, None]
        distance = position - torch.arange(seen_from, context)
        hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
        mask = torch.zeros(hidden.shape, dtype=kv_pool.dtype).masked_fill_(hidden, float("-inf"))
    first = seen_from - first_block * block_tokens
    return PrefillRun(begin, tables.shape[0], queries, chunks.view(-1), first, context - seen_from, mask)


def paged_prefill_attention_cpu(
    q: Tensor, kv: KvLayer, rows: PrefillRows, scale: float, window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """Attention of one layer: q [T, Hq, D] → [T, Hq, D]. Rows of no sequence give zeros."""
    index = rows.memo.once(window, lambda: prefill_index(kv.pool, rows, window))
    if len(index.runs) == 1 and index.runs[0].members * index.runs[0].queries == q.shape[0]:
        return _attend(q, kv, scale, index.runs[0], index.reach, sinks)
    out = torch.zeros_like(q)
    for run in index.runs:
        end = run.begin + run.members * run.queries
        out[run.begin : end] = _attend(q[run.begin : end], kv, scale, run, index.reach, sinks)
    return out


def _attend(q: Tensor, kv: KvLayer, scale: float, run: PrefillRun, reach: int, sinks: Tensor | None) -> Tensor:
    """q [members · queries, Hq, D] → the same shape."""
    _, _, _, kv_heads, block_tokens, head_dim = kv.pool.shape
    chunks = kv.pool.view(-1, block_tokens * head_dim).narrow(0, kv.layer * 2 * kv_heads, reach)
    gathered = chunks.index_select(0, run.chunks).view(2, run.members, kv_heads, -1, head_dim)
    key, value = gathered.to(q.dtype).narrow(3, run.first, run.keys).unbind(0)
    query = q.reshape(run.members, run.queries, -1, head_dim).transpose(1, 2)
    mask = run.mask
    if sinks is not None:  # a key of zeros, whose score is the sink, and a value of zeros
        key, value = (torch.nn.functional.pad(side, (0, 0, 0, 1)) for side in (key, value))
        if mask is None:
            mask = torch.full((run.queries, run.keys), float("-inf"), dtype=q.dtype).triu_(1)
        column = sinks.to(q.dtype)[:, None, None].expand(-1, run.queries, 1)
        mask = torch.cat((mask.to(q.dtype).expand(sinks.shape[0], -1, -1), column), -1)
    out = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=query.shape[1] != kv_heads,
    )
    return out.transpose(1, 2).reshape(q.shape)
