"""Families that are known but not served: the parts that Baton does not compute, and the nearest served family."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Unserved:
    """One `model_type`."""

    parts: str
    """Parts of its layers that are not computed."""
    nearest: str
    """`model_type` of the nearest served family."""


_GEMMA4: Final = Unserved(
    "heads of two sizes (global_head_dim), normed values and per-layer inputs (hidden_size_per_layer_input)",
    "gemma3_text",
)
_DELTA: Final = Unserved("linear attention (gated DeltaNet) in most layers", "qwen3_moe")
_LATENT: Final = "multi-head latent attention (kv_lora_rank)"

UNSERVED: Final = MappingProxyType[str, Unserved](
    {
        "gemma2": Unserved("capped attention scores (attn_logit_softcapping)", "gemma3_text"),
        "gemma3n": Unserved("per-layer inputs and shared keys and values", "gemma3_text"),
        "gemma3n_text": Unserved("per-layer inputs and shared keys and values", "gemma3_text"),
        "gemma4": _GEMMA4,
        "gemma4_text": _GEMMA4,
        "gemma4_unified": _GEMMA4,
        "qwen3_next": _DELTA,
        "qwen3_5": Unserved(_DELTA.parts, "qwen3"),
        "qwen3_5_text": Unserved(_DELTA.parts, "qwen3"),
        "qwen3_5_moe": _DELTA,
        "qwen3_5_moe_text": _DELTA,
        "deepseek_v2": Unserved(_LATENT, "qwen2_moe"),
        "deepseek_v3": Unserved(_LATENT, "glm4_moe"),
        "glm4_moe_lite": Unserved(_LATENT, "glm4_moe"),
        "kimi_linear": Unserved("linear attention and multi-head latent attention", "glm4_moe"),
        "nemotron_h": Unserved("Mamba layers (hybrid_override_pattern)", "llama"),
        "falcon_h1": Unserved("Mamba next to attention in each layer", "llama"),
        "bamba": Unserved("Mamba layers", "granite"),
        "lfm2": Unserved("short convolutions (layer_types: conv)", "qwen3"),
        "lfm2_moe": Unserved("short convolutions (layer_types: conv)", "qwen3_moe"),
        "laguna": Unserved("gates of attention heads (gating) and layers with different numbers of heads", "qwen3_moe"),
        "mellum": Unserved("windows and a RoPE of their own in some layers, next to experts", "qwen3_moe"),
        "minimax": Unserved("linear attention (lightning attention)", "minimax_m2"),
    }
)
