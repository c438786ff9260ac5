"""gpt-oss: sinks, a window in every second layer, and experts in stacks with biases and a clamped gate."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, ClampedGate, Experts, LayerSpec, StackedTensors
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    FULL,
    MAX_EXPERTS,
    SLIDING,
    read_heads,
    read_layer_count,
    read_layer_types,
    read_window,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import RopeConfig, RopeOptions, YarnScaling, read_rope

ROPE: Final = RopeOptions(theta=150_000.0)
DEFAULT_YARN: Final = YarnScaling(32.0, 4_096, 32.0, 1.0, False, None, None, None)
"""Scaling of configs that say nothing of rope."""


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    refuse_mlp_bias(fields)
    count, heads = read_layer_count(fields), read_heads(fields, 64)
    kinds = read_layer_types(fields, [FULL if layer % 2 else SLIDING for layer in range(count)])
    window = read_window(fields, 128)
    if window is None and SLIDING in kinds:
        raise fields.error("sliding_window", "an integer where layer_types has sliding_attention")
    bias = fields.flag("attention_bias", True)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        _rope(fields, positions),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
    )
    local, experts = replace(mixer, window=window), _experts(fields)
    return tuple(LayerSpec(local if kind == SLIDING else mixer, experts) for kind in kinds)


def _rope(fields: ConfigFields, positions: int) -> RopeConfig:
    if fields.raw("rope_parameters") or fields.raw("rope_scaling"):  # empty is none
        return read_rope(fields, positions, ROPE)
    return RopeConfig(fields.theta("rope_theta", ROPE.theta), DEFAULT_YARN)


def _experts(fields: ConfigFields) -> Experts:
    count = fields.integer("num_local_experts", 128, maximum=MAX_EXPERTS)
    name = "num_experts_per_tok" if fields.has("num_experts_per_tok") else "experts_per_token"
    return Experts(
        count=count,
        per_token=fields.integer(name, 4, maximum=count),
        inner=fields.integer("intermediate_size"),
        normalised=True,
        router="mlp.router",
        tensors=StackedTensors("mlp.experts.gate_up_proj", "mlp.experts.down_proj"),
        gate=ClampedGate(fields.number("swiglu_limit", 7.0), fields.number("swiglu_alpha", 1.702)),
        router_bias=True,
    )


GPT_OSS: Final = Family("GptOssForCausalLM", _layers, default_positions=131_072, default_eps=1e-5)
