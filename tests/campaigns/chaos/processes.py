"""Chaos with real processes, from seeds: `make campaign RUN="chaos processes --seeds 30 --minutes 3 --parallel 2"`.

A seed draws faults and traffic ahead. Faults are kill -9, stops, slowness, links that are cut, held or slow, lacks of
descriptors, memory and disk, steps of the wall clock, a lying worker and hang-ups. Three tenants ask a gateway with two
workers of each role: an innocent, one at its quota, and one that behaves badly in ways that change. Meanwhile every
answer must be exact, the innocent is never refused or lost, and probes tell the truth. Afterwards the fleet is whole,
all blocks are free, and the gateway holds nothing and has its memory back. Exits with 1 at a violation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.background_tasks import cancel
from baton_testing.gateway.bad_neighbours import Victim, server_errors
from baton_testing.gateway.null_service import MIB
from baton_testing.gateway.three_tenants import BAD, LIMITED
from baton_testing.processes.child_process import NotReadyError
from campaigns.chaos.harms import MODEL, Harms
from campaigns.chaos.plan import Plan, plan
from campaigns.chaos.stage import Stage
from campaigns.chaos.tenants import Traffic
from campaigns.faults.load import Ask, asks, send_and_judge
from campaigns.neighbours import Attacker

SHARE = 0.15
"""Share of the lanes of a behaviour: workers are small here, and share two cores with all other processes."""
WARM_S = 4.0
WHOLE_S = 60.0
IDLE_S = 60.0
"""Until all blocks are free and the gateway holds nothing; what a peer left is held for 30 s and more."""
MEMORY_RATIO, MEMORY_MORE_MIB = 1.3, 24.0
TTFT_RATIO, TTFT_MORE_S = 8.0, 4.0
"""The engine computes for all three tenants, on a busy machine."""
LEEWAY_S = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="how many (default %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=3.0, help="of each seed (default %(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="seeds at a time (default %(default)s)")
    parser.add_argument("--plan", action="store_true", help="print what the seeds do, and do nothing")
    parser.add_argument("--keep", type=Path, help="folder for the logs of the processes (default: thrown away)")
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    """The exit status."""
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.plan:
        for seed in seeds:
            print(f"seed {seed}\n  " + "\n  ".join(map(str, _format_plan(plan(seed, 60 * arguments.minutes)))))
        return 0
    if arguments.row is not None:
        row = asyncio.run(_while_wanted(one_seed(seeds[0], 60 * arguments.minutes, arguments.keep)))
        arguments.row.write_text(json.dumps(row))
        return 1 if row["violations"] else 0
    asks()  # what greedy answers are is computed once, and kept
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="baton-chaos-") as folder, ThreadPoolExecutor(arguments.parallel) as pool:
        rows = list(pool.map(lambda seed: _apart(seed, arguments, Path(folder)), seeds))
    publish("chaos_processes", machine, _notes(rows, arguments), COLUMNS, [_cells(row) for row in rows])
    bad = [row["seed"] for row in rows if row["violations"]]
    print(f"{len(rows)} seeds, violations in: {bad or 'none'}")
    return 1 if bad else 0


def _apart(seed: int, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A seed in a process of its own, which ends by itself or is killed with all that it started."""
    file = folder / f"{seed}.json"
    argv = [sys.executable, "-m", "campaigns.chaos", "processes", "--first", str(seed), "--seeds", "1"]
    argv += ["--minutes", str(arguments.minutes), "--row", str(file)]
    argv += [] if arguments.keep is None else ["--keep", str(arguments.keep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(argv, env=environment)
    try:
        child.wait(60 * arguments.minutes + LEEWAY_S)
    except subprocess.TimeoutExpired:
        return {"seed": seed, "violations": ["the seed did not end"]}
    finally:
        if child.poll() is None:
            kin = psutil.Process(child.pid).children(recursive=True)
            child.kill()
            child.wait()
            for process in kin:
                process.kill()
    if not file.exists():
        return {"seed": seed, "violations": [f"the seed ended with {child.returncode} and no result"]}
    row: dict[str, Any] = json.loads(file.read_text())
    return row


async def _while_wanted(seed: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Run the seed until it ends or the parent process does, and stop everything then."""
    task, parent = asyncio.create_task(seed), os.getppid()
    while not task.done() and os.getppid() == parent:
        await asyncio.wait([task], timeout=1.0)
    task.cancel()
    return await task


async def one_seed(seed: int, seconds: float, keep: Path | None = None) -> dict[str, Any]:
    """Run one seed and return its record."""
    known, planned = asks(), plan(seed, seconds)
    with tempfile.TemporaryDirectory(prefix=f"baton-chaos-{seed}-") as temporary:
        folder = Path(temporary) if keep is None else keep / str(seed)
        folder.mkdir(parents=True, exist_ok=True)
        async with Stage(folder, random.Random(f"stage {seed}")) as stage:
            return await _play(stage, planned, known, seconds)


async def _play(stage: Stage, planned: Plan, known: Sequence[Ask], seconds: float) -> dict[str, Any]:
    harms = Harms(stage, planned.seed)
    traffic = Traffic(stage, harms, known, planned.seed)
    alone = [(await send_and_judge("127.0.0.1", stage.port, known[0], api_key=BAD)).answer.ttft_s for _ in range(5)]
    victim = Victim(stage.port, MODEL, 1_024, 1_000, BAD, LIMITED)
    attacks: Counter[str] = Counter()
    loop, began_s = asyncio.get_running_loop(), time.monotonic()
    async with Attacker(victim, planned.seed, SHARE) as attacker, traffic:
        await asyncio.sleep(WARM_S)
        before_mib, began = _gateway_mib(stage), loop.time()
        hostile = asyncio.create_task(_misbehave(attacker, planned, began, seconds, attacks))
        try:
            await harms.carry_out(planned.faults, began)
            await asyncio.sleep(max(0.0, began + seconds - loop.time()))
        finally:
            await cancel([hostile])
        await traffic.settle()
    await _check_the_end(stage, traffic, before_mib, max(alone), known[0])
    if errors := server_errors(attacks):
        traffic.books.violated(f"{errors} answers of 500 to the hostile tenant: {dict(attacks)}")
    return {
        "seed": planned.seed,
        "seconds": round(time.monotonic() - began_s, 1),
        "faults": dict(harms.done),
        "hung_up": harms.hung_up,
        "skipped": {why: count for why, count in harms.skipped.items() if count},
        "answers": dict(traffic.books.answers),
        "hostile": dict(attacks),
        "probes": dict(traffic.books.probes),
        "restarts": stage.repairs.begun,
        "failed restarts": dict(stage.repairs.failures),
        "ttft_p95_s": traffic.ttft_s(),
        "ttft_alone_s": max(alone),
        "violations": traffic.books.violations,
    }


async def _misbehave(attacker: Attacker, planned: Plan, began: float, seconds: float, attacks: Counter[str]) -> None:
    loop = asyncio.get_running_loop()
    ends = [turn.at_s for turn in planned.turns[1:]] + [seconds]
    for turn, end_s in zip(planned.turns, ends, strict=True):
        attacks.update(await attacker.attack([turn.behaviour], max(0.0, began + end_s - loop.time())))


async def _check_the_end(stage: Stage, traffic: Traffic, before_mib: float, alone_s: float, ask: Ask) -> None:
    """Everything is as if nothing had been."""
    books = traffic.books
    try:
        await stage.until_whole(WHOLE_S)
        await asyncio.to_thread(stage.service.await_idle, IDLE_S)
    except (TimeoutError, NotReadyError) as error:
        occupied = await asyncio.to_thread(stage.service.occupied)
        failures = dict(stage.repairs.failures)
        books.violated(f"the fleet is not whole and idle: {error!r}, blocks held {occupied}, restarts {failures}")
    verdict = await send_and_judge("127.0.0.1", stage.port, ask, api_key=BAD)
    if verdict.verdict != "exact":
        books.violated(f"after the last fault: {verdict.verdict} {verdict.detail}")
    state = await asyncio.to_thread(stage.gateway_state)
    held = None if state is None else {name: state[name] for name in HELD}
    if held is None or any(held.values()):
        books.violated(f"the gateway holds {held}")
    mib = _gateway_mib(stage)
    if mib > MEMORY_RATIO * before_mib + MEMORY_MORE_MIB:
        books.violated(f"the gateway has {mib:.0f} MiB, before {before_mib:.0f}")
    ttft_s = traffic.ttft_s()
    if ttft_s is not None and ttft_s > TTFT_RATIO * alone_s + TTFT_MORE_S:
        books.violated(f"the innocent's TTFT p95 without a fault is {ttft_s:.2f} s, alone {alone_s:.3f} s")
    log = await asyncio.to_thread(stage.gateway_logs)
    for word in ("\nTraceback", "was destroyed but it is pending"):  # not what a helper process wrote when it died
        if word in log:
            books.violated(f"a gateway's log has: {word.strip()}")


HELD = ("requests_running", "requests_waiting", "held_bytes")
COLUMNS = ("seed", "faults", "hang-ups", "restarts", "innocent exact", "innocent asked again", "quota exact",
           "quota refused", "hostile", "TTFT p95 s", "violations")  # fmt: skip


def _gateway_mib(stage: Stage) -> float:
    gateway = stage.gateway()
    return 0.0 if gateway is None else float(gateway.memory_info().rss) / MIB


def _cells(row: dict[str, Any]) -> dict[str, Cell]:
    answers: dict[str, int] = row.get("answers", {})
    again = sum(count for what, count in answers.items() if what in ("innocent: failed", "innocent: broken"))
    return {
        "seed": row["seed"],
        "faults": sum(row.get("faults", {}).values()),
        "hang-ups": row.get("hung_up"),
        "restarts": row.get("restarts"),
        "innocent exact": answers.get("innocent: exact", 0),
        "innocent asked again": again,
        "quota exact": answers.get("at its quota: exact", 0),
        "quota refused": answers.get("at its quota: HTTP 429", 0),
        "hostile": sum(row.get("hostile", {}).values()),
        "TTFT p95 s": row.get("ttft_p95_s"),
        "violations": len(row["violations"]),
    }


def _notes(rows: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> list[str]:
    faults: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for row in rows:
        faults.update(row.get("faults", {}))
        skipped.update(row.get("skipped", {}))
    notes = [f"{len(rows)} seeds × {arguments.minutes:g} minutes, {arguments.parallel} at a time."]
    notes += [f"Faults: {dict(sorted(faults.items()))}.", f"Not carried out: {dict(skipped)}."]
    return notes + [f"Seed {row['seed']}: {what}" for row in rows for what in row["violations"][:5]]


def _format_plan(planned: Plan) -> list[str]:
    events = [(fault.at_s, str(fault)) for fault in planned.faults]
    events += [(turn.at_s, f"{turn.at_s:.1f} s: the hostile tenant: {turn.behaviour}") for turn in planned.turns]
    return [text for _, text in sorted(events)]
