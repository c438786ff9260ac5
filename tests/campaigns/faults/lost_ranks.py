"""Ranks of workers that are killed, stopped for good, or slowed.

A lost rank ends its worker, which comes back whole. A slowed rank slows its worker and changes nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import psutil

from campaigns.faults.fleet import Fleet, Member, UpFleet
from campaigns.faults.rounds import KillWorker, Round

RANKS = 2
STOPPED_S, RUNS_S = 0.1, 0.01
"""A slowed rank is stopped this long, then runs this long, again and again: each step takes 100 ms longer."""


def ranked_fleet(folder: Path) -> UpFleet:
    """Two workers of each role, of two ranks each."""
    pool = {"tensorParallel": RANKS}
    return UpFleet(folder, prefill=pool, decode=pool)


def staged_fleet(folder: Path) -> UpFleet:
    """Two workers of each role: prefill workers of two stages, with short steps, and decode workers of two ranks."""
    stages = {"arguments": [{"name": "pipeline-parallel", "value": str(RANKS)}]}
    engine = {"kvCacheMemory": "16Mi", "maxStepTokens": 16}
    return UpFleet(folder, prefill={**stages, "engine": engine}, decode={"tensorParallel": RANKS})


def ranks_of(worker: int) -> list[int]:
    """The process ids of a worker's ranks, in their order; none once the worker is gone."""
    try:
        children = psutil.Process(worker).children()
    except psutil.NoSuchProcess:
        return []
    return sorted(child.pid for child in children if "rank_main" in " ".join(child.cmdline()))


class LoseRank(KillWorker):
    """SIGKILL or SIGSTOP of one rank of a worker. A stopped rank is never continued."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._choice = draw

    async def strike(self, victim: Member, round_: Round) -> None:
        ranks = ranks_of(victim.pid)
        number = self._choice.choice((signal.SIGKILL, signal.SIGSTOP))
        rank = self._choice.randrange(len(ranks))
        round_.role += f", {number.name} of rank {rank}"
        os.kill(ranks[rank], number)


class SlowRank(KillWorker):
    """One rank of a worker is stopped for 100 ms in each step, for some seconds. The worker stays, and is linked."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._choice = draw
        self._slowing: asyncio.Task[None]
        self._until_s = 0.0
        self._ranks: list[int] = []

    async def strike(self, victim: Member, round_: Round) -> None:
        self._ranks = ranks_of(victim.pid)
        rank = self._choice.randrange(len(self._ranks))
        round_.role += f", rank {rank} slowed"
        self._until_s = time.monotonic() + self._choice.uniform(3.0, 6.0)
        self._slowing = asyncio.create_task(_slow(self._ranks[rank], self._until_s))

    async def heal(self, victim: Member, round_: Round) -> None:
        """Wait for the end of the slow time."""
        await self._slowing

    async def notice(self, fleet: Fleet, victim: Member, round_: Round, struck: float) -> None:
        """Watch that the worker is not given up meanwhile, and count what it draws."""
        counted = f"drawn-{victim.role} {victim.pid}"
        before = (await fleet.counts()).get(counted, 0.0)
        while time.monotonic() < self._until_s:
            if victim.epoch not in await fleet.linked():
                round_.problems.append(f"given up after {time.monotonic() - struck:.2f} s with a slowed rank")
                break
            await asyncio.sleep(0.2)
        drawn = (await fleet.counts()).get(counted, 0.0) - before
        round_.counts["drawn per second while slowed"] = round(drawn / (time.monotonic() - struck), 1)
        if ranks_of(victim.pid) != self._ranks:
            round_.problems.append("the worker has other ranks than before it was slowed")


async def _slow(pid: int, until_s: float) -> None:
    """Stop and continue a process until a time; it runs at the end. One that is gone is left alone."""
    with contextlib.suppress(ProcessLookupError):
        try:
            while time.monotonic() < until_s:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(RUNS_S)
        finally:
            os.kill(pid, signal.SIGCONT)
