"""The lengths of recent requests, and workloads that are drawn from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.workload import Floats, Ints, Workload
from baton_wire.messages.values import Role


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mix:
    """Recent requests to draw from. Compared by identity: answers are cached for as long as their mix is in use."""

    shapes: tuple[RequestShape, ...]
    dispersion: float = 1.0
    """Variance over mean of the arrivals in a window. 1: Poisson, as decisions take it."""

    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Prompt, answer and cached tokens of each request."""
        return _columns(self)

    def tokens(self, role: Role) -> Floats:
        """Tokens of each request that the pool works on: of the prompt, to compute, or of the answer."""
        prompt, output, cached = _columns(self)
        return (prompt - cached if role is Role.PREFILL else output).astype(np.float64)

    def mean_tokens(self, role: Role) -> float:
        return _mean_tokens(self, role)

    def draw(self, rate_per_s: float, count: int) -> Workload:
        """`count` requests at a mean rate. A mix always draws the same, so that answers differ by the load alone."""
        gaps, index = _unit_draw(self, count)
        prompt, output, cached = _columns(self)
        return Workload(gaps / rate_per_s, prompt[index], output[index], cached[index])


@lru_cache(maxsize=256)
def _mean_tokens(mix: Mix, role: Role) -> float:
    return max(1.0, float(mix.tokens(role).mean()))


@lru_cache(maxsize=32)
def _unit_draw(mix: Mix, count: int) -> tuple[Floats, Ints]:
    """Arrival times at a mean rate of one, with gamma gaps of the mix's dispersion; and the shape of each request."""
    random = np.random.default_rng(7)
    shape = 1.0 / min(max(mix.dispersion, 1.0), 20.0)
    return np.cumsum(random.gamma(shape, 1.0 / shape, count)), random.integers(0, len(mix.shapes), count)


@lru_cache(maxsize=32)
def _columns(mix: Mix) -> tuple[Ints, Ints, Ints]:
    columns = np.array([(s.prompt_tokens, s.output_tokens, s.cached_tokens) for s in mix.shapes], dtype=np.int64)
    return columns[:, 0], columns[:, 1], columns[:, 2]
