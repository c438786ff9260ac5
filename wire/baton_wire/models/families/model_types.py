"""The registry: families by `model_type`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from baton_wire.models.families import (
    ernie,
    gemma,
    glm,
    glm_moe,
    gpt_oss,
    granite,
    granite_moe,
    hunyuan,
    llama,
    llama4,
    minimax,
    mistral,
    mixtral,
    olmo,
    phi,
    qwen,
    qwen2_moe,
    seed_oss,
)
from baton_wire.models.families.family import Family

FAMILIES: Final = MappingProxyType[str, Family](
    {
        "llama": llama.LLAMA,
        "mistral": mistral.MISTRAL,
        "ministral3": mistral.MINISTRAL3,
        "qwen2": qwen.QWEN2,
        "qwen3": qwen.QWEN3,
        "mixtral": mixtral.MIXTRAL,
        "qwen2_moe": qwen2_moe.QWEN2_MOE,
        "qwen3_moe": qwen.QWEN3_MOE,
        "gemma3_text": gemma.GEMMA3,
        "phi3": phi.PHI3,
        "glm": glm.GLM,
        "glm4": glm.GLM4,
        "glm4_moe": glm_moe.GLM4_MOE,
        "minimax_m2": minimax.MINIMAX_M2,
        "gpt_oss": gpt_oss.GPT_OSS,
        "granite": granite.GRANITE,
        "seed_oss": seed_oss.SEED_OSS,
        "olmo2": olmo.OLMO2,
        "olmo3": olmo.OLMO3,
        "ernie4_5": ernie.ERNIE4_5,
        "ernie4_5_moe": ernie.ERNIE4_5_MOE,
        "hunyuan_v1_dense": hunyuan.HUNYUAN_DENSE,
        "hunyuan_v1_moe": hunyuan.HUNYUAN_MOE,
        "llama4_text": llama4.LLAMA4,
        "granitemoe": granite_moe.GRANITE_MOE,
        "granitemoeshared": granite_moe.GRANITE_MOE_SHARED,
        "granitemoehybrid": granite_moe.GRANITE_MOE_HYBRID,
    }
)
