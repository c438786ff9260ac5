"""OLMo 2 and 3: norms after each block instead of before it, one norm of all query heads and one of all key heads.
OLMo 3 has windows in three of four layers, and ropes for layers with and without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, LayerNorms, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    FULL,
    SLIDING,
    read_heads,
    read_layer_count,
    read_layer_types,
    read_window,
    refuse_mlp_bias,
    refuse_windows,
)
from baton_wire.models.rope_config import RopeConfig, RopeOptions, read_rope, read_rope_section

OLMO3_ROPE: Final = RopeOptions(theta=500_000.0)
AFTER: Final = LayerNorms(
    before_mixer=None,
    after_mixer="post_attention_layernorm",
    before_feed_forward=None,
    after_feed_forward="post_feedforward_layernorm",
)


def _olmo2(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count = read_layer_count(fields)
    refuse_windows(fields, count)
    return (LayerSpec(_mixer(fields, read_rope(fields, positions)), _block(fields), AFTER),) * count


def _olmo3(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count = read_layer_count(fields)
    kinds = read_layer_types(fields, [FULL if (layer + 1) % 4 == 0 else SLIDING for layer in range(count)])
    window = read_window(fields)
    if window is None and SLIDING in kinds:
        raise fields.error("sliding_window", "an integer where layer_types has sliding_attention")
    ropes = _ropes(fields, positions)
    mixer, block = _mixer(fields, ropes[FULL]), _block(fields)
    local = replace(mixer, rope=ropes[SLIDING], window=window)
    return tuple(LayerSpec(local if kind == SLIDING else mixer, block, AFTER) for kind in kinds)


def _mixer(fields: ConfigFields, rope: RopeConfig) -> Attention:
    heads, bias = read_heads(fields, kv_heads_required=False), fields.flag("attention_bias", False)
    fields.only("clip_qkv", None, "absent for this model_type")
    return Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        rope,
        heads.head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        joins_heads=True,
    )


def _block(fields: ConfigFields) -> Dense:
    refuse_mlp_bias(fields)
    return Dense(fields.integer("intermediate_size"))


def _ropes(fields: ConfigFields, positions: int) -> dict[str, RopeConfig]:
    """Read the RoPE of layers without a window and of layers with one. `rope_parameters` has an object for each; the
    older `rope_scaling` holds for layers without a window. With the latter, transformers applies `rope_theta` to layers
    of one kind only, so no other base than the default is accepted."""
    if fields.raw("rope_parameters") is None:
        fields.only("rope_theta", OLMO3_ROPE.theta, f"{OLMO3_ROPE.theta:g}, or rope_parameters for each kind of layer")
        return {FULL: read_rope(fields, positions, OLMO3_ROPE), SLIDING: RopeConfig(OLMO3_ROPE.theta, None)}
    sections = fields.section("rope_parameters")
    sections.refuse_others((FULL, SLIDING))
    for name in ("rope_theta", "rope_scaling"):
        fields.only(name, None, "absent next to rope_parameters")
    return {
        kind: read_rope_section(fields, sections.section(kind), positions, OLMO3_ROPE, OLMO3_ROPE.theta, 1.0)
        if sections.has(kind)
        else RopeConfig(OLMO3_ROPE.theta, None)
        for kind in (FULL, SLIDING)
    }


OLMO2: Final = Family("Olmo2ForCausalLM", _olmo2, default_positions=2_048, default_eps=1e-5, default_eos=(50_279,))
OLMO3: Final = Family("Olmo3ForCausalLM", _olmo3, default_positions=2_048, default_eps=1e-5, default_eos=(50_279,))
