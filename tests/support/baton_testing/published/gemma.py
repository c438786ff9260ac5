"""config.json of Gemma 3, with and without parts for images."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config, Published, without


def _gemma3(**text: Any) -> Config:
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            **text,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "hidden_size": 1152,
            "image_size": 896,
            "intermediate_size": 4304,
            "model_type": "siglip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 27,
            "patch_size": 14,
            "vision_use_head": False,
        },
    }


GEMMA: Final[dict[str, Published]] = {
    "google/gemma-3-1b-it": Published(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "bos_token_id": 2,
            "cache_implementation": "hybrid",
            "eos_token_id": [1, 106],
            "final_logit_softcapping": None,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "max_position_embeddings": 32768,
            "model_type": "gemma3_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 26,
            "num_key_value_heads": 1,
            "pad_token_id": 0,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "rope_theta": 1000000,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": 262144,
        },
        1.000,
    ),
    "google/gemma-3-4b-it": Published(_gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34), 3.880),
    "google/gemma-3-12b-it": Published(
        _gemma3(
            hidden_size=3840,
            intermediate_size=15360,
            num_attention_heads=16,
            num_hidden_layers=48,
            num_key_value_heads=8,
        ),
        11.766,
    ),
    "google/gemma-3-27b-it": Published(
        _gemma3(
            head_dim=128,
            hidden_size=5376,
            intermediate_size=21504,
            num_attention_heads=32,
            num_hidden_layers=62,
            num_key_value_heads=16,
            query_pre_attn_scalar=168,
        ),
        27.009,
    ),
    "a Gemma 3 4B saved by transformers 5": Published(
        {
            **without(
                _gemma3(
                    hidden_size=2560,
                    intermediate_size=10240,
                    num_hidden_layers=34,
                    num_attention_heads=8,
                    num_key_value_heads=4,
                    head_dim=256,
                    layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5 + ["sliding_attention"] * 4,
                    rope_scaling=None,
                    rope_parameters={
                        "full_attention": {"factor": 8.0, "rope_theta": 1000000.0, "rope_type": "linear"},
                        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
                    },
                    vocab_size=262208,
                    use_bidirectional_attention=False,
                ),
                "torch_dtype",
            ),
            "dtype": "bfloat16",
            "tie_word_embeddings": True,
        },
        3.880,
    ),
}
