"""What the model is: `ModelConfig`, read from a Hugging Face config.json, and the refusal of everything we would
compute wrongly.

One decoder implementation serves every supported family, so a family is only a set of defaults and fixed options
(`_FAMILIES`). No torch here. How RoPE options are read is in `rope_config.py`; generation defaults other than stop ids
are the gateway's.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from baton_engine.model.config_fields import ConfigFields, JsonObject, read_json_object
from baton_engine.model.errors import ModelConfigError
from baton_engine.model.expert_config import ExpertConfig, read_experts
from baton_engine.model.formats.quantization import WeightFormats, read_weight_formats
from baton_engine.model.model_directory import model_file
from baton_engine.model.rope_config import RopeConfig, YarnScaling, read_rope

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model_type fixes, and transformers' defaults for fields that a config.json may leave out."""

    architecture: str
    qkv_bias: bool | None
    """None: the field `attention_bias` says so, for the output projection too. Else fixed, without output bias."""
    has_mlp_bias_field: bool
    qk_norm: bool
    default_positions: int | None = None
    default_head_dim: int | None = None
    kv_heads_required: bool = True


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", None, True, False, default_positions=2048, kv_heads_required=False),
    "mistral": _Family("MistralForCausalLM", False, False, False),
    "qwen2": _Family("Qwen2ForCausalLM", True, False, False),
    "qwen3": _Family("Qwen3ForCausalLM", None, False, True, default_head_dim=128),
    "mixtral": _Family("MixtralForCausalLM", False, False, False),
    "qwen3_moe": _Family("Qwen3MoeForCausalLM", None, False, True),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Everything the decoder needs to know about a model, apart from its weights."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]
    """Per layer: how many positions, the query's own included, it attends to; None is all."""
    eos_token_ids: tuple[int, ...]
    dtype: str | None
    """The checkpoint's own dtype; None when the config does not say."""
    experts: ExpertConfig | None = None
    """None: one feed-forward block in every layer."""
    formats: WeightFormats = field(default_factory=WeightFormats)
    """How the weights of linear layers are stored."""

    @property
    def max_context_tokens(self) -> int:
        """Longest context that positions are made for. YaRN configs may state the length before extension."""
        scaling = self.rope.scaling
        if isinstance(scaling, YarnScaling):
            return max(self.max_position_embeddings, int(scaling.original_positions * scaling.factor))
        return self.max_position_embeddings

    def context_within(self, asked: int | None) -> int:
        """The context to serve: what is asked for, or all that the model is made for. Raises ModelConfigError."""
        allowed = self.max_context_tokens
        if asked is not None and not 1 <= asked <= allowed:
            raise ModelConfigError(
                f"max_context_tokens: {asked} is not supported; allowed: 1 to {allowed}, which the model is made for"
            )
        return asked or allowed

    def rope_digest(self) -> str:
        """SHA-256 over the RoPE options, hexadecimal: equal on two workers whose rotated keys may be mixed."""
        content = {"rope": asdict(self.rope), "type": type(self.rope.scaling).__name__}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_config(directory: Path) -> ModelConfig:
    """Config of a model directory: config.json, stop ids from generation_config.json too. Raises ModelConfigError."""
    generation = model_file(directory, "generation_config.json")
    config = model_file(directory, "config.json") or directory / "config.json"
    return parse_config(read_json_object(config), read_json_object(generation) if generation else {})


def parse_config(config: JsonObject, generation: JsonObject | None = None) -> ModelConfig:
    """Config of both files, parsed. Raises ModelConfigError: field, value, what is allowed."""
    fields = ConfigFields(config)
    family = _read_family(fields)
    hidden_size, q_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    num_layers = fields.integer("num_hidden_layers", maximum=1_024)
    positions = fields.integer("max_position_embeddings", family.default_positions)
    attention_bias = _read_attention_bias(fields, family)
    return ModelConfig(
        family=fields.text("model_type"),
        vocab_size=fields.integer("vocab_size", maximum=1 << 24),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_q_heads=q_heads,
        num_kv_heads=_read_kv_heads(fields, family, q_heads),
        head_dim=_read_head_dim(fields, family, hidden_size, q_heads),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, maximum=1.0),
        max_position_embeddings=positions,
        rope=read_rope(fields, positions),
        tied_head=fields.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=_read_mlp_bias(fields, family),
        qk_norm=family.qk_norm,
        windows=_read_windows(fields, num_layers),
        eos_token_ids=_read_eos(fields, ConfigFields(generation or {}, "generation_config.")),
        dtype=_read_dtype(fields),
        experts=read_experts(fields, fields.text("model_type"), num_layers),
        formats=read_weight_formats(fields),
    )


def _read_family(fields: ConfigFields) -> _Family:
    if fields.has("auto_map"):
        raise fields.error("auto_map", "absent (code from a model's directory is never run)")
    family = _FAMILIES.get(fields.text("model_type"))
    if family is None:
        raise fields.error("model_type", ", ".join(_FAMILIES))
    fields.only("architectures", [family.architecture], f'["{family.architecture}"] for this model_type')
    fields.only("hidden_act", "silu", "silu")
    return family


def _read_kv_heads(fields: ConfigFields, family: _Family, q_heads: int) -> int:
    # transformers' defaults differ by family and rarely fit a model; only Llama's (no grouping) is taken over.
    kv_heads = fields.integer("num_key_value_heads", None if family.kv_heads_required else q_heads)
    if q_heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({q_heads})")
    return kv_heads


def _read_head_dim(fields: ConfigFields, family: _Family, hidden_size: int, q_heads: int) -> int:
    if not fields.has("head_dim") and family.default_head_dim is None and hidden_size % q_heads:
        raise fields.error(
            "num_attention_heads", f"a divisor of hidden_size ({hidden_size}) when head_dim is not given"
        )
    head_dim = fields.integer("head_dim", family.default_head_dim or hidden_size // q_heads, maximum=4_096)
    if head_dim % 2:
        raise ModelConfigError(f"head_dim: {head_dim} is not supported; allowed: an even number (RoPE rotates pairs)")
    return head_dim


def _read_attention_bias(fields: ConfigFields, family: _Family) -> bool:
    if family.qkv_bias is not None:
        fields.only("attention_bias", family.qkv_bias, f"{str(family.qkv_bias).lower()} for this model_type")
    return fields.flag("attention_bias", False)


def _read_mlp_bias(fields: ConfigFields, family: _Family) -> bool:
    if not family.has_mlp_bias_field:
        fields.only("mlp_bias", False, "false for this model_type")
    return fields.flag("mlp_bias", False)


def _read_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    match fields.text("model_type"):
        case "mistral":
            fields.only("layer_types", None, "absent for this model_type")
            return (_read_window(fields),) * num_layers
        case "mixtral":
            fields.only("layer_types", None, "absent for this model_type")
            window = fields.integer("sliding_window") if fields.has("sliding_window") else None
            return (window,) * num_layers
        case "qwen3_moe":
            return _read_uniform_window(fields, num_layers)
        case "qwen2" | "qwen3":
            return _read_qwen_windows(fields, num_layers)
    fields.only("sliding_window", None, "absent for this model_type")
    fields.only("layer_types", ["full_attention"] * num_layers, "full_attention in every layer for this model_type")
    return (None,) * num_layers


def _read_uniform_window(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Every layer has it, or none."""
    fields.only("layer_types", None, "absent for this model_type")
    window = _read_window(fields) if fields.flag("use_sliding_window", False) else None
    return (window,) * num_layers


def _read_window(fields: ConfigFields) -> int | None:
    """Null means no window; a field left out means transformers' default, as in the first Mistral configs."""
    if "sliding_window" in fields.names() and not fields.has("sliding_window"):
        return None
    return fields.integer("sliding_window", 4_096)


def _read_qwen_windows(fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    window = _read_window(fields) if fields.flag("use_sliding_window", False) else None
    kinds = fields.raw("layer_types")
    if kinds is None:
        full = fields.integer("max_window_layers", 28, minimum=0)
        return tuple(window if layer >= full else None for layer in range(num_layers))
    known = {"full_attention": None, "sliding_attention": window}
    if not isinstance(kinds, list) or len(kinds) != num_layers or any(kind not in list(known) for kind in kinds):
        raise fields.error("layer_types", f"{num_layers} entries, each full_attention or sliding_attention")
    if window is None and "sliding_attention" in kinds:
        raise fields.error(
            "layer_types", "full_attention only, unless use_sliding_window is true and sliding_window given"
        )
    return tuple(known[kind] for kind in kinds)


def _read_eos(config: ConfigFields, generation: ConfigFields) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for fields in (generation, config):
        value = fields.raw("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if token is None:
                continue
            if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                raise fields.error("eos_token_id", "a token id or a list of them")
            ids[token] = None
    return tuple(ids)


def _read_dtype(fields: ConfigFields) -> str | None:
    name = "dtype" if fields.has("dtype") else "torch_dtype"
    if not fields.has(name):
        return None
    dtype = fields.text(name).removeprefix("torch.")
    if dtype not in DTYPES:
        raise fields.error(name, ", ".join(DTYPES))
    return dtype
