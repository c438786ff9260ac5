"""config.json of Llama and models of its kind."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config, Published, without


def _llama(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> Config:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "bos_token_id": 128000,
        "eos_token_id": [128001, 128008, 128009],
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": _llama3(8.0),
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 128256,
        **fields,
    }


def _llama3(factor: float) -> Config:
    return {
        "factor": factor,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }


_LLAMA_1: Final = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
    "vocab_size": 32000,
}
_LLAMA_2: Final = {**_LLAMA_1, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05}

LLAMA: Final[dict[str, Published]] = {
    "huggyllama/llama-7b": Published(
        {
            **without(
                _llama(4096, 11008, 32, 32, 32, **_LLAMA_1),
                "num_key_value_heads",
                "attention_bias",
                "mlp_bias",
                "rope_theta",
                "rope_scaling",
                "max_position_embeddings",
            ),
            "max_sequence_length": 2048,
        },
        6.738,
    ),
    "meta-llama/Llama-2-7b-chat-hf": Published(_llama(4096, 11008, 32, 32, 32, **_LLAMA_2), 6.738),
    "meta-llama/Llama-2-70b-chat-hf": Published(_llama(8192, 28672, 80, 64, 8, **_LLAMA_2), 68.977),
    "upstage/SOLAR-0-70b-16bit": Published(
        _llama(8192, 28672, 80, 64, 8, **{**_LLAMA_2, "rope_scaling": {"factor": 2.0, "type": "dynamic"}}), 68.977
    ),
    "togethercomputer/LLaMA-2-7B-32K": Published(
        _llama(
            4096,
            11008,
            32,
            32,
            32,
            **{
                **_LLAMA_2,
                "max_position_embeddings": 32768,
                "rope_scaling": {"factor": 8.0, "type": "linear"},
            },
        ),
        6.738,
    ),
    "deepseek-ai/deepseek-coder-6.7b-instruct": Published(
        _llama(
            4096,
            11008,
            32,
            32,
            32,
            **{
                **_LLAMA_1,
                "max_position_embeddings": 16384,
                "rope_scaling": {"factor": 4.0, "type": "linear"},
                "rope_theta": 100000,
                "torch_dtype": "bfloat16",
                "vocab_size": 32256,
            },
        ),
        6.740,
    ),
    "meta-llama/Meta-Llama-3-8B-Instruct": Published(
        _llama(4096, 14336, 32, 32, 8, rope_scaling=None, max_position_embeddings=8192, eos_token_id=128009), 8.030
    ),
    "meta-llama/Llama-3.1-8B-Instruct": Published(_llama(4096, 14336, 32, 32, 8), 8.030),
    "meta-llama/Llama-3.1-405B-Instruct": Published(_llama(16384, 53248, 126, 128, 8), 405.853),
    "meta-llama/Llama-3.2-1B-Instruct": Published(
        _llama(2048, 8192, 16, 32, 8, head_dim=64, rope_scaling=_llama3(32.0), tie_word_embeddings=True), 1.236
    ),
    "meta-llama/Llama-3.2-3B-Instruct": Published(
        _llama(3072, 8192, 28, 24, 8, head_dim=128, rope_scaling=_llama3(32.0), tie_word_embeddings=True), 3.213
    ),
    "meta-llama/Llama-3.3-70B-Instruct": Published(_llama(8192, 28672, 80, 64, 8, head_dim=128), 70.554),
    "a Llama saved by transformers 5": Published(
        {
            **without(_llama(2048, 8192, 16, 32, 8, head_dim=64), "rope_scaling", "rope_theta", "torch_dtype"),
            "dtype": "bfloat16",
            "rope_parameters": {**_llama3(32.0), "rope_theta": 500000.0},
            "pad_token_id": None,
            "tie_word_embeddings": True,
        },
        1.236,
    ),
    "01-ai/Yi-1.5-9B-Chat": Published(
        _llama(4096, 11008, 48, 32, 4, **{**_LLAMA_2, "rope_theta": 5000000.0, "vocab_size": 64000}), 8.829
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Published(
        without(
            _llama(
                576,
                1536,
                30,
                9,
                3,
                **{**_LLAMA_1, "max_position_embeddings": 8192, "rope_theta": 100000, "vocab_size": 49152},
                tie_word_embeddings=True,
            ),
            "mlp_bias",
        ),
        0.1345,
    ),
}
