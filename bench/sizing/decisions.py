"""The cost of mode SLO's decisions in a replay of loads: milliseconds of processor time of the deciding thread.

python -m bench sizing_decisions --traces DIR --only "letters"

To compare two states of the code, run it with each in turn: the digests are equal where every decision is, with its
reasons. Loads and workers are those of the fronts.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench.sizing.front_runs import FLIP_S, TURNING
from bench.sizing.loads import SPLITS, Load, split

from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_control.sizing.decision.sizing_state import fresh
from baton_control.sizing.inputs.observations import Measurements, ObservedStep
from baton_simulate.baselines.signals import Sizes
from baton_simulate.policies import Slo, needs_of
from baton_simulate.replay import Scenario, replay

STARTUP_S = 60.0


class TimedSlo(Slo):
    """Mode SLO that keeps what its decisions took, and what they were."""

    took_ms: list[float]
    digest: hashlib._Hash

    def decide(self, seen: Measurements, steps: list[ObservedStep], now: float) -> Sizes:
        began_s = time.thread_time()
        sizes = Slo.decide(self, seen, steps, now)
        self.took_ms.append(1e3 * (time.thread_time() - began_s))
        self.digest.update(repr((now, sorted(sizes.items()), sorted(self.reasons.items()), self.flips)).encode())
        return sizes


def play_load(load: Load, seed: int, flips: bool, traces: Path) -> str:
    case = load.case(traces, seed)
    spec = replace(case.spec, flip_s=FLIP_S) if flips else case.spec
    needs = needs_of(case.workload, case.spec, SimulatedSizer(case.true, case.spec.targets))
    policy = TimedSlo(spec, fresh(case.believed, spec))
    policy.took_ms, policy.digest = [], hashlib.sha256()
    scenario = Scenario(case.name, case.workload, case.true, spec, STARTUP_S, needs.between(0.0, 30.0))
    out = replay(scenario, "slo", policy)
    p50, p95, p99 = np.percentile(policy.took_ms, (50, 95, 99))
    name = f"{load.name}, seed {seed}{', flips' if flips else ''}: {100 * out.misses:.2f} @ {out.gpu_hours:.2f}"
    took = f"p50 {p50:.1f}, p95 {p95:.1f}, p99 {p99:.1f}, worst {max(policy.took_ms):.1f} ms"
    return f"{name}; {len(policy.took_ms)} decisions, {took}; {policy.digest.hexdigest()[:12]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder of the traces")
    parser.add_argument("--split", choices=tuple(SPLITS), default="development")
    parser.add_argument("--only", default="", help="part of a load's name")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1])
    options = parser.parse_args()
    for load in split(options.split):
        for seed in options.seeds if options.only in load.name else ():
            for flips in (False, True) if load.name in TURNING else (False,):
                print(play_load(load, seed, flips, options.traces), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
