"""Fields of further families that Baton would compute wrongly are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from baton_testing.engine.models import FAMILIES, TINY
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.parsing import parse_spec

ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
BAD: list[tuple[str, dict[str, Any], str]] = [
    ("olmo2", {"clip_qkv": 8.0}, r"clip_qkv: 8\.0.*absent"),
    ("olmo2", {"mlp_bias": True}, "mlp_bias: true"),
    ("olmo2", {"sliding_window": 24}, "sliding_window: 24.*absent"),
    ("olmo2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
    ("olmo3", {"sliding_window": None}, "sliding_window: is missing.*integer where layer_types"),
    ("olmo3", {"layer_types": ["full_attention", "linear"]}, "layer_types.*4 entries"),
    ("olmo3", {"rope_parameters": ROPE}, "rope_parameters.rope_type.*one of full_attention, sliding_attention"),
    ("olmo3", {"rope_theta": 10_000.0}, r"rope_theta: 10000\.0.*absent next to rope_parameters"),
    ("olmo3", {"rope_parameters": None, "rope_theta": 10_000.0}, r"rope_theta: 10000\.0.*500000"),
    ("qwen2-moe", {"use_sliding_window": True}, "use_sliding_window: true.*false"),
    ("qwen2-moe", {"num_experts_per_tok": 7}, "num_experts_per_tok: 7.*to 6"),
    ("qwen2-moe", {"mlp_only_layers": [3]}, "mlp_only_layers.*0 to 2"),
    ("qwen2-moe", {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size: 0"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier: 0.*above"),
    ("granite", {"logits_scaling": -1.0}, r"logits_scaling: -1\.0.*above"),
    ("granite", {"embedding_multiplier": "12"}, 'embedding_multiplier: "12"'),
    ("granite", {"sliding_window": 24}, "sliding_window: 24.*absent"),
    ("seed-oss", {"attention_out_bias": "no"}, "attention_out_bias.*true or false"),
]


@pytest.mark.parametrize(("family", "fields", "message"), BAD, ids=[f"{case[0]} {list(case[1])}" for case in BAD])
def test_a_field_that_would_be_computed_wrongly_is_refused(family: str, fields: dict[str, Any], message: str) -> None:
    parse_spec({**TINY, **FAMILIES[family]})
    with pytest.raises(ModelConfigError, match=message):
        parse_spec({**TINY, **FAMILIES[family], **fields})
