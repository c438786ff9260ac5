"""Runs that wait for a prefill worker to be nearly done, in the order of `baton_wire.rules.prompt_order`.

A prompt that waits at a worker is bound to it: it stays behind a long one although a neighbour falls idle or a new
worker comes. So while all are busy prompts wait here instead, and go to whoever has room first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton_gateway.errors import Problem
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import PickRoute, Route
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import is_backed_up
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.prompt_order import PromptOrder

SWEEP_S = 1.0
"""How often late runs whose requests ended meanwhile are dropped: their turn may be far away."""
LOOK_S = 0.05
"""How often held runs are looked at without a report: what a worker computes shrinks by the clock."""

Held = tuple[LiveRequest, PickRoute]


class HeldRuns:
    """A queue for each revision: one that has room does not wait for another."""

    def __init__(self, table: WorkerTable, let_go: Callable[[LiveRequest, PickRoute], None]) -> None:
        """`let_go` routes a run whose turn has come, or drops it if its request is over."""
        self._table = table
        self._let_go = let_go
        self._queues: dict[PairFingerprint, PromptOrder[Held]] = {}
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
        queue = self._queues.setdefault(fingerprint, PromptOrder(ttft_s))
        queue.push((live, action), live.life.arrived_s, route.own_s)
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
                queue.drop_late(lambda held: held[0].life.stage is Stage.ENDED)
            while queue and not is_backed_up(self._table.views(), fingerprint):
                queue.first(now)
                self._let_go(*queue.pop())
            if not queue:
                self._queues.pop(fingerprint, None)
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look) if self._queues else None
