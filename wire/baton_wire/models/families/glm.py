"""GLM-4, dense: half of each head rotated, in neighbouring pairs; those of 2025 (0414) with norms around each block."""

from __future__ import annotations

from functools import partial
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, LayerNorms, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import check_rotation, read_heads, read_layer_count, refuse_mlp_bias, refuse_windows
from baton_wire.models.rope_config import RopeOptions, read_rope

ROPE: Final = RopeOptions(share=0.5, interleaved=True)
STOPS: Final = (151_329, 151_336, 151_338)
AROUND: Final = LayerNorms(
    before_mixer="input_layernorm",
    after_mixer="post_self_attn_layernorm",
    before_feed_forward="post_attention_layernorm",
    after_feed_forward="post_mlp_layernorm",
)


def _layers(norms: LayerNorms, fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    refuse_mlp_bias(fields)
    count, heads = read_layer_count(fields), read_heads(fields, 128)
    refuse_windows(fields, count)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        check_rotation(fields, read_rope(fields, positions, ROPE), heads.head_dim),
        heads.head_dim**-0.5,
        qkv_bias=fields.flag("attention_bias", True),
    )
    block = Dense(fields.integer("intermediate_size"), gate_up=("gate_up_proj",))
    return (LayerSpec(mixer, block, norms),) * count


GLM: Final = Family(
    "GlmForCausalLM",
    partial(_layers, LayerNorms()),
    default_positions=131_072,
    default_eps=1.5625e-7,
    default_eos=STOPS,
)
GLM4: Final = Family(
    "Glm4ForCausalLM",
    partial(_layers, AROUND),
    default_positions=131_072,
    default_eps=1.5625e-7,
    default_eos=STOPS,
)
