"""The slack that the batch class fills: free slots of decode workers, less a reserve that other requests find. Pure.

Without the reserve batch lines would take every slot. A newcomer of another class would wait for one of them to end,
and be refused where that is predicted to take longer than its target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Role

RESERVE: Final = 32
"""One of this many slots is left free, and at least one where there are two."""


@dataclass(frozen=True, slots=True)
class BatchSlack:
    """The sequences of the batch class that this process may begin."""

    now: int
    most: int
    """When nothing else runs. A request for more takes all of it."""


def batch_slack(views: Sequence[WorkerView], num_held: int) -> BatchSlack | None:
    """Return the slack; None: there are no decode workers whose slots could be counted. `num_held`: runs that wait in
    this process until a worker has room, which go first.

    Other gateway processes see the same free slots, so each takes its share of them.
    """
    decode = [worker for worker in views if worker.role is Role.DECODE and worker.is_usable]
    if not decode:
        return None
    slots = sum(worker.max_sequences for worker in decode)
    reserve = max(1, slots // RESERVE) if slots > 1 else 0
    free = sum(max(0, worker.max_sequences - worker.load_sequences) for worker in decode) - reserve
    processes = max(worker.gateways for worker in decode)
    own = max(0, free + processes // 2) // processes
    return BatchSlack(0 if num_held else own, slots - reserve)
