"""What the engine says of requests before the gateway's word has opened their hand-overs. Pure.

The two come from different threads, and the engine may be the faster one.
"""

from __future__ import annotations

from dataclasses import replace

from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.prefill.records import Outcome, Progress
from baton_wire.expiring import ExpiringMap
from baton_wire.messages.pair_link import FirstToken


class Ahead:
    """The engine's word about requests that are not open yet, for a bounded time."""

    def __init__(self, lifetime_s: float, capacity: int) -> None:
        self._known: ExpiringMap[HandoverKey, Progress] = ExpiringMap(lifetime_s, capacity)

    def __len__(self) -> int:
        return len(self._known)

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> None:
        self._keep(key, replace(self._of(key), computed=(tokens, blocks)), now)

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> None:
        self._keep(key, replace(self._of(key), first_tokens=tokens), now)

    def over(self, key: HandoverKey, outcome: Outcome, now: float) -> None:
        self._keep(key, Progress(over=outcome), now)

    def take(self, key: HandoverKey) -> Progress:
        """What is known, to be used now."""
        return self._known.pop(key) or Progress()

    def expire(self, now: float) -> None:
        self._known.expire(now)

    def _of(self, key: HandoverKey) -> Progress:
        return self._known.get(key) or Progress()

    def _keep(self, key: HandoverKey, progress: Progress, now: float) -> None:
        if self._of(key).over is None:
            self._known.put(key, progress, now)
