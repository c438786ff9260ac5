"""Workers that change their role under load: `baton up` with emulated workers, an open loop of requests, real flips.

    python -m bench flipping --flips 24

Workers keep time instead of computing (`--emulate`); gateway, links, hand-over and flips are the real ones. Pools get
other sizes by turns, one worker more here and one fewer there. Reported are how long each flip took from its order
until the gateway knew that it was carried out, the worker's load at that time, and the outcome of every request.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench.machine import this_machine
from bench.results import Cell, percentile, publish
from bench.serving.load import offer_load

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer
from baton_local.fleet.observation import ObservedWorker, observe
from baton_local.fleet.record import read_record
from baton_testing.engine import tiny_llama
from baton_testing.processes import scripted_up
from baton_testing.processes.baton_up import Up, manifest
from baton_testing.processes.child_process import wait_for

FLIPPED = re.compile(r"(?P<worker>\S+): (?P<role>prefill|decode) after (?P<seconds>[0-9.]+) s \(flip")
TURNS = ((2, 2), (1, 3), (2, 2), (3, 1))
"""Prefill and decode workers, one after the other."""
WARM_S = 20.0
DEADLINE_S = 120.0
LONGEST_FLIP_S = 30.0


@dataclass(frozen=True, slots=True)
class Flip:
    """One worker that changed its role."""

    worker: str
    to: str
    seconds: float
    """From the order until the gateway knew of the new role."""
    running: int
    """Sequences that it decoded or prefilled when the order was written."""
    waiting: int
    others_running: int
    machine_load: float


def document() -> dict[str, Any]:
    pool = {"replicas": {"min": 1, "max": 3}}
    return manifest(
        "flipping",
        "bench",
        model={"source": f"file://{tiny_llama.FOLDER}", "servedName": "paced", "maxContextTokens": 8192},
        slo={"ttft": {"target": "5s"}, "tpot": {"target": "150ms"}},
        prefill=pool,
        decode=pool,
        autoscaling={"flips": True},
        gateway={"limits": {"maxRequestDuration": f"{DEADLINE_S:g}s", "maxQueueDuration": f"{DEADLINE_S:g}s"}},
    )


def arrivals(rate: float, seconds: float) -> Workload:
    """Poisson; prompts of 2,000 to 4,000 tokens, answers of 150 to 450."""
    random = np.random.default_rng(11)
    count = int(rate * seconds)
    at = np.sort(random.uniform(0.0, seconds, count))
    prompts, answers = random.integers(2000, 4001, count), random.integers(150, 451, count)
    return Workload(at, prompts, answers, np.zeros(count, dtype=np.int64), "flips")


async def flips(up: Up, sizes: Path, count: int, every_s: float) -> list[Flip]:
    """`count` flips, `every_s` after each other. Raises NotReadyError when one does not come."""
    measured: list[Flip] = []
    while len(measured) < count:
        before = await asyncio.to_thread(states, up)
        scripted_up.write(sizes, *TURNS[(len(measured) + 1) % len(TURNS)])
        flip = await asyncio.to_thread(next_flip, up, len(measured))
        own = before[flip["worker"]]
        rest = sum(worker.running for name, worker in before.items() if name != flip["worker"])
        load = round(os.getloadavg()[0], 1)
        measured.append(
            Flip(flip["worker"], flip["role"], float(flip["seconds"]), own.running, own.waiting, rest, load)
        )
        await asyncio.sleep(every_s)
    return measured


def next_flip(up: Up, known: int) -> re.Match[str]:
    """The report of `baton up` on the flip after the known ones."""

    def next_report() -> re.Match[str] | None:
        matches = list(FLIPPED.finditer(up.child.output()))
        return matches[known] if len(matches) > known else None

    return wait_for(next_report, f"flip {known + 1}", LONGEST_FLIP_S)


def states(up: Up) -> dict[str, ObservedWorker]:
    """The conditions of the workers that answer, by name."""
    seen = observe(read_record(up.run_dir)).workers
    return {post.name: state for post, state in seen if state is not None}


async def run(asked: argparse.Namespace) -> tuple[list[Flip], list[Answer], set[int]]:
    """Flips, answers, and how often processes were started."""
    with tempfile.TemporaryDirectory(prefix="baton-flipping-") as folder:
        sizes = Path(folder) / "sizes"
        scripted_up.write(sizes, *TURNS[0])
        program = ("-m", "baton_testing.processes.scripted_up", str(sizes))
        with Up(Path(folder), document(), "--emulate", asked.emulate, program=program) as up:
            endpoint = up.await_ready()
            wait_for(lambda: len(states(up)) == sum(TURNS[0]) or None, "the workers", 180)
            answers: list[Answer] = []
            workload = arrivals(asked.rate, WARM_S + asked.flips * (asked.every + 1.0))
            load = asyncio.create_task(offer_load(endpoint, "paced", workload, DEADLINE_S, answers.append))
            await asyncio.sleep(WARM_S)
            flipped = await flips(up, sizes, asked.flips, asked.every)
            await load
            starts = {process.starts for process in read_record(up.run_dir).processes}
            return flipped, answers, starts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench flipping", description=__doc__)
    parser.add_argument("--flips", type=int, default=24)
    parser.add_argument("--every", type=float, default=6.0, metavar="S", help="from a flip to the next one's order")
    parser.add_argument("--rate", type=float, default=1.6, help="requests a second (default %(default)s)")
    parser.add_argument("--emulate", default="h200:llama-3.1-8b/10@5", help="as of baton up (default %(default)s)")
    asked = parser.parse_args()
    machine = this_machine()
    flipped, answers, starts = asyncio.run(run(asked))
    lost = [answer for answer in answers if answer.failure or not answer.finished]
    took = [flip.seconds for flip in flipped]
    notes = [
        f"python -m bench flipping --flips {asked.flips} --every {asked.every:g} --rate {asked.rate:g} "
        f"--emulate {asked.emulate}",
        f"{len(answers)} requests, {len(lost)} lost; {len(flipped)} flips, {percentile(took, 50):.2f} s in the middle, "
        f"{max(took):.2f} s at most; processes were started {max(starts)} time(s) at most.",
        f"TTFT p50 {percentile([a.ttft_s for a in answers], 50):.2f} s, TPOT p50 "
        f"{1e3 * percentile([a.tpot_s for a in answers], 50):.0f} ms.",
    ]
    rows: list[dict[str, Cell]] = [asdict(flip) for flip in flipped]
    publish("flips_under_load", machine, notes, tuple(rows[0]), rows)
    for answer in lost[:10]:
        print(f"lost: {answer.failure or answer.end.value}: {answer.detail}")
    return 1 if lost or max(starts) > 1 else 0


if __name__ == "__main__":
    raise SystemExit(main())
