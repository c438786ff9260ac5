"""Attention over the paged pool for one step: which rows belong to which sequence, and the calls into the kernels.

Rows of a step are flat: one row per decoding sequence first, then the tokens of all prefill chunks. The metadata is
made once a step and read by every layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer, PrefillRows
from baton_kernels.attention.decode_attention import paged_decode_attention
from baton_kernels.attention.prefill_attention import paged_prefill_attention


@dataclass(frozen=True, slots=True)
class LastRows:
    """The S of a step's T rows whose hidden states are wanted: no other row goes through the last layer past its KV.

    A prompt of n tokens so costs n - 1 rows less of the last layer's queries, attention, projections and MLP. Each row
    attends to all of its sequence's context, which is what a decode row does.
    """

    rows: Tensor  # [S] int64
    attention: DecodeRows


@dataclass(frozen=True, slots=True)
class GroupRows:
    """A step's rows as the layers of one `kv_group` see them, which share block tables."""

    slot_mapping: Tensor  # [T] int64: block · block_tokens + slot within it; -1 is written nowhere
    prefill: PrefillRows | None
    decode: DecodeRows | None


@dataclass(frozen=True, slots=True)
class StepRows:
    """All T rows of a step. Padding rows have no context in `decode`, or come after the rows of `prefill`."""

    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # of the first group, as the next two
    prefill: PrefillRows | None
    decode: DecodeRows | None
    last: LastRows | None = None
    """The wanted rows, in the tables of the last layer's group; None: the hidden states of every row are wanted."""
    further: tuple[GroupRows, ...] = ()
    """The rows as the other groups see them."""

    @staticmethod
    def of_groups(
        positions: Tensor,
        places: Iterable[Tensor],
        prefill: Sequence[PrefillRows | None],
        decode: Sequence[DecodeRows | None],
        last: LastRows | None = None,
    ) -> StepRows:
        """positions [T] int64, and for each group its places [T] int64 and its rows."""
        first, *further = (GroupRows(*group) for group in zip(places, prefill, decode, strict=True))
        return StepRows(positions, first.slot_mapping, first.prefill, first.decode, last, tuple(further))

    @property
    def groups(self) -> tuple[GroupRows, ...]:
        return (GroupRows(self.slot_mapping, self.prefill, self.decode), *self.further)


def attend(q: Tensor, kv: KvLayer, rows: GroupRows, scale: float, window: int | None, sinks: Tensor | None) -> Tensor:
    """Attention of q [T, q_heads, head_dim], whose keys and values are already in the pool → the same shape."""
    prefill, decode = rows.prefill, rows.decode
    if prefill is None:
        assert decode is not None, "a step without rows never reaches the model"
        return paged_decode_attention(q, kv, decode, scale, window, sinks=sinks)
    if decode is None:
        return paged_prefill_attention(q, kv, prefill, scale, window, sinks=sinks)
    # Where decode rows end in padding, chunks may begin before its end: they are written after it.
    out = torch.zeros_like(q)
    decoding = decode.context_lens.shape[0]
    paged_decode_attention(q[:decoding], kv, decode, scale, window, out[:decoding], sinks)
    return paged_prefill_attention(q, kv, prefill, scale, window, out, sinks)
