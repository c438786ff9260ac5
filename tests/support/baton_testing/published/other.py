"""gpt-oss in MXFP4, and what is not served: refusals by name."""

from __future__ import annotations

from typing import Final

from baton_testing.published.checkpoint import Quantised

OTHER: Final[dict[str, Quantised]] = {
    "openai/gpt-oss-20b": Quantised(
        "openai/gpt-oss-20b, in bfloat16",
        {
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
            "quant_method": "mxfp4",
        },
        ((r".*experts\.(gate_up|down)_proj", "mxfp4"),),
    ),
    "unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {
            "_load_in_4bit": True,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_type": "nf4",
            "load_in_4bit": True,
            "quant_method": "bitsandbytes",
        },
        (),
        refused='quantization_config.quant_method: "bitsandbytes" is not supported; allowed: auto-round, awq',
    ),
    "nvidia/Llama-3.1-8B-Instruct-FP4": Quantised(
        "meta-llama/Llama-3.1-8B-Instruct",
        {"ignore": ["lm_head"], "quant_algo": "NVFP4", "quant_method": "modelopt"},
        (),
        refused='quantization_config.quant_algo: "NVFP4" is not supported; allowed: FP8',
    ),
}
