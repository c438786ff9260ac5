"""Decode attention on the CPU without copying K or V: dot products and weighted sums over indexed pool rows.

The pool is seen as rows of head_dim elements. For float32 the scores come from `sampled_addmm`, whose sparsity
pattern lists the row of every visible token, and the output from `embedding_bag` with the probabilities as weights:
each K and V element is read once, in place. (Gathering K and V first moves every byte three times: 2–3 × slower at
12 heads × 64, docs/kernels.md.) Other dtypes gather and use bmm.

The pattern is the same for every layer, because a layer is only an offset into the pool: it is built once a step.
Sequences of similar length share a group, padded to its longest. Padding repeats the sequence's first visible row, so
that no slot outside a context is ever read.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer

GROUP_SLACK_TOKENS = 64
"""Padding a group of calls costs less than: one more group is about 25 µs a layer, as much as 64 tokens of 12
heads."""


@dataclass(frozen=True, slots=True)
class LengthGroup:
    """Sequences attended together. W is the longest visible length."""

    members: Tensor | None
    """Rows of the batch, [n] int64; None when the group is the whole batch in order."""
    columns: Tensor
    """Pool row of (sequence, query head, visible token), of layer 0's K: [n · Hq · W]."""
    starts: Tensor
    """0, W, 2W, …: [n · Hq], where each (sequence, query head) starts in `columns`."""
    scores: Tensor | None
    """Sparse [n · Hq, pool rows], pattern `columns`; its values are scratch, overwritten by each layer. None when
    not float32."""
    hidden: Tensor | None
    """True where a place is padding, [n, 1, W]; None when all lengths are equal."""


@dataclass(frozen=True, slots=True)
class DecodeIndex:
    """Indices that all layers of one decode step share. Valid until a block table or a context length changes."""

    groups: tuple[LengthGroup, ...]
    reach: int
    """Pool rows from a layer's first K row to its last."""


def length_groups(lengths: list[int]) -> list[list[int]]:
    """Indices of the non-zero lengths, in groups whose shortest is within a quarter (or GROUP_SLACK_TOKENS) of the
    longest."""
    groups: list[list[int]] = []
    longest = 0
    for i in sorted((i for i, length in enumerate(lengths) if length), key=lambda i: -lengths[i]):
        if not groups or longest - lengths[i] > max(longest // 4, GROUP_SLACK_TOKENS):
            groups.append([])
            longest = lengths[i]
        groups[-1].append(i)
    return [sorted(group) for group in groups]


def decode_index(kv_pool: Tensor, rows: DecodeRows, num_q_heads: int, window: int | None = None) -> DecodeIndex:
    """Index of one decode step for all layers: arguments as in `paged_decode_attention`."""
    blocks, layers, _, kv_heads, block_tokens, _ = kv_pool.shape
    contexts = rows.context_lens.tolist()
    visible = contexts if window is None else [min(context, window) for context in contexts]
    sparse = kv_pool.dtype == torch.float32
    reach = (blocks - 1) * layers * 2 * kv_heads * block_tokens + kv_heads * block_tokens
    groups = []
    for chosen in length_groups(visible):
        whole = len(chosen) == len(visible)
        members = None if whole else torch.tensor(chosen)
        tables = rows.block_tables if members is None else rows.block_tables.index_select(0, members)
        first = [contexts[i] - visible[i] for i in chosen]
        groups.append(
            _group(
                kv_pool, tables, first, [visible[i] for i in chosen], num_q_heads, members, reach if sparse else None
            )
        )
    return DecodeIndex(tuple(groups), reach)


def _group(
    kv_pool: Tensor,
    tables: Tensor,
    first: list[int],
    visible: list[int],
    num_q_heads: int,
    members: Tensor | None,
    reach: int | None,
) -> LengthGroup:
    longest = max(visible)
    rows = _token_rows(kv_pool, tables, first, visible)
    hidden = None
    if min(visible) < longest:
        hidden = torch.arange(longest) >= torch.tensor(visible)[:, None]
        rows = torch.where(hidden, rows[:, :1], rows)
        hidden = hidden[:, None]
    heads = _head_rows(num_q_heads, num_q_heads // kv_pool.shape[3], kv_pool.shape[4], rows.dtype)
    columns = (rows[:, None] + heads).view(-1)
    num_rows = len(visible) * num_q_heads
    bounds = torch.arange(0, num_rows * longest + 1, longest, dtype=rows.dtype)
    scores = None if reach is None else _pattern(bounds, columns, (num_rows, reach))
    return LengthGroup(members, columns, bounds[:-1], scores, hidden)


def _token_rows(kv_pool: Tensor, tables: Tensor, first: list[int], visible: list[int]) -> Tensor:
    """Row of layer 0's K, head 0 of each visible token: [n, longest]; padded places hold anything."""
    block_tokens, longest = kv_pool.shape[4], max(visible)
    block_rows = kv_pool.stride(0) // kv_pool.shape[5]
    index_type = torch.int32 if kv_pool.shape[0] * block_rows < 1 << 31 else torch.int64
    if not any(first):
        starts = tables[:, : -(-longest // block_tokens)].to(index_type) * block_rows
        return (starts[:, :, None] + _slots(block_tokens, index_type)).flatten(1)[:, :longest]
    last = torch.tensor([f + v - 1 for f, v in zip(first, visible, strict=True)])
    position = torch.minimum(torch.tensor(first)[:, None] + torch.arange(longest), last[:, None])
    starts = tables.gather(1, position // block_tokens).to(index_type) * block_rows
    return starts + (position % block_tokens).to(index_type)


@lru_cache(maxsize=4)
def _slots(block_tokens: int, index_type: torch.dtype) -> Tensor:
    return torch.arange(block_tokens, dtype=index_type)


@lru_cache(maxsize=16)
def _head_rows(num_q_heads: int, groups: int, block_tokens: int, index_type: torch.dtype) -> Tensor:
    return (torch.arange(num_q_heads, dtype=index_type) // groups * block_tokens)[:, None]


def _pattern(bounds: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    _announce_sparse_once()
    return torch.sparse_csr_tensor(bounds, columns, torch.zeros(columns.numel()), size=size, check_invariants=False)


@lru_cache(maxsize=1)
def _announce_sparse_once() -> None:
    # torch warns once a process that sparse CSR is in beta; we use one kernel of it, tested here against the reference.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0, 0], [], torch.zeros(0), size=(1, 1), check_invariants=False)


def paged_decode_attention_cpu(
    q: Tensor, kv: KvLayer, rows: DecodeRows, scale: float, window: int | None = None, sinks: Tensor | None = None
) -> Tensor:
    """Attention of one layer: q [N, Hq, D] contiguous → [N, Hq, D]."""
    num_q_heads = q.shape[1]
    index = rows.memo.once((num_q_heads, window), lambda: decode_index(kv.pool, rows, num_q_heads, window))
    _, _, _, kv_heads, block_tokens, head_dim = kv.pool.shape
    pool_rows = kv.pool.view(-1, head_dim)
    side = kv_heads * block_tokens
    keys = pool_rows.narrow(0, 2 * kv.layer * side, index.reach)
    values = pool_rows.narrow(0, (2 * kv.layer + 1) * side, index.reach)
    attend = _attend_gathered if kv.pool.dtype != torch.float32 else _attend_sparse
    if len(index.groups) == 1 and index.groups[0].members is None:
        return attend(q.reshape(-1, head_dim), keys, values, scale, index.groups[0], sinks).view(q.shape)
    out = torch.zeros_like(q)
    for group in index.groups:
        assert group.members is not None
        part = attend(q.index_select(0, group.members).view(-1, head_dim), keys, values, scale, group, sinks)
        out.index_copy_(0, group.members, part.view(-1, *q.shape[1:]))
    return out


def _attend_sparse(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, group: LengthGroup, sinks: Tensor | None
) -> Tensor:
    """q [n · Hq, D] → [n · Hq, D]."""
    pattern = group.scores
    torch.sparse.sampled_addmm(pattern, q, keys.t(), beta=0.0, alpha=scale, out=pattern)
    assert pattern is not None
    weights = _softmax(pattern.values(), q.shape[0], group, sinks).view(-1)
    return torch.embedding_bag(values, group.columns, group.starts, False, 0, False, weights)[0]


def _attend_gathered(
    q: Tensor, keys: Tensor, values: Tensor, scale: float, group: LengthGroup, sinks: Tensor | None
) -> Tensor:
    """As `_attend_sparse` for dtypes that the sparse kernel lacks; computed in float32."""
    num_rows, head_dim = q.shape
    key = keys.index_select(0, group.columns).view(num_rows, -1, head_dim).float()
    scores = torch.bmm(key, q.float()[:, :, None]) * scale
    weights = _softmax(scores.view(-1), num_rows, group, sinks)
    value = values.index_select(0, group.columns).view(num_rows, -1, head_dim).float()
    return torch.bmm(weights.view(num_rows, 1, -1), value).view(num_rows, head_dim).to(q.dtype)


def _softmax(scores: Tensor, num_rows: int, group: LengthGroup, sinks: Tensor | None) -> Tensor:
    if group.hidden is None:
        scores = scores.view(num_rows, -1)
    else:
        members, _, longest = group.hidden.shape
        scores = scores.view(members, -1, longest).masked_fill_(group.hidden, float("-inf")).view(num_rows, longest)
    if sinks is None:
        return scores.softmax(-1)
    extra = sinks.to(scores.dtype).repeat(num_rows // sinks.shape[0])[:, None]
    return torch.cat((scores, extra), -1).softmax(-1)[:, :-1].contiguous()
