"""Names and shapes of a model's parameters, as Hugging Face checkpoints of the supported families have them.

The one place where parameter names are written. Which extra tensors are harmless is decided here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from baton_engine.model.errors import ModelConfigError
from baton_engine.model.formats.quantization import KV_SCALES
from baton_engine.model.formats.weight_format import TensorForm
from baton_engine.model.model_config import ModelConfig

UNQUANTISED: Final = ("F32", "BF16", "F16", "F64")
"""Dtypes of tensors that are cast to the model's."""

EMBEDDING: Final = "model.embed_tokens.weight"
FINAL_NORM: Final = "model.norm.weight"
HEAD_LAYER: Final = "lm_head"
HEAD: Final = f"{HEAD_LAYER}.weight"

_ROTARY_BUFFER: Final = re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def expected_tensors(config: ModelConfig) -> dict[str, TensorForm]:
    """Every parameter that the checkpoint of this config may have, in the order in which they are used. Raises
    ModelConfigError for sizes that a weight format can't hold."""
    forms: dict[str, TensorForm] = {EMBEDDING: _plain(config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = layer_prefix(layer)
        forms[f"{prefix}input_layernorm.weight"] = _plain(config.hidden_size)
        if is_sparse(config, layer) and config.experts is not None:
            forms[f"{prefix}{config.experts.router}.weight"] = _plain(config.experts.count, config.hidden_size)
        for name, features, columns, has_bias in layer_projections(config, layer):
            forms |= _linear(config, prefix + name, features, columns, has_bias)
        if config.qk_norm:
            forms |= {f"{prefix}self_attn.{name}_norm.weight": _plain(config.head_dim) for name in ("q", "k")}
        forms[f"{prefix}post_attention_layernorm.weight"] = _plain(config.hidden_size)
    forms[FINAL_NORM] = _plain(config.hidden_size)
    if not config.tied_head:
        forms |= _linear(config, HEAD_LAYER, config.vocab_size, config.hidden_size, False)
    return forms


def is_sparse(config: ModelConfig, layer: int) -> bool:
    """Whether the layer has experts."""
    return config.experts is not None and layer in config.experts.layers


def is_expert(config: ModelConfig, layer: int, projection: str) -> bool:
    """Whether a projection of the layer is an expert's."""
    return is_sparse(config, layer) and not projection.startswith("self_attn.")


def layer_projections(config: ModelConfig, layer: int) -> Iterator[tuple[str, int, int, bool]]:
    """The linear layers of a decoder layer: name, output features, columns, and whether there is a bias."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_width, kv_width = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield "self_attn.q_proj", q_width, hidden, config.qkv_bias
    yield "self_attn.k_proj", kv_width, hidden, config.qkv_bias
    yield "self_attn.v_proj", kv_width, hidden, config.qkv_bias
    yield "self_attn.o_proj", hidden, q_width, config.output_bias
    if config.experts is not None and is_sparse(config, layer):
        for number in range(config.experts.count):
            for name in config.experts.gate_up(number):
                yield name, config.experts.intermediate_size, hidden, False
            yield config.experts.down(number), hidden, config.experts.intermediate_size, False
        return
    yield "mlp.gate_proj", inner, hidden, config.mlp_bias
    yield "mlp.up_proj", inner, hidden, config.mlp_bias
    yield "mlp.down_proj", hidden, inner, config.mlp_bias


def linear_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Output features and columns of all linear layers by name, the head among them."""
    sizes = {
        layer_prefix(layer) + name: (features, columns)
        for layer in range(config.num_layers)
        for name, features, columns, _ in layer_projections(config, layer)
    }
    return sizes | {HEAD_LAYER: (config.vocab_size, config.hidden_size)}


def is_harmless_extra(name: str, config: ModelConfig) -> bool:
    """Tensors that exporters leave in a file to no effect: RoPE buffers (recomputed), a head that is tied anyway,
    scales of a float8 KV cache (ours come from the weights)."""
    if config.formats.has_kv_scales and name.endswith(KV_SCALES):
        return True
    return bool(_ROTARY_BUFFER.fullmatch(name)) or (config.tied_head and name == HEAD)


def _plain(*shape: int) -> TensorForm:
    return TensorForm((shape,), UNQUANTISED)


def _linear(config: ModelConfig, name: str, features: int, columns: int, has_bias: bool) -> dict[str, TensorForm]:
    stored = config.formats.of(name)
    if stored is None:
        forms = {f"{name}.weight": _plain(features, columns)}
    else:
        try:
            tensors = stored.tensors(features, columns)
        except ValueError as error:
            raise ModelConfigError(f"quantization_config: {name}.{error}") from error
        forms = {f"{name}.{part}": form for part, form in tensors.items()}
    if has_bias:
        forms[f"{name}.bias"] = _plain(features)
    return forms
