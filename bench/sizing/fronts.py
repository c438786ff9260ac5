"""Fronts: each policy over its one knob, and fixed pools of every size, on loads apart for choosing and for judging.

python -m bench sizing_fronts --traces DIR --split development

plays what is missing in the table of rows, then writes tables, numbers (JSON) and the plot. It can be stopped and goes
on where it was. Prompts wait by their target under every policy: what is compared is the sizing alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from bench.sizing import front_report
from bench.sizing.front_numbers import FLIPPING
from bench.sizing.front_rows import append, read
from bench.sizing.front_runs import VALUES, Cell, play_cell
from bench.sizing.loads import SPLITS, split

RESULTS = Path(__file__).resolve().parents[1] / "results"
TABLE = RESULTS / "sizing_fronts.csv"


def cells(options: argparse.Namespace) -> list[Cell]:
    """The cells seed by seed, so that a run that is stopped early has whole seeds."""
    return [
        Cell(options.split, load.name, seed, startup_s, options.policies)
        for seed in options.seeds
        for startup_s in options.startups
        for load in split(options.split)
        if options.only in load.name and load.name not in options.without
    ]


def run(wanted: list[Cell], traces: Path, table: Path, cores: int) -> None:
    done = frozenset(row.run for row in read(table))
    started = time.monotonic()
    with ProcessPoolExecutor(cores) as pool:
        futures = [pool.submit(play_cell, cell, traces, done) for cell in wanted]
        for number, future in enumerate(as_completed(futures), start=1):
            append(table, future.result())
            spent = time.monotonic() - started
            left = spent / number * (len(wanted) - number)
            print(
                f"\r{number}/{len(wanted)} loads, {spent:.0f} s, {left:.0f} s left", end="", file=sys.stderr, flush=True
            )
    print(file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of the traces; without it, only the report is made")
    parser.add_argument("--split", choices=tuple(SPLITS), default="development")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3, 4, 5])
    parser.add_argument(
        "--startups", type=lambda text: [float(seconds) for seconds in text.split(",")], default=[60.0, 300.0]
    )
    parser.add_argument("--only", default="", help="part of a load's name")
    parser.add_argument("--without", type=lambda text: text.split(";"), default=[], help="names of loads, by semicolon")
    parser.add_argument("--policies", type=lambda text: tuple(text.split(",")), default=(*VALUES, FLIPPING))
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    if options.traces is not None:
        run(cells(options), options.traces, options.table, options.cores)
    rows = read(options.table)
    print(front_report.tables(rows, options.split))
    front_report.save(rows, options.table.with_suffix(".json"), options.table.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
