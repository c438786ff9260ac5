"""Which hand-overs a decode worker has, which it had, and which it heard of too early. Pure.

Bookkeeping alone: every decision about a hand-over is made in `handover_decode`.
"""

from __future__ import annotations

from collections import Counter

from baton_kv_transfer.decode.records import DecodeHandover, DecodeState
from baton_kv_transfer.handover import HandoverKey
from baton_wire.expiring import ExpiringMap
from baton_wire.messages.pair_link import Abandon
from baton_wire.messages.values import Reason

EARLY_CAPACITY = 4_096
ENDED_CAPACITY = 16_384
ENDED_S = 120.0


class DecodeLedger:
    """Open hand-overs by key, transfer and peer; ended ones, and early abandons, for a bounded time."""

    def __init__(self, early_s: float) -> None:
        self._open: dict[HandoverKey, DecodeHandover] = {}
        self._transfers: dict[int, HandoverKey] = {}
        self._early: ExpiringMap[tuple[bytes, HandoverKey], Abandon] = ExpiringMap(early_s, EARLY_CAPACITY)
        self._ended: ExpiringMap[HandoverKey, Reason] = ExpiringMap(ENDED_S, ENDED_CAPACITY)
        self._ended_by_reason: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    # Open ones -------------------------------------------------------------------------------------------------------

    def add(self, handover: DecodeHandover) -> None:
        """Enter it in place of a queued one of the same key, if there is one."""
        self._open[handover.key] = handover

    def get(self, key: HandoverKey) -> DecodeHandover | None:
        return self._open.get(key)

    def is_under_way(self, key: HandoverKey) -> bool:
        """Open, and past waiting for blocks."""
        known = self._open.get(key)
        return known is not None and known.state is not DecodeState.QUEUED

    def granted(self, transfer: int, key: HandoverKey) -> DecodeHandover:
        """The open hand-over `key` moves its bytes as `transfer` from now on."""
        self._transfers[transfer] = key
        return self._open[key]

    def of_transfer(self, transfer: int) -> DecodeHandover | None:
        key = self._transfers.get(transfer)
        return None if key is None else self._open[key]

    def of_peer(self, peer: bytes, state: DecodeState) -> list[DecodeHandover]:
        return [h for h in self._open.values() if h.peer == peer and h.state is state]

    def all(self) -> list[DecodeHandover]:
        return list(self._open.values())

    # Ended ones ------------------------------------------------------------------------------------------------------

    def end(self, handover: DecodeHandover, outcome: str, reason: Reason, now: float) -> None:
        """The hand-over was told of and is over."""
        del self._open[handover.key]
        if handover.transfer is not None:
            del self._transfers[handover.transfer]
        self._ended.put(handover.key, reason, now)
        self._ended_by_reason[outcome] += 1

    def never_began(self, key: HandoverKey, reason: Reason, now: float) -> None:
        """It was refused before there were blocks for it; the worker is told nothing, so no ending is counted."""
        self._open.pop(key, None)
        self._ended.put(key, reason, now)

    def has_ended(self, key: HandoverKey) -> bool:
        return key in self._ended

    # Early and refused messages --------------------------------------------------------------------------------------

    def abandoned_early(self, peer: bytes, key: HandoverKey, abandon: Abandon, now: float) -> None:
        """An Abandon of what is not reserved: kept for the reservation, unless there is none to come from this peer."""
        queued = self._open.get(key)
        if self.has_ended(key) or (queued is not None and queued.peer != peer):
            self.refuse("late" if queued is None else "foreign_epoch")
            return
        self._early.put((peer, key), abandon, now)

    def take_early(self, peer: bytes, key: HandoverKey) -> Abandon | None:
        return self._early.pop((peer, key))

    def link_down(self, peer: bytes) -> None:
        """What this peer said early was said over a link that is gone."""
        for entry in [entry for entry, _ in self._early.items() if entry[0] == peer]:
            self._early.pop(entry)

    def expire(self, now: float) -> None:
        self._ended.expire(now)
        self._early.expire(now)

    def refuse(self, cause: str) -> None:
        """Count an event or message that is not acted on."""
        self._refused[cause] += 1

    # Statistics ------------------------------------------------------------------------------------------------------

    def by_state(self) -> dict[DecodeState, int]:
        counts = dict.fromkeys(DecodeState, 0)
        for handover in self._open.values():
            counts[handover.state] += 1
        return counts

    def ended_by_reason(self) -> dict[str, int]:
        return dict(self._ended_by_reason)

    def refused_by_cause(self) -> dict[str, int]:
        return dict(self._refused)
