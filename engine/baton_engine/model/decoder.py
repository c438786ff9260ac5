"""The decoder: embedding, layers of attention and gated MLP, final norm, head. One implementation for every supported
family.

What differs between families is in the layers: optional weights (biases inside `Linear`, QK norms, norms of what is
added to the residual stream), windows, and which table of rotations they read.
Weights arrive ready from `assembly.py`; the KV pool and the rows of the step are passed in. No state of its own.

A stage of a pipeline is a decoder with some of the layers. The residual stream comes from the stage before and goes on
to the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from baton_engine.collectives.stage_relay import StageRelay
from baton_engine.model.layers.attention import StepRows, attend
from baton_engine.model.layers.linear import Projection, product
from baton_engine.model.layers.norm import RmsNorm
from baton_engine.model.layers.rope import RopeTables
from baton_engine.model.layers.summed import GatheredHead, VocabularyShare
from baton_engine.model.offloading import LayerRing
from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.attention.decode_attention import paged_decode_attention
from baton_kernels.attention.rope_kv_write import rope_kv_write
from baton_kernels.dense.rounded_rows import RoundedRows, plain
from baton_kernels.kv.kv_scales import KV_FP8
from baton_wire.kv_shape import LayerPlace

SPARED_ROWS: Final = 512
"""On a GPU, from this many rows without a wanted query on, it pays to compute the other rows' queries separately."""


def _pays(x: Tensor, wanted: Tensor) -> bool:
    return len(x) - len(wanted) >= (SPARED_ROWS if x.is_cuda else 1)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    qkv: Projection  # hidden_size → (q_heads + 2 · kv_heads) · head_dim
    key_value: Projection | None
    """K and V alone, for rows that need no more: of the last layer, on a GPU or where products are compiled."""
    head_norms: HeadNorms | None
    query_factor: Tensor | None
    """[head_dim] float32 that rotated queries are multiplied with."""
    output: Projection  # q_heads · head_dim → hidden_size
    mlp_norm: RmsNorm
    mlp: Projection
    next_norm: RmsNorm
    """Input norm of the next layer; after the last one the final norm."""
    rope: int
    """Index of the layer's table among the decoder's."""
    scale: float
    window: int | None
    place: LayerPlace
    sinks: Tensor | None
    """[q_heads] float32."""

    def scaled(self, q: Tensor) -> Tensor:
        """Rotated queries [T, q_heads, head_dim] as they meet the keys; `q` may be overwritten."""
        return q if self.query_factor is None else q.mul_(self.query_factor)


def _kind(layer: DecoderLayer) -> tuple[object, ...]:
    """Layers that are alike in it launch the same kernels."""
    blocks = (layer.qkv, layer.output, layer.mlp_norm, layer.mlp, layer.next_norm)
    optional = (layer.head_norms, layer.query_factor, layer.sinks)
    return (
        *(type(part) for part in (*blocks, *optional)),
        layer.rope,
        layer.scale,
        layer.window is None,
        layer.place.kv_group,
    )


@dataclass(frozen=True, slots=True)
class Decoder:
    embedding: Tensor  # [vocab_size, hidden_size]
    embedding_scale: float
    first_norm: RmsNorm
    layers: tuple[DecoderLayer, ...]
    head: Projection  # hidden_size → vocab_size
    ropes: tuple[RopeTables, ...]
    num_q_heads: int
    kv_scales: Tensor
    """[groups, layers of one, 2, kv_heads] float32 (`kv_scales.py`): what a float8 pool divides keys and values by."""
    rest_of_norm: Callable[[Tensor], Tensor] | None = None
    """The part of the final norm that the head computes; None: hidden states have passed all of it."""
    label_head: Tensor | None = None
    """[labels, hidden_size] float32 of a classifier."""
    ring: LayerRing | None = None
    """Copies the weights of layers that stay in the host's memory; None: all are on the device."""
    relay: StageRelay | None = None
    """The neighbours of a stage of a pipeline; None: the decoder has all layers."""

    def hidden_states(
        self, token_ids: Tensor, rows: StepRows, kv_pool: Tensor, written: Callable[[int], None] | None = None
    ) -> Tensor:
        """Run T rows: token_ids [T] int64 → the head's input for the wanted rows [S or T, hidden_size].

        The KV of all T rows goes into the pool. After each layer, `written` is called with the number of layers whose
        KV is written (on a GPU: will be written, once the kernels launched so far are done). Of a pipeline the last
        stage alone returns rows.
        """
        last = rows.last if self.draws else None
        groups, scales = rows.groups, self._scales(kv_pool)
        placed = [self._place(rows.positions, group.slot_mapping) for group in groups]
        residual = self._enter(token_ids)
        x: Tensor | RoundedRows = self.first_norm(residual)
        for number, layer in enumerate(self.layers):
            if self.ring is not None:
                self.ring.enter(number)
            at = layer.place
            kv = KvLayer(kv_pool, at.layer, None if scales is None else scales[at.kv_group])
            ending = last if number == len(self.layers) - 1 else None
            qkv, num_q_heads = layer.qkv, self.num_q_heads
            if ending is not None and layer.key_value is not None and _pays(residual, ending.rows):
                qkv, num_q_heads = layer.key_value, 0
            q = rope_kv_write(product(qkv, x), kv, placed[at.kv_group][layer.rope], num_q_heads, layer.head_norms)
            if written is not None:
                written(self.first_layer + number + 1)
            if ending is not None:
                if not ending.rows.numel():
                    return plain(x)[:0]
                residual = residual.index_select(0, ending.rows)
                if num_q_heads:
                    q = q.index_select(0, ending.rows)
                else:  # their K and V are complete, and a transfer may be reading them: not written twice
                    again, nowhere = layer.qkv(plain(x).index_select(0, ending.rows)), torch.full_like(ending.rows, -1)
                    unplaced = self._place(rows.positions.index_select(0, ending.rows), nowhere)
                    q = rope_kv_write(again, kv, unplaced[layer.rope], self.num_q_heads, layer.head_norms)
                q = layer.scaled(q)
                attended = paged_decode_attention(q, kv, ending.attention, layer.scale, layer.window, sinks=layer.sinks)
            else:
                attended = attend(layer.scaled(q), kv, groups[at.kv_group], layer.scale, layer.window, layer.sinks)
            x, residual = layer.mlp_norm.after(layer.output, attended.flatten(1), residual)
            x, residual = layer.next_norm.after(layer.mlp, x, residual)
            if self.ring is not None:
                self.ring.leave(number)
        if self.relay is not None and not self.draws:
            self.relay.send(residual)
            return residual[:0]
        return plain(x)

    @property
    def draws(self) -> bool:
        """True for the decoder that has the head: the last stage, or all layers in one."""
        return self.relay is None or self.relay.share.is_last

    @property
    def first_layer(self) -> int:
        """Number of the first layer among the model's."""
        return 0 if self.relay is None else self.relay.share.layers.start

    def _enter(self, token_ids: Tensor) -> Tensor:
        """The residual stream [T, hidden_size] before the first layer."""
        if self.relay is not None and not self.relay.share.is_first:
            return self.relay.receive((len(token_ids), self.embedding.shape[1]), self.embedding.dtype)
        residual = functional.embedding(token_ids, self.embedding)
        return residual if self.embedding_scale == 1.0 else residual * self.embedding_scale

    def sample(self) -> Decoder:
        """This decoder with one layer of each kind and the last layer: it launches the same kernels in little time. Its
        results are of no use; its layers keep their places in the pool."""
        kinds = {_kind(layer): layer for layer in reversed(self.layers[:-1])}
        return replace(self, layers=(*reversed(kinds.values()), self.layers[-1]))

    @property
    def kv_groups(self) -> int:
        """Groups of layers that share block tables."""
        return self.kv_scales.shape[0]

    def _place(self, positions: Tensor, slot_mapping: Tensor) -> tuple[PlacedRows, ...]:
        """The rows' positions and places with each of the rope tables."""
        return tuple(PlacedRows(positions, slot_mapping, rope.cos, rope.sin) for rope in self.ropes)

    def _scales(self, kv_pool: Tensor) -> Tensor | None:
        return self.kv_scales if kv_pool.dtype == KV_FP8 else None

    def normed(self, hidden: Tensor) -> Tensor:
        """The head's input [N, hidden_size] as the final norm leaves it, float32."""
        return (hidden if self.rest_of_norm is None else self.rest_of_norm(hidden)).float()

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [N, hidden_size] → float32 logits [N, vocab_size]."""
        return self.head(hidden).float()

    def drawn_logits(self, hidden: Tensor) -> Tensor:
        """The logits that a token is drawn from: of several ranks, this one's for its part of the vocabulary."""
        return self.head.part(hidden) if isinstance(self.head, GatheredHead) else self.head(hidden)

    @property
    def vocabulary(self) -> VocabularyShare | None:
        """The part of the vocabulary that `drawn_logits` are of; None: all of it."""
        return self.head.vocabulary if isinstance(self.head, GatheredHead) else None
