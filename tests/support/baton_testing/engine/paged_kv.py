"""Paged KV for kernel tests: sequences scattered over a pool in which everything outside their contexts is poison."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer, PrefillRows

FOREIGN_BLOCK = 999_983
"""Table entry beyond a sequence's blocks: no block of any test pool, so using it fails."""


@dataclass(frozen=True, slots=True)
class PagedKv:
    """A pool and what was written into it, un-paged."""

    pool: Tensor
    """[blocks, layers, 2, kv_heads, block_tokens, head_dim]; NaN and inf outside the contexts."""
    block_tables: Tensor
    """[N, max_blocks] int32."""
    context_lens: Tensor
    """[N] int32."""
    contexts: tuple[Tensor, ...]
    """Per sequence [layers, 2, kv_heads, context, head_dim], on the CPU."""

    def layer(self, number: int) -> KvLayer:
        return KvLayer(self.pool, number)

    def decode_rows(self) -> DecodeRows:
        return DecodeRows(self.block_tables, self.context_lens)

    def prefill_rows(self, query_starts: Tensor) -> PrefillRows:
        return PrefillRows(self.block_tables, query_starts, self.context_lens)


def paged_kv(  # noqa: PLR0913 - the shape of a pool and its contexts
    lengths: list[int],
    *,
    kv_heads: int,
    head_dim: int,
    block_tokens: int = 16,
    layers: int = 2,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> PagedKv:
    """Sequences of these lengths in randomly ordered blocks of a pool with three blocks to spare."""
    random = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_tokens) for length in lengths]
    blocks = sum(needed) + 3
    order = torch.randperm(blocks, generator=random).tolist()
    shape = (blocks, layers, 2, kv_heads, block_tokens, head_dim)
    pool = torch.where(torch.rand(shape, generator=random) < 0.5, float("nan"), float("inf")).to(dtype)
    tables = torch.full((len(lengths), max([*needed, 1]) + 2), FOREIGN_BLOCK, dtype=torch.int32)
    contexts = []
    for n, length in enumerate(lengths):
        content = torch.randn(layers, 2, kv_heads, length, head_dim, generator=random).to(dtype)
        for b in range(needed[n]):
            tables[n, b] = block = order.pop()
            part = content[:, :, :, b * block_tokens : (b + 1) * block_tokens]
            pool[block, :, :, :, : part.shape[3]] = part
        contexts.append(content)
    lens = torch.tensor(lengths, dtype=torch.int32)
    return PagedKv(pool.to(device), tables.to(device), lens.to(device), tuple(contexts))


def dense_attention(
    query: Tensor, context: Tensor, scale: float, first_position: int, window: int | None = None
) -> Tensor:
    """Attention by hand over un-paged K and V, in float64, one query and head at a time: query [Q, Hq, D],
    context [2, kv_heads, length, D] → [Q, Hq, D] float64. Query i sits at first_position + i."""
    key, value = context.double()
    group = query.shape[1] // key.shape[0]
    out = torch.zeros(query.shape, dtype=torch.float64)
    for i in range(query.shape[0]):
        position = first_position + i
        begin = 0 if window is None else max(0, position - window + 1)
        for h in range(query.shape[1]):
            seen = key[h // group, begin : position + 1]
            weight = torch.exp(seen @ query[i, h].double() * scale)
            out[i, h] = weight @ value[h // group, begin : position + 1] / weight.sum()
    return out
