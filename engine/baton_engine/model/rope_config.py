"""RoPE options of a model as typed values, read from either layout of config.json.

`rope_scaling` beside `rope_theta` is the older layout; transformers 5 writes `rope_parameters` with the base inside.
The tables themselves are computed in `layers/rope.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.model.config_fields import ConfigFields
from baton_engine.model.errors import ModelConfigError

DEFAULT_THETA = 10_000.0
SUPPORTED = ("default", "linear", "llama3", "yarn")
_KNOWN = frozenset(
    (
        *("rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "original_max_position_embeddings"),
        *("low_freq_factor", "high_freq_factor"),
        *("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"),
        "finetuned",  # how a model was made, not how it is computed
    )
)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a smooth step between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_positions: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp over dimensions from extrapolation to interpolation, and scaled cos and sin."""

    factor: float
    original_positions: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float | None
    mscale: float | None
    mscale_all_dim: float | None


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    theta: float
    scaling: RopeScaling | None


def read_rope(config: ConfigFields, max_positions: int) -> RopeConfig:
    """RoPE of a config.json object. Raises ModelConfigError for types this engine does not compute, by name."""
    config.only("partial_rotary_factor", 1.0, "1.0 (the whole head is rotated)")
    given = [name for name in ("rope_parameters", "rope_scaling") if config.has(name)]
    if len(given) == 2 and config.raw("rope_parameters") != config.raw("rope_scaling"):
        raise ModelConfigError("rope_scaling: given beside a different rope_parameters; allowed: one of the two")
    theta = config.number("rope_theta", DEFAULT_THETA)
    if not given:
        return RopeConfig(theta, None)
    section = config.section(given[0])
    if (kind := section.text(_type_field(section), "default")) not in SUPPORTED:
        raise section.error(_type_field(section), ", ".join(SUPPORTED))
    for name in section.names():
        if name not in _KNOWN and section.has(name):
            raise section.error(name, f"one of {', '.join(sorted(_KNOWN))}")
    section.only("partial_rotary_factor", 1.0, "1.0 (the whole head is rotated)")
    theta = section.number("rope_theta", theta)
    # transformers: a length at the top of the config wins over the one in the section, which wins over the maximum.
    original = section.integer("original_max_position_embeddings", max_positions)
    original = config.integer("original_max_position_embeddings", original)
    return RopeConfig(theta, _read_scaling(section, kind, original, max_positions))


def _type_field(section: ConfigFields) -> str:
    """Which of two names says how positions are scaled: asked first, for the type decides which others there are."""
    return "rope_type" if section.has("rope_type") or not section.has("type") else "type"


def _read_scaling(section: ConfigFields, kind: str, original_positions: int, max_positions: int) -> RopeScaling | None:
    match kind:
        case "linear":
            return LinearScaling(section.number("factor"))
        case "llama3":
            return _read_llama3(section, original_positions)
        case "yarn":
            return YarnScaling(
                factor=section.number("factor", max_positions / original_positions),
                original_positions=original_positions,
                beta_fast=section.number("beta_fast", 32.0),
                beta_slow=section.number("beta_slow", 1.0),
                truncate=section.flag("truncate", True),
                attention_factor=_optional_number(section, "attention_factor"),
                mscale=_optional_number(section, "mscale"),
                mscale_all_dim=_optional_number(section, "mscale_all_dim"),
            )
    return None


def _read_llama3(section: ConfigFields, original_positions: int) -> Llama3Scaling:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        raise section.error("high_freq_factor", f"a number above low_freq_factor ({low:g})")
    return Llama3Scaling(section.number("factor"), low, high, original_positions)


def _optional_number(section: ConfigFields, name: str) -> float | None:
    return section.number(name) if section.has(name) else None
