"""FP8 of the models' makers, and of AutoFP8, Meta, AMD and NVIDIA."""

from __future__ import annotations

from typing import Final

from baton_testing.published.checkpoint import ALL, Quantised

_BLOCKS: Final = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
_STATIC: Final = {"activation_scheme": "static", "ignored_layers": ["lm_head"], "quant_method": "fp8"}
_QWEN_FP8: Final = (
    "lm_head",
    "model.layers.{layer}.input_layernorm",
    "model.layers.{layer}.mlp.gate",
    "model.layers.{layer}.post_attention_layernorm",
)

_MINISTRAL: Final = {
    "activation_scheme": "static",
    "dequantize": False,
    "modules_to_not_convert": ["model.vision_tower", "model.multi_modal_projector", "lm_head"],
    "quant_method": "fp8",
    "weight_block_size": None,
}

FP8: Final[dict[str, Quantised]] = {
    "mistralai/Ministral-3-8B-Instruct-2512": Quantised(
        "mistralai/Ministral-3-8B-Instruct-2512-BF16",
        _MINISTRAL,
        ((ALL, "fp8-tensor-transformers"),),
        beside=("activation_scale",),
    ),
    "Qwen/Qwen3-8B-FP8": Quantised("Qwen/Qwen3-8B", _BLOCKS, ((ALL, "fp8-block"),)),
    "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": Quantised(
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        {**_BLOCKS, "modules_to_not_convert": list(_QWEN_FP8)},
        ((ALL, "fp8-block"),),
    ),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8": Quantised(
        "Qwen/Qwen3-Coder-30B-A3B-Instruct",
        {**_BLOCKS, "modules_to_not_convert": list(_QWEN_FP8)},
        ((ALL, "fp8-block"),),
    ),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": Quantised(
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        {**_BLOCKS, "modules_to_not_convert": list(_QWEN_FP8)},
        ((ALL, "fp8-block"),),
    ),
    "neuralmagic/Meta-Llama-3-8B-Instruct-FP8": Quantised(
        "meta-llama/Meta-Llama-3-8B-Instruct", _STATIC, ((ALL, "fp8-tensor"),), beside=("input_scale",)
    ),
    "neuralmagic/Meta-Llama-3-8B-Instruct-FP8-KV": Quantised(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        {**_STATIC, "kv_cache_scheme": "static"},
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
        extra=("model.layers.{layer}.self_attn.kv_scale",),
    ),
    "amd/Llama-3.1-8B-Instruct-FP8-KV": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_STATIC, "kv_cache_scheme": "static"},
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
        extra=(
            "model.layers.{layer}.self_attn.k_proj.output_scale",
            "model.layers.{layer}.self_attn.v_proj.output_scale",
        ),
    ),
    "neuralmagic/Mixtral-8x7B-Instruct-v0.1-FP8": Quantised(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        {**_STATIC, "ignored_layers": ["lm_head", "model.layers.{layer}.block_sparse_moe.gate"]},
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
    ),
    "meta-llama/Llama-3.1-405B-Instruct-FP8": Quantised(
        "meta-llama/Llama-3.1-405B-Instruct",
        {
            "activation_scale_ub": 1200.0,
            "modules_to_not_convert": ["model.layers.{layer}.self_attn", "lm_head", "model.layers.0.mlp"],
            "quant_method": "fbgemm_fp8",
        },
        ((r"model\.layers\.[1-9]\d*\.mlp\..*", "fp8-channel"),),
    ),
    "nvidia/Llama-3.1-8B-Instruct-FP8": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {
            "config_groups": {
                "group_0": {
                    "input_activations": {"dynamic": False, "num_bits": 8, "type": "float"},
                    "targets": ["Linear"],
                    "weights": {"dynamic": False, "num_bits": 8, "type": "float"},
                }
            },
            "ignore": ["lm_head"],
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "producer": {"name": "modelopt", "version": "0.29.0"},
            "quant_algo": "FP8",
            "quant_method": "modelopt",
        },
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
        extra=("model.layers.{layer}.self_attn.k_proj.k_scale", "model.layers.{layer}.self_attn.v_proj.v_scale"),
    ),
    "nvidia/Qwen3-30B-A3B-FP8": Quantised(
        "Qwen/Qwen3-30B-A3B",
        {
            "ignore": ["lm_head", "model.layers.*.mlp.gate"],
            "producer": {"name": "modelopt", "version": "0.33.0"},
            "quant_algo": "FP8",
            "quant_method": "modelopt",
        },
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
    ),
}
