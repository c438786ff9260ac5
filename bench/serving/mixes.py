"""Mixes of prompt and answer lengths that goodput is measured with, and what of a run kept its targets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from bench.results import Cell, percentile

from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.workload import Workload, workload_of
from baton_simulate.trace_files import read_trace

TTFT_S: Final = 0.5
TPOTS_MS: Final = (10, 15, 25)
MIXES: Final[Mapping[str, str]] = {
    "conv": "lengths of the Azure conversation trace, drawn at random",
    "long": "2,000 in (log-normal, p99 7,000), 28 out",
    "decode": "500 in, 800 out",
}
FIXED: Final = re.compile(r"(\d+)-(\d+)")
"""A mix of requests that are all alike: `5000-250` is 5,000 tokens in and 250 out."""
LOG_MEAN, LOG_SIGMA = 7.408, 0.6217
"""Mean and sigma of the logarithm of prompt lengths in `long`: the mean length is 2,000, the 99th percentile 7,000."""
SETTLING_S: Final = 3.0
"""Requests of the first seconds count as load only: the batch is still growing."""


@dataclass(frozen=True, slots=True)
class Point:
    """One load: `conv:auto:10:34` is the mix, where prompts go, the TPOT target in ms, and requests a second."""

    mix: str
    mode: str
    tpot_ms: float
    rate: float

    @classmethod
    def parse(cls, text: str) -> Point:
        """Raises ValueError."""
        mix, mode, tpot_ms, rate = text.split(":")
        if (mix not in MIXES and not FIXED.fullmatch(mix)) or mode not in ("always", "never", "auto"):
            raise ValueError(f"{text!r} is not MIX:MODE:TPOT_MS:RATE with a mix of {', '.join(MIXES)} or IN-OUT tokens")
        return cls(mix, mode, float(tpot_ms), float(rate))

    @classmethod
    def several(cls, text: str) -> list[Point]:
        """`conv:auto,never:10:18,22`: all of each rate in turn, so that a run that is cut short has whole rates. Raises
        ValueError."""
        mix, modes, tpot_ms, rates = text.split(":")
        return [cls.parse(f"{mix}:{mode}:{tpot_ms}:{rate}") for rate in rates.split(",") for mode in modes.split(",")]

    def workload(self, trace: Path, seconds: float, seed: int) -> Workload:
        """Poisson arrivals over `seconds`."""
        draw = np.random.default_rng((seed, int(self.rate * 100)))
        gaps = draw.exponential(1 / self.rate, int(2 * self.rate * seconds) + 20)
        arrivals = np.cumsum(gaps)
        arrivals = arrivals[arrivals < seconds]
        return workload_of(arrivals, self._shapes(trace, len(arrivals), draw), self.mix)

    def _shapes(self, trace: Path, count: int, draw: np.random.Generator) -> list[RequestShape]:
        if self.mix == "conv":
            lengths = read_trace(trace)
            chosen = draw.integers(0, len(lengths), count)
            pairs = zip(lengths.prompt_tokens[chosen], lengths.output_tokens[chosen], strict=True)
            return [RequestShape(int(prompt), int(output)) for prompt, output in pairs]
        if self.mix == "long":
            prompts = np.clip(draw.lognormal(LOG_MEAN, LOG_SIGMA, count), 16, 16_000)
            return [RequestShape(int(prompt), 28) for prompt in prompts]
        if fixed := FIXED.fullmatch(self.mix):
            return [RequestShape(int(fixed[1]), int(fixed[2]))] * count
        return [RequestShape(500, 800)] * count


@dataclass(frozen=True, slots=True)
class Served:
    """One answer. Times are seconds; infinite where it failed."""

    due_s: float
    """After the run began."""
    ttft_s: float
    tpot_s: float
    second_s: float
    """From the first token to the second."""


def shares(served: Sequence[Served]) -> dict[str, Cell]:
    """Percentiles, and the percentage of requests within the TTFT target and each TPOT target."""
    counted = _after_settling(served)
    row: dict[str, Cell] = {
        "requests": len(counted),
        "failed": sum(request.ttft_s == float("inf") for request in counted),
    }
    for tpot_ms in TPOTS_MS:
        row[f"% at {tpot_ms}"] = within(served, tpot_ms)
    row["% TTFT"] = round(100 * sum(request.ttft_s <= TTFT_S for request in counted) / len(counted), 1)
    for name, values in (
        ("TTFT", [request.ttft_s for request in counted]),
        ("TPOT", [request.tpot_s for request in counted]),
        ("1→2", [request.second_s for request in counted]),
    ):
        for percent in (50, 95, 99):
            row[f"{name} p{percent}"] = round(1e3 * percentile(values, percent), 2)
        whole = [value for value in values if value != float("inf")]
        row[f"{name} mean"] = round(1e3 * sum(whole) / len(whole), 2) if whole else None
    return row


def within(served: Sequence[Served], tpot_ms: float) -> float:
    """The percentage of requests within the TTFT target and this TPOT target."""
    counted = _after_settling(served)
    within_targets = sum(request.ttft_s <= TTFT_S and 1e3 * request.tpot_s <= tpot_ms for request in counted)
    return round(100 * within_targets / len(counted), 1)


def _after_settling(served: Sequence[Served]) -> list[Served]:
    return [request for request in served if request.due_s >= SETTLING_S]
