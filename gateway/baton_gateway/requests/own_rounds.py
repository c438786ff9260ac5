"""This process's part in the rounds of gateways that hold prompts for the same workers: its announcements and its turn.

One worker of each revision gives out turns: the prefill worker with the lowest epoch, so that all gateways choose the
same one. While they choose differently for a moment, or that worker is gone, they do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton_gateway.workers.linked_workers import LinkedWorker, WorkerTable
from baton_wire.messages.gateway_link import Holding
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.gateway_rounds import Urgency


class OwnRounds:
    """The rounds of each revision, as this process takes part in them."""

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._announced: dict[PairFingerprint, tuple[LinkedWorker, Urgency | None]] = {}
        """The latest announcement and the worker that has it; None: that prompt has been sent since."""

    def announce(self, held: Mapping[PairFingerprint, Urgency], now: float) -> None:
        """Announce the most urgent prompt that is held now for each revision. Sends only changes."""
        for fingerprint, (worker, _) in list(self._announced.items()):
            if fingerprint not in held or self._turn_giver(fingerprint)[0] is not worker:
                worker.send(Holding(None))
                del self._announced[fingerprint]
        for fingerprint, urgency in held.items():
            turn_giver, _ = self._turn_giver(fingerprint)
            if turn_giver is not None and self._announced.get(fingerprint) != (turn_giver, urgency):
                turn_giver.send(holding_message(urgency, now))
                self._announced[fingerprint] = turn_giver, urgency

    def record_sent(self, fingerprint: PairFingerprint, own_s: float) -> None:
        """The most urgent prompt was sent in this process's turn; a prefill worker computes it for `own_s` seconds, 0:
        none does. The next prompt is announced even if it is as urgent, because the worker has to name the next turn.
        """
        turn_giver, _ = self._turn_giver(fingerprint)
        if turn_giver is not None:
            turn_giver.turn_taken_s += own_s
        if fingerprint in self._announced:
            self._announced[fingerprint] = self._announced[fingerprint][0], None

    def wait_s(self, fingerprint: PairFingerprint) -> float | None:
        """Seconds until this process may send held prompts; 0: now; None: others go first until a report changes it."""
        turn_giver, workers = self._turn_giver(fingerprint)
        return 0.0 if turn_giver is None else turn_giver.turn_in_s(workers)

    def _turn_giver(self, fingerprint: PairFingerprint) -> tuple[LinkedWorker | None, int]:
        """The worker that gives out turns, and the number of workers to send to in turn."""
        workers = self._table.live_prefill(fingerprint)
        return min(workers, key=lambda worker: worker.hello.epoch, default=None), len(workers)


def holding_message(urgency: Urgency, now: float) -> Holding:
    """The announcement of a held prompt. Its time is relative, because the worker's clock is another."""
    start_by_s = urgency.start_by_s
    return Holding(urgency.rank.value, None if start_by_s is None else start_by_s - now)
