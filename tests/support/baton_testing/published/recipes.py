"""Text models for at most two GPUs of 141 GB that recipes of vLLM describe: the forty whose recipes were edited most.

From github.com/vllm-project/recipes, November 2026. Of models that are known to be refused by `model_type`, no more of
config.json is recorded. Models whose `model_type` was not found in a public source (K2-Horizon, Qwen3.8) are left out.
"""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config
from baton_testing.published.configs import PUBLISHED
from baton_testing.published.small_models import scaled


def _of(name: str, **fields: Any) -> Config:
    """The recorded config of a checkpoint with some other fields."""
    return {**PUBLISHED[name].config, **fields}


def _kind(model_type: str, architecture: str) -> Config:
    return {"architectures": [architecture], "model_type": model_type}


_MINISTRAL: Final = PUBLISHED["mistralai/Ministral-3-8B-Instruct-2512-BF16"].config
_GEMMA4: Final = _kind("gemma4", "Gemma4ForConditionalGeneration")
_QWEN35: Final = _kind("qwen3_5", "Qwen3_5ForConditionalGeneration")
_QWEN35_MOE: Final = _kind("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")
_NEMOTRON: Final = _kind("nemotron_h", "NemotronHForCausalLM")

RECIPES: Final[dict[str, Config]] = {
    "google/gemma-4-26B-A4B-it": _GEMMA4,
    "Qwen/Qwen3.6-35B-A3B": _QWEN35_MOE,
    "meta-llama/Llama-3.1-8B-Instruct": _of("meta-llama/Llama-3.1-8B-Instruct"),
    "Qwen/Qwen3.6-27B": _QWEN35,
    "google/gemma-4-E2B-it": _GEMMA4,
    "google/gemma-4-31B-it": _GEMMA4,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "image_token_index": 200092,
        "model_type": "llama4",
        "text_config": {
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "bos_token_id": 200000,
            "eos_token_id": [200001, 200007, 200008],
            "for_llm_compressor": False,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "max_position_embeddings": 10485760,
            "model_type": "llama4_text",
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 16.0,
                "high_freq_factor": 1.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 500000.0,
            "router_jitter_noise": 0.0,
            "tie_word_embeddings": False,
            "use_qk_norm": True,
            "vocab_size": 202048,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"model_type": "llama4_vision_model"},
    },
    "meta-llama/Llama-3.3-70B-Instruct": _of("meta-llama/Llama-3.3-70B-Instruct"),
    "google/gemma-4-E4B-it": _GEMMA4,
    "openai/gpt-oss-120b": _of("openai/gpt-oss-120b, in bfloat16"),
    "openai/gpt-oss-20b": _of("openai/gpt-oss-20b, in bfloat16"),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": _NEMOTRON,
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": _NEMOTRON,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": _NEMOTRON,
    "mistralai/Ministral-3-8B-Reasoning-2512": _MINISTRAL,
    "Qwen/Qwen3-4B": _of("Qwen/Qwen3-4B-Instruct-2507", rope_theta=1000000, max_position_embeddings=40960),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _kind("qwen3_next", "Qwen3NextForCausalLM"),
    "Qwen/Qwen3.5-35B-A3B": _QWEN35_MOE,
    "Qwen/Qwen3.5-4B": _QWEN35,
    "google/gemma-4-12B-it": _GEMMA4,
    "microsoft/Phi-4-mini-instruct": _of("microsoft/Phi-4-mini-instruct"),
    "baidu/ERNIE-4.5-21B-A3B-PT": {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "max_position_embeddings": 131072,
        "model_type": "ernie4_5_moe",
        "moe_capacity": [64, 64, 64],
        "moe_gate": "topk",
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_layer_interval": 1,
        "moe_layer_start_index": 1,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_use_aux_free": True,
        "num_attention_heads": 20,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_bias": False,
        "vocab_size": 103424,
    },
    "poolside/Laguna-XS.2": _kind("laguna", "LagunaForCausalLM"),
    "mistralai/Ministral-3-14B-Instruct-2512": {
        **_MINISTRAL,
        "text_config": {
            **_MINISTRAL["text_config"],
            "hidden_size": 5120,
            "intermediate_size": 16384,
            "num_hidden_layers": 40,
        },
    },
    "Qwen/Qwen3-32B": _of("Qwen/Qwen3-32B"),
    "Qwen/Qwen3.5-122B-A10B": _QWEN35_MOE,
    "JetBrains/Mellum2-12B-A2.5B-Thinking": _kind("mellum", "MellumForCausalLM"),
    "tencent/Hunyuan-A13B-Instruct": {
        "architectures": ["HunYuanMoEV1ForCausalLM"],
        "attention_bias": False,
        "attention_head_dim": 128,
        "bos_token_id": 1,
        "cla_share_factor": 2,
        "eos_token_id": 127960,
        "group_limited_greedy": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 3072,
        "max_position_embeddings": 32768,
        "mlp_bias": False,
        "model_type": "hunyuan_v1_moe",
        "moe_drop_tokens": False,
        "moe_intermediate_size": [3072] * 32,
        "moe_layer_num_skipped": 0,
        "moe_topk": [8] * 32,
        "num_attention_heads": 32,
        "num_experts": 64,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_shared_expert": [1] * 32,
        "pad_token_id": 127961,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "alpha": 1000.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "type": "dynamic",
        },
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cla": False,
        "use_mixed_mlp_moe": True,
        "use_qk_norm": True,
        "vocab_size": 128167,
    },
    "zai-org/GLM-4.5-Air": {
        "architectures": ["Glm4MoeForCausalLM"],
        "attention_bias": True,
        "eos_token_id": [151329, 151336, 151338],
        "first_k_dense_replace": 1,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 10944,
        "max_position_embeddings": 131072,
        "model_type": "glm4_moe",
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_routed_experts": 128,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": 96,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 46,
        "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1,
        "pad_token_id": 151329,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "torch_dtype": "bfloat16",
        "use_qk_norm": False,
        "vocab_size": 151552,
    },
    "Qwen/Qwen3-30B-A3B": _of("Qwen/Qwen3-30B-A3B"),
    "google/translategemma-27b-it": _of("google/gemma-3-27b-it"),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": {
        "architectures": ["SeedOssForCausalLM"],
        "attention_bias": True,
        "attention_out_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "intermediate_size": 27648,
        "max_position_embeddings": 524288,
        "mlp_bias": False,
        "model_type": "seed_oss",
        "num_attention_heads": 80,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "pad_token_id": 1,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"rope_type": "default"},
        "rope_theta": 10000000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": 155136,
    },
    "Qwen/QwQ-32B": _of("Qwen/Qwen2.5-32B-Instruct", max_position_embeddings=40960, sliding_window=32768),
    "Qwen/Qwen3-14B": _of("Qwen/Qwen3-14B"),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": _kind("kimi_linear", "KimiLinearForCausalLM"),
    "Qwen/Qwen3.5-9B": _QWEN35,
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": _NEMOTRON,
    "Qwen/Qwen3Guard-Gen-8B": _of("Qwen/Qwen3-8B", max_position_embeddings=32768),
    "zai-org/glm-4-9b-hf": _of("THUDM/glm-4-9b-chat-hf", max_position_embeddings=8192, rope_theta=10000.0),
    "meta-llama/Llama-3.2-3B-Instruct": _of("meta-llama/Llama-3.2-3B-Instruct"),
}


def reduced(config: Config) -> Config:
    """The config of a small model of the same kind, for weights drawn at random."""
    small = scaled(config)
    whole, text = config.get("text_config", config), small.get("text_config", small)
    text |= {name: 4 for name in ("moe_num_experts", "n_routed_experts") if name in text}
    text |= {name: 2 for name in ("moe_k",) if name in text}
    text |= {name: 384 for name in ("intermediate_size_mlp",) if name in text}
    text |= {"attention_head_dim": text["head_dim"]} if "attention_head_dim" in text else {}
    if "sliding_window" not in whole:
        text.pop("sliding_window", None)
    for name in ("moe_topk", "num_shared_expert", "moe_intermediate_size"):
        if isinstance(whole.get(name), list):
            value = {"moe_topk": 2, "num_shared_expert": 1, "moe_intermediate_size": text["intermediate_size"]}[name]
            text[name] = [value] * text["num_hidden_layers"]
    return small
