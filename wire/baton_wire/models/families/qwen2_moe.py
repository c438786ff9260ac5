"""Qwen2-MoE: Qwen2 with experts, and one expert that every token takes, weighed by a gate of its own."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, Experts, ExpertTensors, LayerSpec, SharedExpert
from baton_wire.models.families.family import Family
from baton_wire.models.families.qwen import read_sparse_layers
from baton_wire.models.reading import MAX_EXPERTS, read_heads, read_layer_count, refuse_mlp_bias
from baton_wire.models.rope_config import read_rope


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    refuse_mlp_bias(fields)
    layers, heads = read_layer_count(fields), read_heads(fields)
    fields.only("use_sliding_window", False, "false for this model_type")
    fields.only("layer_types", ["full_attention"] * layers, "full_attention in every layer for this model_type")
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions),
        heads.head_dim**-0.5,
        qkv_bias=fields.flag("qkv_bias", True),
    )
    dense = Dense(fields.integer("intermediate_size", 5_632))
    return read_sparse_layers(fields, LayerSpec(mixer, _experts(fields)), LayerSpec(mixer, dense))


def _experts(fields: ConfigFields) -> Experts:
    count = fields.integer("num_experts", 60, maximum=MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 4, maximum=count),
        inner=fields.integer("moe_intermediate_size", 1_408),
        normalised=fields.flag("norm_topk_prob", False),
        router="mlp.gate",
        tensors=ExpertTensors("mlp.experts.{number}", ("gate_proj", "up_proj", "down_proj")),
        shared=SharedExpert(
            Dense(fields.integer("shared_expert_intermediate_size", 5_632), name="mlp.shared_expert"),
            "mlp.shared_expert_gate",
        ),
    )


QWEN2_MOE: Final = Family("Qwen2MoeForCausalLM", _layers, default_positions=32_768)
