"""Attention over the paged pool for one step: which rows belong to which sequence, and the calls into the kernels.

Rows of a step are flat: the tokens of all prefill chunks first, then one row per decoding sequence. The metadata is
made once a step and read by every layer; so are the index tensors that the CPU kernels derive from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.model.layers.rope import RopeTables
from baton_kernels.cpu.compiled.attention import suits_attention
from baton_kernels.cpu.decode_attention import DecodeIndex, decode_index
from baton_kernels.cpu.prefill_attention import PrefillIndex, prefill_index
from baton_kernels.cpu.rope_kv_write import RopeIndex, rope_index
from baton_kernels.decode_attention import paged_decode_attention
from baton_kernels.prefill_attention import paged_prefill_attention


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Chunks of N sequences. Shapes as the kernel takes them; lens count the context with this chunk."""

    block_tables: Tensor  # [N, max_blocks] int32
    query_starts: Tensor  # [N + 1] int32
    context_lens: Tensor  # [N] int32
    longest: int
    """Tokens of the longest chunk."""


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """One row for each of N sequences; lens count the context with the current token."""

    block_tables: Tensor  # [N, max_blocks] int32
    context_lens: Tensor  # [N] int32


@dataclass(frozen=True, slots=True)
class LastRows:
    """The S of a step's T rows whose hidden states are wanted: no other row goes through the last layer past its KV.

    A prompt of n tokens so costs n - 1 rows less of the last layer's queries, attention, projections and MLP. Each row
    attends to all of its sequence's context, which is what a decode row does.
    """

    rows: Tensor  # [S] int64
    attention: DecodeRows


@dataclass(frozen=True, slots=True)
class StepRows:
    """All T rows of a step."""

    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block · block_tokens + slot within it
    num_prefill_rows: int
    prefill: PrefillRows | None
    decode: DecodeRows | None
    last: LastRows | None = None
    """None: the hidden states of every row are wanted."""


@dataclass(frozen=True, slots=True)
class StepIndex:
    """What torch's CPU paths derive once a step from its rows, attention's by window. Empty for compiled kernels."""

    rope: RopeIndex | None
    prefill: Mapping[int | None, PrefillIndex]
    decode: Mapping[int | None, DecodeIndex]
    last: DecodeIndex | None = None


def index_step(
    rows: StepRows,
    kv_pool: Tensor,
    rope: RopeTables,
    num_q_heads: int,
    windows: Iterable[int | None],
    last_window: int | None,
) -> StepIndex:
    """`windows` of the layers that every row goes through, `last_window` of the last one."""
    if kv_pool.is_cuda or suits_attention(kv_pool):
        return StepIndex(None, {}, {})
    prefill, decode = rows.prefill, rows.decode
    prefill_indices: dict[int | None, PrefillIndex] = {}
    decode_indices: dict[int | None, DecodeIndex] = {}
    for window in windows:
        if prefill is not None:
            prefill_indices[window] = prefill_index(
                kv_pool, prefill.block_tables, prefill.query_starts, prefill.context_lens, window
            )
        if decode is not None:
            decode_indices[window] = decode_index(
                kv_pool, decode.block_tables, decode.context_lens, num_q_heads, window
            )
    rotation = rope_index(rows.positions, rope.cos, rope.sin, rows.slot_mapping, kv_pool)
    last = None
    if rows.last is not None and rows.last.rows.numel():
        attention = rows.last.attention
        last = decode_index(kv_pool, attention.block_tables, attention.context_lens, num_q_heads, last_window)
    return StepIndex(rotation, prefill_indices, decode_indices, last)


def attend(
    q: Tensor,
    kv_pool: Tensor,
    kv_scales: Tensor | None,
    layer: int,
    rows: StepRows,
    index: StepIndex,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention of q [T, q_heads, head_dim], whose keys and values are already in the pool → the same shape."""
    prefill, decode, border = rows.prefill, rows.decode, rows.num_prefill_rows
    if prefill is None:
        assert decode is not None, "a step without rows never reaches the model"
        return _attend_decode(q, kv_pool, kv_scales, layer, decode, index.decode.get(window), scale, window)
    if decode is None:
        return _attend_prefill(q, kv_pool, kv_scales, layer, prefill, index, scale, window)
    chunks = _attend_prefill(q[:border], kv_pool, kv_scales, layer, prefill, index, scale, window)
    singles = _attend_decode(q[border:], kv_pool, kv_scales, layer, decode, index.decode.get(window), scale, window)
    return torch.cat((chunks, singles))


def attend_last(
    q: Tensor,
    kv_pool: Tensor,
    kv_scales: Tensor | None,
    layer: int,
    last: LastRows,
    index: StepIndex,
    scale: float,
    window: int | None,
) -> Tensor:
    """Attention of the wanted rows alone: q [S, q_heads, head_dim], S ≥ 1 → the same shape."""
    return _attend_decode(q, kv_pool, kv_scales, layer, last.attention, index.last, scale, window)


def _attend_prefill(
    q: Tensor,
    kv_pool: Tensor,
    kv_scales: Tensor | None,
    layer: int,
    rows: PrefillRows,
    index: StepIndex,
    scale: float,
    window: int | None,
) -> Tensor:
    return paged_prefill_attention(
        q,
        kv_pool,
        layer,
        rows.block_tables,
        rows.query_starts,
        rows.context_lens,
        scale,
        window,
        index.prefill.get(window),
        rows.longest,
        kv_scales,
    )


def _attend_decode(
    q: Tensor,
    kv_pool: Tensor,
    kv_scales: Tensor | None,
    layer: int,
    rows: DecodeRows,
    index: DecodeIndex | None,
    scale: float,
    window: int | None,
) -> Tensor:
    return paged_decode_attention(
        q, kv_pool, layer, rows.block_tables, rows.context_lens, scale, window, index, kv_scales
    )
