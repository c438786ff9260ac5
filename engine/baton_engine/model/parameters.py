"""Names and shapes of a model's parameters, as Hugging Face checkpoints of the supported families have them.

The one place where parameter names are written. Which extra tensors are harmless is decided here too.
"""

from __future__ import annotations

import re
from typing import Final

from baton_engine.model.model_config import ModelConfig

Shape = tuple[int, ...]

EMBEDDING: Final = "model.embed_tokens.weight"
FINAL_NORM: Final = "model.norm.weight"
HEAD: Final = "lm_head.weight"

_ROTARY_BUFFER: Final = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every parameter that the checkpoint of this config must have, in the order in which they are used."""
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[layer_prefix(layer) + name] = shape
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_head:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def is_harmless_extra(name: str, config: ModelConfig) -> bool:
    """Tensors that exporters leave in a file to no effect: RoPE buffers (recomputed), a head that is tied anyway."""
    return bool(_ROTARY_BUFFER.fullmatch(name)) or (config.tied_head and name == HEAD)


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,)}
    shapes |= _linear("self_attn.q_proj", q_width, hidden, config.qkv_bias)
    shapes |= _linear("self_attn.k_proj", kv_width, hidden, config.qkv_bias)
    shapes |= _linear("self_attn.v_proj", kv_width, hidden, config.qkv_bias)
    shapes |= _linear("self_attn.o_proj", hidden, q_width, config.output_bias)
    if config.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (config.head_dim,) for name in ("q", "k")}
    shapes["post_attention_layernorm.weight"] = (hidden,)
    shapes |= _linear("mlp.gate_proj", inner, hidden, config.mlp_bias)
    shapes |= _linear("mlp.up_proj", inner, hidden, config.mlp_bias)
    shapes |= _linear("mlp.down_proj", hidden, inner, config.mlp_bias)
    return shapes


def _linear(name: str, out_features: int, in_features: int, has_bias: bool) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (out_features, in_features)}
    if has_bias:
        shapes[f"{name}.bias"] = (out_features,)
    return shapes
