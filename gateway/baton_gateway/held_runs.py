"""Runs that wait for a prefill worker to be nearly done, first come first served.

A prompt that waits at a worker is bound to it: it stays behind a long one although a neighbour falls idle or a new
worker comes. So while all are busy prompts wait here instead, and go to whoever has room first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from baton_gateway.errors import Problem
from baton_gateway.live_request import LiveRequest
from baton_gateway.request_events import PickRoute, Route
from baton_gateway.route import is_backed_up
from baton_gateway.workers import WorkerTable
from baton_kv_transfer.wire.values import PairFingerprint

LOOK_S = 0.05
"""How often held runs are looked at without a report: what a worker computes shrinks by the clock."""


class HeldRuns:
    """A queue for each revision: one that has room does not wait for another."""

    def __init__(self, table: WorkerTable, let_go: Callable[[LiveRequest, PickRoute], None]) -> None:
        """`let_go` routes a run whose turn has come, or drops it if its request is over."""
        self._table = table
        self._let_go = let_go
        self._queues: dict[PairFingerprint, deque[tuple[LiveRequest, PickRoute]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    def takes(self, live: LiveRequest, action: PickRoute, route: Route | Problem) -> bool:
        """Whether the run waits its turn. What ran before, or is computed where it is decoded, does not."""
        if not action.is_first or isinstance(route, Problem) or route.prefill is None:
            return False
        fingerprint = live.fingerprint
        assert fingerprint is not None
        if fingerprint not in self._queues and self._has_room(route.prefill, fingerprint):
            return False
        self._queues.setdefault(fingerprint, deque()).append((live, action))
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
        for fingerprint, queue in list(self._queues.items()):
            while queue and not is_backed_up(self._table.views(), fingerprint):
                self._let_go(*queue.popleft())
            if not queue:
                self._queues.pop(fingerprint, None)
        self._look_later()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.look) if self._queues else None
