"""Attention over the paged pool for one step: which rows belong to which sequence, and the call into the kernels.

Rows of a step are flat: the tokens of all prefill chunks first, then one row per decoding sequence. The metadata is
made once a step and read by every layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.decode_attention import paged_decode_attention
from baton_kernels.prefill_attention import paged_prefill_attention


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Chunks of N sequences. Shapes as the kernel takes them; lens count the context with this chunk."""

    block_tables: Tensor  # [N, max_blocks] int32
    query_starts: Tensor  # [N + 1] int32
    context_lens: Tensor  # [N] int32


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """One row for each of N sequences; lens count the context with the current token."""

    block_tables: Tensor  # [N, max_blocks] int32
    context_lens: Tensor  # [N] int32


@dataclass(frozen=True, slots=True)
class StepRows:
    """All T rows of a step."""

    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block · block_tokens + slot within it
    num_prefill_rows: int
    prefill: PrefillRows | None
    decode: DecodeRows | None


def attend(q: Tensor, kv_pool: Tensor, layer: int, rows: StepRows, scale: float, window: int | None) -> Tensor:
    """Attention of q [T, q_heads, head_dim], whose keys and values are already in the pool → the same shape."""
    prefill, decode = rows.prefill, rows.decode
    if prefill is None:
        assert decode is not None, "a step without rows never reaches the model"
        return paged_decode_attention(q, kv_pool, layer, decode.block_tables, decode.context_lens, scale, window)
    chunks = q if decode is None else q[: rows.num_prefill_rows]
    attended = paged_prefill_attention(
        chunks, kv_pool, layer, prefill.block_tables, prefill.query_starts, prefill.context_lens, scale, window
    )
    if decode is None:
        return attended
    tail = q[rows.num_prefill_rows :]
    decoded = paged_decode_attention(tail, kv_pool, layer, decode.block_tables, decode.context_lens, scale, window)
    return torch.cat((attended, decoded))
