"""FLOPs and bytes of steps, against figures worked out apart for Llama-3.1-8B."""

from __future__ import annotations

import pytest

from baton_engine.model.step_cost import CostModel, cost_model, rank_costs
from baton_engine.scheduling.step_load import StepLoad, WindowLoad
from baton_wire.models.parsing import parse_spec

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.fixture(name="model", scope="module")
def fixture_model() -> CostModel:
    return cost_model(parse_spec(LLAMA_8B), 2, 2)


def test_a_decode_step_reads_all_weights_once_and_the_kv_of_its_rows(model: CostModel) -> None:
    cost = model.of(StepLoad(0, 0.0, 0, 32, 32 * 1024))
    assert model.kv_token_bytes == 131_072
    assert cost.bytes == pytest.approx(15.009e9 + 131_072 * (32 * 1024 + 32), rel=1e-4)
    assert cost.flops == pytest.approx(32 * 2 * 7.5045e9 + 4 * 32 * 4096 * 32 * 1024, rel=1e-4)


def test_a_prompt_needs_every_layer_for_every_token_and_the_head_once(model: CostModel) -> None:
    cost = model.of(StepLoad(8192, 8192 * 8192 / 2, 1, 0, 0))
    assert cost.flops == pytest.approx(2 * 8192 * 6.979e9 + 2 * 0.5253e9 + 4 * 32 * 4096 * 8192**2 / 2, rel=1e-3)
    assert cost.bytes == pytest.approx(15.009e9 + 131_072 * 8192, rel=1e-4)


def test_quantised_weights_count_as_they_are_stored() -> None:
    section = {"quant_method": "awq", "bits": 4, "group_size": 128}
    model = cost_model(parse_spec({**LLAMA_8B, "quantization_config": section}), 2, 2)
    packed = 6.979e9 / 2 + 6.979e9 / 128 * 2  # nibbles, and a scale of 2 bytes for each 128 of them
    assert model.weight_bytes == pytest.approx(packed + 2 * 0.5253e9, rel=1e-3)


def test_a_token_reads_its_experts_and_many_tokens_read_all() -> None:
    """Qwen3-30B-A3B's shape: 3.3 of 30.5 G weights are active, as its page says."""
    fields = {
        **LLAMA_8B,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "vocab_size": 151936,
    }
    model = cost_model(parse_spec(fields), 2, 2)
    embedding = 151936 * 2048
    assert model.layer_weights + 2 * embedding == pytest.approx(3.35e9, rel=0.01)
    assert (model.weight_bytes + model.expert_bytes) / 2 + embedding == pytest.approx(30.5e9, rel=0.01)
    one, many = (model.of(StepLoad(0, 0.0, 0, rows, 0)).bytes for rows in (1, 512))
    assert one == pytest.approx(model.weight_bytes + model.expert_bytes / 16 + model.kv_token_bytes, rel=1e-6)
    assert many == pytest.approx(model.weight_bytes + model.expert_bytes, rel=1e-2)


def test_layers_with_a_window_read_and_attend_to_it_alone() -> None:
    """Two of four layers see 128 positions: they read an eighth of 1,024."""
    fields = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "vocab_size": 512,
        "sliding_window": 128,
    }
    model = cost_model(parse_spec(fields), 2, 2)
    of_layer, rows = 2 * 2 * 16 * 2, 8
    windowed = model.of(StepLoad(0, 0.0, 0, rows, rows * 1024, (WindowLoad(128, 0.0, rows * 128),)))
    full = model.of(StepLoad(0, 0.0, 0, rows, rows * 1024))
    assert full.bytes - windowed.bytes == pytest.approx(2 * of_layer * rows * (1024 - 128))
    assert full.flops - windowed.flops == pytest.approx(4 * 2 * 64 * rows * (1024 - 128))


@pytest.mark.parametrize("ranks", [2, 8])
def test_shares_of_ranks_add_up_to_the_whole(model: CostModel, ranks: int) -> None:
    shares = rank_costs(parse_spec(LLAMA_8B), ranks, 2, 2)
    for name in ("layer_weights", "head_weights", "pair_flops", "weight_bytes", "kv_token_bytes"):
        assert sum(getattr(share, name) for share in shares) == pytest.approx(getattr(model, name), rel=1e-3)


def test_kv_of_heads_that_two_ranks_hold_counts_at_both(model: CostModel) -> None:
    assert sum(share.kv_token_bytes for share in rank_costs(parse_spec(LLAMA_8B), 16, 2, 2)) == 2 * model.kv_token_bytes
