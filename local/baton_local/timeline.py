"""Draws a replay over time: arrivals, workers, TTFT and TPOT. Imports matplotlib, so import this module late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.ticker import FixedLocator, ScalarFormatter

from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.workload import Floats, Workload
from baton_simulate.replay import ReplayOutcome
from baton_wire.messages.values import POOL_ROLES

BUCKET_S = 20.0
MOST_BUCKETS = 400
PERCENTS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)
TIME_UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


def draw_timeline(path: Path, workload: Workload, spec: SizingSpec, outcome: ReplayOutcome) -> None:
    """Draw one replay into a PNG or SVG, by the ending of the file name."""
    figure, axes = pyplot.subplots(4, 1, figsize=(10, 9), sharex=True)
    edges = np.arange(0.0, workload.duration_s + BUCKET_S, BUCKET_S)
    counts = np.histogram(workload.arrival_s, edges)[0] / BUCKET_S
    axes[0].step(edges[:-1], counts, where="post", color="black")
    axes[0].set_ylabel("arrivals, req/s")
    at = [point.at_s for point in outcome.points]
    kinds = list(dict.fromkeys(kind for point in outcome.points for kind in point.kinds))
    for number, kind in enumerate(kinds if len(kinds) > len(POOL_ROLES) else ()):
        count = [point.kinds.get(kind, 0) for point in outcome.points]
        axes[1].fill_between(at, count, step="post", color=f"C{number}", alpha=0.3, label=f"{kind[0].value} {kind[1]}")
    for place, name in enumerate(("prefill", "decode")):
        color = ("tab:red", "tab:blue")[place]
        axes[1].step(at, [point.workers[place] for point in outcome.points], where="post", color=color, label=name)
        axes[1].step(
            at, [point.routable[place] for point in outcome.points], where="post", color=color, alpha=0.4, ls=":"
        )
    axes[1].set_ylabel("workers (dotted: routable)")
    axes[1].legend(loc="upper left")
    for axis, values, target, name in (
        (axes[2], outcome.ttft_s, spec.targets.ttft_s, "TTFT"),
        (axes[3], outcome.tpot_s, spec.targets.tpot_s, "TPOT"),
    ):
        for percentile, alpha in ((50, 0.5), (95, 1.0)):
            line = _percentiles(workload.arrival_s, values, edges, percentile) * 1000
            axis.plot(edges[:-1], line, color="tab:green", alpha=alpha, label=f"p{percentile}")
        axis.axhline(target * 1000, color="grey", ls="--")
        axis.set(ylabel=f"{name}, ms", yscale="log")
        axis.legend(loc="upper left")
    axes[3].set_xlabel("seconds")
    axes[0].set_title(
        f"{workload.name}, {outcome.policy}: {outcome.slo_attainment:.1%} in time, {outcome.gpu_hours:.1f} GPU-hours"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def draw_comparison(
    path: Path, workload: Workload, spec: SizingSpec, outcomes: Sequence[ReplayOutcome], costs: Sequence[float] | None
) -> None:
    """Draw several policies: the late requests of each over its cost (the lower left is best), and all of them over
    time. Without costs, GPU-hours are drawn."""
    paid = [outcome.gpu_hours for outcome in outcomes] if costs is None else costs
    figure = pyplot.figure(figsize=(12, 9))
    grid = figure.add_gridspec(3, 2, width_ratios=(2, 3))
    front = figure.add_subplot(grid[:, 0])
    load, pools, late = (figure.add_subplot(grid[row, 1]) for row in range(3))
    bucket_s = max(BUCKET_S, workload.duration_s / MOST_BUCKETS)
    edges = np.arange(0.0, workload.duration_s + bucket_s, bucket_s)
    unit_s, unit = next((entry for entry in TIME_UNITS if workload.duration_s >= 3 * entry[0]), TIME_UNITS[-1])
    load.step(edges[:-1] / unit_s, np.histogram(workload.arrival_s, edges)[0] / bucket_s, where="post", color="black")
    load.set_ylabel("arrivals, req/s")
    per_worker = [spec.bounds_of[role].accelerators for role in POOL_ROLES]
    for place, outcome in enumerate(outcomes):
        colour = f"C{place % 10}"
        front.plot(paid[place], outcome.misses * 100, "o", color=colour, label=outcome.policy)
        at = np.array([point.at_s for point in outcome.points]) / unit_s
        held = [sum(n * a for n, a in zip(point.workers, per_worker, strict=True)) for point in outcome.points]
        pools.step(at, held, where="post", color=colour, label=outcome.policy)
        share = _late_share(workload.arrival_s, outcome, spec, edges) * 100
        late.plot(edges[:-1] / unit_s, share, color=colour, lw=1, label=outcome.policy)
    missable = 100 * (1.0 - min(spec.targets.ttft_share, spec.targets.tpot_share))
    for axis, along in ((front, front.axhline), (late, late.axhline)):
        along(missable, color="grey", ls="--", lw=0.8)
        axis.set_yscale("symlog", linthresh=1.0)
        axis.yaxis.set_major_locator(FixedLocator(PERCENTS))
        axis.yaxis.set_major_formatter(ScalarFormatter())
    front.set(xlabel="GPU-hours" if costs is None else "cost", ylabel="requests outside either target, %")
    front.set_xlim(left=0.0)
    front.set_ylim(bottom=0.0)
    pools.set_ylabel("accelerators")
    front.legend()
    late.set(xlabel=unit, ylabel="outside a target, %")
    figure.suptitle(f"{workload.name}: {len(workload)} requests; dashed: what may be missed")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _late_share(at: Floats, outcome: ReplayOutcome, spec: SizingSpec, edges: Floats) -> Floats:
    """Share of late requests among those that arrived in each bucket; not a number for an empty bucket."""
    is_late = (outcome.ttft_s > spec.targets.ttft_s) | (outcome.tpot_s > spec.targets.tpot_s)
    came, late = (np.histogram(at[which], edges)[0] for which in (np.full(len(at), True), is_late))
    return np.asarray(np.divide(late, came, out=np.full(len(came), np.nan), where=came > 0))


def _percentiles(at: Floats, values: Floats, edges: Floats, percentile: float) -> Floats:
    """Percentile of the requests that arrived in each bucket and ended; not a number for an empty bucket."""
    place = np.digitize(at, edges) - 1
    result = np.full(len(edges) - 1, np.nan)
    for bucket in range(len(result)):
        inside = values[(place == bucket) & np.isfinite(values)]
        if len(inside):
            result[bucket] = np.percentile(inside, percentile)
    return result
