"""Llama 2 and 3: the plain decoder; other families are described by their differences from it."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import read_heads, read_layer_count, refuse_windows
from baton_wire.models.rope_config import read_rope


def read_llama_layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    """The layers of a config.json of Llama, and of families that differ from it elsewhere."""
    count, heads = read_layer_count(fields), read_heads(fields, kv_heads_required=False)
    refuse_windows(fields, count)
    bias = fields.flag("attention_bias", False)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
    )
    block = Dense(fields.integer("intermediate_size"), bias=fields.flag("mlp_bias", False))
    return (LayerSpec(mixer, block),) * count


LLAMA: Final = Family("LlamaForCausalLM", read_llama_layers, default_positions=2_048)
