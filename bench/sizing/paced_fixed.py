"""Predictions of the simulator and what clients measure, on fixed pools: real processes, emulated steps.

    python -m bench paced_fixed /path/to/azure_llm_2023_conv.csv

For each load: the same arrivals through `baton up` with paced workers and through the simulator; percentiles of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path

import numpy as np
from bench.results import FOLDER, write
from bench.serving.load import offer_load
from bench.sizing.paced import PATIENCE_S, Asked, current, document
from bench.sizing.paced_report import measured_latencies, shares

from baton_control.sizing.inputs.workload import Workload
from baton_control.sizing.simulator.simulator import Simulator
from baton_control.spec.manifest import parse_object
from baton_local.client import Answer
from baton_local.fleet.emulation import Emulation, parse_emulation
from baton_simulate.trace_files import read_trace
from baton_testing.processes.baton_up import Up
from baton_wire.messages.values import POOL_ROLES

START_S = 1020.0
"""The start of the part of the trace that is replayed."""


async def run(asked: Asked, pools: tuple[int, int], workload: Workload) -> list[Answer]:
    """The workload on a deployment of its own."""
    service = document(asked)
    for role, count in zip(POOL_ROLES, pools, strict=True):
        service["spec"][role.value] = {"replicas": {"min": count, "max": count}}
    with (
        tempfile.TemporaryDirectory(prefix="baton-paced-") as folder,
        Up(Path(folder), service, "--emulate", asked.emulate) as up,
    ):
        endpoint = up.await_ready()
        async with asyncio.timeout(120):
            while sum(process.phase == "ready" for process in (await current(up.run_dir)).processes) <= sum(pools):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        answers: list[Answer] = []
        await offer_load(endpoint, "paced", workload, PATIENCE_S, answers.append)
        return answers


def simulate_pools(emulation: Emulation, pools: tuple[int, int], workload: Workload, ttft_s: float) -> Simulator:
    simulator = Simulator(emulation.model, workload, ttft_s=ttft_s)
    for role, count in zip(POOL_ROLES, pools, strict=True):
        for _ in range(count):
            simulator.add(role, 0.0)
    simulator.run_out()
    return simulator


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench paced_fixed", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--emulate", default="h200x2:llama-3.1-70b/16@2", help="as of baton up (default %(default)s)")
    parser.add_argument("--pools", nargs=2, type=int, default=(5, 3), metavar=("PREFILL", "DECODE"))
    parser.add_argument("--rates", nargs="+", type=float, default=(0.2, 0.35, 0.5), help="of the trace's")
    parser.add_argument("--minutes", type=float, default=2.5, help="of arrivals, each")
    options = parser.parse_args()
    pools = (options.pools[0], options.pools[1])
    asked = Asked(options.trace, options.emulate, 16.0, 0.6, max(pools), 0.0, 0.0, options.minutes)
    emulation = parse_emulation(asked.emulate, parse_object(document(asked)))
    trace, rows = read_trace(asked.trace), []
    for rate in options.rates:
        part = trace.between(START_S, START_S + 60.0 * asked.minutes)
        workload = part.rate_scaled(rate, np.random.default_rng(3))
        answers = asyncio.run(run(asked, pools, workload))
        simulator = simulate_pools(emulation, pools, workload, asked.ttft_s)
        busy = sum(worker.seconds_batched for worker in simulator.prefill) / pools[0] / workload.duration_s
        row = {
            "rate_per_s": round(len(workload) / workload.duration_s, 2),
            "prefill_busy": round(busy, 2),
            "measured": shares(*measured_latencies(answers), asked.ttft_s, asked.tpot_s),
            "twin": shares(*simulator.latencies(), asked.ttft_s, asked.tpot_s),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    rates = " ".join(f"{rate:g}" for rate in options.rates)
    flags = f"--emulate {asked.emulate} --rates {rates} --minutes {asked.minutes:g}"
    command = f"python -m bench paced_fixed TRACE {flags}"
    result = {"command": command, "emulated": emulation.label, "pools": pools, "rows": rows}
    write(FOLDER / "paced_fixed.json", result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
