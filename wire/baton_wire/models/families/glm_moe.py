"""GLM-4.5 and 4.6: experts chosen by sigmoids with a bias, perhaps within groups, a shared expert, first layers without
experts, and half of each head rotated."""

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
from baton_wire.models.reading import (
    MAX_EXPERTS,
    MAX_LAYERS,
    check_rotation,
    read_heads,
    read_layer_count,
    refuse_mlp_bias,
    refuse_windows,
)
from baton_wire.models.rope_config import RopeOptions, read_rope

ROPE: Final = RopeOptions(share=0.5)


def _layers(fields: ConfigFields, positions: int) -> tuple[LayerSpec, ...]:
    refuse_mlp_bias(fields)
    count, heads = read_layer_count(fields), read_heads(fields)
    refuse_windows(fields, count)
    mixer = Attention(
        heads.q_heads,
        heads.kv_heads,
        heads.head_dim,
        check_rotation(fields, read_rope(fields, positions, ROPE), heads.head_dim),
        heads.head_dim**-0.5,
        qkv_bias=fields.flag("attention_bias", False),
        qk_norm=fields.flag("use_qk_norm", False),
    )
    dense, sparse = Dense(fields.integer("intermediate_size", 10_944)), _experts(fields)
    first = fields.integer("first_k_dense_replace", 1, minimum=0, maximum=MAX_LAYERS)
    return tuple(LayerSpec(mixer, dense if layer < first else sparse) for layer in range(count))


def _experts(fields: ConfigFields) -> Experts:
    count = fields.integer("n_routed_experts", 128, maximum=MAX_EXPERTS)
    groups = fields.integer("n_group", 1, maximum=count)
    if count % groups or count // groups < 2:
        raise fields.error("n_group", f"a divisor of n_routed_experts ({count}) with two experts or more in a group")
    taken = fields.integer("topk_group", 1, maximum=groups)
    inner = fields.integer("moe_intermediate_size", 1_408)
    return Experts(
        count=count,
        per_token=fields.integer("num_experts_per_tok", 8, maximum=taken * (count // groups)),
        inner=inner,
        normalised=fields.flag("norm_topk_prob", True),
        router="mlp.gate",
        tensors=ExpertTensors("mlp.experts.{number}", ("gate_proj", "up_proj", "down_proj")),
        corrected=CorrectedChoice(
            "mlp.gate.e_score_correction_bias", groups, taken, fields.number("routed_scaling_factor", 1.0)
        ),
        shared=SharedExpert(
            Dense(inner * fields.integer("n_shared_experts", 1, maximum=MAX_EXPERTS), name="mlp.shared_experts")
        ),
    )


GLM4_MOE: Final = Family(
    "Glm4MoeForCausalLM",
    _layers,
    default_positions=131_072,
    default_eps=1e-5,
    further_layers="num_nextn_predict_layers",
    shipped_code=(
        "configuration_glm4_moe.Glm4MoeConfig",
        "modeling_glm4_moe.Glm4MoeForCausalLM",
        "modeling_glm4_moe.Glm4MoeModel",
    ),
)
