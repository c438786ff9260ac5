"""Kills of gateways and workers under a load that is billed: `make campaign RUN="ledger --kills 200"`.

A gateway of two processes with a ledger stands in front of null workers. Clients count what they receive. Again and
again a gateway process, the whole gateway or the workers are killed with SIGKILL. In the end each request that a client
saw accepted must be in the ledger exactly once, with the tokens that the client received, or at most those of one
frame a sequence more. Exits with 1 when a request is not.

`--lanes N` shares the kills among N services next to each other.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from baton_testing.gateway.billed_load import BilledLoad, Verdict, compare, running
from baton_testing.gateway.fake_pool import pool_flags
from baton_testing.gateway.three_tenants import key_file
from baton_testing.processes.child_process import Child, NotReadyError, get_status, wait_for
from campaigns.lanes import Campaign, LaneVerdict, Plan, kill_one_process

MODEL = "null"
STEP_MS = 20
CLIENTS = 24
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
            kill_one_process(self.gateway.pid, dice)

    def stop(self) -> None:
        """Stop everything, after a last gateway has recovered what killed processes left. Raises NotReadyError."""
        try:
            self.gateway.stop(60.0)
            self.gateway = self._start_gateway()
        finally:
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


async def kill_under_load(service: BilledService, load: BilledLoad, plan: Plan, killed: Counter[str]) -> None:
    """Kill while clients ask, until all kills are made or the plan's time is over."""
    dice = random.Random(plan.seed)
    async with running(load, CLIENTS):
        while killed.total() < plan.amounts["kills"] and time.monotonic() < plan.until_s:
            await asyncio.sleep(dice.uniform(*BETWEEN_S))
            what = dice.choices(("a gateway process", "gateway", "workers"), (6, 2, 2))[0]
            killed[what] += 1
            await asyncio.to_thread(service.kill, what, dice)
            await asyncio.to_thread(service.await_routable)


def run(folder: Path, plan: Plan) -> LaneVerdict:
    """Kill, stop everything, and judge the ledger: also where a process did not start, by what clients have counted."""
    service = BilledService(folder)
    load, killed, problems = BilledLoad(service.port, MODEL, plan.seed), Counter[str](), list[str]()
    try:
        service.await_routable()
        asyncio.run(kill_under_load(service, load, plan, killed))
    except NotReadyError as error:
        problems.append(f"after {killed.total()} kills: {error}")
    finally:
        try:
            service.stop()
        except NotReadyError as error:
            problems.append(f"the last gateway: {error}")
    if killed.total() < plan.amounts["kills"]:
        problems.append(f"{killed.total()} kills in the time given, of {plan.amounts['kills']}")
    verdict = compare(load.counts, service.ledger, FRAME_TOKENS)
    left = [path.name for path in service.ledger.glob("*.open")]
    if left:
        problems.append(f"tables that were not recovered: {', '.join(left)}")
    return LaneVerdict(_counts_of(verdict, load, killed), problems + verdict.problems)


def _counts_of(verdict: Verdict, load: BilledLoad, killed: Counter[str]) -> Counter[str]:
    counts = Counter({f"kills: {what}": count for what, count in killed.most_common()})
    counts["requests"] = len(load.counts)
    counts["accepted"] = sum(count.is_accepted for count in load.counts)
    counts.update(dict(sorted(verdict.kinds.items())))
    for excess, count in sorted(verdict.excess.items()):
        counts[f"cut streams with {excess:g} tokens a sequence too many"] = count
    counts["requests that break the rule"] = len(verdict.problems)
    return counts


if __name__ == "__main__":
    sys.exit(Campaign("ledger", __doc__, {"kills": 20}, run).main())
