"""Chaos on the virtual clock: three tenants, production shells, and everything that can fail around them.

`make campaign RUN="chaos simulated --seeds 180"`. One tenant keeps within its share, one has a long line at its quota,
one is hostile. Exits with 1 when a seed violates an invariant, and says how to repeat it: a run of one seed prints the
smallest world that still fails, and its story.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from bench.machine import this_machine
from bench.results import Cell, publish

from baton_gateway.reporting.outcome import Outcome
from baton_testing.simulation.chaos.plan import Weather, chaos_scenario
from baton_testing.simulation.chaos.world import ChaosWorld, chaos_world
from baton_testing.simulation.process import Violation
from baton_testing.simulation.shrink import shrink, story

PROGRESS = 20
WHAT = {"I4": "wrong texts", "I7": "wrong texts", "I16": "requests of the innocent", "I19": "probes that lie"}


@dataclass(slots=True)
class Tally:
    """Counts of one seed, or of several."""

    weathers: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    hang_ups: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By tenant and outcome."""
    texts: int = 0
    """Whole answers that were compared with the same request computed alone."""
    probes: int = 0
    cpu_s: float = 0.0
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    """Seed, invariant, text."""

    def add(self, other: Tally) -> None:
        self.weathers += other.weathers
        self.faults += other.faults
        self.hang_ups += other.hang_ups
        self.ends += other.ends
        self.texts += other.texts
        self.probes += other.probes
        self.cpu_s += other.cpu_s
        self.failures += other.failures


def run_seed(seed: int, weather: Weather | None) -> Tally:
    """One world, in this process."""
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    scenario = chaos_scenario(seed, weather)
    world, tally = ChaosWorld(scenario), Tally()
    try:
        world.run()
    except Violation as violation:
        tally.failures.append((seed, violation.invariant, str(violation)))
    except Exception as error:  # noqa: BLE001 - the outermost loop: a failing seed is a result
        tally.failures.append((seed, "crash", f"{type(error).__name__}: {error}"))
    tally.weathers[scenario.weather.value] += 1
    tally.faults.update({str(kind): count for kind, count in world.faults.items()})
    tally.hang_ups.update({what.value: count for what, count in world.hang_ups.items()})
    tally.ends.update({(neighbour.value, end): count for (neighbour, end), count in world.outcomes().items()})
    tally.texts = sum(c.plan.n for c in world.clients if c.ending is not None and c.ending.outcome is Outcome.FINISHED)
    tally.probes = world.probes.asked
    tally.cpu_s = time.process_time() - began
    return tally


def rows(total: Tally, seeds: int) -> list[dict[str, Cell]]:
    invariants = Counter(WHAT.get(invariant, f"other: {invariant}") for _, invariant, _ in total.failures)
    counts: list[tuple[str, float]] = [("seeds", seeds), ("processor seconds", round(total.cpu_s))]
    counts += [(f"violations: {what}", invariants.pop(what, 0)) for what in dict.fromkeys(WHAT.values())]
    counts += [(f"violations: {what}", count) for what, count in invariants.items()]
    counts += [("whole texts compared", total.texts), ("probes held against the world", total.probes)]
    counts += [(f"world: {weather}", count) for weather, count in total.weathers.most_common()]
    counts += [(f"fault: {kind}", count) for kind, count in total.faults.most_common()]
    counts += [(f"hung up while waiting for {what}", count) for what, count in total.hang_ups.most_common()]
    counts += [(f"{tenant}: {end}", count) for (tenant, end), count in sorted(total.ends.items())]
    return [{"what": what, "count": count} for what, count in counts]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=180)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2))
    parser.add_argument("--weather", choices=[weather.name.lower() for weather in Weather], help="of every world")
    parser.add_argument("--record", action="store_true", help="write the counts to bench/results")


def run(arguments: argparse.Namespace) -> int:
    """1 when a seed violates an invariant."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    weather = None if arguments.weather is None else Weather[arguments.weather.upper()]
    total = Tally()
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for place, tally in enumerate(pool.map(run_seed, seeds, [weather] * len(seeds)), 1):
            total.add(tally)
            for seed, _, text in tally.failures:
                again = f"chaos simulated --first {seed} --seeds 1"
                again += "" if arguments.weather is None else f" --weather {arguments.weather}"
                print(f'seed {seed}: {text}\n  again: make campaign RUN="{again}"', flush=True)
            if place % PROGRESS == 0:
                print(f"{place:>6,} seeds  {len(total.failures)} violations", flush=True)
    if arguments.seeds == 1 and total.failures:
        print(story(shrink(chaos_scenario(arguments.first, weather), chaos_world), chaos_world))
    table = rows(total, arguments.seeds)
    if arguments.record:
        notes = [f"Seeds {seeds.start} to {seeds.stop - 1} of three tenants on the virtual clock."]
        publish("chaos_simulated", this_machine(), notes, ("what", "count"), table)
    else:
        for row in table:
            print(f"{row['count']:>10,}  {row['what']}")
    return 1 if total.failures else 0
