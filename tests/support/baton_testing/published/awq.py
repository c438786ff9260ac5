"""Checkpoints of AutoAWQ and GPTQModel."""

from __future__ import annotations

from typing import Final

from baton_testing.published.checkpoint import ALL, Quantised

_AWQ: Final = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}

AWQ: Final[dict[str, Quantised]] = {
    "TheBloke/Mistral-7B-v0.1-AWQ": Quantised("mistralai/Mistral-7B-v0.1", _AWQ, ((ALL, "awq-128"),)),
    "Qwen/Qwen3-8B-AWQ": Quantised("Qwen/Qwen3-8B", {**_AWQ, "backend": "autoawq"}, ((ALL, "awq-128"),)),
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_AWQ, "backend": "autoawq", "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None},
        ((ALL, "awq-128"),),
        fields={"torch_dtype": "float16"},
    ),
    "casperhansen/mixtral-instruct-awq": Quantised(
        "mistralai/Mixtral-8x7B-Instruct-v0.1", {**_AWQ, "modules_to_not_convert": ["gate"]}, ((ALL, "awq-128"),)
    ),
    "Qwen3-30B-A3B, AWQ with gates left by a part of their name": Quantised(
        "Qwen/Qwen3-30B-A3B",
        {**_AWQ, "modules_to_not_convert": ["gate"]},
        ((r".*(?<!gate_proj)(?<!\.gate)(?<!lm_head)$", "awq-128"),),
    ),
    "Qwen2.5-7B, AWQ of GPTQModel": Quantised(
        "Qwen/Qwen2.5-7B-Instruct",
        {
            "bits": 4,
            "checkpoint_format": "gemm",
            "desc_act": False,
            "group_size": 128,
            "lm_head": False,
            "pack_dtype": "int32",
            "quant_method": "awq",
            "sym": False,
            "zero_point": True,
        },
        ((ALL, "awq-128"),),
    ),
    "Llama-3.1-8B, AWQ for matrix times vector": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {**_AWQ, "version": "gemv"},
        (),
        refused='quantization_config.version: "gemv" is not supported; allowed: gemm',
    ),
    "Llama-3.1-8B, AWQ of GPTQModel for matrix times vector": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {"bits": 4, "checkpoint_format": "gemv_fast", "group_size": 128, "quant_method": "awq"},
        (),
        refused='quantization_config.checkpoint_format: "gemv_fast" is not supported; allowed: gemm',
    ),
}
