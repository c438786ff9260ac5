"""Qwen2 and 2.5 (biases of queries, keys and values), Qwen3 (norms of query and key heads) and its mixtures."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, Experts, ExpertTensors, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    FULL,
    MAX_EXPERTS,
    SLIDING,
    fixed_attention_bias,
    read_heads,
    read_layer_count,
    read_layer_types,
    read_window,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import read_rope


def _qwen2(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    mixer = replace(_mixer(fields, positions), qkv_bias=fixed_attention_bias(fields, True))
    return _dense_layers(fields, mixer)


def _qwen3(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    return _dense_layers(fields, _normed(fields, _mixer(fields, positions, 128)))


def _qwen3_moe(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    fields.only("layer_types", None, "absent for this model_type")
    window = read_window(fields) if fields.flag("use_sliding_window", False) else None
    mixer = replace(_normed(fields, _mixer(fields, positions)), window=window)
    experts, dense = _experts(fields), Dense(fields.integer("intermediate_size"))
    return read_sparse_layers(fields, LayerSpec(mixer, experts), LayerSpec(mixer, dense))


def read_sparse_layers(fields: ConfigFields, sparse: LayerSpec, dense: LayerSpec) -> tuple[LayerSpec, ...]:
    """The layers of a mixture: every `decoder_sparse_step`th is sparse, unless `mlp_only_layers` names it."""
    layers = read_layer_count(fields)
    every = fields.integer("decoder_sparse_step", 1, maximum=1_024)
    unsparse = fields.raw("mlp_only_layers")
    if unsparse is None:
        unsparse = []
    if not isinstance(unsparse, list) or not all(isinstance(layer, int) and 0 <= layer < layers for layer in unsparse):
        raise fields.error("mlp_only_layers", f"a list of layers, each from 0 to {layers - 1}")
    return tuple(sparse if (layer + 1) % every == 0 and layer not in unsparse else dense for layer in range(layers))


def _mixer(fields: ConfigFields, positions: int, default_head_dim: int | None = None) -> Attention:
    refuse_mlp_bias(fields)
    heads = read_heads(fields, default_head_dim)
    rope = read_rope(fields, positions)
    return Attention(heads.q_heads, heads.kv_heads, heads.head_dim, rope, heads.head_dim**-0.5)


def _normed(fields: ConfigFields, mixer: Attention) -> Attention:
    bias = fields.flag("attention_bias", False)
    return replace(mixer, qk_norm=True, qkv_bias=bias, output_bias=bias)


def _dense_layers(fields: ConfigFields, mixer: Attention) -> tuple[LayerSpec, ...]:
    block = Dense(fields.integer("intermediate_size"))
    return tuple(LayerSpec(replace(mixer, window=window), block) for window in _windows(fields))


def _windows(fields: ConfigFields) -> tuple[int | None, ...]:
    layers = read_layer_count(fields)
    window = read_window(fields) if fields.flag("use_sliding_window", False) else None
    full = fields.integer("max_window_layers", 28, minimum=0)
    if not fields.has("layer_types"):
        return tuple(window if layer >= full else None for layer in range(layers))
    kinds = read_layer_types(fields, [FULL] * layers)
    if window is None and SLIDING in kinds:
        raise fields.error(
            "layer_types", "full_attention only, unless use_sliding_window is true and sliding_window given"
        )
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _experts(fields: ConfigFields) -> Experts:
    name = "num_experts" if fields.has("num_experts") else "num_local_experts"
    count = fields.integer(name, 128, maximum=MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 8, maximum=count),
        inner=fields.integer("moe_intermediate_size", 768),
        normalised=fields.flag("norm_topk_prob", False),
        router="mlp.gate",
        tensors=ExpertTensors("mlp.experts.{number}", ("gate_proj", "up_proj", "down_proj")),
    )


RANKING_FAMILIES: Final = ("qwen3",)
"""Families whose rerankers are asked for `yes` or `no`."""
QWEN2: Final = Family("Qwen2ForCausalLM", _qwen2)
QWEN3: Final = Family("Qwen3ForCausalLM", _qwen3)
QWEN3_MOE: Final = Family("Qwen3MoeForCausalLM", _qwen3_moe)
