"""Ministral 3: Mistral's layers, and queries of late positions that are scaled, which is not computed."""

from __future__ import annotations

from typing import Any

import pytest

from baton_wire.models.errors import ModelConfigError
from baton_wire.models.parsing import parse_spec

YARN = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 512, "rope_theta": 1e6}
SCALED = {**YARN, "llama_4_scaling_beta": 0.1}


def config(kind: str, rope: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 8_192,
        "model_type": kind,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "rope_parameters": rope,
        "vocab_size": 100,
    }


def test_contexts_end_where_queries_would_be_scaled() -> None:
    spec = parse_spec(config("ministral3", SCALED))
    assert spec.max_context_tokens == 512
    with pytest.raises(ModelConfigError, match=r"max_context_tokens: 513 .* 1 to 512"):
        spec.context_within(513)


def test_keys_are_those_of_mistral() -> None:
    plain = parse_spec(config("mistral", YARN))
    assert plain.max_context_tokens == 8_192
    assert plain.rope_digest(512) == parse_spec(config("ministral3", SCALED)).rope_digest(512)


@pytest.mark.parametrize(
    ("kind", "rope", "refusal"), [("ministral3", YARN, "is missing"), ("mistral", SCALED, "0.1 is not")]
)
def test_the_scale_is_there_or_not_by_family(kind: str, rope: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ModelConfigError, match=rf"rope_parameters\.llama_4_scaling_beta: {refusal}"):
        parse_spec(config(kind, rope))
