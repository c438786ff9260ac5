"""MiniMax-M2: experts chosen by sigmoids with a bias, one norm of all query heads and one of all key heads, and a part
of each head rotated."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import Attention, CorrectedChoice, Experts, ExpertTensors, LayerSpec
from baton_wire.models.families.family import Family
from baton_wire.models.reading import (
    MAX_EXPERTS,
    check_rotation,
    fixed_attention_bias,
    read_heads,
    read_layer_count,
    refuse_mlp_bias,
    refuse_windows,
)
from baton_wire.models.rope_config import RopeConfig, RopeOptions, read_rope

ROPE: Final = RopeOptions(theta=5_000_000.0, share=1.0)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    refuse_mlp_bias(fields)
    fixed_attention_bias(fields, False)
    count, heads = read_layer_count(fields), read_heads(fields, 128)
    refuse_windows(fields, count)
    fields.only("attn_type_list", [1] * count, "1 in every layer (softmax attention)")
    fields.only("use_qk_norm", True, "true")
    fields.only("qk_norm_type", "per_layer", "per_layer")
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        check_rotation(fields, _rope(fields, positions, heads.head_dim), heads.head_dim),
        heads.head_dim**-0.5,
        qk_norm=True,
        joins_heads=True,
    )
    return (LayerSpec(mixer, _experts(fields)),) * count


def _rope(fields: ConfigFields, positions: int, head_dim: int) -> RopeConfig:
    """Read the RoPE. Published files give the share of a head that is rotated as a number of dimensions."""
    share = fields.integer("rotary_dim", head_dim, maximum=head_dim) / head_dim
    return read_rope(fields, positions, replace(ROPE, share=share))


def _experts(fields: ConfigFields) -> Experts:
    fields.only("scoring_func", "sigmoid", "sigmoid")
    fields.only("use_routing_bias", True, "true")
    fields.only("shared_intermediate_size", 0, "0 or absent")
    fields.only("router_jitter_noise", 0.0, "0 or absent")
    count = fields.integer("num_local_experts", 256, maximum=MAX_EXPERTS)
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 8, maximum=count),
        inner=fields.integer("intermediate_size", 1_536),
        normalised=True,
        router="block_sparse_moe.gate",
        tensors=ExpertTensors("block_sparse_moe.experts.{number}", ("w1", "w3", "w2")),
        corrected=CorrectedChoice("block_sparse_moe.e_score_correction_bias"),
    )


MINIMAX_M2: Final = Family(
    "MiniMaxM2ForCausalLM",
    _layers,
    default_positions=196_608,
    default_eos=(200_020,),
    shipped_code=("configuration_minimax_m2.MiniMaxM2Config", "modeling_minimax_m2.MiniMaxM2ForCausalLM"),
)
