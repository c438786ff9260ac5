"""Checkpoints of AutoGPTQ and GPTQModel."""

from __future__ import annotations

from typing import Final

from baton_testing.published.checkpoint import ALL, Quantised
from baton_testing.published.phi import PHI_CODE

_GPTQ: Final = {
    "bits": 4,
    "damp_percent": 0.1,
    "desc_act": False,
    "group_size": 128,
    "model_file_base_name": "model",
    "model_name_or_path": None,
    "quant_method": "gptq",
    "static_groups": False,
    "sym": True,
    "true_sequential": True,
}
_GPTQ_MODEL: Final = {
    "bits": 4,
    "checkpoint_format": "gptq",
    "desc_act": False,
    "group_size": 128,
    "lm_head": False,
    "meta": {"quantizer": ["gptqmodel:2.2.0"], "uri": "https://github.com/modelcloud/gptqmodel"},
    "pack_dtype": "int32",
    "quant_method": "gptq",
    "sym": True,
}

GPTQ: Final[dict[str, Quantised]] = {
    "TheBloke/Llama-2-7B-Chat-GPTQ": Quantised(
        "meta-llama/Llama-2-7b-chat-hf",
        {**_GPTQ, "desc_act": True},
        ((ALL, "gptq-4-128-order"),),
        extra=("model.layers.{layer}.self_attn.q_proj.bias", "model.layers.{layer}.mlp.down_proj.bias"),
    ),
    "TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ": Quantised(
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        {
            **_GPTQ,
            "modules_in_block_to_quantize": [
                ["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"],
                ["self_attn.o_proj"],
                ["block_sparse_moe.experts.0.w1", "block_sparse_moe.experts.1.w1", "block_sparse_moe.experts.0.w3"],
            ],
        },
        (
            (r".*self_attn.*", "gptq-4-128"),
            (r".*experts\.[01]\.w1", "gptq-4-128"),
            (r".*experts\.0\.w3", "gptq-4-128"),
        ),
    ),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": Quantised(
        "Qwen/Qwen2.5-7B-Instruct", {**_GPTQ, "bits": 8}, ((ALL, "gptq-8-128"),)
    ),
    "Qwen/Qwen3-30B-A3B-GPTQ-Int4": Quantised("Qwen/Qwen3-30B-A3B", _GPTQ_MODEL, ((ALL, "gptq-4-128"),)),
    "Llama-3.1-8B, GPTQ without symmetry in version 2": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_GPTQ_MODEL, "checkpoint_format": "gptq_v2", "desc_act": True, "sym": False},
        ((ALL, "gptq-4-128-zeros-order-v2"),),
    ),
    "Llama-3.1-8B, GPTQ of the head too, a scale a channel": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_GPTQ_MODEL, "group_size": -1, "lm_head": True},
        ((r".*(?<!\.gate)$", "gptq-4-channel"),),
    ),
    "Llama-3.2-3B, GPTQ with overrides": Quantised(
        "meta-llama/Llama-3.2-3B-Instruct",
        {
            **_GPTQ_MODEL,
            "dynamic": {
                r"-:model\.layers\.0\.mlp\..*": {},
                r"+:.*\.self_attn\.(q|k|v)_proj$": {"bits": 8, "group_size": 64},
                r".*\.o_proj": {"group_size": 32},
            },
        },
        (
            (r"model\.layers\.[1-9]\d*\.mlp.*", "gptq-4-128"),
            (r".*self_attn\.[qkv]_proj", "gptq-8-64"),
            (r".*o_proj", "gptq-4-32"),
        ),
    ),
    "Llama-3.1-8B, GPTQ of 3 bits": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_GPTQ, "bits": 3},
        (),
        refused="quantization_config.bits: 3 is not supported; allowed: 4 or 8",
    ),
    "Llama-2-7B, in Marlin's layout": Quantised(
        "meta-llama/Llama-2-7b-chat-hf",
        {**_GPTQ, "is_marlin_format": True},
        (),
        refused="quantization_config.is_marlin_format: true is not supported; allowed: false",
    ),
    "Llama-3.1-8B, GPTQ with a correction of low rank": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_GPTQ_MODEL, "adapter": {"name": "lora", "rank": 32}},
        (),
        refused="quantization_config.adapter: .*nothing is added",
    ),
    "Phi-3.5-mini, GPTQ with code of its base": Quantised(
        "microsoft/Phi-3.5-mini-instruct",
        _GPTQ_MODEL,
        ((ALL, "gptq-4-128"),),
        fields={"auto_map": {key: f"microsoft/Phi-3.5-mini-instruct--{name}" for key, name in PHI_CODE.items()}},
    ),
    "GLM-4-9B-0414, GPTQ": Quantised("THUDM/GLM-4-9B-0414", _GPTQ_MODEL, ((ALL, "gptq-4-128"),)),
}
