"""The fronts as numbers. Pure: rows go in.

A point is a policy at one value of its knob: means over the seeds of a load. A front is the points that no cheaper one
of the same policy keeps as well. Between two points the logarithm of misses is a line over GPU-hours. More GPU-hours
than the dearest point of a front buy nothing more, and with fewer than the cheapest there is no answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from bench.sizing.front_rows import FIXED, Row

SLO, FLIPPING, ORACLE = "slo", "slo-flips", "oracle"
OURS = (SLO, FLIPPING)
KNOWING = (FIXED, ORACLE)
"""Picked or decided with the whole load known, so no peers."""
ADDED = 0.001
"""To all misses, so that none is no endless ratio."""
KEPT = 0.05
"""The most that may miss each target."""
SHORT_S, DAY_S = 3600.0, 7 * 3600.0
"""Loads shorter than this are compared with the best fixed pool; those of this length or more are days."""
DRAWS = 200


@dataclass(frozen=True, slots=True)
class Point:
    gpu_hours: float
    misses: float
    keeps: bool
    """Both percentiles."""
    knob: str = ""


Points = Mapping[str, Sequence[Point]]
"""By policy, of one load and start-up."""


@dataclass(frozen=True, slots=True)
class Case:
    load: str
    startup_s: float
    seconds: float
    points: Points

    @property
    def ours(self) -> Point | None:
        """Mode SLO with its default knob."""
        return next((point for point in self.points.get(SLO, ()) if not point.knob), None)


@dataclass(frozen=True, slots=True)
class Number:
    """One figure over loads, with what 95 of 100 draws of the seeds lie between."""

    mean: float
    low: float
    high: float
    worst: float
    """The largest of one load."""
    loads: int


def cases(rows: Iterable[Row], drawn: Callable[[list[int]], list[int]] | None = None) -> list[Case]:
    """Means over the seeds of each load and start-up; over those that are `drawn` from them, when that is given.

    Loads that mode SLO was not played on are left out.
    """
    runs: dict[tuple[str, float], list[Row]] = defaultdict(list)
    fixed: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        (fixed[row.load] if row.policy == FIXED else runs[row.load, row.startup_s]).append(row)
    result = []
    for (load, startup_s), mine in sorted(runs.items()):
        seeds = sorted({row.seed for row in mine if row.policy == SLO})
        if not seeds:
            continue
        taken = seeds if drawn is None else drawn(seeds)
        by_knob: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in [*mine, *fixed[load]]:
            by_knob[row.policy, row.knob] += [row] * taken.count(row.seed)
        points: dict[str, list[Point]] = defaultdict(list)
        for (policy, knob), runs_of in by_knob.items():
            if len(runs_of) == len(taken):  # a size that only some seeds tried is no point: its mean would be of others
                points[policy].append(_mean(knob, runs_of))
        result.append(Case(load, startup_s, mine[0].seconds, points))
    return result


def _mean(knob: str, rows: Sequence[Row]) -> Point:
    ttft, tpot, misses, hours = (
        float(np.mean([getattr(row, name) for row in rows])) for name in ("ttft", "tpot", "misses", "gpu_hours")
    )
    return Point(hours, misses, max(ttft, tpot) <= KEPT, knob)


def front(points: Iterable[Point]) -> list[Point]:
    """From the cheapest on, each with fewer misses than all before."""
    line: list[Point] = []
    for point in sorted(points, key=lambda candidate: (candidate.gpu_hours, candidate.misses)):
        if not line or point.misses < line[-1].misses:
            line.append(point)
    return line


def misses_at(points: Iterable[Point], gpu_hours: float, is_whole: bool = False) -> float | None:
    """The misses of a policy at this cost, on its front; None: it has no run that is so cheap.

    `is_whole`: there is nothing between two points, as between two sizes of a fixed pool.
    """
    line = front(points)
    below = [point for point in line if point.gpu_hours <= gpu_hours * (1 + 1e-9)]
    if not below:
        return None
    if len(below) == len(line) or is_whole:
        return below[-1].misses
    one, other = below[-1], line[len(below)]
    part = (gpu_hours - one.gpu_hours) / (other.gpu_hours - one.gpu_hours)
    return exp((1 - part) * log(one.misses + ADDED) + part * log(other.misses + ADDED)) - ADDED


def peers(points: Points) -> list[str]:
    return [policy for policy in points if policy not in (*OURS, *KNOWING)]


def beside_peers(case: Case) -> float | None:
    """Misses over those of the best tuned peer at the same GPU-hours."""
    at = [_at(case, case.points[policy]) for policy in peers(case.points)]
    return _over(case, [misses for misses in at if misses is not None])


def beside_fixed(case: Case) -> float | None:
    """Misses over those of the best fixed pool of no more GPU-hours, on loads of less than an hour."""
    if case.seconds >= SHORT_S or case.ours is None:
        return None
    best = misses_at(case.points.get(FIXED, ()), case.ours.gpu_hours, is_whole=True)
    return _over(case, [] if best is None else [best])


def beside_cheapest(case: Case) -> float | None:
    """GPU-hours over those of the cheapest that keeps both percentiles, where mode SLO does."""
    ours = case.ours
    if ours is None or not ours.keeps:
        return None
    others = (point for policy, points in case.points.items() if policy not in (*OURS, ORACLE) for point in points)
    cheapest = min((point.gpu_hours for point in others if point.keeps), default=None)
    return None if cheapest is None else ours.gpu_hours / cheapest


def beside_fixed_days(case: Case) -> float | None:
    """GPU-hours over those of the smallest fixed pool with as few misses, on days."""
    ours = case.ours
    if ours is None or case.seconds < DAY_S:
        return None
    as_good = (p.gpu_hours for p in case.points.get(FIXED, ()) if p.misses <= ours.misses)
    smallest = min(as_good, default=None)
    return None if smallest is None else ours.gpu_hours / smallest


def with_flips(case: Case) -> float | None:
    """Misses with flips over those of starts and stops alone, at the GPU-hours of the latter."""
    at = _at(case, case.points.get(FLIPPING, ()))
    return None if at is None or case.ours is None else (at + ADDED) / (case.ours.misses + ADDED)


def _at(case: Case, points: Iterable[Point]) -> float | None:
    return None if case.ours is None else misses_at(points, case.ours.gpu_hours)


def _over(case: Case, others: Sequence[float]) -> float | None:
    return (case.ours.misses + ADDED) / (min(others) + ADDED) if others and case.ours is not None else None


RATIOS: Mapping[str, tuple[Callable[[Case], float | None], float]] = {
    "misses, over the best tuned peer at the same GPU-hours": (beside_peers, 0.5),
    "misses, over the best fixed pool at no more GPU-hours, loads under an hour": (beside_fixed, 1.15),
    "GPU-hours, over the cheapest that keeps both percentiles": (beside_cheapest, 1.03),
    "GPU-hours, over the smallest fixed pool with as few misses, days": (beside_fixed_days, 0.65),
    "misses with flips, over starts and stops alone at the GPU-hours of those": (with_flips, 0.6),
}
"""The ratio of each case, and the goal: the mean is to be no more."""


def numbers(rows: Sequence[Row], draws: int = DRAWS) -> dict[str, Number]:
    """Each ratio: geometric mean over loads and start-ups, interval over the seeds, and the worst."""
    random = np.random.default_rng(1)
    drawn = [cases(rows, lambda seeds: random.choice(seeds, len(seeds)).tolist()) for _ in range(draws)]
    whole = cases(rows)
    result = {}
    for name, (ratio, _) in RATIOS.items():
        ratios = [value for value in map(ratio, whole) if value is not None]
        if not ratios:
            continue
        means = [mean for mean in (_geometric(ratio, draw) for draw in drawn) if mean is not None]
        low, high = np.quantile(means, [0.025, 0.975]).tolist()
        result[name] = Number(float(np.exp(np.mean(np.log(ratios)))), low, high, max(ratios), len(ratios))
    return result


def _geometric(ratio: Callable[[Case], float | None], of: Iterable[Case]) -> float | None:
    ratios = [value for value in map(ratio, of) if value is not None]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def kept_where_possible(rows: Iterable[Row]) -> tuple[int, int]:
    """Counts of runs in which mode SLO keeps both percentiles, and in which the oracle does."""
    keeps = {
        (row.load, row.seed, row.startup_s, row.policy): max(row.ttft, row.tpot) <= KEPT
        for row in rows
        if row.policy in (SLO, ORACLE) and not row.knob
    }
    possible = [
        (load, seed, startup)
        for (load, seed, startup, policy), is_kept in keeps.items()
        if policy == ORACLE and is_kept
    ]
    ours = [keeps[*run, SLO] for run in possible if (*run, SLO) in keeps]
    return sum(ours), len(ours)
