"""config.json of Qwen2, Qwen3 and their mixtures."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config, Published, without


def _qwen2(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> Config:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": 32768,
        "max_window_layers": layers,
        "model_type": "qwen2",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 152064,
        **fields,
    }


def _qwen3(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> Config:
    return _qwen2(
        hidden,
        inner,
        layers,
        heads,
        kv_heads,
        **{
            "architectures": ["Qwen3ForCausalLM"],
            "attention_bias": False,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "model_type": "qwen3",
            "rope_scaling": None,
            "sliding_window": None,
            "vocab_size": 151936,
            **fields,
        },
    )


def _qwen3_moe(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> Config:
    return _qwen3(
        hidden,
        inner,
        layers,
        heads,
        kv_heads,
        **{
            "architectures": ["Qwen3MoeForCausalLM"],
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.001,
            **fields,
        },
    )


_TIED: Final = {"tie_word_embeddings": True, "vocab_size": 151936}

QWEN: Final[dict[str, Published]] = {
    "Qwen/Qwen2-7B-Instruct": Published(_qwen2(3584, 18944, 28, 28, 4), 7.616),
    "Qwen/Qwen2.5-0.5B-Instruct": Published(
        _qwen2(896, 4864, 24, 14, 2, max_window_layers=21, sliding_window=32768, **_TIED), 0.494
    ),
    "Qwen/Qwen2.5-1.5B-Instruct": Published(
        _qwen2(1536, 8960, 28, 12, 2, max_window_layers=21, sliding_window=32768, **_TIED), 1.544
    ),
    "Qwen/Qwen2.5-7B-Instruct": Published(_qwen2(3584, 18944, 28, 28, 4), 7.616),
    "Qwen/Qwen2.5-7B-Instruct, with the YaRN of its page": Published(
        _qwen2(
            3584,
            18944,
            28,
            28,
            4,
            rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        ),
        7.616,
    ),
    "Qwen/Qwen2.5-32B-Instruct": Published(_qwen2(5120, 27648, 64, 40, 8, max_window_layers=70), 32.764),
    "Qwen/Qwen2.5-72B-Instruct": Published(_qwen2(8192, 29568, 80, 64, 8, max_window_layers=70), 72.706),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": Published(
        _qwen2(
            1536,
            8960,
            28,
            12,
            2,
            bos_token_id=151646,
            eos_token_id=151643,
            max_position_embeddings=131072,
            max_window_layers=21,
            rope_theta=10000,
            sliding_window=4096,
            use_mrope=False,
            vocab_size=151936,
        ),
        1.777,
    ),
    "a Qwen2.5 saved by transformers 5": Published(
        {
            **without(
                _qwen2(1536, 8960, 28, 12, 2, max_window_layers=21, **_TIED),
                "rope_theta",
                "torch_dtype",
                "eos_token_id",
            ),
            "dtype": "bfloat16",
            "eos_token_id": 151645,
            "layer_types": ["full_attention"] * 28,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
            "sliding_window": None,
        },
        1.544,
    ),
    "Qwen/Qwen3-0.6B": Published(_qwen3(1024, 3072, 28, 16, 8, **_TIED), 0.596),
    "Qwen/Qwen3-4B-Instruct-2507": Published(
        _qwen3(2560, 9728, 36, 32, 8, max_position_embeddings=262144, rope_theta=5000000, **_TIED), 4.022
    ),
    "Qwen/Qwen3-8B": Published(_qwen3(4096, 12288, 36, 32, 8), 8.191),
    "Qwen/Qwen3-14B": Published(_qwen3(5120, 17408, 40, 40, 8), 14.768),
    "Qwen/Qwen3-32B": Published(_qwen3(5120, 25600, 64, 64, 8), 32.762),
    "Qwen/Qwen3-30B-A3B": Published(_qwen3_moe(2048, 6144, 48, 32, 4), 30.532),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": Published(
        _qwen3_moe(2048, 6144, 48, 32, 4, max_position_embeddings=262144, rope_theta=10000000), 30.532
    ),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": Published(
        _qwen3_moe(
            2048,
            5472,
            48,
            32,
            4,
            max_position_embeddings=262144,
            max_window_layers=28,
            qkv_bias=False,
            rope_theta=10000000,
            shared_expert_intermediate_size=0,
            use_qk_norm=True,
        ),
        30.532,
    ),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": Published(
        _qwen3_moe(
            4096,
            12288,
            94,
            64,
            4,
            max_position_embeddings=262144,
            moe_intermediate_size=1536,
            rope_theta=5000000,
        ),
        235.094,
    ),
}
