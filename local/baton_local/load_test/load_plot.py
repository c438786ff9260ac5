"""Draws loads over their rates: TTFT, TPOT and the share within targets. Knows matplotlib; import it late."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from baton_local.load_test.load_report import LatencySpread, LoadReport

PERCENTILES = (("p50", ":"), ("p95", "--"), ("p99", "-"))


def draw_loads(path: Path, curves: Mapping[str, Sequence[LoadReport]], share: float) -> None:
    """Write a PNG or SVG, by the name's ending.

    `curves`: reports by the server's name. Targets are those of the last; `share`, of requests, keeps them.
    """
    last = list(curves.values())[-1]
    targets = list(dict.fromkeys(each.targets for one in last for each in one.attainment))
    figure, axes = pyplot.subplots(2 + max(1, len(targets)), 1, figsize=(9, 6 + 2.5 * len(targets)), sharex=True)
    colors = dict(zip(curves, pyplot.rcParams["axes.prop_cycle"].by_key()["color"] * len(curves), strict=False))
    for name, reports in curves.items():
        ordered = sorted(reports, key=lambda one: one.rate)
        _draw_latency(axes[0], name, ordered, colors[name], lambda one: one.ttft_s)
        _draw_latency(axes[1], name, ordered, colors[name], lambda one: one.tpot_s)
        for axis, each in zip(axes[2:], targets, strict=False):
            points = [(one.rate, 100 * found) for one in ordered if (found := one.share_within(each)) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), "o-", color=colors[name], label=name)
    axes[0].set(ylabel="TTFT, ms", yscale="log", title="dotted p50, dashed p95, full p99")
    axes[1].set(ylabel="TPOT, ms", yscale="log")
    for axis, each in zip(axes[2:], targets, strict=False):
        axis.axhline(100 * share, color="grey", ls="--")
        axis.set(ylabel="% within", title=str(each), ylim=(0, 101))
    axes[-1].set_xlabel("offered requests per second")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _draw_latency(
    axis: Axes, name: str, reports: Sequence[LoadReport], color: str, of: Callable[[LoadReport], LatencySpread | None]
) -> None:
    for percentile, style in PERCENTILES:
        points = [(one.rate, 1e3 * getattr(found, percentile)) for one in reports if (found := of(one)) is not None]
        if points:
            label = name if percentile == "p99" else None
            axis.plot(*zip(*points, strict=True), style, marker=".", color=color, label=label)
