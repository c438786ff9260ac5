"""Parameters of a checkpoint in the dtype and on the device of the model: read once, cast, joined into the layers that
are multiplied as one, and packed for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.collectives.collective import SINGLE_RANK, Collective
from baton_engine.model.formats.stored_weight import StoredWeight, join_weights
from baton_engine.model.formats.unpacking import pack_mxfp4_stack, unpack, unpack_mxfp4
from baton_engine.model.layers.linear import Linear, LinearMethod, Projection
from baton_engine.model.layers.norm import (
    JointlyNormed,
    PackedNorm,
    RankedJointNorms,
    WeightedRmsNorm,
    no_norm,
    pack_norm,
)
from baton_engine.model.weights import WeightSource
from baton_kernels.attention.attention_inputs import HeadNorms
from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_wire.models.decoder_spec import Attention
from baton_wire.models.formats.layer_formats import WeightFormats
from baton_wire.models.parameters import rotated_rows


@dataclass(frozen=True, slots=True)
class ParameterReader:
    """Parameters of one source, in the dtype and on the device of the model."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    method: LinearMethod
    norm_eps: float
    norms_from_one: bool
    formats: WeightFormats
    sizes: Mapping[str, tuple[int, int]]
    """Features and columns of each linear layer."""
    collective: Collective = SINGLE_RANK

    def tensor(self, *names: str) -> Tensor:
        """The parameters stacked along dimension 0, in memory of their own (a mapped file may change or go away)."""
        shapes = [self.source.headers[name].shape for name in names]
        rows = [shape[0] for shape in shapes]
        stacked = torch.empty(sum(rows), *shapes[0][1:], dtype=self.dtype, device=self.device)
        for part, name in zip(stacked.split_with_sizes(rows), names, strict=True):
            part.copy_(self.source.read(name))
        return stacked

    def exact(self, name: str) -> Tensor:
        """The parameter in float32, whatever the model's dtype."""
        return self.source.read(name).to(device=self.device, dtype=torch.float32, copy=True)

    def norm_weight(self, name: str) -> Tensor:
        """The factors of a norm. If the checkpoint stores them less 1, they are float32: 16 bits would lose digits."""
        if not self.norms_from_one:
            return self.tensor(name)
        return self.source.read(name).to(device=self.device, dtype=torch.float32, copy=True).add_(1.0)

    def norm(self, prefix: str, name: str | None) -> PackedNorm:
        """The norm before a linear layer, by its name after the prefix; None: there is no such norm."""
        if name is None:
            return no_norm()
        weight = self.norm_weight(f"{prefix}{name}.weight")
        return pack_norm(weight, self.norm_eps, self.dtype, self.method.reads_norms)

    def own_norm(self, name: str) -> WeightedRmsNorm:
        """A norm of its own, with nothing folded into the layers around it."""
        return WeightedRmsNorm(self.norm_weight(name), self.norm_eps)

    def head_norms(self, prefix: str, rows: Sequence[int] | None, mixer: Attention) -> HeadNorms:
        """The norms of query and key heads, their dimensions in the order of the weights' `rows` (`rotated_rows`)."""
        if mixer.qk_norm_names is None or mixer.norms_after_rotation:
            ones = torch.ones(mixer.head_dim, dtype=self.dtype, device=self.device)
            return HeadNorms(ones, ones.clone(), self.norm_eps)
        q, k = (self.norm_weight(f"{prefix}{name}.weight") for name in mixer.qk_norm_names)
        if rows is not None:
            q, k = (weight[list(rows[: mixer.head_dim])] for weight in (q, k))
        return HeadNorms(q, k, self.norm_eps)

    def query_factor(self, prefix: str, mixer: Attention) -> Tensor | None:
        """[head_dim] float32 that rotated queries are multiplied with: the weights of both norms that come after the
        rotation. In a product of a query and a key each pair of their weights is one factor, so keys need none."""
        if not mixer.norms_after_rotation or mixer.qk_norm_names is None:
            return None
        q, k = (self.exact(f"{prefix}{name}.weight") for name in mixer.qk_norm_names)
        return q * k

    def jointly_normed(self, prefix: str, mixer: Attention, qkv: Projection, has_queries: bool) -> Projection:
        """The projection of queries, keys and values, or of the last two, with the norms of `joins_heads`."""
        rows, width = rotated_rows(mixer), mixer.q_width
        q, k = (self.norm_weight(f"{prefix}{name}.weight") for name in mixer.qk_norm_names or ())
        if rows is not None:
            q, k = q[rows[:width]], k[[row - width for row in rows[width : width + mixer.kv_width]]]
        if self.collective.share.ranks > 1:
            return RankedJointNorms(qkv, q if has_queries else None, k, self.norm_eps, self.collective)
        q_norm = WeightedRmsNorm(q, self.norm_eps) if has_queries else None
        return JointlyNormed(qkv, q_norm, WeightedRmsNorm(k, self.norm_eps))

    def linear(
        self,
        prefix: str,
        *projections: str,
        has_bias: bool,
        norm: PackedNorm | None = None,
        gated: bool = False,
        rows: Sequence[int] | None = None,
    ) -> Linear:
        """The projections as one layer; `norm` comes before them. `rows`: the order in which it has their features."""
        bias = self.tensor(*(f"{prefix}{name}.bias" for name in projections)) if has_bias else None
        row_order = None if rows is None else torch.tensor(rows, device=self.device)
        if bias is not None and row_order is not None:
            bias = bias.index_select(0, row_order)
        layers = [prefix + name for name in projections]
        if any(self.formats.of(layer) for layer in layers):
            parts = [self._read_stored(layer) for layer in layers]
            packed = self._pack(parts, bias, row_order, norm, gated)
            if packed is not None:
                return packed
            weight = self._dense(parts)
        else:
            weight = self.weight(prefix, *projections)
        if row_order is not None:
            weight = weight.index_select(0, row_order)
        if norm is not None and norm.scale is not None:
            weight.mul_(norm.scale)
        return self.method.pack(weight, bias, norm.deferred_eps if norm is not None else None, gated)

    def weight(self, prefix: str, *projections: str) -> Tensor:
        """The projections' weights one below the other, in the model's dtype."""
        layers = [prefix + name for name in projections]
        if any(self.formats.of(layer) for layer in layers):
            return self._dense([self._read_stored(layer) for layer in layers])
        return self.tensor(*(f"{layer}.weight" for layer in layers))

    def stack(self, name: str) -> Tensor:
        """[experts, features, columns]; a tensor that is not quantised has columns before features."""
        if self.formats.stacks is not None:
            blocks, scales = self._blocks(name)
            return torch.stack([unpack_mxfp4(b, s, name).to(self.dtype) for b, s in zip(blocks, scales, strict=True)])
        return self.tensor(name).transpose(1, 2).contiguous()

    def mxfp4_stack(self, name: str, in_turn: bool = False) -> Mxfp4Stack:
        """The stack in its stored format. If gate and up rows are stored in turn (`in_turn`), gate comes first and up
        below it."""
        return pack_mxfp4_stack(*self._blocks(name), name, in_turn)

    def _blocks(self, name: str) -> tuple[Tensor, Tensor]:
        """The values and exponents of a stack in MXFP4."""
        blocks, scales = (self.source.read(f"{name}_{part}").to(self.device) for part in ("blocks", "scales"))
        return blocks, scales

    def _dense(self, parts: Sequence[StoredWeight | Tensor]) -> Tensor:
        dense = [part.dequantise() if isinstance(part, StoredWeight) else part for part in parts]
        return torch.cat([part.to(self.dtype) for part in dense])

    def _pack(
        self,
        parts: Sequence[StoredWeight | Tensor],
        bias: Tensor | None,
        rows: Tensor | None,
        norm: PackedNorm | None,
        gated: bool,
    ) -> Linear | None:
        """The parts as one product of quantised weights. None where they are not stored alike, or the device has no
        such product."""
        stored = [part for part in parts if isinstance(part, StoredWeight)]
        whole = join_weights(stored) if len(stored) == len(parts) else None
        if whole is not None and rows is not None:
            whole = whole.with_features(rows)
        if whole is None:
            return None
        deferred = None
        if norm is not None and norm.scale is not None and norm.deferred_eps is not None:
            deferred = norm.scale, norm.deferred_eps
        return self.method.pack_stored(whole, bias, self.dtype, deferred, gated)

    def _read_stored(self, layer: str) -> StoredWeight | Tensor:
        """The layer's weight in its stored format, on the device."""
        stored = self.formats.of(layer)
        if stored is None:
            return self.tensor(f"{layer}.weight")
        features, columns = self.sizes[layer]
        forms = stored.tensors(features, columns)
        names = [name for name in forms if f"{layer}.{name}" in self.source.headers]
        read = {name: self.source.read(f"{layer}.{name}").to(self.device, copy=True) for name in names}
        return unpack(stored, read, features, columns, layer)
