"""Ernie 4.5: Llama that rotates neighbouring dimensions, dense or with experts chosen by a softmax plus a bias."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import (
    Attention,
    CorrectedChoice,
    Dense,
    Experts,
    ExpertTensors,
    LayerSpec,
    SharedExpert,
)
from baton_wire.models.families.family import Family
from baton_wire.models.reading import MAX_EXPERTS, MAX_LAYERS, read_heads, read_layer_count, refuse_windows
from baton_wire.models.rope_config import RopeOptions, read_rope

ROPE: Final = RopeOptions(theta=500_000.0, interleaved=True)


def _dense_layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count, bias = read_layer_count(fields), fields.flag("use_bias", False)
    refuse_windows(fields, count)
    block = Dense(fields.integer("intermediate_size"), bias=bias)
    return (LayerSpec(_mixer(fields, positions, bias, 128), block),) * count


def _sparse_layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count = read_layer_count(fields)
    refuse_windows(fields, count)
    fields.only("use_bias", False, "false for this model_type")
    mixer = _mixer(fields, positions, False, None)
    dense = LayerSpec(mixer, Dense(fields.integer("intermediate_size", 12_288)))
    sparse = LayerSpec(mixer, _experts(fields))
    every = fields.integer("moe_layer_interval", 1, maximum=MAX_LAYERS)
    first = fields.integer("moe_layer_start_index", 1, minimum=0, maximum=MAX_LAYERS)
    last = fields.integer("moe_layer_end_index", -1, minimum=-1, maximum=MAX_LAYERS)
    last = count - 1 if last == -1 else last
    return tuple(sparse if (layer + 1) % every == 0 and first <= layer <= last else dense for layer in range(count))


def _mixer(fields: ConfigFields, positions: int, bias: bool, default_head_dim: int | None) -> Attention:
    heads = read_heads(fields, default_head_dim)
    return Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions, ROPE),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
    )


def _experts(fields: ConfigFields) -> Experts:
    fields.only("moe_gate", "topk", "topk")
    fields.only("moe_use_aux_free", True, "true")
    count = fields.integer("moe_num_experts", 64, maximum=MAX_EXPERTS)
    inner = fields.integer("moe_intermediate_size", 1_536)
    shared = fields.integer("moe_num_shared_experts", 2, minimum=0, maximum=MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=fields.integer("moe_k", 6, maximum=count),
        inner=inner,
        normalised=True,
        router="mlp.gate",
        tensors=ExpertTensors("mlp.experts.{number}", ("gate_proj", "up_proj", "down_proj")),
        corrected=CorrectedChoice(
            "mlp.moe_statics.e_score_correction_bias",
            is_softmax=True,
            least_sum=fields.number("moe_norm_min", 1e-12, minimum=0.0, maximum=1.0),
        ),
        shared=SharedExpert(Dense(inner * shared, name="mlp.shared_experts")) if shared else None,
    )


ERNIE4_5: Final = Family(
    "Ernie4_5ForCausalLM",
    _dense_layers,
    default_positions=131_072,
    default_eps=1e-5,
    default_tied=True,
    default_eos=(2,),
)
ERNIE4_5_MOE: Final = Family(
    "Ernie4_5_MoeForCausalLM",
    _sparse_layers,
    default_positions=131_072,
    default_eps=1e-5,
    default_tied=True,
    default_eos=(2,),
)
