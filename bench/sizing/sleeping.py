"""`python -m bench sleeping [--traces DIR]`: what sleep costs, workers and late requests together, by the quiet time.

Loads with long gaps, a pair of workers, mode SLO.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bench.sizing.generators import CHAT_LENGTHS, HOUR_S, by_second, with_lengths
from bench.sizing.loads import DAYS

from baton_control.sizing.decision.sizing_state import fresh
from baton_control.sizing.inputs.model_shape import LLAMA_8B
from baton_control.sizing.inputs.roofline import worker_model
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_control.sizing.inputs.workload import Workload
from baton_simulate.policies import Slo
from baton_simulate.replay import Scenario, replay
from baton_simulate.trace_files import read_trace
from baton_wire.messages.values import POOL_ROLES
from baton_wire.rules.hardware import H200

WORKER = worker_model(LLAMA_8B, H200)
PRICE = 3.5
"""The price of an accelerator and hour; a pair is two."""
MISSES = (0.02, 0.2, 2.0)
QUIET_S = {"never": None, "1 min": 60.0, "5 min": 300.0, "15 min": 900.0, "1 h": 3600.0}


def office(random: np.random.Generator) -> Workload:
    """A team for three days: a question every three minutes from 8 to 18, half as many at noon, none at night."""
    hour = np.arange(0.0, 72 * HOUR_S) / HOUR_S % 24
    level = np.where((hour >= 8) & (hour < 18), np.where((hour >= 12) & (hour < 13), 0.5, 1.0), 0.0)
    return with_lengths(by_second(random, level / 180.0), random, *CHAT_LENGTHS)


def hourly(random: np.random.Generator) -> Workload:
    """A program that asks every hour, a few minutes earlier or later, two requests a second for five minutes."""
    starts = HOUR_S * np.arange(0.5, 24) + random.normal(0.0, 120.0, 24)
    times = [start + random.uniform(0.0, 300.0, 600) for start in starts]
    return with_lengths(np.sort(np.concatenate(times)), random, *CHAT_LENGTHS)


def visits(random: np.random.Generator) -> Workload:
    """Visitors at any time, one in 40 minutes in the mean, for two days: each asks about ten times, with a minute and a
    half between two."""
    times = [
        start + np.cumsum(random.exponential(90.0, 1 + random.poisson(9)))
        for start in np.cumsum(random.exponential(2400.0, 72))
    ]
    return with_lengths(np.sort(np.concatenate(times)), random, *CHAT_LENGTHS)


def read_thinned(random: np.random.Generator, path: Path) -> Workload:
    """Two days of a service with one request of a thousand left."""
    return read_trace(path).rate_scaled(0.001, random)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench sleeping", description=__doc__)
    parser.add_argument("--traces", type=Path, help=f"folder with {DAYS}; without, the load of it is left out")
    parser.add_argument("--startup", type=float, default=60.0, metavar="S", help="until a worker can serve")
    parser.add_argument("--seeds", type=int, default=3, help="draws of each load; costs are their means")
    options = parser.parse_args()
    print(f"| load | a miss | {' | '.join(QUIET_S)} |\n|{'---|' * (len(QUIET_S) + 2)}")
    for name, loads in _loads(options.traces, options.seeds):
        played = [_play_loads(loads, options.startup, quiet_s) for quiet_s in QUIET_S.values()]
        for miss in MISSES:
            cells = [f"{hours * PRICE + late * miss:.1f} ({hours:.1f} h, {late:.0f})" for hours, late in played]
            print(f"| {name} | {miss} | {' | '.join(cells)} |", flush=True)
    return 0


def _loads(traces: Path | None, seeds: int) -> Iterator[tuple[str, list[Workload]]]:
    for name, draw in (("office hours", office), ("hourly", hourly), ("visits", visits)):
        yield name, [draw(np.random.default_rng(seed)) for seed in range(1, seeds + 1)]
    if traces is not None:
        yield (
            "two days / 1000",
            [read_thinned(np.random.default_rng(seed), traces / DAYS) for seed in range(1, seeds + 1)],
        )


def _play_loads(loads: list[Workload], startup_s: float, quiet_s: float | None) -> tuple[float, float]:
    """Hours of accelerators, and requests outside a target, in the mean."""
    bounds = Bounds(1 if quiet_s is None else 0, 8, cost_per_hour=PRICE)
    spec = SizingSpec(bounds, bounds, Targets(1.0, 0.05), scale_to_zero_after_s=quiet_s)
    outcomes = []
    for load in loads:
        scenario = Scenario("sleeping", load, WORKER, spec, startup_s, dict.fromkeys(POOL_ROLES, 1))
        outcome = replay(scenario, "slo", Slo(spec, fresh(WORKER, spec)))
        outcomes.append((outcome.gpu_hours, outcome.misses * outcome.requests))
    hours, late = np.mean(outcomes, axis=0)
    return float(hours), float(late)


if __name__ == "__main__":
    sys.exit(main())
