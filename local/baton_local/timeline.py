"""Draws a replay over time: arrivals, workers, TTFT and TPOT. The only file that knows matplotlib; import it late."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

from baton_control.sizing.spec import SizingSpec
from baton_control.sizing.workload import Floats, Workload
from baton_simulate.replay import ReplayOutcome

BUCKET_S = 20.0


def draw_timeline(path: Path, workload: Workload, spec: SizingSpec, outcome: ReplayOutcome) -> None:
    """Write a PNG or SVG, by the name's ending."""
    figure, axes = pyplot.subplots(4, 1, figsize=(10, 9), sharex=True)
    edges = np.arange(0.0, workload.duration_s + BUCKET_S, BUCKET_S)
    counts = np.histogram(workload.arrival_s, edges)[0] / BUCKET_S
    axes[0].step(edges[:-1], counts, where="post", color="black")
    axes[0].set_ylabel("arrivals, req/s")
    at = [point.at_s for point in outcome.points]
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


def _percentiles(at: Floats, values: Floats, edges: Floats, percentile: float) -> Floats:
    """Of the requests that arrived in each bucket and ended; not a number where none did."""
    place = np.digitize(at, edges) - 1
    result = np.full(len(edges) - 1, np.nan)
    for bucket in range(len(result)):
        inside = values[(place == bucket) & np.isfinite(values)]
        if len(inside):
            result[bucket] = np.percentile(inside, percentile)
    return result
