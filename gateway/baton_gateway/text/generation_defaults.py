"""How a model's authors want it sampled: `generation_config.json`, for requests that do not say it themselves."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

_log = logging.getLogger("baton.gateway.text")

MAX_TOP_K = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling where a request leaves it open; the values here are those of the API itself."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    """None: off."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0


OF_THE_API = GenerationDefaults()
_BOUNDS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "repetition_penalty": (0.0, 10.0)}
_OPEN_BELOW = ("top_p", "repetition_penalty")


def read_defaults(config: Mapping[str, object]) -> GenerationDefaults:
    """The defaults of a parsed `generation_config.json`. A value that no request could have is left out and logged: a
    model is not refused for it. `do_sample` and lengths say nothing here.
    """
    found: dict[str, float] = {}
    for name, (low, high) in _BOUNDS.items():
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_within(name, value, low, high):
            _log.warning("generation_config.json: %s is left out: must be from %g to %g", name, low, high)
        else:
            found[name] = float(value)
    return GenerationDefaults(**found, top_k=_top_k(config.get("top_k")))


def _is_within(name: str, value: float, low: float, high: float) -> bool:
    return low <= value <= high and not (name in _OPEN_BELOW and value == low)  # not a number is not within


def _top_k(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= MAX_TOP_K:
        _log.warning("generation_config.json: top_k is left out: must be an integer from -1 to %d", MAX_TOP_K)
        return None
    return value if value > 0 else None
