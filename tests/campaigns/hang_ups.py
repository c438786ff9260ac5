"""Clients that hang up at random instants: `make campaign RUN="hang_ups --count 100000"`.

Many at once, on every surface of one gateway with null workers: within heads and bodies, while a prompt is rendered,
tokenised or its grammar compiled, while it waits and while it is answered. A steady client next to them must get every
answer, and now and then each surface is asked for a whole one. At the end nothing may be left: no request, no sequence
at a worker, no byte of the budget, no task, descriptor or process, and at most a tenth more memory than after the first
tenth. Exits with 1 when something is left, a surface is silent, or a request was answered 500.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.gateway.hang_ups import SURFACES, HangUps
from baton_testing.gateway.null_service import MIB, MODEL, Target, target
from baton_testing.gateway.raw_client import exchange
from baton_testing.gateway.steady_client import SteadyClient, shorts
from baton_testing.gateway.three_tenants import BAD, GOOD, key_file

CONTEXT = 16_384
FIRST_SHARE, FIRST_LEAST = 10, 3_000
"""Growth counts from the end of the first tenth: a process that has served nothing has not loaded everything."""
QUIET_S = 40.0
"""How long the end is waited for."""
MEMORY_RATIO = 1.1
ROUND_S = 10.0
WHOLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Held:
    """The resources that a gateway holds."""

    requests: int
    sequences_at_workers: int
    budget_bytes: int
    tasks: int
    descriptors: int
    processes: int
    mib: float

    def more_than(self, before: Held) -> list[str]:
        """The resources that are left over, compared with `before`, when nothing was at work."""
        leftovers = [
            f"{name}: {value}"
            for name, value in (
                ("requests", self.requests),
                ("sequences at workers", self.sequences_at_workers),
                ("bytes of the budget", self.budget_bytes),
            )
            if value
        ]
        for name in ("tasks", "descriptors", "processes"):
            if getattr(self, name) > getattr(before, name):
                leftovers.append(f"{name}: {getattr(self, name)}, before {getattr(before, name)}")
        if self.mib > MEMORY_RATIO * before.mib:
            leftovers.append(f"memory: {self.mib:.0f} MiB, before {before.mib:.0f}")
        return leftovers


def held(at: Target) -> Held | None:
    """None while the gateway does not say."""
    state = at.state()
    if state is None:
        return None
    processes, mib = at.processes(), 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            mib += process.memory_info().rss / MIB
    requests = state["requests_running"] + state["requests_waiting"]
    descriptors = at.process.num_fds()
    return Held(requests, at.held_by_workers(), state["held_bytes"], state["tasks"], descriptors, len(processes), mib)


async def calm(at: Target, before: Held | None, within_s: float) -> tuple[Held | None, list[str]]:
    """Wait until nothing is left over, or for `within_s`: what is held then, and what is left over."""
    until_s = time.monotonic() + within_s
    while True:
        now = await asyncio.to_thread(held, at)
        left = ["the gateway does not say what it holds"] if now is None else now.more_than(before or now)
        if not left or time.monotonic() > until_s:
            return now, left
        await asyncio.sleep(0.5)


async def silent_surfaces(at: Target, key: str, seed: int) -> list[str]:
    """The surfaces that give no whole answer. All are asked at once."""
    hang_ups, draw = HangUps(at.port, MODEL, key, seed), random.Random(seed)

    async def ask(name: str, sent: bytes) -> list[str]:
        status, _ = await exchange(at.port, sent, WHOLE_S)
        return [] if status in (200, 400) else [f"{name}: {status or 'no answer'}"]

    asked = [ask(surface[0], hang_ups.whole(surface, draw)) for surface in SURFACES]
    return [problem for problems in await asyncio.gather(*asked) for problem in problems]


async def campaign(at: Target, count: int, seed: int, lanes: int) -> tuple[HangUps, list[str], list[dict[str, Cell]]]:
    hang_ups, problems = HangUps(at.port, MODEL, BAD, seed), []
    client = SteadyClient(at.port, GOOD, shorts(MODEL, "Hello!"), 4.0)
    slowest_s = 0.0

    async def hang_up(until: int) -> None:
        nonlocal slowest_s
        running = asyncio.gather(*(hang_ups.lane(hang_ups.done + number, until) for number in range(lanes)))
        while not running.done():
            await asyncio.wait([running], timeout=ROUND_S)
            began = time.monotonic()
            problems.extend(await silent_surfaces(at, GOOD, hang_ups.done))
            slowest_s = max(slowest_s, time.monotonic() - began)
            print(f"{time.strftime('%H:%M:%S')} {hang_ups.done} hang-ups, {len(problems)} problems", flush=True)
        await running

    first = max(count // FIRST_SHARE, min(count // 2, FIRST_LEAST))
    async with client:
        await hang_up(first)
        await asyncio.sleep(2.0)
    before, left = await calm(at, None, QUIET_S)
    async with client:
        began = time.monotonic()
        await hang_up(count)
        took_s = time.monotonic() - began
        await client.settle()
    problems += [f"the steady client: {problem}" for problem in client.seen.problems()]
    problems += await silent_surfaces(at, GOOD, seed)
    after, left = await calm(at, before, QUIET_S)
    problems += [f"left: {leftover}" for leftover in left]
    problems += [f"{number} answers of 500: {surface}" for surface, number in hang_ups.errors.items() if number]
    log = at.gateway.log.read_text(errors="replace")
    problems += [f"the log: {word}" for word in ("Traceback", "was destroyed but it is pending") if word in log]
    rows: list[dict[str, Cell]] = [
        {"what": f"hang-ups: {surface}", "count": number} for surface, number in sorted(hang_ups.counts.items())
    ]
    rows += [
        {"what": "hang-ups a second", "count": round((count - first) / took_s)},
        {"what": "answers to the steady client", "count": len(client.seen.ttft_s)},
        {"what": "its answers lost or refused", "count": client.seen.lost.total() + client.seen.refused.total()},
        {"what": "slowest round of whole answers, s", "count": round(slowest_s, 2)},
    ]
    if before is not None and after is not None:
        rows += [
            {"what": f"{name.replace('_', ' ')}, after the first tenth and in the end",
             "count": f"{getattr(before, name):.0f} {getattr(after, name):.0f}"}
            for name in Held.__slots__
        ]  # fmt: skip
    return hang_ups, problems, rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="hang-ups (default %(default)s)")
    parser.add_argument("--lanes", type=int, default=200, help="connections at once (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the logs of the processes (default: thrown away)")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="baton-hang-ups-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with target(folder, CONTEXT, f"--api-keys={key_file(folder)}") as at:
            os.nice(5)  # the gateway goes first
            hang_ups, problems, rows = asyncio.run(campaign(at, options.count, options.seed, options.lanes))
    notes = [f"{hang_ups.done} hang-ups of {options.lanes} clients at once, seed {options.seed}."]
    publish("hang_ups", machine, notes + problems[:20], ("what", "count"), rows)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
