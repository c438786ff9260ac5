"""config.json of GLM-4, dense."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config, Published


def _glm4(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> Config:
    return {
        "architectures": ["Glm4ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "eos_token_id": [151329, 151336, 151338],
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": 32768,
        "model_type": "glm4",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pad_token_id": 151329,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 151552,
        **fields,
    }


GLM: Final[dict[str, Published]] = {
    "THUDM/glm-4-9b-chat-hf": Published(
        {
            **_glm4(
                4096, 13696, 40, 32, 2, attention_bias=True, max_position_embeddings=131072, rms_norm_eps=1.5625e-07
            ),
            "architectures": ["GlmForCausalLM"],
            "model_type": "glm",
        },
        9.400,
    ),
    "THUDM/GLM-4-9B-0414": Published(_glm4(4096, 13696, 40, 32, 2), 9.400),
    "THUDM/GLM-4-32B-0414": Published(_glm4(6144, 23040, 61, 48, 2), 32.566),
    "THUDM/GLM-Z1-32B-0414, with the YaRN of its page": Published(
        _glm4(
            6144,
            23040,
            61,
            48,
            2,
            rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        ),
        32.566,
    ),
}
