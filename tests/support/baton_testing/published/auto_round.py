"""Checkpoints that AutoRound describes itself."""

from __future__ import annotations

from typing import Final

from baton_testing.published.checkpoint import ALL, Quantised

_AUTO_ROUND: Final = {
    "autoround_version": "0.5.1",
    "batch_size": 8,
    "bits": 4,
    "data_type": "int",
    "group_size": 128,
    "iters": 1000,
    "low_gpu_mem_usage": True,
    "nsamples": 512,
    "packing_format": "auto_round:auto_gptq",
    "quant_method": "auto-round",
    "seqlen": 2048,
    "sym": True,
}
_LLAMA: Final = "meta-llama/Llama-3.1-8B-Instruct"

AUTO_ROUND: Final[dict[str, Quantised]] = {
    "Intel/Qwen3-8B-int4-AutoRound": Quantised("Qwen/Qwen3-8B", _AUTO_ROUND, ((ALL, "gptq-4-128"),)),
    "Qwen3-30B-A3B, AutoRound with gates as they are": Quantised(
        "Qwen/Qwen3-30B-A3B",
        {
            **_AUTO_ROUND,
            "block_name_to_quantize": "model.layers",
            "extra_config": {
                **{f"model.layers.{layer}.mlp.gate": {"bits": 16, "data_type": "float"} for layer in range(48)},
                "model.visual.merger.norm": {"bits": 16, "data_type": "float"},
            },
        },
        ((ALL, "gptq-4-128"),),
    ),
    "Llama-3.1-8B, AutoRound in AWQ's layout": Quantised(
        _LLAMA, {**_AUTO_ROUND, "packing_format": "auto_round:auto_awq"}, ((ALL, "awq-128"),)
    ),
    "Llama-3.1-8B, AutoRound with layers of their own": Quantised(
        _LLAMA,
        {
            **_AUTO_ROUND,
            "to_quant_block_names": [["model.layers.0", "model.layers.1"]],
            "extra_config": {
                "lm_head": {"bits": 4},
                "model.layers.0.self_attn.q_proj": {"bits": 8, "group_size": 64, "sym": True},
                r"self_attn\.(q|k)_proj": {"bits": 16},
                r".*o_proj$": {"group_size": 32},
            },
        },
        (
            ("lm_head", "gptq-4-128"),
            (r"model\.layers\.0\.self_attn\.q_proj", "gptq-8-64"),
            (r".*o_proj", "gptq-4-32"),
            (r".*(?<!q_proj)(?<!k_proj)(?<!lm_head)$", "gptq-4-128"),
        ),
    ),
    "Llama-3.1-8B, AutoRound of 2 bits": Quantised(
        _LLAMA,
        {**_AUTO_ROUND, "bits": 2},
        (),
        refused="quantization_config.bits: 2 is not supported; allowed: 4 or 8",
    ),
    "Llama-3.1-8B, AutoRound of 2 bits in one layer": Quantised(
        _LLAMA,
        {**_AUTO_ROUND, "extra_config": {"model.layers.0.mlp.up_proj": {"bits": 2}}},
        (),
        refused="quantization_config.extra_config.model.layers.0.mlp.up_proj.bits: 2 is not supported",
    ),
    "Llama-3.1-8B, AutoRound with activations of 8 bits": Quantised(
        _LLAMA,
        {**_AUTO_ROUND, "bits": 8, "act_bits": 8},
        (),
        refused="quantization_config.act_bits: 8 is not supported",
    ),
    "Llama-3.1-8B, AutoRound in MXFP4": Quantised(
        _LLAMA, {**_AUTO_ROUND, "data_type": "mx_fp"}, (), refused='quantization_config.data_type: "mx_fp"'
    ),
    "Llama-3.1-8B, AutoRound in a layout of llama.cpp": Quantised(
        _LLAMA, {**_AUTO_ROUND, "packing_format": "gguf"}, (), refused='quantization_config.packing_format: "gguf"'
    ),
    "Llama-3.1-8B, AutoRound with a pattern that could match for ever": Quantised(
        _LLAMA,
        {**_AUTO_ROUND, "extra_config": {r"(a+)+(b*)*.*": {"bits": 16}}},
        (),
        refused="quantization_config.extra_config: .* is not supported; allowed: simple patterns",
    ),
    "Llama-3.1-8B, AutoRound with blocks by number": Quantised(
        _LLAMA,
        {**_AUTO_ROUND, "block_name_to_quantize": [1, 2]},
        (),
        refused="quantization_config.block_name_to_quantize: .*names of modules",
    ),
}
