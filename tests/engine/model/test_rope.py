"""RoPE tables equal those of transformers, for every scaling type and its options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from baton_engine.model.layers.rope import rope_tables
from baton_testing.engine.models import LINEAR_ROPE, LLAMA3_ROPE, YARN_ROPE
from baton_wire.models.parsing import parse_spec

SHAPE: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1_024,
}
LLAMA31 = {**LLAMA3_ROPE, "rope_theta": 500_000.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 10_000.0},
        {"rope_type": "default", "rope_theta": 1_000_000.0},
        LINEAR_ROPE,
        LLAMA3_ROPE,
        LLAMA31,
        {**LLAMA31, "high_freq_factor": 1.0},
        YARN_ROPE,
        {**YARN_ROPE, "truncate": False},
        {**YARN_ROPE, "beta_fast": 8.0, "beta_slow": 2.0},
        {**YARN_ROPE, "attention_factor": 0.7},
        {**YARN_ROPE, "mscale": 0.9, "mscale_all_dim": 0.4},
        {**YARN_ROPE, "factor": 32.0, "rope_theta": 1e6, "original_max_position_embeddings": 512},
    ],
    ids=lambda rope: "-".join(str(value) for value in rope.values()),
)
@pytest.mark.parametrize("head_dim", [32, 80, 128])
def test_tables_equal_those_of_transformers(rope: dict[str, Any], head_dim: int) -> None:
    reference = LlamaRotaryEmbedding(LlamaConfig(**SHAPE, head_dim=head_dim, rope_parameters=dict(rope)))
    cos, sin = reference(torch.zeros(1), torch.arange(1_024)[None])
    config = parse_spec({**SHAPE, "model_type": "llama", "head_dim": head_dim, "rope_parameters": rope})
    tables = rope_tables(config.ropes[0], head_dim, 1_024, torch.float32, torch.device("cpu"))
    torch.testing.assert_close(tables.cos, cos[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(tables.sin, sin[0], rtol=0, atol=1e-6)
