"""Hunyuan: Llama with norms of rotated query and key heads, dense or with experts and one that every token takes."""

from __future__ import annotations

from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, Dense, Experts, ExpertTensors, LayerSpec, SharedExpert
from baton_wire.models.families.family import Family
from baton_wire.models.reading import MAX_EXPERTS, read_heads, read_layer_count, refuse_mlp_bias, refuse_windows
from baton_wire.models.rope_config import RopeOptions, read_rope

ROPE: Final = RopeOptions(types=("default", "linear", "dynamic", "llama3"), reads_alpha=True)
"""Without types that scale cos and sin: the norms after the rotation would take the factor back."""


def _dense_layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    return (LayerSpec(_mixer(fields, positions), Dense(fields.integer("intermediate_size"))),) * read_layer_count(
        fields
    )


def _sparse_layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    count = read_layer_count(fields)
    fields.only("moe_drop_tokens", False, "false")
    fields.only("group_limited_greedy", False, "false")
    fields.only("moe_layer_num_skipped", 0, "0")
    fields.only("use_mixed_mlp_moe", True, "true (an expert that every token takes)")
    _same_in_all(fields, "num_shared_expert", count, 1)
    inner = fields.integer("intermediate_size")
    _same_in_all(fields, "moe_intermediate_size", count, inner)
    experts = fields.integer("num_experts", 1, maximum=MAX_EXPERTS)
    block = Experts(
        count=experts,
        per_token=_per_token(fields, count, experts),
        inner=inner,
        normalised=True,
        router="mlp.gate.wg",
        tensors=ExpertTensors("mlp.experts.{number}", ("gate_proj", "up_proj", "down_proj")),
        shared=SharedExpert(Dense(inner, name="mlp.shared_mlp")),
    )
    return (LayerSpec(_mixer(fields, positions), block),) * count


def _mixer(fields: ConfigFields, positions: int) -> Attention:
    refuse_mlp_bias(fields)
    refuse_windows(fields, read_layer_count(fields))
    fields.only("use_qk_norm", True, "true")
    fields.only("use_cla", False, "false (each layer has keys and values of its own)")
    heads, bias = read_heads(fields, kv_heads_required=False), fields.flag("attention_bias", False)
    fields.only("attention_head_dim", heads.head_dim, f"{heads.head_dim}, as head_dim, or absent")
    if heads.head_dim < 4:
        raise fields.error("head_dim", "an even number from 4 for this model_type")
    return Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        read_rope(fields, positions, ROPE),
        heads.head_dim**-0.5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        qk_norm_names=("query_layernorm", "key_layernorm"),
        norms_after_rotation=True,
    )


def _same_in_all(fields: ConfigFields, name: str, layers: int, value: int) -> None:
    """A number, or a list with one for each layer, of this value alone."""
    given = fields.raw(name)
    if isinstance(given, list) and len(given) >= layers and all(entry == value for entry in given):
        return
    fields.only(name, value, f"{value} in every layer")


def _per_token(fields: ConfigFields, layers: int, experts: int) -> int:
    """How many experts a token takes: a number, or a list with the same number for each layer."""
    given = fields.raw("moe_topk")
    if not isinstance(given, list):
        return fields.integer("moe_topk", 1, maximum=experts)
    first = given[0] if given else None
    if not isinstance(first, int) or isinstance(first, bool) or not 1 <= first <= experts:
        raise fields.error("moe_topk", f"integers from 1 to {experts}")
    _same_in_all(fields, "moe_topk", layers, first)
    return first


HUNYUAN_DENSE: Final = Family(
    "HunYuanDenseV1ForCausalLM", _dense_layers, default_positions=2_048, default_eps=1e-5, default_eos=(2,)
)
HUNYUAN_MOE: Final = Family(
    "HunYuanMoEV1ForCausalLM",
    _sparse_layers,
    default_positions=2_048,
    default_eps=1e-5,
    default_eos=(2,),
    shipped_code=(
        "configuration_hunyuan.HunYuanConfig",
        "hunyuan.HunYuanModel",
        "hunyuan.HunYuanMoEV1ForCausalLM",
    ),
)
