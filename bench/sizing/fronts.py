"""Fronts: each policy over its one knob, and fixed pools of every size, on loads apart for choosing and for judging.

python -m bench sizing_fronts run --traces DIR --split development [--seeds 1,2,3]    appends what is missing
python -m bench sizing_fronts report                                                  tables and the plot

Prompts wait by their target under every policy: what is compared is the sizing alone. `fixed` is played for each
number of workers around the fewest decode workers that keep TPOT; `report` takes the cheapest that keeps both.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from bench.results import shrink_plot
from bench.sizing.loads import SPLITS, split
from bench.sizing.scenarios import Case

from baton_control.sizing.capacity import TwinSizer
from baton_simulate.policies import KNOBS, PEERS, Scripted, needs_of, player
from baton_simulate.replay import ReplayOutcome, Scenario, replay
from baton_wire.messages.values import Role

RESULTS = Path(__file__).resolve().parents[1] / "results"
TABLE, PLOT = RESULTS / "sizing_fronts.csv", RESULTS / "sizing_fronts.png"
STARTUPS_S = (60.0, 300.0)
FLIPPING = "slo-flips"
FLIP_S = 2.0
"""Under this policy, mode SLO whose workers can change role in so long."""
POLICIES = ("slo", FLIPPING, "fixed", "oracle", *PEERS)
VALUES = {
    "slo": (180.0,),
    "plain": (300.0, 900.0),
    "hpa-queue": (1.0,),
    "llmd-v1": (4.0, 8.0),
}
"""Of the knobs, beside their defaults."""
DRAWN = {"fixed": "black", "slo": "red", "plain": "orange", "llmd-v1": "green", "oracle": "blue", "llmd-v2": "grey"}
MOST_FIXED, FEW = 24, 0.002
"""Fixed pools have so many prefill workers at most; more are not tried once so small a share misses TTFT."""


@dataclass(frozen=True, slots=True)
class Row:
    split: str
    load: str
    seed: int
    startup_s: float
    policy: str
    knob: str
    """Its value; prefill+decode of a fixed pool; empty: the default."""
    ttft: float
    tpot: float
    """Shares of requests over each target."""
    misses: float
    gpu_hours: float
    moves: int


@dataclass(frozen=True, slots=True)
class Job:
    split: str
    load: str
    """Its name: what draws it does not go to another process."""
    seed: int
    startup_s: float
    policy: str
    knob: float | None


def jobs(name: str, seeds: list[int]) -> Iterator[Job]:
    """Knobs other than the default are turned with the first seed alone."""
    for load in (load.name for load in split(name)):
        for seed in seeds:
            yield Job(name, load, seed, STARTUPS_S[0], "fixed", None)
            for startup_s in STARTUPS_S:
                for policy in (each for each in POLICIES if each != "fixed"):
                    yield Job(name, load, seed, startup_s, policy, None)
                    for value in VALUES.get(policy, ()) if seed == seeds[0] else ():
                        yield Job(name, load, seed, startup_s, policy, value)


def played(job: Job, traces: Path) -> list[Row]:
    """The rows of one job; none when its trace is not there."""
    try:
        case = next(load for load in split(job.split) if load.name == job.load).case(traces, job.seed)
    except FileNotFoundError:
        return []
    if job.policy == "fixed":
        return list(_fixed(job, case))
    spec, name = (replace(case.spec, flip_s=FLIP_S), "slo") if job.policy == FLIPPING else (case.spec, job.policy)
    needs = needs_of(case.workload, case.spec, TwinSizer(case.true, case.spec.targets))
    policy = player(name, spec, case.believed, needs, job.startup_s, job.knob)
    scenario = Scenario(case.name, case.workload, case.true, spec, job.startup_s, needs.between(0.0, 30.0))
    return [_row(job, replay(scenario, job.policy, policy), "" if job.knob is None else f"{job.knob:g}")]


def _fixed(job: Job, case: Case) -> Iterator[Row]:
    def one(prefill: int, decode: int) -> Row:
        sizes = {Role.PREFILL: prefill, Role.DECODE: decode}
        scenario = Scenario(case.name, case.workload, case.true, case.spec, job.startup_s, sizes)
        return _row(job, replay(scenario, "fixed", Scripted(lambda now: sizes)), f"{prefill}+{decode}")

    decode = 1
    while decode < MOST_FIXED and one(MOST_FIXED, decode).tpot > 1.0 - case.spec.targets.tpot_share:
        decode += 1
    fewest = _busy_prefill(case)  # fewer never catch up
    for count in range(max(1, decode - 1), decode + 2):
        for prefill in range(fewest, MOST_FIXED + 1):
            row = one(prefill, count)
            yield row
            if row.ttft < FEW:
                break


def _busy_prefill(case: Case) -> int:
    """Prefill workers that the whole load keeps busy, as they are believed to be."""
    load, times = case.workload, case.believed.prefill
    rows = zip((load.prompt_tokens - load.cached_tokens).tolist(), load.cached_tokens.tolist(), strict=True)
    return max(1, int(sum(times.prompt_s(new, cached) for new, cached in rows) / load.duration_s))


def _row(job: Job, out: ReplayOutcome, knob: str) -> Row:
    return Row(
        job.split,
        job.load,
        job.seed,
        job.startup_s,
        job.policy,
        knob,
        round(1 - out.ttft_attainment, 5),
        round(1 - out.tpot_attainment, 5),
        round(out.misses, 5),
        round(out.gpu_hours, 3),
        len(out.decisions),
    )


def rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Row(
                line["split"],
                line["load"],
                int(line["seed"]),
                float(line["startup_s"]),
                line["policy"],
                line["knob"],
                float(line["ttft"]),
                float(line["tpot"]),
                float(line["misses"]),
                float(line["gpu_hours"]),
                int(line["moves"]),
            )
            for line in csv.DictReader(file)
        ]


def run(
    traces: Path, name: str, seeds: list[int], path: Path, cores: int, only: str, policies: tuple[str, ...]
) -> None:
    """What is missing in the table, in the order of the policies."""
    done = {(row.load, row.seed, row.startup_s, row.policy, "" if row.policy == "fixed" else row.knob)
            for row in rows(path)}  # fmt: skip
    wanted = [
        job
        for policy in policies
        for job in jobs(name, seeds)
        if job.policy == policy
        and only in job.load
        and (job.load, job.seed, job.startup_s, job.policy, "" if job.knob is None else f"{job.knob:g}") not in done
    ]
    is_new = not path.exists()
    with path.open("a", newline="") as file, ProcessPoolExecutor(cores) as pool:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        for future in as_completed([pool.submit(played, job, traces) for job in wanted]):
            for row in future.result():
                writer.writerow(asdict(row))
            file.flush()


def report(path: Path) -> None:
    """Misses % @ GPU-hours, means over seeds, at the default knobs; then the plot of all knobs."""
    table: dict[tuple[str, str, float], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    fixed: dict[tuple[str, str], dict[int, Row]] = defaultdict(dict)
    for row in rows(path):
        if row.policy != "fixed":
            if not row.knob:
                table[row.split, row.load, row.startup_s][row.policy].append(row)
        elif max(row.ttft, row.tpot) <= 0.05:
            kept = fixed[row.split, row.load]
            kept[row.seed] = min(kept.get(row.seed, row), row, key=lambda each: each.gpu_hours)
    policies = sorted({policy for row in table.values() for policy in row})
    print("| split | load | start-up | fixed in hindsight | " + " | ".join(policies) + " |")
    print("|---|---|---|---|" + "---|" * len(policies))
    for (part, load, startup_s), by_policy in sorted(table.items()):
        cells = [_cell(list(fixed[part, load].values())), *(_cell(by_policy[policy]) for policy in policies)]
        print(f"| {part} | {load} | {startup_s:.0f} s | " + " | ".join(cells) + " |")
    _plot(rows(path))


def _cell(mine: list[Row]) -> str:
    if not mine:
        return "-"
    misses, hours = (sum(getattr(row, name) for row in mine) / len(mine) for name in ("misses", "gpu_hours"))
    return f"{misses * 100:.1f} @ {hours:.2f}"


def _plot(all_rows: list[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    loads = sorted({(row.split, row.load) for row in all_rows})
    figure, grid = pyplot.subplots(-(-len(loads) // 4), 4, figsize=(15, 3.2 * -(-len(loads) // 4)), squeeze=False)
    for axis, (part, load) in zip(grid.flat, loads, strict=False):
        mine = [r for r in all_rows if (r.split, r.load) == (part, load) and r.seed == 1 and r.startup_s == 60.0]
        for policy, colour in DRAWN.items():
            points = sorted((row.gpu_hours, row.misses * 100 + 0.1) for row in mine if row.policy == policy)
            if policy == "fixed":  # its front: what no cheaper one keeps as well
                points = [p for p in points if not any(o[0] <= p[0] and o[1] < p[1] for o in points)]
            hours, misses = zip(*points, strict=True) if points else ((), ())
            line = "-" if policy in (*KNOBS, "fixed") else ""
            mark = "*" if policy == "slo" else "o"  # the palette of the file is small
            size = 8 if policy == "slo" else 3
            axis.plot(hours, misses, line + mark, ms=size, lw=1, color=colour, label=policy)
        axis.axhline(5.0, color="grey", lw=0.5)
        axis.set(yscale="log", title=f"{part}: {load}"[:44])
        axis.tick_params(labelsize=7)
        axis.title.set_fontsize(8)
    grid.flat[0].legend(fontsize=6)
    figure.supxlabel("GPU-hours")
    figure.supylabel("misses + 0.1 %, 60 s start-up, first seed")
    figure.tight_layout()
    figure.savefig(PLOT, dpi=70)
    shrink_plot(PLOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("--traces", type=Path, required=True)
    runner.add_argument("--split", choices=tuple(SPLITS), required=True)
    runner.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 3])
    runner.add_argument("--only", default="", help="part of a load's name")
    runner.add_argument("--policies", type=lambda text: tuple(text.split(",")), default=POLICIES, help="by comma")
    runner.add_argument("--cores", type=int, default=1)
    runner.add_argument("--table", type=Path, default=TABLE)
    reporter = commands.add_parser("report")
    reporter.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    if options.command == "run":
        run(
            options.traces,
            options.split,
            options.seeds,
            options.table,
            options.cores,
            options.only,
            options.policies,
        )
    else:
        report(options.table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
