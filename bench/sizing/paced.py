"""A real autoscaled deployment without GPUs: `baton up` with workers that keep the time of a given GPU, under a trace.

    python -m bench paced /path/to/azure_llm_2023_conv.csv

Gateway, workers, scheduler, hand-over, sizing and rollout are the real processes; only steps are emulated. Arrivals are
low, high and low again, cut from the trace; attainment is measured at the client and compared with what the simulator
says about the same arrivals: on the pools as they really were, and in a closed loop of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.results import FOLDER, write
from bench.serving.load import offer_load
from bench.sizing.paced_report import Sample, prediction, report, write_plot

from baton_control.sizing.inputs.workload import Workload
from baton_control.spec.manifest import parse_object
from baton_local.client import Answer
from baton_local.fleet.emulation import parse_emulation
from baton_local.fleet.record import RunRecord, read_record
from baton_local.fleet.run_dir import RunDir
from baton_simulate.trace_files import read_trace
from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest
from baton_wire.messages.values import POOL_ROLES

SAMPLE_S = 2.0
PATIENCE_S = 1800.0
"""The longest answers of the trace have 1,000 tokens, which take 16 times as long as on the hardware."""
STARTED = re.compile(r"-(?:prefill|decode)-.*: ready after ([0-9.]+) s")


@dataclass(frozen=True, slots=True)
class Asked:
    """The run that was asked for."""

    trace: Path
    emulate: str
    ttft_s: float
    tpot_s: float
    most: int
    low: float
    high: float
    minutes: float


def document(asked: Asked) -> dict[str, Any]:
    """The LLMDeployment that is run."""
    pool = {"replicas": {"min": 1, "max": asked.most}}
    return manifest(
        "paced",
        "bench",
        model={"source": f"file://{tiny_llama.FOLDER}", "servedName": "paced", "maxContextTokens": 16_384},
        slo={
            "ttft": {"target": f"{asked.ttft_s * 1000:g}ms", "percentile": 95},
            "tpot": {"target": f"{asked.tpot_s * 1000:g}ms", "percentile": 95},
        },
        prefill=pool,
        decode=pool,
        # Every request waits, however long: attainment is measured, and the simulator refuses none.
        gateway={"limits": {"maxRequestDuration": f"{PATIENCE_S:g}s", "maxQueueDuration": f"{PATIENCE_S:g}s"}},
    )


def arrivals(asked: Asked) -> Workload:
    """A third of the time each: low, high, low; rates are those of the trace times `low` and `high`."""
    trace, random = read_trace(asked.trace), np.random.default_rng(3)
    part_s = asked.minutes * 20
    parts = [
        trace.between(start, start + part_s).rate_scaled(factor, random)
        for start, factor in ((600.0, asked.low), (600.0 + part_s, asked.high), (600.0 + 2 * part_s, asked.low))
    ]
    return parts[0].then(parts[1]).then(parts[2]).named(f"{asked.trace.stem} x{asked.low:g} x{asked.high:g}")


@dataclass(frozen=True, slots=True)
class Ran:
    """A run, before anything is made of it."""

    answers: list[Answer]
    samples: list[Sample]
    decisions: list[str]
    startups_s: list[float]
    processor_s: float
    """Processor time of the deployment, without processes that ended before."""


async def run(asked: Asked) -> Ran:
    with (
        tempfile.TemporaryDirectory(prefix="baton-paced-") as folder,
        Up(Path(folder), document(asked), "--emulate", asked.emulate) as up,
    ):
        endpoint = up.await_ready()
        began = time.monotonic()
        samples: list[Sample] = []
        sampling = asyncio.create_task(_sample(up.run_dir, began, samples))
        answers: list[Answer] = []
        before = up.child.cpu_s()
        try:
            await offer_load(endpoint, "paced", arrivals(asked), PATIENCE_S, answers.append)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)
        lines = up.child.output().splitlines()
        decisions = [line.removeprefix("baton: ") for line in lines if "pools: " in line]
        startups = [float(match[1]) for line in lines if (match := STARTED.search(line))]
        return Ran(answers, samples, decisions, startups, up.child.cpu_s() - before)


async def current(run_dir: RunDir) -> RunRecord:
    return await asyncio.to_thread(read_record, run_dir)


async def _sample(run_dir: RunDir, began: float, samples: list[Sample]) -> None:
    while True:
        record = await current(run_dir)
        ready = {
            role: [p.name for p in record.processes if p.role == role and p.phase == "ready"] for role in POOL_ROLES
        }
        samples.append(
            Sample(
                at_s=time.monotonic() - began,
                wanted={role.value: record.wanted.get(role.value, 0) for role in POOL_ROLES},
                ready={role.value: len(ready[role]) for role in POOL_ROLES},
                load=os.getloadavg()[0],
            )
        )
        await asyncio.sleep(SAMPLE_S)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench paced", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--emulate", default="h200x2:llama-3.1-70b/16@30", help="as of baton up (default %(default)s)")
    parser.add_argument("--ttft", type=float, default=16.0, metavar="S")
    parser.add_argument("--tpot", type=float, default=0.6, metavar="S")
    parser.add_argument("--most", type=int, default=8, help="workers of each pool (default %(default)s)")
    parser.add_argument("--low", type=float, default=0.12, help="of the trace's rate (default %(default)s)")
    parser.add_argument("--high", type=float, default=0.4)
    parser.add_argument("--minutes", type=float, default=21.0)
    parser.add_argument("--name", default="paced", help="of the result files")
    options = parser.parse_args()
    asked = Asked(
        options.trace,
        options.emulate,
        options.ttft,
        options.tpot,
        options.most,
        options.low,
        options.high,
        options.minutes,
    )
    ran = asyncio.run(run(asked))
    emulation = parse_emulation(asked.emulate, parse_object(document(asked)))
    workload = arrivals(asked)
    result = {
        "command": f"python -m bench paced TRACE --emulate {asked.emulate} --minutes {asked.minutes:g}",
        "emulated": emulation.label,
        "asked": {name: str(value) for name, value in asdict(asked).items() if name != "trace"},
        "processor_s": round(ran.processor_s),
        "startup_s": [min(ran.startups_s), round(statistics.median(ran.startups_s), 1), max(ran.startups_s)],
        **report(asked.ttft_s, asked.tpot_s, ran.answers, ran.samples),
        "decisions": ran.decisions,
    }
    write(FOLDER / f"{options.name}.json", result)
    startup_s = statistics.median(ran.startups_s)
    predictions = prediction(workload, emulation, ran.samples, asked.ttft_s, asked.tpot_s, asked.most, startup_s)
    result["predicted"] = {name: prediction.summary for name, prediction in predictions.items()}
    write(FOLDER / f"{options.name}.json", result)
    write_plot(FOLDER / f"{options.name}.png", ran.answers, ran.samples, predictions, asked.ttft_s, asked.tpot_s)
    print(json.dumps({name: value for name, value in result.items() if name != "pools"}, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
