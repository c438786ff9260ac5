"""Length distributions of prompts and answers: a number, a range, or a log-normal by its median and 99th percentile."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

import numpy as np

from baton_control.sizing.inputs.workload import Ints

MAX_TOKENS = 1 << 20
P99_SIGMAS = 2.3263478740408408
"""The 99th percentile of a normal distribution, in standard deviations."""
_ALLOWED = "must be N, LOW-HIGH or MEDIAN~P99, of tokens from 1 to 1048576"


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Uniform from `low` to `high` tokens. With `is_lognormal`, those are the median and the 99th percentile."""

    low: int
    high: int
    is_lognormal: bool = False

    def draw(self, count: int, random: np.random.Generator) -> Ints:
        """Lengths of shape [count], each at least 1."""
        if not self.is_lognormal:
            return random.integers(self.low, self.high + 1, count)
        sigma = math.log(self.high / self.low) / P99_SIGMAS
        drawn = random.lognormal(math.log(self.low), sigma, count)
        return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(np.int64)

    def __str__(self) -> str:
        if self.is_lognormal:
            return f"{self.low}~{self.high}"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def length_distribution(text: str) -> LengthDistribution:
    """An argument's type: N, LOW-HIGH or MEDIAN~P99. Raises ArgumentTypeError, which says what is allowed.

    >>> length_distribution("100-200")
    LengthDistribution(low=100, high=200, is_lognormal=False)
    """
    sign = next((sign for sign in "-~" if sign in text), None)
    low, _, high = text.partition(sign or "-")
    parts = [low, high] if sign else [low, low]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:8]) <= MAX_TOKENS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: {_ALLOWED}")
    lengths = LengthDistribution(int(parts[0]), int(parts[1]), is_lognormal=sign == "~")
    if lengths.low > lengths.high:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: the first number must not be the greater one")
    return lengths
