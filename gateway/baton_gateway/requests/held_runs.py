"""Runs that wait for a prefill worker to be nearly done: those first whose target is nearest, late ones last.

A prompt that waits at a worker is bound to it: it stays behind a long one although a neighbour falls idle or a new
worker comes. So while all are busy prompts wait here instead, and go to whoever has room first.

Whose first token has to start soonest to come within the TTFT target goes first (least slack first, Dertouzos 1974).
What is late already goes last, in the order in which it became so: in turn a backlog would make everybody behind it
late as well.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from baton_gateway.errors import Problem
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import PickRoute, Route
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import is_backed_up
from baton_wire.messages.values import PairFingerprint

SWEEP_S = 1.0
"""How often late runs whose requests ended meanwhile are dropped: their turn may be far away."""
LOOK_S = 0.05
"""How often held runs are looked at without a report: what a worker computes shrinks by the clock."""

BEGIN_SHARE = 0.6
"""Of the target, by when a prompt shall have been computed if it were alone. The rest is for what it meets at the
worker: the step that runs there ends first. In simulated runs 0.6 misses a third less than 1, 0.8 a tenth less."""

Held = tuple[LiveRequest, PickRoute]


def latest_start_s(arrived_s: float, own_s: float, ttft_s: float) -> float:
    """When a prompt has to be let go for its first token to be in time.

    One that takes longer than that by itself waits as if it took no time: it is not worse off than others.
    """
    by_s = BEGIN_SHARE * ttft_s
    return arrived_s + (by_s - own_s if own_s <= by_s else by_s)


@dataclass(slots=True)
class Turns:
    """Held runs of one revision."""

    in_time: list[tuple[float, int, Held]] = field(default_factory=list)
    """(latest start, number, run), a heap"""
    late: deque[Held] = field(default_factory=deque)
    pushed: int = 0

    def __len__(self) -> int:
        return len(self.in_time) + len(self.late)

    def push(self, run: Held, latest_s: float) -> None:
        self.pushed += 1
        heapq.heappush(self.in_time, (latest_s, self.pushed, run))

    def pop(self, now: float) -> Held:
        while self.in_time and self.in_time[0][0] < now:
            self.late.append(heapq.heappop(self.in_time)[2])
        return heapq.heappop(self.in_time)[2] if self.in_time else self.late.popleft()

    def sweep(self) -> None:
        self.late = deque(run for run in self.late if run[0].life.stage is not Stage.ENDED)


class HeldRuns:
    """A queue for each revision: one that has room does not wait for another."""

    def __init__(self, table: WorkerTable, let_go: Callable[[LiveRequest, PickRoute], None]) -> None:
        """`let_go` routes a run whose turn has come, or drops it if its request is over."""
        self._table = table
        self._let_go = let_go
        self._queues: dict[PairFingerprint, Turns] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._swept_s = 0.0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def takes(self, live: LiveRequest, action: PickRoute, route: Route | Problem, ttft_s: float) -> bool:
        """Whether the run waits its turn. What ran before, or is computed where it is decoded, does not."""
        if not action.is_first or isinstance(route, Problem) or route.prefill is None:
            return False
        fingerprint = live.fingerprint
        assert fingerprint is not None
        if fingerprint not in self._queues and self._has_room(route.prefill, fingerprint):
            return False
        latest_s = latest_start_s(live.life.arrived_s, route.own_s, ttft_s)
        self._queues.setdefault(fingerprint, Turns()).push((live, action), latest_s)
        self._look_later()
        return True

    def _has_room(self, chosen: bytes, fingerprint: PairFingerprint) -> bool:
        """The chosen worker or any other has; mostly it is the chosen one, which is cheaper to look at alone."""
        worker = self._table.get(chosen)
        if worker is not None and worker.token_s and not is_backed_up((worker.view(),), fingerprint):
            return True
        return not is_backed_up(self._table.views(), fingerprint)

    def look(self) -> None:
        """Let go whose turn has come: a worker reported, came or went, or time has passed."""
        now = asyncio.get_running_loop().time()
        is_due = now - self._swept_s >= SWEEP_S
        self._swept_s = now if is_due else self._swept_s
        for fingerprint, queue in list(self._queues.items()):
            if is_due:
                queue.sweep()
            while queue and not is_backed_up(self._table.views(), fingerprint):
                self._let_go(*queue.pop(now))
            if not queue:
                self._queues.pop(fingerprint, None)
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look) if self._queues else None
