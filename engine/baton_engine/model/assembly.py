"""Put a decoder together: read parameters, cast and move them once, fuse QKV and gate/up, pack them for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton_engine.model.decoder import Decoder, DecoderLayer
from baton_engine.model.formats.stored_weight import StoredWeight, join_weights
from baton_engine.model.formats.unpacking import pack_mxfp4_stack, unpack, unpack_mxfp4
from baton_engine.model.layers.experts import Router, SeparateExperts, StackedExperts
from baton_engine.model.layers.linear import Linear, LinearMethod, Projection, QuantisedLinear, RowLinear, linear_method
from baton_engine.model.layers.mlp import OtherGate, gated_mlp
from baton_engine.model.layers.norm import NormedProjection, PackedNorm, RmsNorm, WeightedRmsNorm, pack_norm, read_by
from baton_engine.model.layers.rope import rope_tables
from baton_engine.model.offloading import assemble_layers
from baton_engine.model.weights import WeightSource
from baton_kernels.attention.attention_inputs import HeadNorms
from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_kernels.dense.quantised_stack import QuantisedStack, stacked
from baton_kernels.dense.quantised_weight import QuantisedWeight
from baton_kernels.experts.expert_inputs import BiasedStacks, Mxfp4Stacks, PlainStacks, QuantisedStacks
from baton_kernels.experts.experts import streams_mxfp4
from baton_kernels.kv.kv_scales import GREATEST
from baton_wire.kv_shape import KvGroup, layer_places
from baton_wire.models.decoder_spec import (
    Attention,
    ClampedGate,
    DecoderSpec,
    Dense,
    Experts,
    ExpertTensors,
    Gate,
    SiluGate,
    StackedTensors,
)
from baton_wire.models.formats.layer_formats import WeightFormats
from baton_wire.models.kv_groups import kv_groups
from baton_wire.models.parameters import (
    EMBEDDING,
    FINAL_NORM,
    HEAD_LAYER,
    LABELS,
    SINKS,
    layer_prefix,
    linear_sizes,
    rotated_rows,
)


@dataclass(frozen=True, slots=True)
class _Reader:
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

    def tensor(self, *names: str) -> Tensor:
        """The parameters stacked along dimension 0, in memory of their own (a mapped file may change or go away)."""
        shapes = [self.source.headers[name].shape for name in names]
        rows = [shape[0] for shape in shapes]
        stacked = torch.empty(sum(rows), *shapes[0][1:], dtype=self.dtype, device=self.device)
        for part, name in zip(stacked.split_with_sizes(rows), names, strict=True):
            part.copy_(self.source.read(name))
        return stacked

    def norm_weight(self, name: str) -> Tensor:
        """The factors of a norm. If the checkpoint stores them less 1, they are float32: 16 bits would lose digits."""
        if not self.norms_from_one:
            return self.tensor(name)
        return self.source.read(name).to(device=self.device, dtype=torch.float32, copy=True).add_(1.0)

    def norm(self, name: str) -> PackedNorm:
        return pack_norm(self.norm_weight(name), self.norm_eps, self.dtype, self.method.reads_norms)

    def own_norm(self, name: str) -> WeightedRmsNorm:
        """A norm of its own, with nothing folded into the layers around it."""
        return WeightedRmsNorm(self.norm_weight(name), self.norm_eps)

    def head_norms(self, prefix: str, rows: Sequence[int] | None, head_dim: int) -> HeadNorms:
        """The norms of query and key heads, their dimensions in the order of the weights' `rows` (`rotated_rows`)."""
        q, k = (self.norm_weight(f"{prefix}{name}_norm.weight") for name in ("q", "k"))
        if rows is not None:
            q, k = (weight[list(rows[:head_dim])] for weight in (q, k))
        return HeadNorms(q, k, self.norm_eps)

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


def assemble(
    config: DecoderSpec,
    source: WeightSource,
    dtype: torch.dtype,
    device: torch.device,
    max_context_tokens: int,
    offloaded: int = 0,
) -> Decoder:
    """The decoder of a config with the source's (already checked) parameters; RoPE tables reach max_context_tokens.

    `offloaded`: how many layers stay in the host's memory. Raises ValueError where that is not fewer than there are.
    """
    method = linear_method(dtype, device)
    reader = _Reader(
        source, dtype, device, method, config.norm_eps, config.norms_from_one, config.formats, linear_sizes(config)
    )
    embedding = reader.tensor(EMBEDDING)
    prefixes = [layer_prefix(number) for number in range(config.num_layers)]
    input_norms = [
        reader.norm(f"{prefix}{layer.norms.before_mixer}.weight")
        for prefix, layer in zip(prefixes, config.layers, strict=True)
    ]
    final_norm = reader.norm(FINAL_NORM)
    borders = [*input_norms, final_norm]

    def build(layer: int) -> DecoderLayer:
        return _assemble_layer(config, reader, layer, borders[layer], borders[layer + 1])

    layers, ring = assemble_layers(config.num_layers, offloaded, device, build)
    readers = (layer.qkv for layer in layers[1:])
    layers = tuple(
        replace(layer, mlp_norm=read_by(layer.mlp_norm, layer.mlp), next_norm=read_by(layer.next_norm, reader))
        for layer, reader in zip(layers, (*readers, None), strict=True)
    )
    return Decoder(
        embedding=embedding,
        embedding_scale=float(torch.tensor(config.embedding_scale).to(dtype)),
        first_norm=borders[0].norm,
        layers=layers,
        head=_head(config, reader, embedding, final_norm),
        logit_cap=config.logit_cap,
        ropes=tuple(rope_tables(rope, config.head_dim, max_context_tokens, dtype, device) for rope in config.ropes),
        num_q_heads=config.attention.q_heads,
        kv_scales=_kv_scales(config, source).to(device),
        rest_of_norm=final_norm.rest(),
        label_head=reader.tensor(LABELS).float() if config.labels else None,
        ring=ring,
    )


def _head(config: DecoderSpec, reader: _Reader, embedding: Tensor, norm: PackedNorm) -> Linear:
    if not config.tied_head:
        return reader.linear("", HEAD_LAYER, has_bias=False, norm=norm)
    # With rows as in the checkpoint the memory is shared; the CPU's own layout is a second copy, for speed.
    weight = embedding if norm.scale is None else embedding * norm.scale
    return reader.method.pack(weight, None, norm.deferred_eps)


def _kv_scales(config: DecoderSpec, source: WeightSource) -> Tensor:
    """Scales of a float8 pool, [groups, layers of one, 2, kv_heads] float32: 1 for keys, 1/8 for values, which are
    smaller; more where a projection's bias alone would take half of the range (keys of Qwen2). Powers of two, the same
    on every worker."""
    scales = torch.ones(config.num_layers, 2, config.num_kv_heads)
    scales[:, 1] = 1 / 8
    for number, layer in enumerate(config.layers):
        mixer = layer.mixer
        if not mixer.qkv_bias:
            continue
        names = [f"{layer_prefix(number)}self_attn.{name}.bias" for name in mixer.qkv]
        biases = torch.cat([source.read(name).float().cpu() for name in names])
        for side, bias in enumerate(torch.split(biases[mixer.q_width :], mixer.kv_width)):
            greatest = bias.view(mixer.kv_heads, mixer.head_dim).abs().amax(-1)
            needed = torch.exp2(torch.ceil(torch.log2((2 * greatest / GREATEST).clamp(min=2.0**-20))))
            scales[number, side] = torch.maximum(scales[number, side], needed)
    groups = kv_groups(config) or (KvGroup(None, tuple(range(config.num_layers))),)
    by_group = torch.ones(len(groups), max(len(group.layers) for group in groups), *scales.shape[1:])
    for group, layers in zip(by_group, groups, strict=True):
        group[: len(layers.layers)] = scales[list(layers.layers)]
    return by_group


def _assemble_layer(
    config: DecoderSpec, reader: _Reader, number: int, input_norm: PackedNorm, next_norm: PackedNorm
) -> DecoderLayer:
    layer, prefix = config.layers[number], layer_prefix(number)
    mixer, norms, attention = layer.mixer, layer.norms, f"{prefix}self_attn."
    mlp, mlp_norm = _feed_forward(config, reader, number)
    rows = rotated_rows(mixer)
    qkv = reader.linear(attention, *mixer.qkv, has_bias=mixer.qkv_bias, norm=input_norm, rows=rows)
    output: Projection = reader.linear(attention, "o_proj", has_bias=mixer.output_bias)
    if norms.after_mixer is not None:
        output = NormedProjection(output, reader.own_norm(f"{prefix}{norms.after_mixer}.weight"))
    if norms.after_feed_forward is not None:
        mlp = NormedProjection(mlp, reader.own_norm(f"{prefix}{norms.after_feed_forward}.weight"))
    return DecoderLayer(
        qkv=qkv,
        key_value=_key_value(reader, mixer, attention, qkv, input_norm) if number == config.num_layers - 1 else None,
        head_norms=reader.head_norms(attention, rows, mixer.head_dim) if mixer.qk_norm else None,
        output=output,
        mlp_norm=mlp_norm,
        mlp=mlp,
        next_norm=next_norm.norm,
        rope=config.ropes.index(mixer.rope),
        scale=mixer.scale,
        window=mixer.window,
        place=layer_places(kv_groups(config), config.num_layers)[number],
        sinks=reader.tensor(prefix + SINKS).float() if mixer.sinks else None,
    )


def _key_value(reader: _Reader, mixer: Attention, prefix: str, qkv: Linear, input_norm: PackedNorm) -> Linear | None:
    """K and V of a layer alone, where that pays."""
    if isinstance(qkv, RowLinear | QuantisedLinear):
        return qkv.last_features(2 * mixer.kv_width)
    if not reader.method.reads_norms:
        return None
    rows = rotated_rows(mixer) or range(mixer.q_width + 2 * mixer.kv_width)
    return reader.linear(prefix, *mixer.qkv, has_bias=mixer.qkv_bias, norm=input_norm, rows=rows[mixer.q_width :])


def _feed_forward(config: DecoderSpec, reader: _Reader, number: int) -> tuple[Projection, RmsNorm]:
    """The block and the norm before it."""
    layer, prefix = config.layers[number], layer_prefix(number)
    block, name = layer.feed_forward, f"{prefix}{layer.norms.before_feed_forward}.weight"
    if isinstance(block, Experts):
        # Router and experts all read the norm, so it is folded into none.
        return _experts(block, reader, prefix), reader.own_norm(name)
    norm = reader.norm(name)
    return _dense(block, reader, f"{prefix}mlp.", norm), norm.norm


def _dense(block: Dense, reader: _Reader, prefix: str, norm: PackedNorm) -> Projection:
    silu = isinstance(block.gate, SiluGate)
    gate_up = reader.linear(prefix, *block.gate_up, has_bias=block.bias, norm=norm, gated=silu)
    down = reader.linear(prefix, "down_proj", has_bias=block.bias)
    return gated_mlp(_with_gate(gate_up, block.gate), down, block.inner)


def _with_gate(gate_up: Linear, gate: Gate) -> Linear:
    return gate_up if isinstance(gate, SiluGate) else OtherGate(gate_up, gate)


def _experts(experts: Experts, reader: _Reader, prefix: str) -> Projection:
    name = f"{prefix}{experts.router}"
    bias = reader.tensor(f"{name}.bias") if experts.router_bias else None
    arrived = torch.zeros(1, dtype=torch.int32, device=reader.device)
    router = Router(reader.tensor(f"{name}.weight"), bias, experts.per_token, experts.normalised, arrived)
    names, numbers = experts.tensors, range(experts.count)
    is_fast = reader.device.type != "cpu" and reader.dtype == torch.bfloat16
    if isinstance(names, StackedTensors):
        if is_fast and isinstance(experts.gate, ClampedGate):
            streams = streams_mxfp4(reader.device, router.weight.shape[1], experts.inner)
            if reader.formats.stacks is not None and streams:
                return StackedExperts(router, _mxfp4_stacks(names, reader, prefix, experts.gate))
            stacks = BiasedStacks(*_stacks(names, reader, prefix), experts.gate.limit, experts.gate.alpha)
            return StackedExperts(router, stacks)
        gate_up, gate_up_bias, down, down_bias = _stacks(names, reader, prefix)
        pack = reader.method.pack
        return SeparateExperts(
            router,
            tuple(_with_gate(pack(gate_up[n], gate_up_bias[n]), experts.gate) for n in numbers),
            tuple(pack(down[n], down_bias[n]) for n in numbers),
        )
    if is_fast:
        stored = _quantised_stacks(names, numbers, reader, prefix)
        if stored is not None:
            return StackedExperts(router, stored)
        gate_up = torch.stack([reader.weight(prefix, *names.gate_up(number)) for number in numbers])
        down = torch.stack([reader.weight(prefix, names.down(number)) for number in numbers])
        return StackedExperts(router, PlainStacks(gate_up, down))
    return SeparateExperts(
        router,
        tuple(reader.linear(prefix, *names.gate_up(n), has_bias=False, gated=True) for n in numbers),
        tuple(reader.linear(prefix, names.down(n), has_bias=False) for n in numbers),
    )


def _quantised_stacks(
    names: ExpertTensors, numbers: Sequence[int], reader: _Reader, prefix: str
) -> QuantisedStacks | None:
    """Expert stacks in their stored format; None if they are not quantised, or the device has no product for them."""

    def stack(sides: int, layers: Sequence[tuple[str, ...]]) -> QuantisedStack | None:
        parts = list[QuantisedWeight]()
        for layer in layers:
            packed = reader.linear(prefix, *layer, has_bias=False, gated=sides == 2)
            if not isinstance(packed, QuantisedLinear) or stacked([packed.weight], sides) is None:
                return None
            parts.append(packed.weight)
        return stacked(parts, sides)

    if reader.formats.of(prefix + names.down(numbers[0])) is None:
        return None
    gate_up = stack(2, [names.gate_up(number) for number in numbers])
    down = stack(1, [(names.down(number),) for number in numbers]) if gate_up is not None else None
    return None if gate_up is None or down is None else QuantisedStacks(gate_up, down)


def _stacks(names: StackedTensors, reader: _Reader, prefix: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Read gate_up, its bias, down and its bias. Gate and up alternate in the file; here gate comes first."""
    gate_up, down = reader.stack(prefix + names.gate_up), reader.stack(prefix + names.down)
    gate_up_bias, down_bias = _biases(names, reader, prefix)
    return torch.cat((gate_up[:, ::2], gate_up[:, 1::2]), 1), gate_up_bias, down, down_bias


def _mxfp4_stacks(names: StackedTensors, reader: _Reader, prefix: str, gate: ClampedGate) -> Mxfp4Stacks:
    gate_up, down = reader.mxfp4_stack(prefix + names.gate_up, in_turn=True), reader.mxfp4_stack(prefix + names.down)
    gate_up_bias, down_bias = _biases(names, reader, prefix)
    return Mxfp4Stacks(gate_up, gate_up_bias, down, down_bias, gate.limit, gate.alpha)


def _biases(names: StackedTensors, reader: _Reader, prefix: str) -> tuple[Tensor, Tensor]:
    bias = reader.tensor(f"{prefix}{names.gate_up}_bias")
    return torch.cat((bias[:, ::2], bias[:, 1::2]), 1), reader.tensor(f"{prefix}{names.down}_bias")
