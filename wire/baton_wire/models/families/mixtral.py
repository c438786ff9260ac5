"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import MAX_POSITIONS, ConfigFields
from baton_wire.models.decoder_spec import Attention, Experts, ExpertTensors, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    MAX_EXPERTS,
    fixed_attention_bias,
    read_heads,
    read_layer_count,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import RopeOptions, read_rope

ROPE: Final = RopeOptions(theta=1_000_000.0)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    heads = read_heads(fields)
    fixed_attention_bias(fields, False)
    refuse_mlp_bias(fields)
    fields.only("layer_types", None, "absent for this model_type")
    fields.only("router_jitter_noise", 0.0, "0 or absent")
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions, ROPE),
        heads.head_dim**-0.5,
        fields.integer("sliding_window", maximum=MAX_POSITIONS) if fields.has("sliding_window") else None,
    )
    count = fields.integer("num_local_experts", 8, maximum=MAX_EXPERTS)
    experts = Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 2, maximum=count),
        inner=fields.integer("intermediate_size"),
        normalised=True,
        router="block_sparse_moe.gate",
        tensors=ExpertTensors("block_sparse_moe.experts.{number}", ("w1", "w3", "w2")),
    )
    return (LayerSpec(mixer, experts),) * read_layer_count(fields)


MIXTRAL: Final = Family("MixtralForCausalLM", _layers, default_eps=1e-5)
