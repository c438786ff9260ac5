"""A flood on a deployment that sleeps: `baton up` with `min: 0`, many requests at the same moment, real processes.

    python -m bench from_zero --requests 1000

Workers keep time instead of computing (`--emulate`). Counts who was answered, who was lost, how often pools were woken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bench.results import FOLDER, as_text, percentile, write
from bench.serving.load import offer_load

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer
from baton_local.fleet.record import read_record
from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
DEADLINE_S = 300.0


def document() -> dict[str, Any]:
    pool = {"replicas": {"min": 0, "max": 2}}
    return manifest(
        "zero",
        "bench",
        model={"source": f"file://{tiny_llama.FOLDER}", "servedName": "paced", "maxContextTokens": 4096},
        slo={"ttft": {"target": "2s"}, "tpot": {"target": "50ms"}},
        prefill=pool,
        decode=pool,
        autoscaling={"scaleToZeroAfter": "10m"},
    )


async def run(requests: int, emulate: str) -> dict[str, object]:
    with (
        tempfile.TemporaryDirectory(prefix="baton-zero-") as folder,
        Up(Path(folder), document(), "--emulate", emulate) as up,
    ):
        up.await_ready()
        before = read_record(up.run_dir)
        same = np.zeros(requests)
        lengths = np.full(requests, PROMPT_TOKENS), np.full(requests, OUTPUT_TOKENS)
        workload = Workload(same, *lengths, np.zeros(requests, dtype=np.int64), "flood")
        answers: list[Answer] = []
        await offer_load(before.endpoint, "paced", workload, DEADLINE_S, answers.append)
        wakes = [line for line in up.child.output().splitlines() if "for a first pair" in line]
    failures = [answer.failure for answer in answers if answer.failure]
    first = [answer.ttft_s for answer in answers if answer.times_s]
    return {
        "requests": requests,
        "workers_before": len([process for process in before.processes if process.role != "gateway"]),
        "activations": len(wakes),
        "lost": len(failures),
        "failures": sorted(set(failures)),
        "first_token_s": [round(min(first), 1), round(percentile(first, 50), 1), round(max(first), 1)],
        "deadline_s": DEADLINE_S,
        "machine_load": round(os.getloadavg()[0], 1),
        "said": wakes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench from_zero", description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--emulate", default="h200:llama-3.1-8b@10")
    options = parser.parse_args()
    result = asyncio.run(run(options.requests, options.emulate))
    result = {"command": f"python -m bench from_zero --requests {options.requests}", **result}
    write(FOLDER / "from_zero.json", result)
    print(as_text(result), end="")
    return 1 if result["lost"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
