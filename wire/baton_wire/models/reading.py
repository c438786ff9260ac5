"""Parts of configs that several families read in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baton_wire.models.config_fields import MAX_POSITIONS, ConfigFields
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.rope_config import LongropeScaling, RopeConfig

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
MAX_EXPERTS: Final = 1_024
MAX_HEADS: Final = 1_024
MAX_LAYERS: Final = 1_024


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of attention heads, and their size."""

    q_heads: int
    kv_heads: int
    head_dim: int


def read_heads(fields: ConfigFields, default_head_dim: int | None = None, kv_heads_required: bool = True) -> Heads:
    # transformers' defaults differ by family and rarely fit a model; only Llama's (no grouping) is taken over.
    hidden_size, q_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads", maximum=MAX_HEADS)
    kv_heads = fields.integer("num_key_value_heads", None if kv_heads_required else q_heads)
    if q_heads % kv_heads:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads ({q_heads})")
    if not fields.has("head_dim") and default_head_dim is None and hidden_size % q_heads:
        raise fields.error(
            "num_attention_heads", f"a divisor of hidden_size ({hidden_size}) when head_dim is not given"
        )
    head_dim = fields.integer("head_dim", default_head_dim or hidden_size // q_heads, maximum=4_096)
    if head_dim % 2:
        raise ModelConfigError(f"head_dim: {head_dim} is not supported; allowed: an even number (RoPE rotates pairs)")
    return Heads(q_heads, kv_heads, head_dim)


def check_rotation(fields: ConfigFields, rope: RopeConfig, head_dim: int) -> RopeConfig:
    """The rope, whose share and factors fit the head. Raises ModelConfigError."""
    rotated = rope.rotated(head_dim)
    if rotated < 2 or rotated % 2:
        raise ModelConfigError(
            f"partial_rotary_factor: {rope.share:g} is not supported; allowed: an even number of the head's {head_dim}"
            " dimensions"
        )
    if isinstance(rope.scaling, LongropeScaling):
        for name, factors in (("short", rope.scaling.short_factor), ("long", rope.scaling.long_factor)):
            if len(factors) != rotated // 2:
                raise ModelConfigError(
                    f"rope_scaling.{name}_factor: has {len(factors)} numbers; allowed: {rotated // 2}, one for each"
                    " pair of rotated dimensions"
                )
    return rope


def read_layer_count(fields: ConfigFields) -> int:
    return fields.integer("num_hidden_layers", maximum=MAX_LAYERS)


def read_window(fields: ConfigFields, default: int = 4_096) -> int | None:
    """Null means no window; a field left out means transformers' default, as in the first Mistral configs."""
    if "sliding_window" in fields.names() and not fields.has("sliding_window"):
        return None
    return fields.integer("sliding_window", default, maximum=MAX_POSITIONS)


def refuse_windows(fields: ConfigFields, layers: int) -> None:
    """Refuse windows in configs of families without them."""
    fields.only("sliding_window", None, "absent for this model_type")
    fields.only("layer_types", [FULL] * layers, "full_attention in every layer for this model_type")


def read_layer_types(fields: ConfigFields, default: Sequence[str]) -> tuple[str, ...]:
    """For each layer full_attention or sliding_attention."""
    kinds = fields.raw("layer_types")
    if kinds is None:
        return tuple(default)
    if not isinstance(kinds, list) or len(kinds) != len(default) or any(kind not in [FULL, SLIDING] for kind in kinds):
        raise fields.error("layer_types", f"{len(default)} entries, each full_attention or sliding_attention")
    return tuple(kinds)


def refuse_mlp_bias(fields: ConfigFields) -> None:
    fields.only("mlp_bias", False, "false for this model_type")


def fixed_attention_bias(fields: ConfigFields, value: bool) -> bool:
    fields.only("attention_bias", value, f"{str(value).lower()} for this model_type")
    return value
