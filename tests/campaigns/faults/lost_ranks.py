"""Ranks of workers that are killed, or stopped for good: the worker ends, and comes back whole."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil

from campaigns.faults.fleet import Member, UpFleet
from campaigns.faults.rounds import KillWorker, Round

RANKS = 2


def ranked_fleet(folder: Path) -> UpFleet:
    """Two workers of each role, of two ranks each."""
    pool = {"tensorParallel": RANKS}
    return UpFleet(folder, prefill=pool, decode=pool)


class LoseRank(KillWorker):
    """SIGKILL or SIGSTOP of one rank of a worker. A stopped rank is never continued."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._choice = draw

    async def strike(self, victim: Member, round_: Round) -> None:
        children = psutil.Process(victim.pid).children()
        ranks = sorted(child.pid for child in children if "rank_main" in " ".join(child.cmdline()))
        number = self._choice.choice((signal.SIGKILL, signal.SIGSTOP))
        rank = self._choice.randrange(len(ranks))
        round_.role += f", {number.name} of rank {rank}"
        os.kill(ranks[rank], number)
