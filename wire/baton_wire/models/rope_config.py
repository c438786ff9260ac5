"""RoPE options of a model as typed values, read from either layout of config.json.

`rope_scaling` next to `rope_theta` is the older layout; transformers 5 writes `rope_parameters` with the base inside.
The tables themselves are computed in `layers/rope.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from baton_wire.models.config_fields import LEAST_NUMBER, MAX_POSITIONS, MOST_NUMBER, ConfigFields
from baton_wire.models.errors import ModelConfigError

DEFAULT_THETA = 10_000.0
MAX_FACTORS: Final = 2_048
LEAST_ORIGINAL: Final = 2
"""Positions before extension: of one, a logarithm is divided by."""
SUPPORTED = ("default", "linear", "dynamic", "llama3", "yarn")
"""`dynamic` changes nothing up to the greatest position, and no longer context is served."""
LONGROPE = ("longrope", "su")
"""Two names of one type."""
_LONGROPE = frozenset(("short_factor", "long_factor"))
_QUERY_SCALES = frozenset(("llama_4_scaling_beta", "max_position_embeddings"))
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


@dataclass(frozen=True, slots=True)
class LongropeScaling:
    """LongRoPE (arXiv 2402.13753): each pair of dimensions has a factor of its own, for short and for long contexts."""

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_positions: int
    attention_factor: float
    """Factor of cos and sin."""


@dataclass(frozen=True, slots=True)
class AlphaScaling:
    """NTK with a fixed alpha (Hunyuan): the base is multiplied with alpha to the power d / (d - 2) of d rotated
    dimensions."""

    alpha: float


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongropeScaling | AlphaScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    theta: float
    scaling: RopeScaling | None
    share: float = 1.0
    """Share of a head's dimensions, the first ones, that are rotated."""
    interleaved: bool = False
    """True: neighbouring dimensions are rotated against each other; False: dimensions half of the rotated ones
    apart."""
    even_positions: int | None = None
    """From this position on queries would be scaled (Llama 4's temperature). That is not computed: contexts end."""

    def rotated(self, head_dim: int) -> int:
        """Dimensions of a head that are rotated."""
        return int(head_dim * self.share)

    def reach(self, positions: int) -> int:
        """Positions that a model trained for `positions` can serve."""
        if isinstance(self.scaling, YarnScaling):
            positions = max(positions, int(self.scaling.original_positions * self.scaling.factor))
        return min(positions, self.even_positions or positions)

    def is_long(self, context: int) -> bool:
        """True if a served context takes LongRoPE's factors for long ones. All positions take the same factors: keys
        that are in the pool can't be rotated again."""
        return isinstance(self.scaling, LongropeScaling) and context > self.scaling.original_positions


@dataclass(frozen=True, slots=True)
class RopeOptions:
    """Rope settings that a family allows, and its defaults."""

    types: tuple[str, ...] = SUPPORTED
    theta: float = DEFAULT_THETA
    share: float | None = None
    """Default of `partial_rotary_factor`; None: the whole head is rotated."""
    interleaved: bool = False
    original_positions: int | None = None
    """Default of `original_max_position_embeddings`; None: the greatest position."""
    scales_queries: bool = False
    """True if `llama_4_scaling_beta` is understood: queries are scaled by 1 + beta * ln(1 + position // original)."""
    reads_alpha: bool = False
    """True if type `dynamic` may have an `alpha`."""


def read_rope(config: ConfigFields, max_positions: int, options: RopeOptions = RopeOptions()) -> RopeConfig:
    """RoPE of a config.json object. Raises ModelConfigError for types this engine does not compute, by name."""
    given = [name for name in ("rope_parameters", "rope_scaling") if config.has(name)]
    if len(given) == 2 and config.raw("rope_parameters") != config.raw("rope_scaling"):
        raise ModelConfigError("rope_scaling: given with a different rope_parameters; allowed: one of the two")
    theta = config.theta("rope_theta", options.theta)
    share = _read_share(config, options, 1.0 if options.share is None else options.share)
    if not given:
        return RopeConfig(theta, None, share, options.interleaved)
    return read_rope_section(config, config.section(given[0]), max_positions, options, theta, share)


def read_rope_section(
    config: ConfigFields, section: ConfigFields, max_positions: int, options: RopeOptions, theta: float, share: float
) -> RopeConfig:
    """RoPE of one object of options; `theta` and `share` are what holds unless it says otherwise."""
    field = _type_field(section)
    is_null = field in section.names() and not section.has(field)
    if is_null or (kind := section.text(field, "default")) not in options.types:
        raise section.error(field, ", ".join(options.types))
    known = _KNOWN | (_LONGROPE if kind in LONGROPE else frozenset())
    known |= _QUERY_SCALES if options.scales_queries else frozenset()
    known |= {"alpha"} if options.reads_alpha and kind == "dynamic" else frozenset()
    for name in section.names():
        if name not in known and section.has(name):
            raise section.error(name, f"one of {', '.join(sorted(known))}")
    share = _read_share(section, options, share)
    theta = section.theta("rope_theta", theta)
    # transformers: a length at the top of the config wins over the one in the section, which wins over the maximum.
    # A family's own default counts as given at the top.
    length, own = "original_max_position_embeddings", options.original_positions
    original = section.integer(length, own or max_positions, LEAST_ORIGINAL, MAX_POSITIONS)
    if own is not None and original != own and not config.has(length):
        raise config.error(length, f"an integer, since {own} would win over the {original} of the RoPE options")
    original = config.integer(length, original, LEAST_ORIGINAL, MAX_POSITIONS)
    even = original if options.scales_queries and section.number("llama_4_scaling_beta") else None
    return RopeConfig(theta, _read_scaling(section, kind, original, max_positions), share, options.interleaved, even)


def _read_share(fields: ConfigFields, options: RopeOptions, default: float) -> float:
    if options.share is None:
        fields.only("partial_rotary_factor", 1.0, "1.0 (the whole head is rotated)")
        return 1.0
    if default != 1.0 and "partial_rotary_factor" in fields.names() and not fields.has("partial_rotary_factor"):
        raise fields.error("partial_rotary_factor", "a number above 0 and at most 1, or no such field")
    return fields.number("partial_rotary_factor", default, maximum=1.0)


def _type_field(section: ConfigFields) -> str:
    """Which of two names says how positions are scaled: asked first, for the type decides which others there are."""
    return "rope_type" if section.has("rope_type") or "type" not in section.names() else "type"


def _read_scaling(section: ConfigFields, kind: str, original_positions: int, max_positions: int) -> RopeScaling | None:
    match kind:
        case "linear":
            return LinearScaling(section.number("factor"))
        case "dynamic" if section.has("alpha"):
            return AlphaScaling(section.number("alpha"))
        case "llama3":
            return _read_llama3(section, original_positions)
        case "yarn":
            return YarnScaling(
                factor=section.number("factor", max_positions / original_positions),
                original_positions=original_positions,
                beta_fast=section.number("beta_fast", 32.0),
                beta_slow=section.number("beta_slow", 1.0),
                truncate=section.flag("truncate", "truncate" not in section.names()),  # null is false
                attention_factor=_optional_number(section, "attention_factor"),
                mscale=_optional_number(section, "mscale"),
                mscale_all_dim=_optional_number(section, "mscale_all_dim"),
            )
        case "longrope" | "su":
            return _read_longrope(section, original_positions, max_positions)
    return None


def _read_longrope(section: ConfigFields, original_positions: int, max_positions: int) -> LongropeScaling:
    factor = section.number("factor", max_positions / original_positions)
    default = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original_positions))
    return LongropeScaling(
        _factors(section, "short_factor"),
        _factors(section, "long_factor"),
        original_positions,
        section.number("attention_factor", default),
    )


def _factors(section: ConfigFields, name: str) -> tuple[float, ...]:
    values = section.raw(name)
    if not isinstance(values, list) or not values or len(values) > MAX_FACTORS:
        raise section.error(name, f"a list of 1 to {MAX_FACTORS} numbers")
    for value in values:
        if not isinstance(value, int | float) or isinstance(value, bool) or not LEAST_NUMBER < value <= MOST_NUMBER:
            raise section.error(name, f"numbers above {LEAST_NUMBER:g} and at most {MOST_NUMBER:g}")
    return tuple(float(value) for value in values)


def _read_llama3(section: ConfigFields, original_positions: int) -> Llama3Scaling:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high < low:
        raise section.error("high_freq_factor", f"a number not below low_freq_factor ({low:g})")
    return Llama3Scaling(section.number("factor"), low, high, original_positions)


def _optional_number(section: ConfigFields, name: str) -> float | None:
    return section.number(name) if section.has(name) else None
