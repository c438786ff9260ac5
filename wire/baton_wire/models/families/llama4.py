"""Llama 4, text alone: layers with a rotation and chunks, layers without either, and experts next to one that every
token takes. Within the first chunk all attention is the plain one, and contexts end there."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import MAX_POSITIONS, ConfigFields
from baton_wire.models.decoder_spec import (
    Attention,
    CorrectedChoice,
    Dense,
    Experts,
    ExpertTensors,
    LayerSpec,
    SharedExpert,
    StackedTensors,
)
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    FULL,
    MAX_EXPERTS,
    MAX_LAYERS,
    read_heads,
    read_layer_count,
    refuse_mlp_bias,
)
from baton_wire.models.rope_config import RopeConfig, RopeOptions, read_rope

CHUNKED: Final = "chunked_attention"
ROPE: Final = RopeOptions(types=("default", "linear", "dynamic", "llama3"), theta=500_000.0, interleaved=True)
"""Without types that scale cos and sin: heads are normed after the rotation."""
NAMES: Final = ("gate_proj", "up_proj", "down_proj")
STACKS: Final = StackedTensors(
    "feed_forward.experts.gate_up_proj",
    "feed_forward.experts.down_proj",
    in_turn=False,
    has_biases=False,
    apart=ExpertTensors("feed_forward.experts.{number}", NAMES),
)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    refuse_mlp_bias(fields)
    fields.only("sliding_window", None, "absent for this model_type")
    fields.only("router_jitter_noise", 0.0, "0")
    count = read_layer_count(fields)
    rotates = _read_rotating_layers(fields, count)
    kinds = _read_kinds(fields, rotates)
    sparse = _read_sparse_layers(fields, count)
    rotated = _mixer(fields, positions)
    still = replace(rotated, rope=RopeConfig(ROPE.theta, None, share=0.0), qk_norm=False)
    even = _even_positions(fields)
    chunk = fields.integer("attention_chunk_size", 8_192, maximum=MAX_POSITIONS)
    experts = _experts(fields)
    dense = Dense(fields.integer("intermediate_size_mlp", 16_384), name="feed_forward")
    layers = []
    for number in range(count):
        mixer = rotated if rotates[number] else replace(still, even_positions=even)
        if kinds[number] == CHUNKED:
            mixer = replace(mixer, even_positions=min(chunk, mixer.even_positions or chunk))
        layers.append(LayerSpec(mixer, experts if number in sparse else dense))
    return tuple(layers)


def _mixer(fields: ConfigFields, positions: int) -> Attention:
    heads, bias = read_heads(fields, 128), fields.flag("attention_bias", False)
    return Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions, ROPE),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=fields.flag("use_qk_norm", True),
        qk_norm_names=None,
    )


def _read_rotating_layers(fields: ConfigFields, count: int) -> list[bool]:
    """For each layer, whether it rotates queries and keys. An empty list is the default: every fourth does not."""
    every = fields.integer("no_rope_layer_interval", 4, maximum=MAX_LAYERS)
    given = fields.raw("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(count)]
    if not isinstance(given, list) or len(given) < count or any(rotates not in (0, 1) for rotates in given):
        raise fields.error("no_rope_layers", f"{count} entries, each 1 (a rotation) or 0, or absent")
    return [bool(rotates) for rotates in given[:count]]


def _read_kinds(fields: ConfigFields, rotates: list[bool]) -> list[str]:
    kinds = fields.raw("layer_types")
    if kinds is None:
        return [CHUNKED if rotated else FULL for rotated in rotates]
    if not isinstance(kinds, list) or len(kinds) != len(rotates) or any(kind not in (CHUNKED, FULL) for kind in kinds):
        raise fields.error("layer_types", f"{len(rotates)} entries, each {CHUNKED} or {FULL}")
    return kinds


def _read_sparse_layers(fields: ConfigFields, count: int) -> list[int]:
    every = fields.integer("interleave_moe_layer_step", 1, maximum=MAX_LAYERS)
    sparse = fields.raw("moe_layers")
    if sparse is None:
        return list(range(every - 1, count, every))
    if not isinstance(sparse, list) or not all(isinstance(layer, int) and 0 <= layer < count for layer in sparse):
        raise fields.error("moe_layers", f"a list of layers, each from 0 to {count - 1}")
    return sparse


def _even_positions(fields: ConfigFields) -> int | None:
    """Positions whose queries are not scaled: log(1 + floor((position + 1) / floor_scale)) is 0 for them."""
    if not fields.flag("attn_temperature_tuning", True):
        return None
    return fields.integer("floor_scale", 8_192, minimum=2, maximum=MAX_POSITIONS) - 1


def _experts(fields: ConfigFields) -> Experts:
    count, inner = fields.integer("num_local_experts", 16, maximum=MAX_EXPERTS), fields.integer("intermediate_size")
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 1, maximum=count),
        inner=inner,
        normalised=False,
        router="feed_forward.router",
        tensors=STACKS,
        corrected=CorrectedChoice(None),
        shared=SharedExpert(Dense(inner, name="feed_forward.shared_expert")),
        scales_inputs=True,
    )


LLAMA4: Final = Family("Llama4ForCausalLM", _layers, default_positions=131_072, default_eps=1e-5, default_eos=(2,))
