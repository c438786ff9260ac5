"""config.json of Phi-3 and Phi-4."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config, Published, without

PHI_CODE: Final = {
    "AutoConfig": "configuration_phi3.Phi3Config",
    "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM",
}


def _phi(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, **fields: Any) -> Config:
    return {
        "architectures": ["Phi3ForCausalLM"],
        "attention_bias": False,
        "auto_map": PHI_CODE,
        "bos_token_id": 1,
        "embd_pdrop": 0.0,
        "eos_token_id": 32000,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": 4096,
        "model_type": "phi3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "original_max_position_embeddings": 4096,
        "pad_token_id": 32000,
        "resid_pdrop": 0.0,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": 2047,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 32064,
        **fields,
    }


def _longrope(pairs: int, kind: str = "longrope") -> Config:
    """Factors rise as the published ones do."""
    return {
        "long_factor": [round(1.08 + pair * 1.2, 3) for pair in range(pairs)],
        "short_factor": [round(1.0 + pair * 0.04, 3) for pair in range(pairs)],
        "type": kind,
    }


PHI: Final[dict[str, Published]] = {
    "microsoft/Phi-3-mini-4k-instruct": Published(_phi(3072, 8192, 32, 32, 32), 3.821),
    "microsoft/Phi-3-mini-128k-instruct, first release": Published(
        _phi(
            3072,
            8192,
            32,
            32,
            32,
            max_position_embeddings=131072,
            rope_scaling=_longrope(48, "su"),
            sliding_window=262144,
        ),
        3.821,
    ),
    "microsoft/Phi-3-medium-4k-instruct": Published(_phi(5120, 17920, 40, 40, 10), 13.960),
    "microsoft/Phi-3.5-mini-instruct": Published(
        _phi(
            3072,
            8192,
            32,
            32,
            32,
            max_position_embeddings=131072,
            rope_scaling=_longrope(48),
            sliding_window=262144,
        ),
        3.821,
    ),
    "microsoft/phi-4": Published(
        without(
            _phi(
                5120,
                17920,
                40,
                40,
                10,
                bos_token_id=100257,
                eos_token_id=100265,
                max_position_embeddings=16384,
                original_max_position_embeddings=16384,
                pad_token_id=100349,
                rope_theta=250000,
                sliding_window=None,
                vocab_size=100352,
            ),
            "auto_map",
        ),
        14.660,
    ),
    "microsoft/Phi-4-mini-instruct": Published(
        _phi(
            3072,
            8192,
            32,
            24,
            8,
            auto_map={**PHI_CODE, "AutoTokenizer": "Xenova/gpt-4o"},
            bos_token_id=199999,
            eos_token_id=199999,
            full_attn_mod=1,
            interpolate_factor=1,
            lm_head_bias=False,
            max_position_embeddings=131072,
            mlp_bias=False,
            pad_token_id=199999,
            partial_rotary_factor=0.75,
            rope_scaling=_longrope(48),
            sliding_window=262144,
            tie_word_embeddings=True,
            vocab_size=200064,
        ),
        3.836,
    ),
}
