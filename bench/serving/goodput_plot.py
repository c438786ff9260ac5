"""The plot of a `goodput` run: what keeps both targets over rate, for each mix and target, by where prompts go.

python -m bench goodput_plot bench/results/goodput.json bench/results/goodput.png [--builds B …]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from bench.results import Cell, shrink_plot
from bench.serving.mixes import MIXES, TPOTS_MS

COLOURS: Final = {"always": "tab:blue", "never": "tab:orange", "auto": "tab:green"}
Row = Mapping[str, Cell]
Curves = dict[str, list[tuple[float, float]]]


def curves(rows: Sequence[Row], mix: str, tpot_ms: int) -> Curves:
    """By mode: (rate, percent within both targets), ascending, the mean over seeds.

    What has no TPOT target of its own, `always` and other servers, counts at every target; the others where theirs is
    this one.
    """
    share_lists: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in rows:
        mode, rate, share = str(row["mode"]), row["req/s"], row[f"% at {tpot_ms}"]
        is_of_target = mode not in ("never", "auto") or row["target"] == tpot_ms
        if row["mix"] == mix and is_of_target and isinstance(rate, float | int) and isinstance(share, float | int):
            share_lists[mode, float(rate)].append(float(share))
    by_mode: Curves = {mode: [] for mode in COLOURS}
    for (mode, rate), shares in sorted(share_lists.items()):
        by_mode.setdefault(mode, []).append((rate, mean(shares)))
    return by_mode


def shortfalls(rows: Sequence[Row]) -> list[tuple[str, int, float, float]]:
    """(mix, target, rate, points that `auto` has less than the better of the others) where all that is known."""
    losses = []
    for mix in MIXES:
        for tpot_ms in TPOTS_MS:
            by_mode = {mode: dict(points) for mode, points in curves(rows, mix, tpot_ms).items()}
            for rate, share in by_mode["auto"].items():
                others = [by_mode[mode][rate] for mode in ("always", "never") if rate in by_mode[mode]]
                if others:
                    losses.append((mix, tpot_ms, rate, max(others) - share))
    return losses


def plot(rows: Sequence[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(len(MIXES), len(TPOTS_MS), figsize=(11, 9), sharey=True, squeeze=False)
    for line, mix in zip(grid, MIXES, strict=True):
        for axes, tpot_ms in zip(line, TPOTS_MS, strict=True):
            for mode, points in curves(rows, mix, tpot_ms).items():
                if points:
                    axes.plot(*zip(*points, strict=True), marker="o", label=mode, color=COLOURS.get(mode))
            axes.axhline(95, color="grey", linewidth=0.5)
            axes.set_title(f"{mix}, {tpot_ms} ms", fontsize=9)
            axes.set_ylim(-2, 103)
    grid[0][0].legend(fontsize=8)
    grid[-1][1].set_xlabel("requests a second")
    grid[1][0].set_ylabel("% within TTFT 500 ms and the TPOT target")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)
    shrink_plot(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="of `goodput`")
    parser.add_argument("plot", type=Path)
    parser.add_argument("--builds", nargs="+", metavar="B", help="only rows of these builds (default: all)")
    options = parser.parse_args()
    rows = json.loads(options.result.read_text())["rows"]
    if unknown := set(options.builds or ()) - {row.get("build") for row in rows}:
        parser.error(f"--builds: {', '.join(sorted(unknown))}: no row is of it")
    rows = [row for row in rows if options.builds is None or row.get("build") in options.builds]
    for mix, tpot_ms, rate, points in shortfalls(rows):
        print(f"{mix} {tpot_ms} ms {rate:g}/s: auto {points:+.1f} points below the better one")
    plot(rows, options.plot)


if __name__ == "__main__":
    main()
