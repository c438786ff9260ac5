"""Synthetic loads: a shape of the rate over time, and lengths drawn from log-normals or taken from a trace."""

from __future__ import annotations

import enum

import numpy as np

from baton_control.sizing.inputs.workload import Floats, Workload


class Shape(enum.StrEnum):
    STEADY = "steady"
    RAMP = "ramp"
    STEP = "step"
    BURST = "burst"
    DIURNAL = "diurnal"


def rate_at(shape: Shape, rate: float, seconds: Floats, duration_s: float) -> Floats:
    """Requests per second over time, `rate` at the highest.

    ramp: 20 % to 100 % · step: 30 %, from a third to two thirds 100 % · burst: 30 %, four minutes of 100 % ·
    diurnal: a sine from 20 % to 100 % with two days over the duration
    """
    part = seconds / duration_s
    if shape is Shape.STEADY:
        return np.full_like(seconds, rate)
    if shape is Shape.RAMP:
        return rate * (0.2 + 0.8 * part)
    if shape is Shape.STEP:
        return rate * np.where((part >= 1 / 3) & (part < 2 / 3), 1.0, 0.3)
    if shape is Shape.BURST:
        return rate * np.where((seconds + duration_s / 8) % (duration_s / 4) < 60.0, 1.0, 0.3)
    return rate * (0.6 - 0.4 * np.cos(4 * np.pi * part))


def synthetic(
    shape: Shape,
    rate: float,
    duration_s: float,
    random: np.random.Generator,
    prompt: tuple[float, float] = (1020.0, 0.9),
    output: tuple[float, float] = (129.0, 0.9),
    lengths: Workload | None = None,
) -> Workload:
    """Poisson arrivals. `prompt` and `output`: median and sigma of log-normals, unless `lengths` gives requests."""
    times = np.sort(random.uniform(0.0, duration_s, random.poisson(rate * duration_s)))
    arrival_s = times[random.uniform(0.0, rate, len(times)) < rate_at(shape, rate, times, duration_s)]
    count = len(arrival_s)
    if lengths is not None:
        index = random.integers(0, len(lengths), count)
        columns = (lengths.prompt_tokens[index], lengths.output_tokens[index], lengths.cached_tokens[index])
        return Workload(arrival_s, *columns, name=shape.value)
    prompts = np.clip(random.lognormal(np.log(prompt[0]), prompt[1], count), 1, 32_768).astype(np.int64)
    outputs = np.clip(random.lognormal(np.log(output[0]), output[1], count), 1, 4096).astype(np.int64)
    return Workload(arrival_s, prompts, outputs, np.zeros(count, dtype=np.int64), shape.value)
