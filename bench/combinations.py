"""Every pair of features, each way that a request can take: `python -m bench combinations --seeds 3`.

Each seed is another set of rows that covers every pair of values, and every row goes all ways. A cell is equal to
the same request in one process that does nothing else, or it is refused by field. The run writes
`bench/results/combinations.json` and docs/combinations.md. `--check` computes nothing: it compares plan, results and
page, and fails where a cell is not known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch

from baton_testing.combinations.cells import Matrix, Result
from baton_testing.combinations.plan import FEATURES, GOOD, Cell, Verdict, WayThrough, all_pairs, cells, pairs_of

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "combinations.json"
PAGE = ROOT / "docs" / "combinations.md"
LETTERS = {Verdict.EQUAL: "e", Verdict.REFUSED: "r", Verdict.DIFFERS: "d", Verdict.HANGS: "h", Verdict.SILENT: "s"}
Verdicts = Mapping[Cell, Verdict]

HEAD = """# Combinations

*Written by `python -m bench combinations`; `make verify` compares it with the plan and the results.*

Every value of a feature is paired with every value of every other, in rows drawn from seeds. Each row goes every way.
A cell is **equal** when its tokens are those of the same request in one process that does nothing else. It is
**refused** when one line names a field before anything is served. Nothing else passes: another token, a wait without
an end, or an end without a reason. Nor does a cell that was not run, or whose way was not taken.

Services, engines, models, transfers and the machine of a request are those of production, over loopback, on a CPU in
float32. The gateway's routing, its text and separate processes are not in it. Models are tiny and random: a cell says
that the path is right, not what a model is worth. Float8 KV needs a GPU: here it is refused at the start. Images,
LoRA and speculation do not exist yet. Several ranks and MXFP4 weights are not in it.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench combinations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="sets of rows")
    parser.add_argument("--resume", action="store_true", help="keep what is recorded and good, run the rest")
    parser.add_argument("--check", action="store_true", help="compare plan, results and page; run nothing")
    options = parser.parse_args()
    if options.check:
        return check()
    torch.set_num_threads(1)
    plan = cells(range(options.seeds))
    began_s = time.monotonic()
    known = read(RESULTS.read_text())[0] if options.resume else {}
    verdicts: dict[Cell, Verdict] = {}
    with tempfile.TemporaryDirectory() as folder, Matrix(Path(folder)) as matrix:
        for number, cell in enumerate(plan, 1):
            result = Result(known[cell]) if known.get(cell) in GOOD else matrix.run(cell)
            verdicts[cell] = result.verdict
            if result.verdict not in GOOD:
                print(f"{result.verdict}: {cell}: {result.why[:400]}", file=sys.stderr)
            if number % 200 == 0:
                print(f"{number:,} of {len(plan):,} cells, {time.monotonic() - began_s:.0f} s", flush=True)
    seconds = round(time.monotonic() - began_s)
    RESULTS.write_text(format_results(verdicts, options.seeds))
    PAGE.write_text(page(verdicts, options.seeds))
    print(", ".join(f"{verdict} {count:,}" for verdict, count in Counter(verdicts.values()).items()), f"in {seconds} s")
    return 0 if set(verdicts.values()) <= GOOD else 1


def check() -> int:
    known, seeds = read(RESULTS.read_text())
    missing = [cell for cell in cells(range(seeds)) if known.get(cell) not in GOOD]
    if missing:
        print(f"combinations: {len(missing)} cells are not known or not good, such as {missing[0]}", file=sys.stderr)
        return 1
    if PAGE.read_text() != page(known, seeds):
        print(f"{PAGE}: is not what the results say: python -m bench combinations", file=sys.stderr)
        return 1
    return 0


def format_results(verdicts: Verdicts, seeds: int) -> str:
    """A line for each row: seed, values, one letter for each way."""
    rows: dict[tuple[int, tuple[str, ...]], str] = {}
    for cell, verdict in verdicts.items():
        place = cell.seed, cell.row
        rows[place] = rows.get(place, "") + LETTERS[verdict]
    lines = [json.dumps([seed, *row, letters]) for (seed, row), letters in rows.items()]
    head = {"seeds": seeds, "features": list(FEATURES), "ways": [way.value for way in WayThrough]}
    return json.dumps(head)[:-1] + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def read(text: str) -> tuple[Verdicts, int]:
    document = json.loads(text)
    verdicts = {letter: verdict for verdict, letter in LETTERS.items()}
    ways = [WayThrough(way) for way in document["ways"]]
    cell_verdicts = {
        Cell(tuple(row), way, seed): verdicts[letter]
        for seed, *row, letters in document["rows"]
        for way, letter in zip(ways, letters, strict=True)
    }
    return cell_verdicts, int(document["seeds"])


def page(verdicts: Verdicts, seeds: int) -> str:
    shown = {pair for cell in verdicts for pair in pairs_of(cell.row)}
    counts = Counter(verdicts.values())
    total = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in Verdict if counts[verdict] or verdict in GOOD)
    lines = [
        HEAD,
        f"{len(verdicts):,} cells of {seeds} seeds: {total}. {len(shown):,} of {len(all_pairs()):,} pairs.\n",
    ]
    lines.append("A cell of the table says how many were equal, and before an `r` how many were refused.\n")
    lines.append("| feature | value | " + " | ".join(way.value for way in WayThrough) + " |")
    lines.append("|---|---|" + "---|" * len(WayThrough))
    for feature, values in FEATURES.items():
        for value in values:
            cells_of = [_shown(verdicts, feature, value, way) for way in WayThrough]
            lines.append(f"| {feature} | {value} | {' | '.join(cells_of)} |")
    return "\n".join(lines) + "\n"


def _shown(verdicts: Verdicts, feature: str, value: str, way: WayThrough) -> str:
    counts = Counter(verdict for cell, verdict in verdicts.items() if cell.way is way and cell.has(feature, value))
    parts = [str(counts[Verdict.EQUAL])] if counts[Verdict.EQUAL] else []
    parts += [f"{counts[Verdict.REFUSED]} r"] if counts[Verdict.REFUSED] else []
    parts += [f"**{counts[bad]} {bad}**" for bad in Verdict if bad not in GOOD and counts[bad]]
    return ", ".join(parts) or "-"


if __name__ == "__main__":
    sys.exit(main())
