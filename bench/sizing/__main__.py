"""Compares scaling policies: SLO misses and GPU-hours of each over all scenarios and start-up times.

python -m bench.sizing run --traces DIR      appends to bench/results/sizing.csv what is not in it yet
python -m bench.sizing report                 prints the tables of docs/sizing.md, draws the Pareto plot
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from math import exp, log
from pathlib import Path

from bench.results import shrink_plot
from bench.sizing.hindsight import oracle
from bench.sizing.scenarios import cases

from baton_control.sizing.capacity import TwinSizer
from baton_simulate.policies import PEERS, POLICIES, needs_of, player
from baton_simulate.replay import Scenario, replay

RESULTS = Path(__file__).resolve().parents[1] / "results"
TABLE = RESULTS / "sizing.csv"
PLOT = RESULTS / "sizing_pareto.png"
STARTUPS_S = (30.0, 120.0)
FLOOR = 0.001
"""Added to each share of misses before a geometric mean."""


@dataclass(frozen=True, slots=True)
class Row:
    scenario: str
    startup_s: float
    policy: str
    misses: float
    gpu_hours: float
    moves: int


Key = tuple[str, float, str]


def run(traces: Path, limit_s: float, only: str, policies: tuple[str, ...], path: Path, one_queue: bool) -> None:
    done = {(row.scenario, row.startup_s, row.policy) for row in rows(path)}
    started = time.monotonic()
    RESULTS.mkdir(exist_ok=True)
    for case in cases(traces):
        missing = [(s, p) for s in STARTUPS_S for p in policies if (case.name, s, p) not in done]
        if only not in case.name or not missing:
            continue
        needs = needs_of(case.workload, case.spec, TwinSizer(case.true, case.spec.targets))
        initial = needs.between(0.0, 30.0)
        for startup_s, policy in missing:
            if time.monotonic() - started > limit_s:
                return
            scenario = Scenario(
                case.name,
                case.workload,
                case.true,
                case.spec,
                startup_s,
                initial,
                case.lost,
                case.deaths,
                in_turn=policy in PEERS and not one_queue,
            )
            if policy == "oracle":
                out = oracle(scenario, needs)
            else:
                out = replay(scenario, policy, player(policy, case.spec, case.believed, needs, startup_s))
            row = Row(
                case.name,
                startup_s,
                policy,
                round(out.misses, 4),
                round(out.gpu_hours, 2),
                len(out.decisions),
            )
            _append(row, path)
            print(f"{case.name:34} {startup_s:4.0f} s {policy:10} {row.misses:8.2%} {row.gpu_hours:7.2f}", flush=True)


def _append(row: Row, path: Path) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({**asdict(row), "startup_s": f"{row.startup_s:g}"})


def rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Row(
                line["scenario"],
                float(line["startup_s"]),
                line["policy"],
                float(line["misses"]),
                float(line["gpu_hours"]),
                int(line["moves"]),
            )
            for line in csv.DictReader(file)
        ]


def complete(all_rows: list[Row]) -> dict[tuple[str, float], dict[str, Row]]:
    """Scenarios with every policy."""
    table: dict[tuple[str, float], dict[str, Row]] = defaultdict(dict)
    for row in all_rows:
        table[row.scenario, row.startup_s][row.policy] = row
    return {key: row for key, row in table.items() if set(row) >= set(POLICIES)}


def geometric(values: list[float]) -> float:
    return exp(sum(log(value) for value in values) / len(values))


def report(path: Path) -> None:
    table = complete(rows(path))
    print(f"{len(table)} runs of each policy ({len({name for name, _ in table})} scenarios)\n")
    print("| policy | misses + 0.1 %, geo. mean | mean | GPU-hours / oracle | worst | moves |")
    print("|---|---|---|---|---|---|")
    for policy in POLICIES:
        mine = [row[policy] for row in table.values()]
        ratio = [row[policy].gpu_hours / row["oracle"].gpu_hours for row in table.values()]
        print(
            f"| {policy} | {geometric([r.misses + FLOOR for r in mine]):.2%} | "
            f"{_mean([r.misses for r in mine]):.2%} | "
            f"{geometric(ratio):.2f} | {max(r.misses for r in mine):.1%} | "
            f"{_mean([float(r.moves) for r in mine]):.0f} |"
        )
    _against_peers(table)
    _per_scenario(table)
    _plot(table)


def _against_peers(table: dict[tuple[str, float], dict[str, Row]]) -> None:
    print("\n| peer | our misses / its misses | our GPU-hours / its | runs where it misses less |")
    print("|---|---|---|---|")
    for peer in PEERS:
        misses = [(r["slo"].misses + FLOOR) / (r[peer].misses + FLOOR) for r in table.values()]
        hours = [r["slo"].gpu_hours / r[peer].gpu_hours for r in table.values()]
        worse = sum(r["slo"].misses > r[peer].misses for r in table.values())
        print(f"| {peer} | {geometric(misses):.2f} | {geometric(hours):.2f} | {worse} of {len(table)} |")
    behind = [
        (key, peer, row["slo"].misses - row[peer].misses)
        for key, row in table.items()
        for peer in PEERS
        if row[peer].gpu_hours <= row["slo"].gpu_hours * 1.0 and row["slo"].misses - row[peer].misses > 0.0
    ]
    print(f"\npeers that miss less with no more GPU-hours: {len(behind)}")
    for (name, startup_s), peer, gap in sorted(behind, key=lambda entry: -entry[2])[:12]:
        print(f"- {name}, {startup_s:.0f} s: {peer} by {gap:.2%} of the requests")


def _per_scenario(table: dict[tuple[str, float], dict[str, Row]]) -> None:
    shown = ("slo", "oracle", "static", *PEERS)
    print("\nmisses % @ GPU-hours\n\n| scenario | start-up | " + " | ".join(shown) + " |")
    print("|---|---|" + "---|" * len(shown))
    for (name, startup_s), row in table.items():
        cells = " | ".join(f"{row[p].misses * 100:.1f} @ {row[p].gpu_hours:.1f}" for p in shown)
        print(f"| {name} | {startup_s:.0f} s | {cells} |")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _plot(table: dict[tuple[str, float], dict[str, Row]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(STARTUPS_S), figsize=(11, 4.2), sharey=True)
    for axis, startup_s in zip(axes, STARTUPS_S, strict=True):
        for policy in POLICIES:
            mine = [row for (_, s), row in table.items() if s == startup_s]
            if not mine:
                continue
            hours = geometric([row[policy].gpu_hours / row["oracle"].gpu_hours for row in mine])
            misses = geometric([row[policy].misses + FLOOR for row in mine]) * 100
            axis.scatter(hours, misses, s=70 if policy == "slo" else 30, marker="*" if policy == "slo" else "o")
            axis.annotate(policy, (hours, misses), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axis.set(xscale="log", yscale="log", xlabel="GPU-hours over the oracle's", title=f"start-up {startup_s:.0f} s")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("SLO misses + 0.1 %, geometric mean, %")
    figure.tight_layout()
    figure.savefig(PLOT, dpi=90)
    shrink_plot(PLOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--traces", type=Path, required=True)
    runner.add_argument("--limit-s", type=float, default=86_400.0)
    runner.add_argument("--only", default="", help="part of a scenario's name")
    runner.add_argument("--policies", default=",".join(POLICIES), help="comma-separated")
    runner.add_argument("--table", type=Path, default=TABLE)
    runner.add_argument("--one-queue", action="store_true", help="prompts wait by the target under peers' rules too")
    reporter = commands.add_parser("report")
    reporter.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    if options.command == "run":
        run(
            options.traces,
            options.limit_s,
            options.only,
            tuple(options.policies.split(",")),
            options.table,
            options.one_queue,
        )
    else:
        report(options.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
