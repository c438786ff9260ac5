"""Seed-OSS: Llama with biases of queries, keys and values, and of the output only if its config says so."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import read_heads, read_layer_count, refuse_windows
from baton_wire.models.rope_config import read_rope


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count, heads = read_layer_count(fields), read_heads(fields, 128)
    refuse_windows(fields, count)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions),
        heads.head_dim**-0.5,
        qkv_bias=fields.flag("attention_bias", True),
        output_bias=fields.flag("attention_out_bias", False),
    )
    block = Dense(fields.integer("intermediate_size"), bias=fields.flag("mlp_bias", False))
    return (LayerSpec(mixer, block),) * count


SEED_OSS: Final = Family("SeedOssForCausalLM", _layers, default_positions=524_288, default_eos=(2,))
