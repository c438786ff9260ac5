"""A row of the registry: how a family's layers are read, and what is fixed about the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.decoder_spec import LayerSpec


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`."""

    architecture: str
    layers: Callable[[ConfigFields, int], tuple[LayerSpec, ...]]
    """Reads the layers from the fields and the greatest number of positions. Raises ModelConfigError."""
    default_positions: int | None = None
    """transformers' default of `max_position_embeddings`, where a config may leave it out."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The field, and its only value."""
    default_eps: float = 1e-6
    default_tied: bool = False
    norms_from_one: bool = False
    scales_embedding: bool = False
    """By the square root of the hidden size."""
    caps_logits: bool = False
    """True if `final_logit_softcapping` is understood."""
    multiplies: bool = False
    """True if `embedding_multiplier` and `logits_scaling` are understood."""
    default_eos: tuple[int, ...] = ()
    """Where no file names one."""
    further_layers: str | None = None
    """The field that counts layers after the last one, which predict further tokens. They are not served."""
    shipped_code: tuple[str, ...] = ()
    """Names in the `auto_map` of such checkpoints. Baton computes the same as this code, and never runs it."""
