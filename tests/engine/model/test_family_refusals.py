"""Fields of further families that Baton would compute wrongly are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton_engine.model.loading import load_model
from baton_testing.engine.models import FAMILIES, TINY, write_random_model
from baton_wire.models.errors import ModelConfigError, ModelError
from baton_wire.models.families.model_types import FAMILIES as FAMILIES_SERVED
from baton_wire.models.families.unserved import UNSERVED
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
    ("glm4-moe", {"n_group": 3}, "n_group: 3.*divisor of n_routed_experts.*8"),
    ("glm4-moe", {"n_group": 8}, "n_group: 8.*two experts or more"),
    ("glm4-moe", {"topk_group": 5}, "topk_group: 5.*to 4"),
    ("glm4-moe", {"num_experts_per_tok": 5}, "num_experts_per_tok: 5.*to 4"),
    ("glm4-moe", {"n_shared_experts": 0}, "n_shared_experts: 0"),
    ("glm4-moe", {"partial_rotary_factor": 0.1}, r"partial_rotary_factor: 0\.1.*even number"),
    ("minimax-m2", {"scoring_func": "softmax"}, "scoring_func.*softmax.*sigmoid"),
    ("minimax-m2", {"use_routing_bias": False}, "use_routing_bias: false"),
    ("minimax-m2", {"shared_intermediate_size": 8}, "shared_intermediate_size: 8"),
    ("minimax-m2", {"attn_type_list": [1, 0, 1]}, "attn_type_list"),
    ("minimax-m2", {"rotary_dim": 64}, "rotary_dim: 64.*to 32"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier: 0.*above"),
    ("granite", {"logits_scaling": -1.0}, r"logits_scaling: -1\.0.*above"),
    ("granite", {"embedding_multiplier": "12"}, 'embedding_multiplier: "12"'),
    ("granite", {"sliding_window": 24}, "sliding_window: 24.*absent"),
    ("seed-oss", {"attention_out_bias": "no"}, "attention_out_bias.*true or false"),
    ("ernie4.5", {"sliding_window": 24}, "sliding_window: 24.*absent"),
    ("ernie4.5", {"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
    ("ernie4.5-moe", {"use_bias": True}, "use_bias: true.*false"),
    ("ernie4.5-moe", {"moe_k": 7}, "moe_k: 7.*to 6"),
    ("ernie4.5-moe", {"moe_gate": "sinkhorn"}, "moe_gate.*sinkhorn.*topk"),
    ("ernie4.5-moe", {"moe_norm_min": 0}, "moe_norm_min: 0.*above 0"),
    ("ernie4.5-moe", {"moe_num_experts": [64, 64]}, r"moe_num_experts: \[64, 64\].*an integer"),
    ("hunyuan", {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 2.0}}, "rope_type.*yarn.*llama3"),
    ("hunyuan", {"rope_parameters": {**ROPE, "alpha": 2.0}}, "rope_parameters.alpha: 2.0"),
    ("hunyuan", {"rope_parameters": {**ROPE, "rope_type": "dynamic", "alpha": 0}}, "rope_parameters.alpha: 0.*above"),
    ("hunyuan", {"use_qk_norm": False}, "use_qk_norm: false"),
    ("hunyuan", {"use_cla": True}, "use_cla: true.*keys and values of its own"),
    ("hunyuan", {"head_dim": 2}, "head_dim: 2.*from 4"),
    ("hunyuan", {"attention_head_dim": 64}, "attention_head_dim: 64.*32"),
    ("hunyuan-moe", {"moe_topk": [3, 2, 3]}, r"moe_topk: \[3, 2, 3\].*3 in every layer"),
    ("hunyuan-moe", {"moe_topk": [7, 7, 7]}, "moe_topk.*from 1 to 6"),
    ("hunyuan-moe", {"moe_topk": []}, r"moe_topk: \[\]"),
    ("hunyuan-moe", {"num_shared_expert": [1, 2, 1]}, "num_shared_expert.*1 in every layer"),
    ("hunyuan-moe", {"moe_intermediate_size": 16}, "moe_intermediate_size: 16.*80 in every layer"),
    ("hunyuan-moe", {"use_mixed_mlp_moe": False}, "use_mixed_mlp_moe: false"),
    ("hunyuan-moe", {"moe_layer_num_skipped": 1}, "moe_layer_num_skipped: 1"),
    ("llama4", {"layer_types": ["sliding_attention"] * 4}, "layer_types.*chunked_attention or full_attention"),
    ("llama4", {"moe_layers": [4]}, r"moe_layers: \[4\].*0 to 3"),
    ("llama4", {"no_rope_layers": [1, 2, 1, 0]}, "no_rope_layers.*each 1"),
    ("llama4", {"no_rope_layers": [1]}, "no_rope_layers.*4 entries"),
    ("llama4", {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 2.0}}, "rope_type.*yarn.*llama3"),
    ("llama4", {"attention_chunk_size": 0}, "attention_chunk_size: 0"),
    ("llama4", {"floor_scale": 1}, "floor_scale: 1.*from 2"),
    ("llama4", {"router_jitter_noise": 0.1}, "router_jitter_noise: 0.1"),
    ("llama4", {"quantization_config": {"quant_method": "fp8"}}, 'quant_method: "fp8".*compressed-tensors'),
    ("granite-moe", {"num_experts_per_tok": 7}, "num_experts_per_tok: 7.*to 6"),
    ("granite-moe-shared", {"shared_intermediate_size": -1}, "shared_intermediate_size: -1"),
    ("granite-4-dense", {"layer_types": ["mamba", "attention", "mamba"]}, "layer_types.*Mamba layers are not served"),
    ("granite-4-dense", {"layer_types": None}, "layer_types|layers_block_type"),
    ("granite-4-dense", {"position_embedding_type": "alibi"}, "position_embedding_type.*alibi.*rope or null"),
]


@pytest.mark.parametrize(("family", "fields", "message"), BAD, ids=[f"{case[0]} {list(case[1])}" for case in BAD])
def test_a_field_that_would_be_computed_wrongly_is_refused(family: str, fields: dict[str, Any], message: str) -> None:
    parse_spec({**TINY, **FAMILIES[family]})
    with pytest.raises(ModelConfigError, match=message):
        parse_spec({**TINY, **FAMILIES[family], **fields})


def test_a_family_that_is_not_served_is_refused_with_its_reason_and_the_nearest_that_is() -> None:
    for model_type, unserved in UNSERVED.items():
        assert unserved.nearest in FAMILIES_SERVED
        with pytest.raises(ModelConfigError) as raised:
            parse_spec({**TINY, "model_type": model_type})
        message = str(raised.value)
        assert message.startswith(f'model_type: "{model_type}" is not supported')
        assert unserved.parts in message
        assert unserved.nearest in message
        assert "\n" not in message


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({}, 256),
        ({"attention_chunk_size": 100}, 100),
        ({"floor_scale": 90}, 89),
        ({"floor_scale": 90, "attn_temperature_tuning": False}, 256),
        ({"floor_scale": 90, "no_rope_layers": [1, 1, 1, 1]}, 256),
        ({"attention_chunk_size": 100, "layer_types": ["full_attention"] * 4}, 256),
        ({"attention_chunk_size": 100, "no_rope_layers": [0, 0, 0, 0]}, 256),
    ],
)
def test_contexts_of_llama_4_end_with_the_first_chunk(fields: dict[str, Any], context: int) -> None:
    spec = parse_spec({**TINY, **FAMILIES["llama4"], **fields})
    assert spec.context_within(None) == context
    with pytest.raises(ModelConfigError, match=f"max_context_tokens: {context + 1}.*1 to {context}"):
        spec.context_within(context + 1)


BIASES = {
    "ernie4.5-moe": "model.layers.1.mlp.moe_statics.e_score_correction_bias",
    "glm4-moe": "model.layers.1.mlp.gate.e_score_correction_bias",
    "minimax-m2": "model.layers.1.block_sparse_moe.e_score_correction_bias",
}
CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "missing": lambda bias: None,
    "no number": lambda bias: bias.index_fill(-1, torch.tensor([2]), torch.nan),
    "too short": lambda bias: bias[..., :-1],
    "integers": lambda bias: bias.to(torch.int32),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", BIASES)
def test_a_broken_bias_of_a_router_is_refused_by_its_name(family: str, change: str, tmp_path: Path) -> None:
    path = write_random_model(tmp_path, family) / "model.safetensors"
    tensors = load_file(path)
    changed = CHANGES[change](tensors.pop(BIASES[family]))
    save_file(tensors | ({} if changed is None else {BIASES[family]: changed}), path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=BIASES[family].replace(".", r"\.")):
        load_model(tmp_path, torch.float32, torch.device("cpu"))


def test_layers_that_predict_further_tokens_are_not_read(tmp_path: Path) -> None:
    path = write_random_model(tmp_path, "glm4-moe") / "model.safetensors"
    further = {"model.layers.3.eh_proj.weight": torch.zeros(2, 2)}
    save_file(load_file(path) | further, path, metadata={"format": "pt"})
    load_model(tmp_path, torch.float32, torch.device("cpu"))
    save_file(load_file(path) | {"model.layers.4.eh_proj.weight": torch.zeros(2)}, path, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.4\.eh_proj\.weight"):
        load_model(tmp_path, torch.float32, torch.device("cpu"))


def test_minimax_may_give_its_rotation_as_a_number_of_dimensions() -> None:
    fields = {**TINY, **FAMILIES["minimax-m2"], "rotary_dim": 8, "rope_parameters": None}
    assert parse_spec(fields).ropes[0].rotated(32) == 8
