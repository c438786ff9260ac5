"""Generated sequences of edits, failures and telemetry for the rollout planner, every promise checked at every step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from baton_testing.kube_rollout import BrokenPromiseError, Counts, RolloutWorld
from bench.machine import this_machine
from bench.results import Cell, publish


def rollout(first: int, sequences: int) -> int:
    """Run these seeds; returns how many broke a promise."""
    machine, counts, began = this_machine(), Counts(), time.process_time()
    broken: list[str] = []
    for seed in range(first, first + sequences):
        try:
            RolloutWorld(seed, counts).run()
        except BrokenPromiseError as error:
            broken.append(str(error))
            print(error, flush=True)
    notes = [
        f"command: python -m bench.operator rollout --sequences {sequences} --first {first}",
        f"{counts.sequences} sequences, {counts.steps} steps, {len(broken)} broken promises; "
        f"{time.process_time() - began:.0f} s of CPU",
        *broken[:5],
    ]
    rows: list[dict[str, Cell]] = [{"seen": name, "times": count} for name, count in counts.seen.most_common()]
    publish("operator-rollout", machine, notes, ["seen", "times"], rows)
    return len(broken)
