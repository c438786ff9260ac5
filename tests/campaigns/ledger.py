"""Kills of gateways and workers under a load that is billed: `make campaign RUN="ledger --kills 200"`.

A gateway of two processes with a ledger stands in front of null workers. Clients count what they receive. Again and
again a gateway process, the whole gateway or the workers are killed with SIGKILL. In the end each request that a client
saw accepted must be in the ledger exactly once, with the tokens that the client received, or at most those of one
frame a sequence more. Exits with 1 when a request is not.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_testing.gateway.billed_load import BilledLoad, Verdict, compare, running
from baton_testing.gateway.fake_pool import pool_flags
from baton_testing.gateway.three_tenants import key_file
from baton_testing.processes.child_process import Child, get_status, wait_for

MODEL = "null"
STEP_MS = 20
LANES = 24
PROCESSES = 2
FRAME_TOKENS = 1
"""Null workers send one token of a sequence with each frame."""
START_S = 600.0
"""For a process to start. On a machine that is busy with other work it may take minutes, which is no finding here."""
BETWEEN_S = (0.2, 2.0)
"""Between the end of one recovery and the next kill."""


class BilledService:
    """The processes that are killed, and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ledger = folder, folder / "ledger"
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.port: int = listening.getsockname()[1]
        self._keys = key_file(folder)
        self._starts = Counter[str]()
        self.workers = self._start("null", "bench.serving.null_worker", str(folder), f"--step-ms={STEP_MS}")
        self.gateway = self._start_gateway()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def await_routable(self) -> None:
        url = f"{self.base_url}/health/routable"
        wait_for(lambda: get_status(url, 2.0) == 200 or None, "the gateway to be routable", START_S)

    def kill(self, what: str, dice: random.Random) -> None:
        """Kill one thing, and start it again where nothing else does."""
        if what == "workers":
            self._kill(self.workers)
            self.workers = self._start("null", "bench.serving.null_worker", str(self.folder), f"--step-ms={STEP_MS}")
        elif what == "gateway":
            self._kill(self.gateway)
            self.gateway = self._start_gateway()
        else:
            children = [
                child for child in psutil.Process(self.gateway.pid).children() if "baton_gateway" in child.cmdline()
            ]
            if children:
                dice.choice(children).kill()

    def stop(self) -> None:
        """Stop everything, after a last gateway has recovered what killed processes left."""
        self.gateway.stop(60.0)
        self.gateway = self._start_gateway()
        self.gateway.stop(60.0)
        self.workers.stop()

    def _kill(self, child: Child) -> None:
        family = child.family()
        child.send(signal.SIGKILL)
        child.wait(60.0)
        psutil.wait_procs(family, 30.0)  # they die with it

    def _start_gateway(self) -> Child:
        flags = (f"--listen=127.0.0.1:{self.port}", "--admin-listen=127.0.0.1:0", f"--processes={PROCESSES}")
        ledger = (f"--ledger={self.ledger}", f"--api-keys={self._keys}", "--name=billed", "--drain-s=20")
        return self._start("gateway", "baton_gateway", *flags, *pool_flags(self.folder), *ledger)

    def _start(self, name: str, *argv: str) -> Child:
        self._starts[name] += 1
        announce = self.folder / f"{name}.json.announced"
        announce.unlink(missing_ok=True)
        command = ("-m", *argv, f"--announce={announce}")
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        child = Child(f"{name}-{self._starts[name]}", command, self.folder, paths)
        child.await_file(announce, START_S)
        return child


async def kill_under_load(service: BilledService, kills: int, seed: int) -> tuple[BilledLoad, Counter[str]]:
    """Kill `kills` times while clients ask."""
    dice, killed = random.Random(seed), Counter[str]()
    load = BilledLoad(service.port, MODEL, seed)
    async with running(load, LANES):
        for _ in range(kills):
            await asyncio.sleep(dice.uniform(*BETWEEN_S))
            what = dice.choices(("a gateway process", "gateway", "workers"), (6, 2, 2))[0]
            killed[what] += 1
            await asyncio.to_thread(service.kill, what, dice)
            await asyncio.to_thread(service.await_routable)
    return load, killed


def run(folder: Path, kills: int, seed: int) -> tuple[Verdict, BilledLoad, Counter[str]]:
    """Kill, stop everything, and judge the ledger."""
    service = BilledService(folder)
    try:
        service.await_routable()
        load, killed = asyncio.run(kill_under_load(service, kills, seed))
    finally:
        service.stop()
    verdict = compare(load.counts, service.ledger, FRAME_TOKENS)
    left = [path.name for path in service.ledger.glob("*.open")]
    if left:
        verdict.problems.append(f"tables that were not recovered: {', '.join(left)}")
    return verdict, load, killed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for logs and the ledger (default: thrown away)")
    options = parser.parse_args()
    machine, began = this_machine(), time.monotonic()
    os.nice(2)
    with tempfile.TemporaryDirectory(prefix="baton-ledger-") as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        verdict, load, killed = run(folder, options.kills, options.seed)
    rows: list[dict[str, Cell]] = [{"what": f"kills: {what}", "count": count} for what, count in killed.most_common()]
    rows += [{"what": "requests", "count": len(load.counts)}]
    rows += [{"what": "accepted", "count": sum(count.is_accepted for count in load.counts)}]
    rows += [{"what": kind, "count": count} for kind, count in sorted(verdict.kinds.items())]
    rows += [
        {"what": f"cut streams with {excess:g} tokens a sequence too many", "count": count}
        for excess, count in sorted(verdict.excess.items())
    ]
    rows += [{"what": "requests that break the rule", "count": len(verdict.problems)}]
    notes: list[Any] = [f"{LANES} clients, seed {options.seed}, {time.monotonic() - began:.0f} s."]
    publish("ledger", machine, notes + verdict.problems[:20], ("what", "count"), rows)
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
