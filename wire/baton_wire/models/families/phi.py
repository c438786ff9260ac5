"""Phi-3 and Phi-4: Mistral with queries, keys and values in one tensor, gate and up in another, and LongRoPE."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import MAX_POSITIONS, ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    check_rotation,
    fixed_attention_bias,
    read_heads,
    read_layer_count,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import LONGROPE, RopeOptions, read_rope

ROPE: Final = RopeOptions(types=("default", *LONGROPE), share=1.0, original_positions=4_096)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    fixed_attention_bias(fields, False)
    refuse_mlp_bias(fields)
    fields.only("layer_types", None, "absent for this model_type")
    heads = read_heads(fields, kv_heads_required=False)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        check_rotation(fields, read_rope(fields, positions, ROPE), heads.head_dim),
        heads.head_dim**-0.5,
        fields.integer("sliding_window", maximum=MAX_POSITIONS) if fields.has("sliding_window") else None,
        qkv=("qkv_proj",),
    )
    block = Dense(fields.integer("intermediate_size"), gate_up=("gate_up_proj",))
    return (LayerSpec(mixer, block),) * read_layer_count(fields)


PHI3: Final = Family(
    "Phi3ForCausalLM",
    _layers,
    default_positions=4_096,
    default_eps=1e-5,
    default_eos=(32_000,),
    shipped_code=("configuration_phi3.Phi3Config", "modeling_phi3.Phi3ForCausalLM"),
)
