"""Fields that config.json leaves out: the default of transformers, or a refusal where two defaults conflict."""

from __future__ import annotations

from typing import Any

import pytest

from baton_wire.models.config_fields import JsonObject
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.parsing import parse_spec
from baton_wire.models.rope_config import RopeConfig

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def config(model_type: str, **fields: Any) -> JsonObject:
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 8_192,
        **fields,
    }


def test_a_mixtral_config_may_leave_out_what_is_its_familys() -> None:
    spec = parse_spec(config("mixtral"))
    assert (spec.norm_eps, spec.ropes) == (1e-5, (RopeConfig(1e6, None),))


def test_options_of_rope_that_are_empty_are_none_at_all() -> None:
    said_nothing = parse_spec(config("gpt_oss")).ropes
    assert parse_spec(config("gpt_oss", rope_scaling={})).ropes == said_nothing
    assert parse_spec(config("gpt_oss", rope_scaling={"rope_type": "default"})).ropes != said_nothing


def test_null_for_whether_yarn_rounds_is_false() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    untruncated = parse_spec(config("llama", rope_scaling={**yarn, "truncate": False})).ropes
    assert parse_spec(config("llama", rope_scaling={**yarn, "truncate": None})).ropes == untruncated
    assert parse_spec(config("llama", rope_scaling=yarn)).ropes != untruncated


@pytest.mark.parametrize(
    ("model_type", "fields", "message"),
    [
        (
            "phi3",
            {"rope_scaling": LONGROPE | {"original_max_position_embeddings": 1_024}},
            "^original_max_position_embeddings: is missing; allowed: an integer, since 4096 would win over the 1024",
        ),
        ("glm4", {"partial_rotary_factor": None}, "^partial_rotary_factor: is missing; allowed: a number above 0"),
        ("llama", {"rope_scaling": {"type": None, "factor": 2}}, "^rope_scaling.type: is missing; allowed: default"),
        ("ministral3", {"rope_theta": 1e6, "rope_scaling": None}, "^rope_parameters: is missing; allowed: an object"),
        (
            "qwen3_moe",
            {"num_experts": 4, "moe_intermediate_size": 32},
            "^num_experts_per_tok: is missing; allowed: an integer from 1 to 4",
        ),
    ],
)
def test_where_nobody_says_what_is_meant_the_field_is_asked_for(
    model_type: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelConfigError, match=message):
        parse_spec(config(model_type, **fields))
