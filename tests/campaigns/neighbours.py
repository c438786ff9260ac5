"""One tenant at its worst next to another: `make campaign RUN=neighbours`.

Two tenants of one gateway. One behaves badly in each of some twenty ways, then in all ways together. The other asks
short things at a steady pace and probes `/health/live`. Between two ways it is alone, which is what it compares with.
The bad tenant is a process of its own at low priority: only what it does to the gateway counts.

No answer to the other tenant may be refused, lost or changed. The 95th percentile of its TTFT is at most 1.5 times
that alone and 50 ms, `/health/live` answers within 200 ms, and the gateway's memory is back within 10 %. No request may
be answered 500. Exits with 1 when a bar is missed. `--workers tiny` serves the tiny model instead of null workers: its
engine computes for both tenants, so TTFT is reported there and not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
from bench.machine import Machine, this_machine
from bench.results import Cell, percentile, publish

from baton_testing.background_tasks import cancel
from baton_testing.gateway.bad_neighbours import BEHAVIOURS, BY_NAME, Victim, misbehave, server_errors
from baton_testing.gateway.null_service import MIB, MODEL, Target, target
from baton_testing.gateway.steady_client import Seen, SteadyClient, shorts
from baton_testing.gateway.three_tenants import BAD, GOOD, LIMITED, key_file
from baton_testing.processes.deployment import Deployment, Shape
from baton_testing.processes.prepared import service

TOGETHER = "all together"
TTFT_RATIO, TTFT_MORE_S = 1.5, 0.05
LIVE_S = 0.2
MEMORY_RATIO = 1.1
"""Memory must come back to this ratio of what it was just before a way began."""
WHOLE_MEMORY_RATIO = 1.25
"""In the end, of what it was in the beginning: what is kept for the next request has its bounds."""
BACK_S = 20.0
"""How long the gateway's memory is waited for."""
WARM_S = 2.0
SETTLE_S = 1.5
VOCABULARY = {"null": 390, "tiny": 1_000}
CONTEXT = {"null": 16_384, "tiny": 1_024}


@dataclass(slots=True)
class Window:
    """The good tenant's measurements during one way, and the gateway's state afterwards."""

    way: str
    seen: Seen
    after: Seen = field(default_factory=Seen)
    """Alone again, once the bad tenant has stopped."""
    memory: float = 1.0
    """Ratio to the gateway's memory just before."""
    whole_memory: float = 1.0
    """Ratio to the memory before the first way; for the last way alone."""
    back_s: float | None = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    """To the bad tenant."""

    def problems(self, alone_s: float, live_s: float, judges_ttft: bool) -> list[str]:
        """`alone_s`: TTFT p95 alone; `live_s`: a probe alone, p99: a machine may be slower than the bar by itself."""
        problems = [*self.seen.problems(), *(f"afterwards {problem}" for problem in self.after.problems())]
        most_s = TTFT_RATIO * alone_s + TTFT_MORE_S
        if judges_ttft and self.ttft_s(95) > most_s:
            problems.append(f"TTFT p95 {1e3 * self.ttft_s(95):.0f} ms is over {1e3 * most_s:.0f} ms")
        if self.live_s > max(LIVE_S, live_s):
            problems.append(f"/health/live took {1e3 * self.live_s:.0f} ms")
        if self.back_s is None:
            problems.append(f"memory stays at {100 * self.memory:.0f} %")
        if self.whole_memory > WHOLE_MEMORY_RATIO:
            problems.append(f"memory is {100 * self.whole_memory:.0f} % of what it was before the first way")
        if errors := server_errors(self.answers):
            problems.append(f"{errors} answers were 500")
        return problems

    def ttft_s(self, percent: float) -> float:
        return percentile(self.seen.ttft_s, percent) if self.seen.ttft_s else 0.0

    @property
    def live_s(self) -> float:
        return max(self.seen.live_s, default=0.0)

    def row(self, problems: Sequence[str]) -> dict[str, Cell]:
        return {
            "the other tenant": self.way,
            "asked": len(self.seen.ttft_s) + self.seen.refused.total(),
            "refused": self.seen.refused.total(),
            "lost": self.seen.lost.total(),
            "wrong": len(self.seen.wrong),
            "TTFT p50 ms": round(1e3 * self.ttft_s(50), 1),
            "TTFT p95 ms": round(1e3 * self.ttft_s(95), 1),
            "live, most ms": round(1e3 * self.live_s),
            "memory %": round(100 * self.memory),
            "answers to it": self.answers.total(),
            "bars": "held" if not problems else "MISSED",
        }


class Attacker:
    """The bad tenant's process. A context."""

    def __init__(self, victim: Victim, seed: int, share: float = 1.0) -> None:
        """`share`: of the lanes of each behaviour."""
        self._victim, self._seed, self._share = victim, seed, share
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Attacker:
        argv = ("-m", "campaigns.neighbours", "--attack", json.dumps(asdict(self._victim)), "--seed", str(self._seed))
        pipe = asyncio.subprocess.PIPE
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdin=pipe, stdout=pipe, env=environment
        )
        await self._read_line()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def attack(self, names: Sequence[str], seconds: float) -> Counter[str]:
        """For so long. The answers to it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([names, seconds, self._share]).encode() + b"\n")
        return Counter(json.loads(await self._read_line(seconds)))

    async def _read_line(self, seconds: float = 0.0) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(seconds + 60.0):
            return await self._process.stdout.readline()


async def serve_attacks(victim: Victim, seed: int) -> None:
    """The other side of `Attacker`: a line for each attack, until they end."""
    os.nice(10)
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        names, seconds, share = json.loads(line)
        answers: Counter[str] = Counter()
        share *= 1.0 if len(names) == 1 else 0.25
        attack = asyncio.create_task(misbehave(victim, [BY_NAME[name] for name in names], seed, answers, share))
        await asyncio.wait([attack], timeout=seconds)
        await cancel([attack])
        print(json.dumps(answers), flush=True)
        seed += 1


@contextlib.contextmanager
def served(workers: str, folder: Path) -> Iterator[Target]:
    keys = f"--api-keys={key_file(folder)}"
    if workers == "null":
        with target(folder, CONTEXT[workers], keys) as at:
            yield at
        return
    shape = Shape(served_name=MODEL, gateway_flags=(keys,), max_queue_s=None)
    with service() as prepared, Deployment(folder / "tiny", shape, prepared) as running:
        assert running.admin_port is not None
        process = psutil.Process(running.gateway.pid)
        yield Target(running.port, running.admin_port, running.gateway, process, folder)


async def memory_back(at: Target, before_mib: float) -> tuple[float, float | None]:
    """The share of what it was, and after how many seconds it was back; None: it was not."""
    began = time.monotonic()
    while True:
        share = (await asyncio.to_thread(_held_mib, at)) / before_mib
        if share <= MEMORY_RATIO or time.monotonic() - began > BACK_S:
            return share, round(time.monotonic() - began, 1) if share <= MEMORY_RATIO else None
        await asyncio.sleep(0.25)


def _held_mib(at: Target) -> float:
    """Memory of the gateway and its helper processes; one that ended meanwhile holds nothing."""
    total = 0.0
    for process in at.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += float(process.memory_info().rss) / MIB
    return total


async def campaign(at: Target, options: argparse.Namespace) -> tuple[list[Window], Seen]:
    """Every window, and what was seen alone."""
    victim = Victim(at.port, MODEL, CONTEXT[options.workers], VOCABULARY[options.workers], BAD, LIMITED)
    names = options.behaviours or [behaviour.name for behaviour in BEHAVIOURS]
    ways = [] if options.together else [(name, [name]) for name in names]
    ways += [(TOGETHER, names)] if len(names) > 1 or not ways else []
    alone, windows = Seen(), []
    client = SteadyClient(at.port, GOOD, shorts(MODEL, "Hello!"), options.rate)
    async with Attacker(victim, options.seed) as attacker, client:
        for name in names:  # what a process never did before it has not loaded yet
            await attacker.attack([name], WARM_S / 2)
        await asyncio.sleep(WARM_S)
        first_mib = await asyncio.to_thread(_held_mib, at)
        client.seen = alone
        await asyncio.sleep(options.seconds)
        for way, behaviours in ways:
            window, before_mib = Window(way, Seen()), await asyncio.to_thread(_held_mib, at)
            client.seen = window.seen
            window.answers = await attacker.attack(behaviours, options.seconds)
            client.seen = window.after
            await asyncio.sleep(SETTLE_S)  # what it has begun ends: that is not alone yet
            window.memory, window.back_s = await memory_back(at, before_mib)
            client.seen = alone
            await asyncio.sleep(options.seconds / 4)
            windows.append(window)
            print(f"{time.strftime('%H:%M:%S')} {window.row(())} {dict(window.answers)}", flush=True)
        windows[-1].whole_memory = (await memory_back(at, first_mib))[0]
        await client.settle()
    return windows, alone


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", choices=tuple(CONTEXT), default="null", help="(default %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each way (default %(default)s)")
    parser.add_argument("--rate", type=float, default=16.0, help="requests a second of the good tenant")
    parser.add_argument("--behaviours", nargs="+", metavar="NAME", choices=tuple(BY_NAME), help="(default: all)")
    parser.add_argument("--together", action="store_true", help="only all behaviours together, none by itself")
    parser.add_argument("--list", action="store_true", help="print the behaviours, and run nothing")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the logs of the processes (default: thrown away)")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard) if soft != hard else (soft, hard))
    if options.list:
        print("\n".join(BY_NAME))
        return 0
    if options.attack:
        asyncio.run(serve_attacks(Victim(**json.loads(options.attack)), options.seed))
        return 0
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="baton-neighbours-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with served(options.workers, folder) as at:
            windows, alone = asyncio.run(campaign(at, options))
    return 0 if publish_windows(windows, alone, options, machine) else 1


def publish_windows(windows: list[Window], alone: Seen, options: argparse.Namespace, machine: Machine) -> bool:
    """Publish the results; True if all bars held."""
    alone_s, live_s = percentile(alone.ttft_s, 95), percentile(alone.live_s, 99)
    problems_by_window = [(window, window.problems(alone_s, live_s, options.workers == "null")) for window in windows]
    rows = [
        Window("nothing (alone)", alone).row(alone.problems()),
        *(window.row(problems) for window, problems in problems_by_window),
    ]
    notes = [
        f"{options.workers} workers, seed {options.seed}, {options.seconds:g} s of each way, {options.rate:g} short "
        "requests a second of the good tenant.",
        f"Alone: TTFT p95 {1e3 * alone_s:.1f} ms, /health/live p99 {1e3 * live_s:.0f} ms.",
    ]
    notes += [f"{window.way}: {problem}" for window, problems in problems_by_window for problem in problems]
    publish(f"neighbours_{options.workers}", machine, notes, tuple(rows[0]), rows)
    return not any(problems for _, problems in problems_by_window) and not alone.problems()


if __name__ == "__main__":
    sys.exit(main())
