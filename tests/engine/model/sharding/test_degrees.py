"""Degrees of tensor parallelism that a model allows, and the refusal of others before anything is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_engine.collectives.collective import RankShare
from baton_engine.model.loading import load_model
from baton_kv_transfer.ranks.tensor_parallel import heads_of
from baton_testing.engine.threaded_ranks import ThreadCollective, ThreadMeeting
from baton_testing.published.configs import PUBLISHED
from baton_testing.published.quantised import QUANTISED
from baton_wire.kv_shape import held_kv_heads
from baton_wire.models.errors import ModelConfigError, ModelError
from baton_wire.models.parsing import parse_spec
from baton_wire.models.sharding.degrees import allowed_degrees, check_degree

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "vocab_size": 200,
    "tie_word_embeddings": False,
}
MOE: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize(
    ("fields", "ranks", "message"),
    [
        ({**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 2}, 4, "6 attention heads do not divide by it"),
        ({**LLAMA, "num_attention_heads": 12, "num_key_value_heads": 3}, 2, "3 KV heads neither divide by it nor"),
        ({**LLAMA, "intermediate_size": 1020}, 8, "1020 columns of the feed-forward blocks do not divide by it"),
        ({**MOE, "moe_intermediate_size": 60}, 8, "60 columns of an expert do not divide by it"),
        ({**MOE, "shared_expert_intermediate_size": 60}, 8, "60 columns of the shared expert do not divide by it"),
        (
            {**LLAMA, "quantization_config": FP8},
            8,
            "it cuts model.layers.0.self_attn.q_proj.weight_scale_inv at 64, inside a block of 128",
        ),
        (
            {**LLAMA, "head_dim": 128, "intermediate_size": 1536, "quantization_config": FP8},
            8,
            "it cuts model.layers.0.mlp.gate_proj.weight_scale_inv at 192, inside a block of 128",
        ),
        (
            {**LLAMA, "quantization_config": GPTQ},
            8,
            "it cuts model.layers.0.self_attn.o_proj.qzeros at 64, inside a block of 128",
        ),
        (
            {**LLAMA, "intermediate_size": 768, "quantization_config": AWQ},
            8,
            "it cuts model.layers.0.mlp.down_proj.qzeros at 96, inside a block of 64",
        ),
        (LLAMA, 0, "a worker has 1 to 8 ranks"),
        (LLAMA, 16, "a worker has 1 to 8 ranks"),
    ],
)
def test_a_degree_that_does_not_fit_is_refused_by_field(fields: dict[str, Any], ranks: int, message: str) -> None:
    config = parse_spec(fields)
    with pytest.raises(ModelConfigError) as caught:
        check_degree(config, ranks)
    text = str(caught.value)
    assert text.startswith(f"tensor_parallel: {ranks} is not supported: ")
    assert message in text
    allowed = allowed_degrees(config)
    assert text.endswith(f"; allowed: {', '.join(map(str, allowed))}")
    for degree in allowed:
        check_degree(config, degree)


def test_a_degree_is_refused_before_any_weight_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "intermediate_size": 1020}))
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(ModelError, match="tensor_parallel: 8 is not supported"):
        load_model(
            tmp_path,
            torch.float32,
            torch.device("cpu"),
            collective=ThreadCollective(RankShare(3, 8), ThreadMeeting(8)),
        )


@pytest.mark.parametrize("kv_heads", [1, 2, 3, 4, 8, 32])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_ranks_hold_the_kv_heads_that_are_handed_over(kv_heads: int, ranks: int) -> None:
    if kv_heads % ranks and ranks % kv_heads:
        with pytest.raises(ValueError, match="KV heads"):
            held_kv_heads(kv_heads, 0, ranks)
        return
    for rank in range(ranks):
        assert held_kv_heads(kv_heads, rank, ranks) == heads_of(kv_heads, ranks, rank)


PUBLISHED_DEGREES = {
    "meta-llama/Llama-3.3-70B-Instruct": (1, 2, 4, 8),
    "Qwen/Qwen2.5-0.5B-Instruct": (1, 2),  # 14 heads
    "HuggingFaceTB/SmolLM2-135M-Instruct": (1, 3),  # 9 heads
    "microsoft/phi-4": (1, 2, 5),  # 10 KV heads
    "Qwen/Qwen3-235B-A22B-Instruct-2507": (1, 2, 4, 8),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": (1, 2, 4),  # experts of 12 blocks
    "Llama-3.1-8B, W4A16 with act-order": (1, 2, 4, 8),
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": (1, 2, 4, 8),
    "openai/gpt-oss-20b": (1, 2),  # experts of 90 blocks
}


@pytest.mark.parametrize(("name", "degrees"), PUBLISHED_DEGREES.items())
def test_degrees_of_published_models(name: str, degrees: tuple[int, ...]) -> None:
    if (quantised := QUANTISED.get(name)) is None:
        config = PUBLISHED[name].config
    else:
        base = PUBLISHED[quantised.base].config
        config = {**base, **quantised.fields, "quantization_config": quantised.section}
    assert allowed_degrees(parse_spec(config)) == degrees
