"""config.json of Mistral and Mixtral, and the language model of Mistral Small 3.1."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import Config, Published, without


def _mistral(hidden: int, inner: int, layers: int, heads: int, vocabulary: int, **fields: Any) -> Config:
    return {
        "architectures": ["MistralForCausalLM"],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocabulary,
        **fields,
    }


def _mixtral(hidden: int, inner: int, layers: int, heads: int, vocabulary: int, **fields: Any) -> Config:
    return _mistral(
        hidden,
        inner,
        layers,
        heads,
        vocabulary,
        **{
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_experts_per_tok": 2,
            "num_local_experts": 8,
            "output_router_logits": False,
            "router_aux_loss_coef": 0.02,
            **fields,
        },
    )


def _ministral3() -> Config:
    text = without(_mistral(4096, 14336, 34, 32, 131072), "architectures", "rope_theta", "torch_dtype")
    yarn = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    rope = {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384, "rope_theta": 1000000.0}
    own: Config = {
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "model_type": "ministral3",
        "rope_parameters": {**yarn, **rope, "rope_type": "yarn", "type": "yarn"},
    }
    return {**_mistral3(), "text_config": {**text, **own}, "tie_word_embeddings": False}


def _mistral3(**fields: Any) -> Config:
    text = _mistral(5120, 32768, 40, 32, 131072, head_dim=128, max_position_embeddings=131072, rope_theta=1000000000.0)
    for name in ("architectures", "bos_token_id", "eos_token_id", "tie_word_embeddings", "torch_dtype"):
        del text[name]
    return {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "image_token_index": 10,
        "model_type": "mistral3",
        "multimodal_projector_bias": False,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": 2,
        "text_config": text,
        "torch_dtype": "bfloat16",
        "vision_config": {
            "attention_dropout": 0.0,
            "head_dim": 64,
            "hidden_act": "silu",
            "hidden_size": 1024,
            "image_size": 1540,
            "intermediate_size": 4096,
            "model_type": "pixtral",
            "num_attention_heads": 16,
            "num_channels": 3,
            "num_hidden_layers": 24,
            "patch_size": 14,
            "rope_theta": 10000.0,
        },
        "vision_feature_layer": -1,
        **fields,
    }


MISTRAL: Final[dict[str, Published]] = {
    "mistralai/Mistral-7B-v0.1": Published(
        _mistral(4096, 14336, 32, 32, 32000, sliding_window=4096, rope_theta=10000.0), 7.242
    ),
    "mistralai/Mistral-7B-Instruct-v0.3": Published(_mistral(4096, 14336, 32, 32, 32768), 7.248),
    "mistralai/Mistral-Nemo-Instruct-2407": Published(
        _mistral(5120, 14336, 40, 32, 131072, head_dim=128, max_position_embeddings=1024000), 12.248
    ),
    "mistralai/Ministral-8B-Instruct-2410": Published(
        _mistral(4096, 12288, 36, 32, 131072, head_dim=128, sliding_window=32768, rope_theta=100000000.0), 8.020
    ),
    "mistralai/Mistral-Small-24B-Instruct-2501": Published(
        _mistral(5120, 32768, 40, 32, 131072, head_dim=128, rope_theta=100000000.0), 23.572
    ),
    "mistralai/Mistral-Large-Instruct-2407": Published(
        _mistral(12288, 28672, 88, 96, 32768, head_dim=128, max_position_embeddings=131072), 122.61
    ),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": Published(_mistral3(), 23.572),
    "mistralai/Ministral-3-8B-Instruct-2512-BF16": Published(_ministral3(), 8.49),
    "a Mistral saved by transformers 5": Published(
        {
            **without(_mistral(4096, 14336, 32, 32, 32000), "rope_theta", "torch_dtype"),
            "dtype": "bfloat16",
            "head_dim": 128,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        },
        7.242,
    ),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": Published(_mixtral(4096, 14336, 32, 32, 32000), 46.703),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": Published(
        _mixtral(6144, 16384, 56, 48, 32768, max_position_embeddings=65536), 140.63
    ),
}
