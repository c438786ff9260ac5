"""Put a decoder together: read parameters, cast and move them once, fuse QKV and gate/up, pack them for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.model.decoder import Decoder, DecoderLayer
from baton_engine.model.expert_config import ExpertConfig
from baton_engine.model.formats.quantization import WeightFormats
from baton_engine.model.formats.stored_weight import StoredWeight, joined
from baton_engine.model.formats.unpacking import unpack
from baton_engine.model.layers.experts import Router, SeparateExperts, StackedExperts
from baton_engine.model.layers.linear import Linear, LinearMethod, Projection, QuantisedLinear, RowLinear, linear_method
from baton_engine.model.layers.mlp import gated_mlp
from baton_engine.model.layers.norm import PackedNorm, RmsNorm, WeightedRmsNorm, pack_norm
from baton_engine.model.layers.rope import rope_tables
from baton_engine.model.model_config import ModelConfig
from baton_engine.model.parameters import EMBEDDING, FINAL_NORM, HEAD_LAYER, is_sparse, layer_prefix, linear_sizes
from baton_engine.model.weights import WeightSource
from baton_kernels.attention_inputs import HeadNorms
from baton_kernels.kv_scales import GREATEST


@dataclass(frozen=True, slots=True)
class _Reader:
    """Parameters of one source, in the dtype and on the device of the model."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    method: LinearMethod
    norm_eps: float
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

    def norm(self, name: str) -> PackedNorm:
        return pack_norm(self.tensor(name), self.norm_eps, self.method.reads_norms)

    def head_norms(self, prefix: str) -> HeadNorms:
        return HeadNorms(self.tensor(f"{prefix}q_norm.weight"), self.tensor(f"{prefix}k_norm.weight"), self.norm_eps)

    def linear(
        self, prefix: str, *projections: str, has_bias: bool, norm: PackedNorm | None = None, gated: bool = False
    ) -> Linear:
        """The projections as one; `norm` comes before them."""
        bias = self.tensor(*(f"{prefix}{name}.bias" for name in projections)) if has_bias else None
        layers = [prefix + name for name in projections]
        if any(self.formats.of(layer) for layer in layers):
            parts = [self._stored(layer) for layer in layers]
            packed = self._packed(parts, bias)
            if packed is not None:
                return packed
            weight = self._dense(parts)
        else:
            weight = self.weight(prefix, *projections)
        if norm is not None and norm.scale is not None:
            weight.mul_(norm.scale)
        return self.method.pack(weight, bias, norm.deferred_eps if norm is not None else None, gated)

    def weight(self, prefix: str, *projections: str) -> Tensor:
        """The projections' weights one below the other, in the model's dtype."""
        layers = [prefix + name for name in projections]
        if any(self.formats.of(layer) for layer in layers):
            return self._dense([self._stored(layer) for layer in layers])
        return self.tensor(*(f"{layer}.weight" for layer in layers))

    def _dense(self, parts: Sequence[StoredWeight | Tensor]) -> Tensor:
        dense = [part.dequantised() if isinstance(part, StoredWeight) else part for part in parts]
        return torch.cat([part.to(self.dtype) for part in dense])

    def _packed(self, parts: Sequence[StoredWeight | Tensor], bias: Tensor | None) -> Linear | None:
        """The parts as one product of quantised weights. None where they are not stored alike, or the device has no
        such product."""
        stored = [part for part in parts if isinstance(part, StoredWeight)]
        whole = joined(stored) if len(stored) == len(parts) else None
        return None if whole is None else self.method.pack_stored(whole, bias, self.dtype)

    def _stored(self, layer: str) -> StoredWeight | Tensor:
        """The layer's weight as it is stored, on the device."""
        stored = self.formats.of(layer)
        if stored is None:
            return self.tensor(f"{layer}.weight")
        features, columns = self.sizes[layer]
        forms = stored.tensors(features, columns)
        names = [name for name in forms if f"{layer}.{name}" in self.source.headers]
        read = {name: self.source.read(f"{layer}.{name}").to(self.device, copy=True) for name in names}
        return unpack(stored, read, features, columns, layer)


def assemble(
    config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device, max_context_tokens: int
) -> Decoder:
    """The decoder of a config with the source's (already checked) parameters; RoPE tables reach max_context_tokens."""
    method = linear_method(dtype, device)
    reader = _Reader(source, dtype, device, method, config.rms_norm_eps, config.formats, linear_sizes(config))
    embedding = reader.tensor(EMBEDDING)
    input_norms = [reader.norm(f"{layer_prefix(layer)}input_layernorm.weight") for layer in range(config.num_layers)]
    final_norm = reader.norm(FINAL_NORM)
    borders = [*input_norms, final_norm]
    return Decoder(
        embedding=embedding,
        first_norm=borders[0].norm,
        layers=tuple(
            _assemble_layer(config, reader, layer, borders[layer], borders[layer + 1])
            for layer in range(config.num_layers)
        ),
        head=_head(config, reader, embedding, final_norm),
        rope=rope_tables(config.rope, config.head_dim, max_context_tokens, dtype, device),
        num_q_heads=config.num_q_heads,
        attention_scale=config.head_dim**-0.5,
        kv_scales=_kv_scales(config, source).to(device),
    )


def _head(config: ModelConfig, reader: _Reader, embedding: Tensor, norm: PackedNorm) -> Linear:
    if not config.tied_head:
        return reader.linear("", HEAD_LAYER, has_bias=False, norm=norm)
    # With rows as in the checkpoint the memory is shared; the CPU's own layout is a second copy, for speed.
    weight = embedding if norm.scale is None else embedding * norm.scale
    return reader.method.pack(weight, None, norm.deferred_eps)


def _kv_scales(config: ModelConfig, source: WeightSource) -> Tensor:
    """Scales of a float8 pool, [layers, 2, kv_heads] float32: 1 for keys, 1/8 for values, which are smaller; more where
    a projection's bias alone would take half of the range (keys of Qwen2). Powers of two, the same on every worker."""
    scales = torch.ones(config.num_layers, 2, config.num_kv_heads)
    scales[:, 1] = 1 / 8
    if config.qkv_bias:
        for layer in range(config.num_layers):
            for side, name in enumerate(("k_proj", "v_proj")):
                bias = source.read(f"{layer_prefix(layer)}self_attn.{name}.bias").float().cpu()
                greatest = bias.view(config.num_kv_heads, config.head_dim).abs().amax(-1)
                needed = torch.exp2(torch.ceil(torch.log2((2 * greatest / GREATEST).clamp(min=2.0**-20))))
                scales[layer, side] = torch.maximum(scales[layer, side], needed)
    return scales


def _assemble_layer(
    config: ModelConfig, reader: _Reader, layer: int, input_norm: PackedNorm, next_norm: PackedNorm
) -> DecoderLayer:
    prefix = layer_prefix(layer)
    attention = f"{prefix}self_attn."
    mlp, mlp_norm = _feed_forward(config, reader, layer)
    qkv = reader.linear(attention, "q_proj", "k_proj", "v_proj", has_bias=config.qkv_bias, norm=input_norm)
    key_value: Linear | None = None
    if layer == config.num_layers - 1:
        if isinstance(qkv, RowLinear | QuantisedLinear):
            key_value = qkv.last_features(2 * config.num_kv_heads * config.head_dim)
        elif reader.method.reads_norms:
            key_value = reader.linear(attention, "k_proj", "v_proj", has_bias=config.qkv_bias, norm=input_norm)
    return DecoderLayer(
        qkv=qkv,
        key_value=key_value,
        head_norms=reader.head_norms(attention) if config.qk_norm else None,
        output=reader.linear(attention, "o_proj", has_bias=config.output_bias),
        mlp_norm=mlp_norm,
        mlp=mlp,
        next_norm=next_norm.norm,
        window=config.windows[layer],
    )


def _feed_forward(config: ModelConfig, reader: _Reader, layer: int) -> tuple[Projection, RmsNorm]:
    """The block and the norm before it."""
    prefix = layer_prefix(layer)
    name = f"{prefix}post_attention_layernorm.weight"
    if config.experts is not None and is_sparse(config, layer):
        # Router and experts read the norm: it is not folded into any of them.
        return _experts(config.experts, reader, prefix), WeightedRmsNorm(reader.tensor(name), reader.norm_eps)
    norm, mlp = reader.norm(name), f"{prefix}mlp."
    block = gated_mlp(
        reader.linear(mlp, "gate_proj", "up_proj", has_bias=config.mlp_bias, norm=norm, gated=True),
        reader.linear(mlp, "down_proj", has_bias=config.mlp_bias),
        config.intermediate_size,
    )
    return block, norm.norm


def _experts(experts: ExpertConfig, reader: _Reader, prefix: str) -> Projection:
    router = Router(reader.tensor(f"{prefix}{experts.router}.weight"), experts.per_token, experts.normalised)
    numbers = range(experts.count)
    if reader.device.type == "cuda" and reader.dtype == torch.bfloat16:
        gate_up = torch.stack([reader.weight(prefix, *experts.gate_up(number)) for number in numbers])
        return StackedExperts(router, gate_up, torch.stack([reader.weight(prefix, experts.down(n)) for n in numbers]))
    return SeparateExperts(
        router,
        tuple(reader.linear(prefix, *experts.gate_up(n), has_bias=False, gated=True) for n in numbers),
        tuple(reader.linear(prefix, experts.down(n), has_bias=False) for n in numbers),
    )
