"""Draws load reports over their rates: TTFT, TPOT and the share within targets. Imports matplotlib: import it late."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from baton_local.load_test.latency_spread import LatencySpread
from baton_local.load_test.load_report import LoadReport

PERCENTILES = (("p50", ":"), ("p95", "--"), ("p99", "-"))


def draw_loads(path: Path, curves: Mapping[str, Sequence[LoadReport]], share: float) -> None:
    """Draw load reports into a PNG or SVG, by the ending of the file name.

    `curves`: reports by the name of the server; targets are the last server's. `share`: of requests that has to meet
    them.
    """
    last = list(curves.values())[-1]
    targets = list(dict.fromkeys(result.targets for report in last for result in report.attainment))
    figure, axes = pyplot.subplots(2 + max(1, len(targets)), 1, figsize=(9, 6 + 2.5 * len(targets)), sharex=True)
    colors = dict(zip(curves, pyplot.rcParams["axes.prop_cycle"].by_key()["color"] * len(curves), strict=False))
    for name, reports in curves.items():
        ordered = sorted(reports, key=lambda one: one.rate)
        _draw_latency(axes[0], name, ordered, colors[name], lambda one: one.ttft_s)
        _draw_latency(axes[1], name, ordered, colors[name], lambda one: one.tpot_s)
        for axis, pair in zip(axes[2:], targets, strict=False):
            shares = [(report.rate, report.share_within(pair)) for report in ordered]
            points = [(rate, 100 * within) for rate, within in shares if within is not None]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", color=colors[name], label=name)
    axes[0].set(ylabel="TTFT, ms", yscale="log", title="dotted p50, dashed p95, full p99")
    axes[1].set(ylabel="TPOT, ms", yscale="log")
    for axis, pair in zip(axes[2:], targets, strict=False):
        axis.axhline(100 * share, color="grey", ls="--")
        axis.set(ylabel="% within", title=str(pair), ylim=(0, 101))
    axes[-1].set_xlabel("offered requests per second")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _draw_latency(
    axis: Axes, name: str, reports: Sequence[LoadReport], color: str, of: Callable[[LoadReport], LatencySpread | None]
) -> None:
    for percentile, style in PERCENTILES:
        spreads = [(report.rate, of(report)) for report in reports]
        points = [(rate, 1e3 * getattr(spread, percentile)) for rate, spread in spreads if spread is not None]
        if points:
            label = name if percentile == "p99" else None
            axis.plot(*zip(*points, strict=True), style, marker=".", color=color, label=label)
