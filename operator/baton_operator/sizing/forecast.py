"""Arrivals at a horizon, as a mean and an upper quantile. A few plain predictors, the best of them on recent history.

Each predictor is a level (mean of the last seconds) plus a damped trend, or the value one season ago where history
covers two seasons. All of them are back-tested at the same horizon over the history that there is; the one with
the smallest pinball loss at the wanted quantile predicts, and the ratios by which it was wrong give the quantile.
docs/sizing.md has the same back-test over the public traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from baton_operator.sizing.workload import Floats

MIN_TESTS = 8
PRIOR_Z = 1.3
"""Upper quantile of an unknown load before history allows a back-test, in standard deviations (Poisson plus 10 %)."""
MAX_RATIO = 2.5
JUMP_Z, NOISE_DISPERSION = 3.0, 1.5
"""An interval this many standard deviations over the forecast is a step in the load, not chance."""


@dataclass(frozen=True, slots=True)
class Predictor:
    name: str
    level_s: float
    trend_s: float = 0.0
    """Window of the slope; 0: no trend."""
    damping: float = 0.0
    """Share of the slope that is believed to go on until the horizon."""
    season_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    mean: float
    high: float
    predictor: str
    tests: int


PREDICTORS = (
    Predictor("mean 30 s", 30),
    Predictor("mean 60 s", 60),
    Predictor("mean 180 s", 180),
    Predictor("mean 600 s", 600),
    Predictor("trend 120 s", 40, 120, 0.5),
    Predictor("trend 300 s", 60, 300, 0.7),
    Predictor("trend 600 s", 60, 600, 1.0),
)


def forecast(
    series: Sequence[float],
    bucket_s: float,
    horizon_s: float,
    quantile: float,
    season_s: float = 0.0,
    predictors: Sequence[Predictor] = PREDICTORS,
) -> Forecast:
    """The rate around `horizon_s` after the end of `series` (rates per bucket, oldest first, at least one)."""
    return _jumped(_expected(series, bucket_s, horizon_s, quantile, season_s, predictors), series, bucket_s)


def _jumped(expected: Forecast, series: Sequence[float], bucket_s: float) -> Forecast:
    """The last interval alone, when it is too high to be chance: averages would see a step only much later."""
    last = series[-1]
    noise = sqrt(NOISE_DISPERSION * max(last, 1e-9) / bucket_s)
    if last - JUMP_Z * noise <= expected.mean:
        return expected
    return Forecast(last, max(expected.high, last), f"{expected.predictor}, jumped", expected.tests)


def _expected(
    series: Sequence[float],
    bucket_s: float,
    horizon_s: float,
    quantile: float,
    season_s: float,
    predictors: Sequence[Predictor],
) -> Forecast:
    values = np.asarray(series, dtype=np.float64)
    ahead = max(1, round(horizon_s / bucket_s))
    actual = _smoothed(values, max(1, round(30.0 / bucket_s)))
    candidates = list(predictors)
    if season_s and len(values) * bucket_s >= 2 * season_s:
        candidates.append(Predictor("season", 60, season_s=season_s))
    tests = len(values) - ahead
    if tests < MIN_TESTS:
        level = float(np.mean(values[-6:]))
        noise = PRIOR_Z * (sqrt(level / (bucket_s * min(6, len(values)))) + 0.1 * level)
        return Forecast(level, level + noise, "mean 60 s", 0)
    scored = [_tested(predictor, values, actual, bucket_s, ahead, quantile) for predictor in candidates]
    _, mean, ratio, name = min(scored)
    return Forecast(mean, mean * ratio, name, tests)


def _tested(
    predictor: Predictor, values: Floats, actual: Floats, bucket_s: float, ahead: int, quantile: float
) -> tuple[float, float, float, str]:
    """(loss, mean now, ratio of the quantile to the mean, name)"""
    predicted = predictions(predictor, values, bucket_s, ahead)
    past, later = predicted[: len(values) - ahead], actual[ahead:]
    ratios = later / np.maximum(past, 1e-3)
    ratio = float(np.clip(np.quantile(ratios, quantile), 1.0, MAX_RATIO))
    high = past * ratio
    loss = np.where(later > high, quantile * (later - high), (1.0 - quantile) * (high - later))
    return float(np.mean(loss)), float(predicted[-1]), ratio, predictor.name


def predictions(predictor: Predictor, values: Floats, bucket_s: float, ahead: int) -> Floats:
    """What the predictor said, standing at each bucket, about the bucket `ahead` of it."""
    level = _smoothed(values, max(1, round(predictor.level_s / bucket_s)))
    if predictor.season_s:
        back = round(predictor.season_s / bucket_s) - ahead
        ago = np.concatenate([level[: len(level) - back] * 0 + level[:1], level])[-len(values) - back : -back or None]
        return np.asarray(ago[: len(values)])
    if not predictor.trend_s:
        return level
    width = max(2, round(predictor.trend_s / bucket_s))
    half = max(1, width // 2)
    slope = (_smoothed(values, half) - _shifted(_smoothed(values, half), half)) / half
    believed = np.arange(len(values)) >= width
    limit = 0.5 * level
    return np.maximum(
        0.0, level + np.clip(predictor.damping * slope * (ahead + half / 2) * believed, -limit, 2 * limit)
    )


def _smoothed(values: Floats, width: int) -> Floats:
    """Mean of the last `width` values up to each place (fewer at the start)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def _shifted(values: Floats, places: int) -> Floats:
    return np.concatenate([np.full(min(places, len(values)), values[0]), values[:-places]])[: len(values)]
