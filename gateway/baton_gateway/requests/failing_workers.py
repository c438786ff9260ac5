"""Workers that fail one run after the other: they are chosen last for a while. Pure.

A worker that fails at once is idle, so it would be the first choice of every new run. Each run would then need a retry,
until the retry budget is spent, although other workers serve.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from baton_wire.messages.values import Reason

FAILURES: Final = 3
WITHIN_S: Final = 10.0
"""A worker with FAILURES failures within this time is failing."""
AVOIDED_S: Final = 5.0
"""How long it is avoided after its latest failure. Then a run tries it again."""
MAX_WORKERS: Final = 1_024
"""The workers remembered: those that failed last."""
ITS_OWN: Final = frozenset({Reason.INTERNAL, Reason.STALLED, Reason.KV_CORRUPT})
"""Reasons that are the worker's own fault: not lack of room, and not the loss of another worker."""
NO_WORKERS: Final[frozenset[bytes]] = frozenset()


class FailingWorkers:
    """Recent failures by the worker's epoch. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[bytes, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def record(self, worker: bytes, reason: Reason, now: float) -> None:
        """Record that a worker ended its part of a run without a result."""
        if reason not in ITS_OWN:
            return
        self._failures.setdefault(worker, deque(maxlen=FAILURES)).append(now)
        self._failures.move_to_end(worker)
        if len(self._failures) > MAX_WORKERS:
            self._failures.popitem(last=False)

    def avoided(self, now: float) -> frozenset[bytes]:
        """The workers that get runs only where no other worker can."""
        if not self._failures:
            return NO_WORKERS
        while self._failures and now - next(iter(self._failures.values()))[-1] > WITHIN_S:
            self._failures.popitem(last=False)
        return frozenset(
            worker
            for worker, times in self._failures.items()
            if len(times) == FAILURES and now - times[0] <= WITHIN_S and now - times[-1] < AVOIDED_S
        )
