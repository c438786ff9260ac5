"""Mistral: Llama without biases, a window in every layer or in none. Ministral 3 scales queries of late positions."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    fixed_attention_bias,
    read_heads,
    read_layer_count,
    read_window,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import RopeOptions, read_rope


def _mistral(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    return _layers(fields, positions, RopeOptions())


def _ministral3(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    if not fields.raw("rope_parameters") and not fields.raw("rope_scaling"):
        # transformers' default is a YaRN of one published size.
        raise fields.error("rope_parameters", "an object, which every Ministral 3 has")
    return _layers(fields, positions, RopeOptions(scales_queries=True))


def _layers(fields: ConfigFields, positions: int, rope: RopeOptions) -> tuple[LayerSpec, ...]:
    heads = read_heads(fields)
    fixed_attention_bias(fields, False)
    refuse_mlp_bias(fields)
    fields.only("layer_types", None, "absent for this model_type")
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions, rope),
        heads.head_dim**-0.5,
        read_window(fields),
    )
    return (LayerSpec(mixer, Dense(fields.integer("intermediate_size"))),) * read_layer_count(fields)


MISTRAL: Final = Family("MistralForCausalLM", _mistral)
MINISTRAL3: Final = Family("Ministral3ForCausalLM", _ministral3, default_eps=1e-5)
