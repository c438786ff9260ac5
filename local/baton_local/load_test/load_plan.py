"""The plan of a load: arrival times and lengths, from distributions or from a trace."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from baton_control.sizing.inputs.workload import Floats, Workload
from baton_local.load_test.length_distribution import LengthDistribution


class ArrivalKind(enum.StrEnum):
    """Distribution of the gaps between requests."""

    POISSON = "poisson"
    EVEN = "even"
    BURSTY = "bursty"
    """Gamma gaps with a coefficient of variation of `BURSTY_CV`."""


BURSTY_CV = 3.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts of prompts and answers. The first `shared` tokens of a prompt are common to many."""

    prompt: LengthDistribution
    output: LengthDistribution
    shared: int = 0


def arrival_times(kind: ArrivalKind, rate: float, duration_s: float, random: np.random.Generator) -> Floats:
    """Arrival times in [0, duration), `rate` per second on average."""
    mean_s = 1.0 / rate
    if kind is ArrivalKind.EVEN:
        return np.arange(0.0, duration_s, mean_s)
    shape = 1.0 if kind is ArrivalKind.POISSON else BURSTY_CV**-2
    at, parts = 0.0, []
    while at < duration_s:
        gaps = random.gamma(shape, mean_s / shape, max(64, int(duration_s * rate)))
        parts.append(at + np.cumsum(gaps))
        at = float(parts[-1][-1])
    times = np.concatenate(parts)
    return times[times < duration_s]


def drawn_load(times: Floats, lengths: Lengths, random: np.random.Generator) -> Workload:
    """A load with a request at each time, its lengths drawn from distributions."""
    prompt = lengths.prompt.draw(len(times), random)
    output = lengths.output.draw(len(times), random)
    shared = np.minimum(lengths.shared, prompt - 1)
    return Workload(times, prompt, output, shared, f"{lengths.prompt} in, {lengths.output} out")


def traced_load(times: Floats, trace: Workload, random: np.random.Generator) -> Workload:
    """A load with a request at each time, its lengths those of a random request of the trace."""
    index = random.integers(0, len(trace), len(times))
    return Workload(
        times, trace.prompt_tokens[index], trace.output_tokens[index], trace.cached_tokens[index], trace.name
    )
