"""Put a decoder together: read parameters, cast and move them once, fuse QKV and gate/up, pack them for the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_engine.config import ModelConfig
from baton_engine.layers.linear import Linear, LinearMethod, linear_method
from baton_engine.layers.norm import RmsNorm, pack_norm
from baton_engine.layers.rope import rope_tables
from baton_engine.models.decoder import Decoder, DecoderLayer
from baton_engine.parameters import EMBEDDING, FINAL_NORM, HEAD, layer_prefix
from baton_engine.weights import WeightSource


@dataclass(frozen=True, slots=True)
class _Reader:
    """Parameters of one source, in the dtype and on the device of the model."""

    source: WeightSource
    dtype: torch.dtype
    device: torch.device
    method: LinearMethod
    norm_eps: float

    def tensor(self, *names: str) -> Tensor:
        """The parameters stacked along dimension 0, in memory of their own (a mapped file may change or go away)."""
        shapes = [self.source.shapes[name] for name in names]
        rows = [shape[0] for shape in shapes]
        stacked = torch.empty(sum(rows), *shapes[0][1:], dtype=self.dtype, device=self.device)
        for part, name in zip(stacked.split_with_sizes(rows), names, strict=True):
            part.copy_(self.source.read(name))
        return stacked

    def norm(self, name: str) -> RmsNorm:
        return pack_norm(self.tensor(name), self.norm_eps)

    def linear(self, prefix: str, *projections: str, has_bias: bool) -> Linear:
        weight = self.tensor(*(f"{prefix}{name}.weight" for name in projections))
        bias = self.tensor(*(f"{prefix}{name}.bias" for name in projections)) if has_bias else None
        return self.method.pack(weight, bias)


def assemble(
    config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device, max_context_tokens: int
) -> Decoder:
    """The decoder of a config with the source's (already checked) parameters; RoPE tables reach max_context_tokens."""
    method = linear_method(dtype, device)
    reader = _Reader(source, dtype, device, method, config.rms_norm_eps)
    embedding = reader.tensor(EMBEDDING)
    # Tied: with rows as in the checkpoint the memory is shared; panels are a second copy, for the speed of the head.
    head = embedding if config.tied_head else reader.tensor(HEAD)
    return Decoder(
        embedding=embedding,
        layers=tuple(_assemble_layer(config, reader, layer) for layer in range(config.num_layers)),
        final_norm=reader.norm(FINAL_NORM),
        head=method.pack(head, None),
        rope=rope_tables(config.rope, config.head_dim, max_context_tokens, dtype, device),
        num_q_heads=config.num_q_heads,
        norm_eps=config.rms_norm_eps,
        attention_scale=config.head_dim**-0.5,
    )


def _assemble_layer(config: ModelConfig, reader: _Reader, layer: int) -> DecoderLayer:
    prefix = layer_prefix(layer)
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    return DecoderLayer(
        input_norm=reader.norm(f"{prefix}input_layernorm.weight"),
        qkv=reader.linear(attention, "q_proj", "k_proj", "v_proj", has_bias=config.qkv_bias),
        q_norm=reader.tensor(f"{attention}q_norm.weight") if config.qk_norm else None,
        k_norm=reader.tensor(f"{attention}k_norm.weight") if config.qk_norm else None,
        output=reader.linear(attention, "o_proj", has_bias=config.output_bias),
        mlp_norm=reader.norm(f"{prefix}post_attention_layernorm.weight"),
        gate_up=reader.linear(mlp, "gate_proj", "up_proj", has_bias=config.mlp_bias),
        down=reader.linear(mlp, "down_proj", has_bias=config.mlp_bias),
        window=config.windows[layer],
    )
