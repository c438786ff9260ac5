"""The operator stopped, refused or misinformed at every call of forty scenarios: does it end where it would have?"""

from __future__ import annotations

import itertools
import logging
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from baton_testing.kube_campaign import STREAMS, Ended, complaint, faults, run, serving
from baton_testing.kube_faults import CALM, NO_FAULT, Plan, Streams
from baton_testing.kube_scenarios import SCENARIOS, Scenario
from bench.machine import this_machine
from bench.results import Cell, publish

Run = tuple[Scenario, Plan, Streams, int]
STREAM_SEEDS = 4


def crash(budget_s: float, seed: int = 0) -> int:
    """As many of the runs as fit into the budget, in an order drawn from `seed`; returns how many broke a promise."""
    logging.disable(logging.CRITICAL)
    machine, until, began = this_machine(), time.monotonic() + budget_s, time.process_time()
    serving()
    calm: dict[str, Ended] = {scenario.name: run(scenario) for scenario in SCENARIOS}
    runs = _runs(calm)
    random.Random(seed).shuffle(runs)
    done: Counter[str] = Counter()
    per_scenario: Counter[str] = Counter()
    complaints: list[str] = []
    for scenario, plan, streams, stream_seed in itertools.takewhile(lambda _: time.monotonic() < until, runs):
        print(f"{sum(done.values())}: {scenario.name} | {plan} | {streams}", file=sys.stderr, flush=True)
        try:
            found = complaint(scenario, calm[scenario.name], plan, streams, stream_seed)
        except Exception as error:  # noqa: BLE001 - the outermost loop: what the operator let out is a result
            found = f"{scenario.name} | {plan} | {streams}: {type(error).__name__}: {error}"
        done["watch streams" if plan == NO_FAULT else plan.fault.value] += 1
        per_scenario[scenario.name] += 1
        if found is not None:
            complaints.append(found)
            print(found, flush=True)
    total = Counter("watch streams" if plan == NO_FAULT else plan.fault.value for _, plan, _, _ in runs)
    rows: list[dict[str, Cell]] = [
        {"fault": fault, "runs": done[fault], "of": count} for fault, count in sorted(total.items())
    ]
    calls = sum(len(ended.calls) - ended.first for ended in calm.values())
    notes = [
        f"command: python -m bench.operator crash --budget-s {budget_s:.0f} --seed {seed}",
        f"{len(SCENARIOS)} scenarios with {calls} calls without a fault; least runs of a scenario: "
        f"{min(per_scenario[each.name] for each in SCENARIOS)}",
        f"{sum(done.values())} of {len(runs)} runs, {len(complaints)} ended elsewhere or broke a promise on the way; "
        f"{time.process_time() - began:.0f} s of CPU",
        *complaints[:20],
    ]
    publish("operator-crash", machine, notes, ["fault", "runs", "of"], rows)
    return len(complaints)


def _runs(calm: dict[str, Ended]) -> list[Run]:
    found: list[Run] = []
    for scenario in SCENARIOS:
        found += [(scenario, plan, CALM, 0) for plan in faults(calm[scenario.name], scenario.is_fresh)]
        found += [(scenario, NO_FAULT, streams, seed) for streams in STREAMS.values() for seed in range(STREAM_SEEDS)]
    return found
