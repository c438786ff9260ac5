"""Random tiny models of every supported family, written by transformers, and transformers itself as the reference.

Weights are larger than an untrained model's so that attention is not flat and top-1 margins are wide. Everything is
float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}

TINY: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama-mha": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-gqa": {"model_type": "llama", "head_dim": 32},
    "llama-mqa": {"model_type": "llama", "num_key_value_heads": 1, "head_dim": 64},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biases": {"model_type": "llama", "head_dim": 32, "attention_bias": True, "mlp_bias": True},
    "llama-llama3-rope": {"model_type": "llama", "rope_parameters": LLAMA3_ROPE},
    "llama-linear-rope": {"model_type": "llama", "rope_parameters": LINEAR_ROPE},
    "llama-yarn-rope": {"model_type": "llama", "rope_parameters": YARN_ROPE},
    "mistral-window": {"model_type": "mistral", "head_dim": 32, "sliding_window": 24},
    "mistral-no-window": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-window": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "head_dim": 32,
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 100_000.0, "factor": 4.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        "final_logit_softcapping": 20.0,
    },
    "phi3": {"model_type": "phi3", "pad_token_id": 0},
    "phi3-longrope": {
        "model_type": "phi3",
        "pad_token_id": 0,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "sliding_window": 24,
        "original_max_position_embeddings": 16,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 16,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        },
    },
    "glm": {"model_type": "glm", "head_dim": 32, "pad_token_id": 0},
    "glm4": {"model_type": "glm4", "head_dim": 32, "pad_token_id": 0},
    "gpt-oss": {
        "model_type": "gpt_oss",
        "head_dim": 32,
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "rope_parameters": {**YARN_ROPE, "truncate": False},
        "swiglu_limit": 7.0,  # older transformers know no other
    },
    "qwen2-moe": {
        "model_type": "qwen2_moe",
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 40,
        "mlp_only_layers": [1],
    },
    "glm4-moe": {
        "model_type": "glm4_moe",
        "head_dim": 32,
        "pad_token_id": 0,
        "use_qk_norm": True,
        "attention_bias": True,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5,
    },
    "minimax-m2": {
        "model_type": "minimax_m2",
        "head_dim": 32,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
    },
    "granite": {
        "model_type": "granite",
        "head_dim": 12,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    },
    "seed-oss": {"model_type": "seed_oss", "head_dim": 32},
    "olmo2": {"model_type": "olmo2", "head_dim": 32, "pad_token_id": 0},
    "olmo3": {
        "model_type": "olmo3",
        "head_dim": 32,
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "pad_token_id": 0,
        "rope_parameters": {
            "full_attention": YARN_ROPE,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "ernie4.5": {"model_type": "ernie4_5", "head_dim": 32, "use_bias": True, "pad_token_id": 0},
    "ernie4.5-moe": {
        "model_type": "ernie4_5_moe",
        "pad_token_id": 0,
        "moe_intermediate_size": 32,
        "moe_k": 3,
        "moe_num_experts": 6,
        "moe_num_shared_experts": 2,
    },
    "hunyuan": {
        "model_type": "hunyuan_v1_dense",
        "head_dim": 32,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "alpha": 1000.0, "factor": 1.0},
    },
    "hunyuan-moe": {
        "model_type": "hunyuan_v1_moe",
        "head_dim": 32,
        "pad_token_id": 0,
        "num_experts": 6,
        "moe_topk": 3,
    },
    "llama4": {
        "model_type": "llama4_text",
        "head_dim": 32,
        "num_hidden_layers": 4,
        "intermediate_size_mlp": 80,
        "interleave_moe_layer_step": 2,
        "num_local_experts": 6,
        "num_experts_per_tok": 1,
        "rope_parameters": LLAMA3_ROPE,
        "attention_chunk_size": 256,
        "floor_scale": 512,
    },
    "granite-moe": {
        "model_type": "granitemoe",
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    },
    "granite-moe-shared": {
        "model_type": "granitemoeshared",
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 40,
        "residual_multiplier": 0.4,
    },
    "granite-4-dense": {
        "model_type": "granitemoehybrid",
        "num_local_experts": 0,
        "shared_intermediate_size": 40,
        "layer_types": ["full_attention"] * 3,
        "mamba_n_heads": 1,
        "attention_multiplier": 0.2,
    },
    "qwen3-tied-yarn": {
        "model_type": "qwen3",
        "head_dim": 20,
        "tie_word_embeddings": True,
        "rope_parameters": YARN_ROPE,
    },
}


def write_random_model(directory: Path, family: str, seed: int = 0, **overrides: Any) -> Path:
    """Save a random model of a family in FAMILIES, config fields overridden, by transformers; returns its directory."""
    fields = {**TINY, **FAMILIES[family], **overrides}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), attn_implementation="eager")
    write_random_weights(model, directory)
    return directory


def write_random_weights(model: Any, directory: Path) -> None:
    """Save a transformers model with random weights drawn from torch's generator."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            elif name.endswith(("bias", "sinks")):
                parameter.normal_(std=0.3)
            else:
                columns = parameter.shape[-1 if parameter.dim() < 3 else 1]  # stacks of experts have columns first
                parameter.normal_(std=columns**-0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(std=0.3)
    progress = transformers.utils.logging
    progress.disable_progress_bar()
    model.save_pretrained(directory)


def reference_model(directory: Path) -> Any:
    """The same model in transformers, float32, eager attention and experts."""
    ways = {"attn_implementation": "eager", "experts_implementation": "eager"}
    wraps = "text_config" in json.loads((directory / "config.json").read_text())
    kind = AutoModelForImageTextToText if wraps else AutoModelForCausalLM
    return kind.from_pretrained(directory, dtype=torch.float32, **ways).eval()


@torch.inference_mode()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits float32 [len(tokens), vocab] of one sequence without a cache, computed in float64.

    transformers' own error in float32 depends on the machine: 7e-5 for a Gemma 3 with AVX2, 9e-5 with AVX-512.
    """
    logits = logits_of(model.double(), tokens).float()
    model.float()
    return logits


@torch.inference_mode()
def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits [len(tokens), vocab] of one sequence without a cache, computed in the model's dtype."""
    logits: torch.Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def edit_config(directory: Path, **fields: Any) -> None:
    """Overwrite fields of a saved config.json; None removes nothing, it writes null."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
