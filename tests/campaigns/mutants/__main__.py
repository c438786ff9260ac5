"""Mutation testing of the files that decide most: `make campaign RUN="mutants --count 400 --seed 1"`.

Mutants are drawn by a seed, spread evenly over the files of `targets.py`, and tried one by one against the tests that
guard the file. A mutant that no test notices is printed with its change: it is a missing test, an equivalent mutant or
code that is not needed. cosmic-ray makes the mutants; it is installed into an environment of its own.
Exits with 1 where less than `--at-least` of the mutants were killed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish

from campaigns.mutants.environment import interpreter
from campaigns.mutants.targets import TARGETS, Target
from campaigns.mutants.trial import LEAST_S, Copy, TrialResult, preload

ROOT = Path(__file__).resolve().parents[3]
_DRAWING_S = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed source file. `line`: of the first difference."""

    path: str
    operator: str
    line: int
    source: str

    def difference(self) -> str:
        """The changed line before and after."""
        before, after = (ROOT / self.path).read_text().splitlines(), self.source.splitlines()
        changes = [line for line in difflib.unified_diff(before, after, n=0, lineterm="")][3:]
        return f"{self.path}:{self.line} {self.operator}\n  " + "\n  ".join(changes)


def draw(target: Target, count: int, seed: str) -> list[Mutant]:
    """Mutants of one file, the same for the same seed. Raises subprocess.SubprocessError."""
    script = Path(__file__).with_name("draw_mutants.py")
    command = [str(interpreter()), str(script), str(ROOT / target.source), str(count), f"{seed} {target.source}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DRAWING_S)
    rows = map(json.loads, done.stdout.splitlines())
    return [Mutant(target.source, row["operator"], row["line"], row["source"]) for row in rows]


def try_target(target: Target, mutants: list[Mutant], folder: Path) -> list[TrialResult]:
    """The result of each mutant, in order. Raises RuntimeError where the tests fail without a mutant."""
    copy = Copy(ROOT, folder)
    baseline = copy.run(None, target.source, target.tests, 20 * LEAST_S)
    if baseline.is_killed:
        raise RuntimeError(f"{target.source}: its tests fail without a mutant\n{baseline.output}")
    results = []
    for mutant in mutants:
        results.append(copy.run(mutant.source, mutant.path, target.tests, max(LEAST_S, 5 * baseline.seconds)))
        if not results[-1].is_killed:
            print(f"survived: {mutant.difference()}", flush=True)
    killed = sum(result.is_killed for result in results)
    print(f"{target.source}: {killed} of {len(mutants)} killed, a run {baseline.seconds:.1f} s", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="mutants of all files together (default %(default)s)")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", nargs="*", default=[], help="names of files, or parts of their paths")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=0.9, help="share to be killed (default %(default)s)")
    options = parser.parse_args()
    targets = [t for t in TARGETS if not options.only or any(part in t.source for part in options.only)]
    if not targets:
        parser.error(f"--only: no file of {', '.join(target.source for target in TARGETS)} has such a name")
    share = -(-options.count // len(targets))
    preload()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        drawn = [draw(target, share, options.seed) for target in targets]
        folders = [Path(folder) / str(number) for number in range(len(targets))]
        results = list(pool.map(try_target, targets, drawn, folders))
    rows: list[dict[str, Cell]] = [
        {"file": target.source, "mutants": len(ends), "killed": sum(end.is_killed for end in ends)}
        for target, ends in zip(targets, results, strict=True)
    ]
    mutants, killed = (sum(int(row[key] or 0) for row in rows) for key in ("mutants", "killed"))
    notes = [f"Seed {options.seed}: {killed} of {mutants} mutants killed ({killed / max(1, mutants):.1%})."]
    publish("mutants", this_machine(), notes, tuple(rows[0]), rows)
    return 0 if killed >= options.at_least * mutants else 1


if __name__ == "__main__":
    sys.exit(main())
