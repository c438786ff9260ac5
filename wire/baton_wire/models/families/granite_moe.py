"""Granite with experts, with one that every token takes, and Granite 4 without experts, whose heads may not rotate."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, Experts, LayerSpec, SharedExpert, StackedTensors
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    FULL,
    MAX_EXPERTS,
    read_heads,
    read_layer_count,
    refuse_mlp_bias,
    refuse_windows,
)
from baton_wire.models.rope_config import RopeConfig, read_rope

STACKS: Final = StackedTensors(
    "block_sparse_moe.input_linear.weight",
    "block_sparse_moe.output_linear.weight",
    columns_first=False,
    in_turn=False,
    has_biases=False,
)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count = read_layer_count(fields)
    refuse_windows(fields, count)
    return (_layer(fields, _mixer(fields, positions), _experts(fields)),) * count


def _layers_with_shared(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count, inner = read_layer_count(fields), fields.integer("shared_intermediate_size", 0, minimum=0)
    refuse_windows(fields, count)
    experts = replace(_experts(fields), shared=SharedExpert(_shared(inner)) if inner else None)
    return (_layer(fields, _mixer(fields, positions), experts),) * count


def _hybrid_layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    """Layers of attention alone."""
    count = read_layer_count(fields)
    fields.only("sliding_window", None, "absent for this model_type")
    name = "layer_types" if fields.has("layer_types") else "layers_block_type"
    kinds = fields.raw(name)
    if kinds not in (["attention"] * count, [FULL] * count):
        raise fields.error(name, f"attention in all {count} layers (Mamba layers are not served)")
    mixer = _mixer(fields, positions)
    fields.only("position_embedding_type", "rope", "rope or null")
    if not fields.has("position_embedding_type"):
        mixer = replace(mixer, rope=RopeConfig(mixer.rope.theta, None, share=0.0))
    shared = _shared(fields.integer("shared_intermediate_size", 1_024))
    if fields.integer("num_local_experts", 8, minimum=0, maximum=MAX_EXPERTS) == 0:
        return (_layer(fields, mixer, shared),) * count
    return (_layer(fields, mixer, replace(_experts(fields), shared=SharedExpert(shared))),) * count


def _layer(fields: ConfigFields, mixer: Attention, block: Dense | Experts) -> LayerSpec:
    return LayerSpec(mixer, block, residual_scale=fields.number("residual_multiplier", 1.0))


def _mixer(fields: ConfigFields, positions: int) -> Attention:
    refuse_mlp_bias(fields)
    heads, bias = read_heads(fields, kv_heads_required=False), fields.flag("attention_bias", False)
    return Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions),
        fields.number("attention_multiplier", 1.0),
        qkv_bias=bias,
        output_bias=bias,
    )


def _experts(fields: ConfigFields) -> Experts:
    count = fields.integer("num_local_experts", 8, maximum=MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 2, maximum=count),
        inner=fields.integer("intermediate_size"),
        normalised=True,
        router="block_sparse_moe.router.layer",
        tensors=STACKS,
    )


def _shared(inner: int) -> Dense:
    return Dense(inner, gate_up=("input_linear",), down="output_linear", name="shared_mlp")


GRANITE_MOE: Final = Family(
    "GraniteMoeForCausalLM", _layers, default_positions=2_048, multiplies=True, default_eos=(2,)
)
GRANITE_MOE_SHARED: Final = Family(
    "GraniteMoeSharedForCausalLM", _layers_with_shared, default_positions=2_048, multiplies=True, default_eos=(2,)
)
GRANITE_MOE_HYBRID: Final = Family(
    "GraniteMoeHybridForCausalLM", _hybrid_layers, default_positions=2_048, multiplies=True, default_eos=(2,)
)
