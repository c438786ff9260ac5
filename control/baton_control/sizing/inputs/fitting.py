"""Step times learned online from the workers' own timings, starting from a roofline.

The fit is over *multipliers* of the prior's coefficients: each starts at 1 and moves as far as the evidence says,
so that a coefficient for which there is no evidence yet stays what the roofline gave. Least squares on relative
errors with slow forgetting; a worker's first steps are dropped, outliers are rejected, and each worker keeps its own
bias. An outlier is far from the fit and from the middle of the last steps. A step that is far from the fit alone shows
that the prior is wrong many times over, or that the speed has changed: then the fit begins anew, around that middle.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from operator import mul
from statistics import median
from typing import TypeVar

import numpy as np

from baton_control.sizing.inputs.workload import Floats
from baton_wire.rules.step_times import DecodeTimes, PrefillTimes

WARM_STEPS = 20
"""A worker's first steps, which are dropped: caches fill and clocks settle; rules that kept them over-scaled."""
FORGETTING = 0.999
PRIOR_STRENGTH = 2.0
"""Steps that the prior of each coefficient is worth."""
OUTLIER = 4.0
FIRST_SPREAD, MIN_SPREAD = 0.3, 0.02
RECENT = 101
"""Steps whose median is looked at: half of them in a row are a change of speed."""
BIAS_RATE = 0.05
MAX_WORKERS = 4_096
"""Workers whose warm-up and bias are remembered."""
MULTIPLIERS = (0.02, 50.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """Evidence so far. `gram` [k, k] and `moment` [k] are over features scaled by the prior."""

    prior: tuple[float, ...]
    gram: Floats
    moment: Floats
    steps: int = 0
    spread: float = FIRST_SPREAD
    """Mean absolute relative error of accepted steps."""
    anchor: float = 1.0
    """The multiplier that a coefficient has until steps say otherwise."""
    recent: tuple[float, ...] = ()
    """Durations of the last steps, warm-up included, as multiples of the prior and of their worker's bias."""
    warmed: Mapping[str, int] = field(default_factory=dict)
    bias: Mapping[str, float] = field(default_factory=dict)

    @property
    def multipliers(self) -> list[float]:
        return _solved(self.gram.tolist(), self.moment.tolist())

    @property
    def coefficients(self) -> tuple[float, ...]:
        return tuple(map(mul, self.prior, self.multipliers))


def fresh(prior: Sequence[float], anchor: float = 1.0) -> Fit:
    """Nothing seen: the coefficients are the prior's, times the anchor."""
    gram, moment = _pull(len(prior), anchor)
    return Fit(tuple(prior), gram, moment, anchor=anchor)


@lru_cache(maxsize=64)
def _pull(size: int, anchor: float) -> tuple[Floats, Floats]:
    """The pull of multipliers towards the anchor, as strong as `PRIOR_STRENGTH` steps with relative errors."""
    return np.eye(size) * PRIOR_STRENGTH / anchor**2, np.full(size, PRIOR_STRENGTH / anchor)


Step = tuple[str, Sequence[float], float]
"""(worker, features, seconds)"""


def learn(fit: Fit, steps: Iterable[Step]) -> Fit:
    """The fit after these steps, one after the other. All in one go: there are hundreds between two decisions.

    Lists: of three or four numbers they take half the time of arrays.
    """
    gram, moment, spread, anchor, count = fit.gram.tolist(), fit.moment.tolist(), fit.spread, fit.anchor, fit.steps
    recent, warmed, bias = deque(fit.recent, RECENT), dict(fit.warmed), dict(fit.bias)
    multipliers = _solved(gram, moment)
    gram_0, moment_0 = _faded_pull(len(fit.prior), anchor)
    has_any = False
    for worker, features, seconds in steps:
        if not (isfinite(seconds) and 0.0 < seconds < 3600.0 and all(isfinite(x) and x >= 0 for x in features)):
            continue
        scaled = [x * p for x, p in zip(features, fit.prior, strict=True)]
        expected, believed = sum(map(mul, scaled, multipliers)), sum(scaled)
        if expected <= 0 or believed <= 0:
            continue
        has_any = True
        own, steps_before = bias.get(worker, 1.0), warmed.get(worker, 0)
        ratio = seconds / (believed * own)
        recent.append(ratio)
        if steps_before < WARM_STEPS:
            _forget_oldest(warmed, worker)
            warmed[worker] = steps_before + 1
            continue
        error = abs(seconds / (expected * own) - 1.0)
        limit = OUTLIER * max(spread, MIN_SPREAD)
        if error > limit:
            middle = median(recent)
            if abs(ratio / middle - 1.0) > limit:
                spread = min(1.0, spread * 1.02)  # of steps unlike others some are true
                continue
            anchor, spread, count = min(max(middle, MULTIPLIERS[0]), MULTIPLIERS[1]), FIRST_SPREAD, 0
            gram, moment = (matrix.tolist() for matrix in _pull(len(fit.prior), anchor))
            gram_0, moment_0 = _faded_pull(len(fit.prior), anchor)
            expected = sum(map(mul, scaled, _solved(gram, moment)))
            error = abs(seconds / (expected * own) - 1.0)
        row, target = [x / expected for x in scaled], seconds / expected
        gram = [
            [FORGETTING * old + pull + x * y for old, pull, y in zip(olds, pulls, row, strict=True)]
            for olds, pulls, x in zip(gram, gram_0, row, strict=True)
        ]
        moment = [FORGETTING * old + pull + x * target for old, pull, x in zip(moment, moment_0, row, strict=True)]
        multipliers = _solved(gram, moment)
        count += 1
        spread = 0.98 * spread + 0.02 * error
        _forget_oldest(bias, worker)
        bias[worker] = own + BIAS_RATE * (min(2.0, max(0.5, target)) - own)
    if not has_any:
        return fit
    return Fit(fit.prior, np.array(gram), np.array(moment), count, spread, anchor, tuple(recent), warmed, bias)


def _faded_pull(size: int, anchor: float) -> tuple[list[list[float]], list[float]]:
    """As much of the pull as one step forgets."""
    gram, moment = ((1 - FORGETTING) * matrix for matrix in _pull(size, anchor))
    return gram.tolist(), moment.tolist()


def _solved(gram: list[list[float]], moment: list[float]) -> list[float]:
    """The multipliers, in bounds. By elimination: with its pull the matrix is symmetric and positive definite."""
    rows = [[*row, wanted] for row, wanted in zip(gram, moment, strict=True)]
    size = len(rows)
    for place, pivot in enumerate(rows):
        for row in rows[place + 1 :]:
            factor = row[place] / pivot[place]
            for at in range(place + 1, size + 1):
                row[at] -= factor * pivot[at]
    solution = [0.0] * size
    for place in range(size - 1, -1, -1):
        row = rows[place]
        solution[place] = (row[size] - sum(map(mul, row[place + 1 : size], solution[place + 1 :]))) / row[place]
    return [min(max(multiplier, MULTIPLIERS[0]), MULTIPLIERS[1]) for multiplier in solution]


T = TypeVar("T", int, float)


def _forget_oldest(by_worker: dict[str, T], worker: str) -> None:
    """Forget the oldest workers when there are too many for one more: workers come and go for months."""
    if len(by_worker) >= MAX_WORKERS and worker not in by_worker:
        for oldest in list(by_worker)[: MAX_WORKERS // 4]:
            del by_worker[oldest]


def prefill_features(tokens: float, pairs: float) -> tuple[float, ...]:
    return (1.0, tokens, pairs)


def decode_features(times: DecodeTimes, batch: int, kv_tokens: float) -> tuple[float, ...]:
    padded = times.padded(batch)
    return (1.0, padded, max(0.0, padded - times.knee), kv_tokens)


def prefill_prior(times: PrefillTimes) -> Fit:
    return fresh((times.fixed_s, times.per_token_s, times.per_pair_s))


def decode_prior(times: DecodeTimes) -> Fit:
    return fresh((times.fixed_s, times.per_sequence_s, times.over_knee_s, times.per_kv_token_s))


def prefill_times(fit: Fit) -> PrefillTimes:
    return PrefillTimes(*fit.coefficients)


def decode_times(fit: Fit, times: DecodeTimes) -> DecodeTimes:
    fixed, sequence, over_knee, kv = fit.coefficients
    return DecodeTimes(fixed, sequence, over_knee, kv, times.knee, times.pad_to)


def save(fit: Fit) -> str:
    """The multipliers and their evidence in at most some hundred bytes; biases are learned again."""
    multipliers = [float(f"{m:.4g}") for m in fit.multipliers]
    spread, anchor = float(f"{fit.spread:.3g}"), float(f"{fit.anchor:.3g}")
    return json.dumps({"m": multipliers, "n": min(fit.steps, 1000), "s": spread, "a": anchor})


def restore(text: str, prior: Sequence[float]) -> Fit:
    """A fit from `save` over the same prior; a fresh one when the text is not that."""
    try:
        document = json.loads(text)
        multipliers = np.clip(np.array(document["m"], dtype=np.float64), *MULTIPLIERS)
        if len(multipliers) != len(prior) or not np.all(np.isfinite(multipliers)):
            return fresh(prior)
        anchor = float(np.clip(float(document.get("a", 1.0)), *MULTIPLIERS))  # none in texts of before
        if not isfinite(anchor):
            return fresh(prior)
        weight = (PRIOR_STRENGTH + min(1000, int(document["n"])) / 10) / multipliers**2
        gram, moment = np.diag(weight), weight * multipliers
        return Fit(tuple(prior), gram, moment, int(document["n"]), float(document["s"]), anchor)
    except (ValueError, KeyError, TypeError):
        return fresh(prior)
