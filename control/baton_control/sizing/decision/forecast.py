"""Arrivals at a horizon, as a mean and an upper quantile. The best of a few plain predictors on recent history.

Each predictor is a mean of the last seconds. All are back-tested at the same horizon over the remembered
history. The one with the smallest pinball loss at the wanted quantile predicts, and its past errors give the quantile.
docs/sizing.md has the same back-test over the public traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from baton_control.sizing.inputs.workload import Floats, Ints

Flags = NDArray[np.bool_]
S = TypeVar("S", bound=np.generic)

MIN_TESTS = 8
"""Past forecasts that a back-test needs before it chooses a predictor."""
PRIOR_Z = 1.3
"""Upper quantile of an unknown load before history allows a back-test, in standard deviations (Poisson plus 10 %)."""
ACTUAL_S = 30.0
"""A forecast is compared with a mean over this. Seconds of a load that is too high for chance are a jump."""
JUMP_Z = 4.0
"""Standard deviations of Poisson arrivals that are not chance."""
STEP_RATIO, STEP_WEIGHT = 2.0, 4.0
"""A step from one such mean to the next is beyond chance and at least this ratio, as a few per cent of a large load are
beyond chance. A step that came once weighs as much as `STEP_WEIGHT` forecasts."""


@dataclass(frozen=True, slots=True)
class Forecast:
    mean: float
    high: float
    is_step: bool = False
    """The last intervals were too high to be chance; the forecast is their level."""


LEVELS_S = (30.0, 60.0, 180.0, 600.0)
"""Windows of the predictors: each is the mean over one window."""


def forecast(
    series: Sequence[float] | Floats,
    bucket_s: float,
    horizon_s: float,
    quantile: float,
    spread: float = 1.0,
) -> Forecast:
    """The rate around `horizon_s` after the end of `series` (rates per bucket, oldest first, at least one).

    `spread`: variance of a compound Poisson count over a plain one's, E[x²]/E[x]² where each arrival counts x.
    """
    values = np.asarray(series, dtype=np.float64)
    ahead = max(1, round(horizon_s / bucket_s))
    actual = means(values, bucket_s)
    expected, predicted = _expected(values, actual, bucket_s, ahead, quantile, spread)
    levels, noise, are_jumps = _jumps(values, predicted, bucket_s, spread)
    if not are_jumps[-1]:
        return expected
    if not _lasts(are_jumps, levels, predicted, actual, ahead, quantile):
        return expected
    level = float(levels[-1])
    high = level + NormalDist().inv_cdf(max(0.5, quantile)) * float(noise[-1])
    return Forecast(level, max(expected.high, high), is_step=True)


def _jumps(values: Floats, predicted: Floats, bucket_s: float, spread: float) -> tuple[Floats, Floats, Flags]:
    """At each place the level of the last intervals alone, its deviation by chance, and whether it is too high for
    that: averages would see a step only much later.

    As many intervals as make the step the least likely to be chance.
    """
    counts = np.arange(1, max(1, round(ACTUAL_S / bucket_s)) + 1)[:, None]
    levels = _smoothed(values, *counts[:, 0].tolist())
    noise = np.sqrt(spread * np.maximum(levels, 1e-9) / bucket_s / counts)
    scores = (levels - predicted) / noise
    best = np.argmax(scores, axis=0), np.arange(len(values))
    is_over = values < levels[best] - JUMP_Z * np.sqrt(spread * levels[best] / bucket_s)
    return levels[best], noise[best], (scores[best] > JUMP_Z) & ~is_over


def _lasts(are_jumps: Flags, levels: Floats, predicted: Floats, actual: Floats, ahead: int, quantile: float) -> bool:
    """True where a worker that is started for a jump is likely enough to have work: after past jumps the load was as
    high again from when such a worker could serve, for as long as it took to start."""
    begin = are_jumps & ~_shifted(are_jumps, 1)
    past = np.flatnonzero(begin[: max(0, len(actual) - ahead)])
    highest = np.array([actual[at + ahead : at + 2 * ahead].max() for at in past])
    stayed = highest > (predicted[past] + levels[past]) / 2
    return not len(past) or float(np.mean(stayed)) > 1.0 - quantile


def _expected(
    values: Floats,
    actual: Floats,
    bucket_s: float,
    ahead: int,
    quantile: float,
    spread: float,
) -> tuple[Forecast, Floats]:
    """The forecast of the best predictor, and its prediction at each place for the place `ahead` of it."""
    if len(values) - ahead < MIN_TESTS:
        level = float(np.mean(values[-6:]))
        noise = PRIOR_Z * (sqrt(level / (bucket_s * min(6, len(values)))) + 0.1 * level)
        return Forecast(level, level + noise), _smoothed(values, 6)[0]
    weights = _weights(_steps(actual, bucket_s, spread), bucket_s, ahead)
    predicted = _smoothed(values, *[max(1, round(level_s / bucket_s)) for level_s in LEVELS_S])
    losses, highs = _test(predicted, actual, ahead, quantile, weights)
    _, high, best = min(zip(losses.tolist(), highs.tolist(), range(len(predicted)), strict=True))
    return Forecast(float(predicted[best, -1]), high), predicted[best]


def _test(predicted: Floats, actual: Floats, ahead: int, quantile: float, weights: Floats) -> tuple[Floats, Floats]:
    """(loss, upper quantile now) of each predictor. `predicted`: [predictor, place]

    The quantile is the lesser of two readings of the same errors: a load that once rose from 6 to 20 may rise by 14
    again, or to the 3.3-fold, but after the rise the latter would be asking for 66.
    """
    past, later = predicted[:, :-ahead], actual[ahead:]
    ratios = np.maximum(1.0, _quantiles(later / np.maximum(past, 1e-3), weights, quantile))
    more = np.maximum(0.0, _quantiles(later - past, weights, quantile))
    high = np.minimum(past * ratios[:, None], past + more[:, None])
    over = later - high
    loss = np.where(over > 0.0, quantile * over, (quantile - 1.0) * over)
    now = predicted[:, -1]
    return (loss * weights).sum(axis=1) / weights.sum(), np.minimum(now * ratios, now + more)


def _steps(actual: Floats, bucket_s: float, spread: float) -> Flags:
    """Where a mean over `ACTUAL_S` is a step above the one before it: beyond chance, and by at least this ratio."""
    width = max(1, round(ACTUAL_S / bucket_s))
    before, after = actual[:-width], actual[width:]
    noise = np.sqrt(2 * spread * np.maximum(before, 1e-9) / ACTUAL_S)
    is_step = (after - before > JUMP_Z * noise) & (after > STEP_RATIO * before)
    return np.concatenate([np.zeros(len(actual) - len(is_step), dtype=np.bool_), is_step])


def _weights(steps: Flags, bucket_s: float, ahead: int) -> Floats:
    """How much each past forecast counts, by when it was made.

    A single step of the load makes wrong every forecast that was made before or during it and looked past it. Together
    these count as few, or one step would rule the quantile for as long as it is remembered. Steps that recur are a
    pattern and count.
    """
    width = max(1, round(ACTUAL_S / bucket_s))
    starts = np.flatnonzero(np.diff(steps.astype(np.int8)) > 0) + 2 - width
    weights = np.ones(len(steps) - ahead)
    for start in starts:
        weights[max(0, start - ahead) : start + width] = min(1.0, STEP_WEIGHT * len(starts) / (ahead + width))
    return weights


def _quantiles(values: Floats, weights: Floats, quantile: float) -> Floats:
    """The quantile of each row of `values`, [row, place]."""
    order = np.argsort(values, axis=1)
    sums = np.cumsum(weights[order], axis=1)
    rows = np.arange(len(values))
    places = np.sum(sums < quantile * sums[:, -1:], axis=1)
    return np.asarray(values[rows, order[rows, places]])


def means(series: Sequence[float] | Floats, bucket_s: float, seconds: float = ACTUAL_S) -> Floats:
    """Means of the last `seconds` up to each place."""
    return np.asarray(_smoothed(np.asarray(series, dtype=np.float64), max(1, round(seconds / bucket_s)))[0])


def _smoothed(values: Floats, *widths: int) -> Floats:
    """Means of the last `widths` values up to each place (fewer at the start). [width, place]"""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    begins, counts = _windows(len(values), widths)
    return np.asarray((sums[1:] - sums[begins]) / counts)


@lru_cache(maxsize=1024)
def _windows(length: int, widths: tuple[int, ...]) -> tuple[Ints, Floats]:
    """The first value of the window up to each place, and the length of that window."""
    ends = np.arange(1, length + 1)
    begins = np.maximum(ends - np.array(widths)[:, None], 0)
    return begins, (ends - begins).astype(np.float64)


def _shifted(values: NDArray[S], places: int) -> NDArray[S]:
    return np.concatenate([np.full(min(places, len(values)), values[0]), values[:-places]])[: len(values)]
