"""This process among the gateways that hold prompts for the same workers: what it tells of its own, and its turn.

One worker of each revision keeps the turns: the prefill worker with the lowest epoch, which all gateways find alike.
Where they do not, for a moment, or where it is gone, they do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_wire.messages.gateway_link import Holding
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.held_turns import HeldRank


class OwnTurns:
    """By revision."""

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._told: dict[PairFingerprint, tuple[LinkedWorker, HeldRank]] = {}
        """Who was told last, and what."""

    def tell(self, ranks: Mapping[PairFingerprint, HeldRank]) -> None:
        """What is held now, the most urgent of each revision. Says only what changed."""
        for fingerprint, (worker, _) in list(self._told.items()):
            if fingerprint not in ranks or self._table.turns_keeper(fingerprint) is not worker:
                worker.send(Holding(None))
                del self._told[fingerprint]
        for fingerprint, rank in ranks.items():
            keeper = self._table.turns_keeper(fingerprint)
            if keeper is not None and self._told.get(fingerprint) != (keeper, rank):
                keeper.send(Holding(rank.value))
                self._told[fingerprint] = keeper, rank

    def wait_s(self, fingerprint: PairFingerprint) -> float | None:
        """Until this process may send what it holds; 0: now; None: others go first, until a report says otherwise."""
        keeper = self._table.turns_keeper(fingerprint)
        return 0.0 if keeper is None else keeper.turn_in_s()
