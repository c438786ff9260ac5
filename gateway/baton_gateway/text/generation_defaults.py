"""Sampling defaults from a model's `generation_config.json`, for fields that a request leaves out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

_log = logging.getLogger("baton.gateway.text")

MAX_TOP_K = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values for fields that a request leaves out. The defaults here are the API's own."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    """None: off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0


API_DEFAULTS = GenerationDefaults()
_BOUNDS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repetition_penalty": (0.0, 10.0)}
_OPEN_BELOW = ("top_p", "repetition_penalty")


def read_defaults(config: Mapping[str, object]) -> GenerationDefaults:
    """Read a parsed `generation_config.json`.

    A value that no request may have is logged and ignored, since it is no reason to refuse a model. `do_sample` and
    lengths have no effect.
    """
    defaults: dict[str, float] = {}
    for name, (low, high) in _BOUNDS.items():
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_within(name, value, low, high):
            _log.warning("generation_config.json: %s is ignored: must be from %g to %g", name, low, high)
        else:
            defaults[name] = float(value)
    return GenerationDefaults(**defaults, top_k=_top_k(config.get("top_k")))


def _is_within(name: str, value: float, low: float, high: float) -> bool:
    return low <= value <= high and not (name in _OPEN_BELOW and value == low)  # NaN is outside


def _top_k(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= MAX_TOP_K:
        _log.warning("generation_config.json: top_k is ignored: must be an integer from -1 to %d", MAX_TOP_K)
        return None
    return value if value > 0 else None
