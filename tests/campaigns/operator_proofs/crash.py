"""The operator stopped, refused or misinformed at every call of forty scenarios: does it end where it would have?"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from pathlib import Path

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.kube.campaign import STREAMS, Ended, complaint, faults, run, serving
from baton_testing.kube.faults import CALM, NO_FAULT, Plan, Streams
from baton_testing.kube.scenarios import SCENARIOS, Scenario
from campaigns.operator_proofs.tally import Tally

Run = tuple[Scenario, Plan, Streams, int]
STREAM_SEEDS = 4


def crash(budget_s: float, resume: Path | None, sample: int = 0, seed: int = 0) -> int:
    """As many of the runs as fit into the budget, one scenario after the other; returns how many broke a promise.
    `sample`: only as many, drawn by `seed` from all; 0: all."""
    logging.disable(logging.CRITICAL)
    machine, tally = this_machine(), Tally("crash", resume, budget_s)
    serving()
    calm: dict[str, Ended] = {scenario.name: run(scenario) for scenario in SCENARIOS}
    runs = _runs(calm)
    if 0 < sample < len(runs):
        runs = random.Random(seed).sample(runs, sample)
    for number in tally.numbers(len(runs)):
        scenario, plan, streams, stream_seed = runs[number]
        print(f"{number}: {scenario.name} | {plan} | {streams}", file=sys.stderr, flush=True)
        try:
            problem = complaint(scenario, calm[scenario.name], plan, streams, stream_seed)
        except Exception as error:  # noqa: BLE001 - the outermost loop: what the operator let out is a result
            problem = f"{scenario.name} | {plan} | {streams}: {type(error).__name__}: {error}"
        tally.counts[_kind(plan)] += 1
        tally.counts[f"in {scenario.name}"] += 1
        if problem is not None:
            tally.add(f"{problem} [run {number}]")
    total = Counter(_kind(plan) for _, plan, _, _ in runs)
    rows: list[dict[str, Cell]] = [
        {"fault": fault, "runs": tally.counts[fault], "of": count} for fault, count in sorted(total.items())
    ]
    calls = sum(len(ended.calls) - ended.first for ended in calm.values())
    wanted = Counter(scenario.name for scenario, _, _, _ in runs)
    whole = sum(tally.counts[f"in {name}"] == count for name, count in wanted.items())
    notes = [
        f"campaign: operator_proofs crash{f' --sample {sample} --seed {seed}' if sample else ''}, in {tally.slices}"
        " slices",
        f"{len(SCENARIOS)} scenarios with {calls} calls without a fault; every run of {whole} scenarios",
        f"{tally.next} of {len(runs)} runs, {tally.counts['wrong']} ended elsewhere or broke a promise on the way; "
        f"{tally.cpu_s:.0f} s of CPU",
        *tally.wrong[:20],
    ]
    publish("operator-crash-sample" if sample else "operator-crash", machine, notes, ["fault", "runs", "of"], rows)
    return tally.counts["wrong"]


def _kind(plan: Plan) -> str:
    return "watch streams" if plan == NO_FAULT else plan.fault.value


def _runs(calm: dict[str, Ended]) -> list[Run]:
    """One scenario after the other, those with the fewest calls first."""
    plans = {scenario: list(faults(calm[scenario.name], scenario.is_fresh)) for scenario in SCENARIOS}
    ordered_runs: list[Run] = []
    for scenario in sorted(plans, key=lambda key: len(plans[key])):
        ordered_runs += [(scenario, plan, CALM, 0) for plan in plans[scenario]]
        ordered_runs += [
            (scenario, NO_FAULT, streams, seed) for streams in STREAMS.values() for seed in range(STREAM_SEEDS)
        ]
    return ordered_runs
