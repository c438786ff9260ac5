"""This process among the gateways that hold prompts for the same workers: what it tells of its own, and its turn.

One worker of each revision keeps the turns: the prefill worker with the lowest epoch, which all gateways find alike.
Where they do not, for a moment, or where it is gone, they do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_wire.messages.gateway_link import Holding
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.gateway_rounds import Urgency


class OwnTurns:
    """By revision."""

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._told: dict[PairFingerprint, tuple[LinkedWorker, Urgency | None]] = {}
        """Who was told last, and what; None: it has been sent since."""

    def tell(self, held: Mapping[PairFingerprint, Urgency], now: float) -> None:
        """The most urgent prompt that is held now of each revision. Says only what changed."""
        for fingerprint, (worker, _) in list(self._told.items()):
            if fingerprint not in held or self._keeper(fingerprint)[0] is not worker:
                worker.send(Holding(None))
                del self._told[fingerprint]
        for fingerprint, urgency in held.items():
            keeper, _ = self._keeper(fingerprint)
            if keeper is not None and self._told.get(fingerprint) != (keeper, urgency):
                keeper.send(holding(urgency, now))
                self._told[fingerprint] = keeper, urgency

    def took(self, fingerprint: PairFingerprint, own_s: float) -> None:
        """The most urgent prompt was sent in this process's turn, which a prefill worker computes for so long; 0: none
        does. The next one is told even if it is as urgent: whoever gives turns is to say who is next.
        """
        keeper, _ = self._keeper(fingerprint)
        if keeper is not None:
            keeper.turn_taken_s += own_s
        if fingerprint in self._told:
            self._told[fingerprint] = self._told[fingerprint][0], None

    def wait_s(self, fingerprint: PairFingerprint) -> float | None:
        """Until this process may send what it holds; 0: now; None: others go first, until a report says otherwise."""
        keeper, workers = self._keeper(fingerprint)
        return 0.0 if keeper is None else keeper.turn_in_s(workers)

    def _keeper(self, fingerprint: PairFingerprint) -> tuple[LinkedWorker | None, int]:
        """And how many workers there are for what is sent in turn."""
        workers = self._table.live_prefill(fingerprint)
        return min(workers, key=lambda worker: worker.hello.epoch, default=None), len(workers)


def holding(urgency: Urgency, now: float) -> Holding:
    """As it is told to a worker, whose clock is another."""
    start_by_s = urgency.start_by_s
    return Holding(urgency.rank.value, None if start_by_s is None else start_by_s - now)
