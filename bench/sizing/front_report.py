"""Tables, the plot and the JSON of the fronts, from their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.results import shrink_plot
from bench.sizing.front_numbers import (
    RATIOS,
    SLO,
    Case,
    Point,
    cases,
    front,
    kept_where_possible,
    misses_at,
    numbers,
    peers,
)
from bench.sizing.front_rows import FIXED, Row

from baton_simulate.policies import KNOBS

DRAWN = {
    FIXED: "black", "slo": "red", "plain": "orange", "llmd-v1": "green", "llmd-v2": "grey", "apa": "purple",
    "dynamo": "brown", "hpa-queue": "cyan", "oracle": "blue",
}  # fmt: skip
"""Colours; policies that are not in it are far off, and not drawn."""


def tables(rows: Sequence[Row], part: str) -> str:
    """Per load and start-up: mode SLO, the best peer at its cost, and the fixed pools; then the numbers."""
    mine = [row for row in rows if row.split == part]
    lines = [
        "| load | start-up | seeds | oracle | slo | best peer at that cost | cheapest peer to keep | cheapest fixed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in cases(mine):
        seeds = len({r.seed for r in mine if (r.load, r.startup_s, r.policy) == (case.load, case.startup_s, SLO)})
        cells = [_default(case, "oracle"), _default(case, "slo"), _best_peer(case), _cheapest(case), _fixed(case)]
        lines.append(f"| {case.load} | {case.startup_s:.0f} s | {seeds} | " + " | ".join(cells) + " |")
    lines += ["", "| ratio | goal | geometric mean | 95 of 100 | worst | loads |", "|---|---|---|---|---|---|"]
    for name, number in numbers(mine).items():
        lines.append(
            f"| {name} | {RATIOS[name][1]} | {number.mean:.2f} | {number.low:.2f}–{number.high:.2f} "
            f"| {number.worst:.2f} | {number.loads} |"
        )
    keeping, possible = kept_where_possible(mine)
    return "\n".join([*lines, "", f"Keeps both percentiles in {keeping} of {possible} runs in which the oracle does."])


def _show(point: Point | None) -> str:
    return "–" if point is None else f"{point.misses * 100:.1f} @ {point.gpu_hours:.2f}"


def _default(case: Case, policy: str) -> str:
    return _show(next((point for point in case.points.get(policy, ()) if not point.knob), None))


def _best_peer(case: Case) -> str:
    if case.ours is None:
        return "–"
    rivals = [(misses_at(case.points[policy], case.ours.gpu_hours), policy) for policy in peers(case.points)]
    known = [(misses, policy) for misses, policy in rivals if misses is not None]
    return f"{min(known)[0] * 100:.1f} ({min(known)[1]})" if known else "–"


def _cheapest(case: Case) -> str:
    keeping = [(p.gpu_hours, policy, p) for policy in peers(case.points) for p in case.points[policy] if p.keeps]
    if not keeping:
        return "–"
    _, policy, point = min(keeping, key=lambda entry: entry[:2])
    return f"{_show(point)} ({policy}{' ' + point.knob if point.knob else ''})"


def _fixed(case: Case) -> str:
    keeping = [point for point in case.points.get(FIXED, ()) if point.keeps]
    best = min(keeping, key=lambda point: point.gpu_hours, default=None)
    return _show(best) + ("" if best is None else f" ({best.knob})")


def document(rows: Sequence[Row]) -> dict[str, object]:
    """The numbers of each set, and each policy's front on each load."""
    sets = sorted({row.split for row in rows})
    return {
        part: {
            "numbers": {name: asdict(number) for name, number in numbers(mine).items()},
            "kept_where_the_oracle_does": kept_where_possible(mine),
            "fronts": [
                {
                    "load": case.load,
                    "startup_s": case.startup_s,
                    "seconds": case.seconds,
                    "policies": {
                        policy: [
                            (point.knob, round(point.gpu_hours, 3), round(point.misses, 5)) for point in front(points)
                        ]
                        for policy, points in case.points.items()
                    },
                }
                for case in cases(mine)
            ],
        }
        for part in sets
        for mine in ([row for row in rows if row.split == part],)
    }


def save(rows: Sequence[Row], json_path: Path, plot_path: Path) -> None:
    json_path.write_text(json.dumps(document(rows), indent=1, sort_keys=True) + "\n")
    _plot([(part, case) for part in sorted({r.split for r in rows})
           for case in cases([r for r in rows if r.split == part]) if case.startup_s == 60.0], plot_path)  # fmt: skip


def _plot(shown: Sequence[tuple[str, Case]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = max(1, -(-len(shown) // 4))
    figure, grid = pyplot.subplots(lines, 4, figsize=(15, 3.2 * lines), squeeze=False)
    for axis, (part, case) in zip(grid.flat, shown, strict=False):
        dearest = 4.0 * max((point.gpu_hours for point in case.points.get("slo", ())), default=1.0)
        for policy, colour in DRAWN.items():
            points = [(p.gpu_hours, p.misses * 100 + 0.1) for p in front(case.points.get(policy, ()))]
            near = [point for point in points if point[0] <= dearest]
            line, mark = "-" if policy in (*KNOBS, FIXED) else "", "*" if policy == "slo" else "o"
            hours, misses = zip(*near, strict=True) if near else ((), ())
            axis.plot(hours, misses, line + mark, ms=8 if policy == "slo" else 3, lw=1, color=colour, label=policy)
        axis.axhline(5.0, color="grey", lw=0.5)
        axis.set(yscale="log", title=f"{part}: {case.load}"[:44])
        axis.tick_params(labelsize=7)
        axis.title.set_fontsize(8)
    grid.flat[0].legend(fontsize=6)
    figure.supxlabel("GPU-hours")
    figure.supylabel("misses + 0.1 %, 60 s start-up, mean of the seeds")
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    shrink_plot(path)
