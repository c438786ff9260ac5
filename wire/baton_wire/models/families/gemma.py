"""Gemma 3, text alone: norms around each block, local and global layers with ropes of their own, a scaled embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, GeluGate, LayerNorms, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    FULL,
    SLIDING,
    fixed_attention_bias,
    read_heads,
    read_layer_count,
    read_layer_types,
    read_window,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import RopeConfig, RopeOptions, read_rope, read_rope_section

GLOBAL: Final = RopeOptions(theta=1_000_000.0)
LOCAL: Final = RopeOptions(types=("default",))
NORMS: Final = LayerNorms(
    before_mixer="input_layernorm",
    after_mixer="post_attention_layernorm",
    before_feed_forward="pre_feedforward_layernorm",
    after_feed_forward="post_feedforward_layernorm",
)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    fixed_attention_bias(fields, False)
    refuse_mlp_bias(fields)
    fields.only("attn_logit_softcapping", None, "absent (scores that are not capped)")
    fields.only("use_bidirectional_attention", False, "false")
    count, heads = read_layer_count(fields), read_heads(fields, 256)
    every = fields.integer("sliding_window_pattern", 6)
    kinds = read_layer_types(fields, [SLIDING if (layer + 1) % every else FULL for layer in range(count)])
    window = read_window(fields)
    if window is None and SLIDING in kinds:
        raise fields.error("sliding_window", "an integer where layer_types has sliding_attention")
    ropes = _ropes(fields, positions)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        ropes[FULL],
        fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        qk_norm=True,
    )
    local = replace(mixer, rope=ropes[SLIDING], window=window)
    block = Dense(fields.integer("intermediate_size"), GeluGate())
    return tuple(LayerSpec(local if kind == SLIDING else mixer, block, NORMS) for kind in kinds)


def _ropes(fields: ConfigFields, positions: int) -> dict[str, RopeConfig]:
    """By the layers' kind: an object for each, or one for the global layers and the base of the local ones."""
    given = fields.raw("rope_parameters")
    if isinstance(given, dict) and (FULL in given or SLIDING in given):
        sections = fields.section("rope_parameters")
        sections.refuse_others((FULL, SLIDING))
        return {
            kind: read_rope_section(fields, sections.section(kind), positions, options, options.theta, 1.0)
            for kind, options in ((FULL, GLOBAL), (SLIDING, LOCAL))
        }
    local = RopeConfig(fields.theta("rope_local_base_freq", LOCAL.theta), None)
    return {FULL: read_rope(fields, positions, GLOBAL), SLIDING: local}


GEMMA3: Final = Family(
    "Gemma3ForCausalLM",
    _layers,
    default_positions=131_072,
    activation=("hidden_activation", "gelu_pytorch_tanh"),
    default_tied=True,
    norms_from_one=True,
    scales_embedding=True,
    caps_logits=True,
    default_eos=(1,),
)
