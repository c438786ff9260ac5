"""Generated sequences of edits, failures and telemetry for the rollout planner, every promise checked at every step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.kube.rollout import BrokenPromiseError, Counts, RolloutWorld
from campaigns.operator_proofs.tally import Tally


def rollout(sequences: int, budget_s: float, resume: Path | None) -> int:
    """Run the seeds up to `sequences`; returns how many broke a promise."""
    machine, tally = this_machine(), Tally("rollout", resume, budget_s)
    for seed in tally.numbers(sequences):
        counts = Counts()
        try:
            RolloutWorld(seed, counts).run()
        except BrokenPromiseError as error:
            tally.add(str(error))
        tally.counts += counts.seen + Counter({"sequences": counts.sequences, "steps": counts.steps})
    sums = tally.counts
    notes = [
        f"campaign: operator_proofs rollout --sequences {sequences}, in {tally.slices} slices",
        f"{sums['sequences']} sequences, {sums['steps']} steps, {sums['wrong']} broken promises; "
        f"{tally.cpu_s:.0f} s of CPU",
        *tally.wrong[:5],
    ]
    rows: list[dict[str, Cell]] = [{"seen": name, "times": count} for name, count in sums.most_common()]
    publish("operator-rollout", machine, notes, ["seen", "times"], rows)
    return sums["wrong"]
