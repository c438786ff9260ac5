"""Checkpoints in the forms of compressed-tensors, by llm-compressor."""

from __future__ import annotations

from typing import Any, Final

from baton_testing.published.checkpoint import ALL, Config, Quantised


def _compressed(layout: str, groups: list[Config], ignore: list[str], **fields: Any) -> Config:
    return {
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "format": layout,
        "global_compression_ratio": None,
        "ignore": ignore,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        **fields,
    }


def _group(weights: Config, inputs: Config | None, *targets: str, **fields: Any) -> Config:
    return {
        "input_activations": inputs,
        "output_activations": None,
        "targets": list(targets) or ["Linear"],
        "weights": weights,
        **fields,
    }


def _arguments(bits: int, kind: str, strategy: str, dynamic: bool = False, **fields: Any) -> Config:
    return {
        "actorder": None,
        "block_structure": None,
        "dynamic": dynamic,
        "group_size": None,
        "num_bits": bits,
        "observer": None if dynamic else "minmax",
        "observer_kwargs": {},
        "strategy": strategy,
        "symmetric": True,
        "type": kind,
        **fields,
    }


_FP8_KV: Final = _arguments(8, "float", "tensor")
_INT4: Final = _arguments(4, "int", "group", group_size=128)
_TOKENS_FP8: Final = _arguments(8, "float", "token", dynamic=True)
_TOKENS_INT8: Final = _arguments(8, "int", "token", dynamic=True)

COMPRESSED: Final[dict[str, Quantised]] = {
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "tensor"), _arguments(8, "float", "tensor"))],
            ["lm_head"],
            quantization_status="frozen",
        ),
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
    ),
    "RedHatAI/Llama-3.2-1B-Instruct-FP8-dynamic": Quantised(
        "meta-llama/Llama-3.2-1B-Instruct",
        _compressed("float-quantized", [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)], ["lm_head"]),
        ((ALL, "fp8-channel"),),
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8, with scales of the cache": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "tensor"), _arguments(8, "float", "tensor"))],
            ["lm_head"],
            kv_cache_scheme=_FP8_KV,
            transform_config={},
            sparsity_config={},
            version="0.11.0",
        ),
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
        extra=("model.layers.{layer}.self_attn.k_scale", "model.layers.{layer}.self_attn.v_scale"),
    ),
    "neuralmagic/Qwen2-7B-Instruct-FP8, with scales of the cache as first written": Quantised(
        "Qwen/Qwen2-7B-Instruct",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "tensor"), _arguments(8, "float", "tensor"))],
            ["lm_head"],
            kv_cache_scheme=_FP8_KV,
        ),
        ((ALL, "fp8-tensor"),),
        beside=("input_scale",),
        extra=(
            "model.layers.{layer}.self_attn.k_proj.output_scale",
            "model.layers.{layer}.self_attn.v_proj.output_scale",
        ),
    ),
    "RedHatAI/Qwen3-30B-A3B-FP8-dynamic": Quantised(
        "Qwen/Qwen3-30B-A3B",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)],
            ["re:.*lm_head", "re:.*mlp.gate$"],
        ),
        ((ALL, "fp8-channel"),),
    ),
    "RedHatAI/Qwen3-30B-A3B-FP8-dynamic, with its names written out": Quantised(
        "Qwen/Qwen3-30B-A3B",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)],
            ["model.layers.{layer}.mlp.gate", "lm_head"],
        ),
        ((ALL, "fp8-channel"),),
    ),
    "Qwen3-8B, FP8_BLOCK of llm-compressor": Quantised(
        "Qwen/Qwen3-8B",
        _compressed(
            "float-quantized",
            [
                _group(
                    _arguments(8, "float", "block", block_structure=[128, 128], scale_dtype=None, zp_dtype=None),
                    _arguments(8, "float", "group", dynamic=True, group_size=128),
                    format="float-quantized",
                )
            ],
            ["lm_head", "re:.*mlp.gate$", "re:.*input_layernorm$"],
        ),
        ((ALL, "fp8-block-ct"),),
    ),
    "RedHatAI/Mistral-Small-24B-Instruct-2501-FP8-dynamic": Quantised(
        "mistralai/Mistral-Small-24B-Instruct-2501",
        _compressed("float-quantized", [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)], ["lm_head"]),
        ((ALL, "fp8-channel"),),
    ),
    "RedHatAI/gemma-3-27b-it-FP8-dynamic": Quantised(
        "google/gemma-3-27b-it",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)],
            [
                "vision_tower.vision_model.encoder.layers.{layer}.self_attn.k_proj",
                "vision_tower.vision_model.encoder.layers.{layer}.mlp.fc1",
                "lm_head",
            ],
        ),
        ((ALL, "fp8-channel"),),
    ),
    "RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w4a16": Quantised(
        "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
        _compressed(
            "pack-quantized",
            [_group({**_INT4, "actorder": "weight"}, None)],
            ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"],
        ),
        ((ALL, "packed-4-128"),),
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed("int-quantized", [_group(_arguments(8, "int", "channel"), _TOKENS_INT8)], ["lm_head"]),
        ((ALL, "int8-channel"),),
    ),
    "Llama-3-8B, W8A8 with static activations that have zero points": Quantised(
        "meta-llama/Meta-Llama-3-8B-Instruct",
        _compressed(
            "int-quantized",
            [_group(_arguments(8, "int", "channel"), _arguments(8, "int", "tensor", symmetric=False))],
            ["lm_head"],
        ),
        ((ALL, "int8-channel"),),
        beside=("input_scale", "input_zero_point"),
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a16": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed("pack-quantized", [_group(_arguments(8, "int", "channel"), None)], ["lm_head"]),
        ((ALL, "packed-8-channel"),),
    ),
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed("pack-quantized", [_group(_INT4, None)], ["lm_head"]),
        ((ALL, "packed-4-128"),),
    ),
    "Qwen2.5-7B, W4A16 with zero points, AWQ of llm-compressor": Quantised(
        "Qwen/Qwen2.5-7B-Instruct",
        _compressed("pack-quantized", [_group({**_INT4, "symmetric": False}, None)], ["lm_head"]),
        ((ALL, "packed-4-128-zeros"),),
    ),
    "Llama-3.1-8B, W4A16 with act-order": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed("pack-quantized", [_group({**_INT4, "actorder": "group"}, None)], ["lm_head"]),
        ((ALL, "packed-4-128-order"),),
    ),
    "RedHatAI/Qwen3-30B-A3B-quantized.w4a16": Quantised(
        "Qwen/Qwen3-30B-A3B",
        _compressed("pack-quantized", [_group(_INT4, None)], ["lm_head", "re:.*mlp.gate$"]),
        ((ALL, "packed-4-128"),),
    ),
    "Llama-3.1-8B, attention in W8A8 and the rest in W4A16": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed(
            "mixed-precision",
            [
                _group(
                    _arguments(8, "int", "channel"),
                    _TOKENS_INT8,
                    r"re:.*self_attn\.(q|k|v|o)_proj$",
                    format="int-quantized",
                ),
                _group(_INT4, None, r"re:.*mlp\.(gate|up|down)_proj$", format="pack-quantized"),
            ],
            ["lm_head", "re:.*mlp.shared_expert_gate$"],
        ),
        ((r".*self_attn.*", "int8-channel"), (ALL, "packed-4-128")),
    ),
    "microsoft/phi-4, FP8-dynamic": Quantised(
        "microsoft/phi-4",
        _compressed("float-quantized", [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)], ["lm_head"]),
        ((ALL, "fp8-channel"),),
    ),
    "RedHatAI/gpt-oss, experts in NVFP4": Quantised(
        "openai/gpt-oss-20b, in bfloat16",
        _compressed("nvfp4-pack-quantized", [_group(_arguments(4, "float", "tensor_group", group_size=16), None)], []),
        (),
        refused=r'quantization_config.format: "nvfp4-pack-quantized" is not supported; allowed: float-quantized',
    ),
    "Llama-3.1-8B, in 2:4 sparsity": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        _compressed(
            "float-quantized",
            [_group(_arguments(8, "float", "channel"), _TOKENS_FP8)],
            ["lm_head"],
            sparsity_config={"format": "sparse-24-bitmask"},
        ),
        (),
        refused='sparsity_config.format: "sparse-24-bitmask" is not supported; allowed: dense',
    ),
}
