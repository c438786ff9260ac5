"""Spans of ended hand-overs whose writer has not said yet that nothing is in flight. Pure.

Where this process writes itself, the span is free at once and only late writes are swallowed. Where a one-sided write
may still arrive, the span stays quarantined until the writer says so, or is proven gone.
"""

from __future__ import annotations

from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.landing import LandingRegion


class Lingering:
    """Decides what becomes of a span when its hand-over ends, and remembers what is still owed a proof."""

    def __init__(self, landing: LandingRegion, *, one_sided: bool) -> None:
        self._landing = landing
        self._one_sided = one_sided
        self._owed: dict[HandoverKey, tuple[bytes, int]] = {}

    def __len__(self) -> int:
        return len(self._owed)

    def end(self, key: HandoverKey, peer: bytes, transfer: int, *, writes_may_follow: bool, linked: bool) -> None:
        """Free the span, or keep it while a write may still arrive that nobody here can stop."""
        if self._one_sided and writes_may_follow:
            self._landing.quarantine(transfer)
            self._owed[key] = (peer, transfer)
        elif writes_may_follow and linked:
            self._landing.release(transfer, writes_may_follow=True)
            self._owed[key] = (peer, transfer)
        else:
            self._landing.release(transfer)

    def settle(self, key: HandoverKey, peer: bytes) -> bool:
        """`peer` said that nothing of `key` is in flight any more. False when that was not owed."""
        owed = self._owed.get(key)
        if owed is None or owed[0] != peer:
            return False
        del self._owed[key]
        self._landing.release(owed[1])
        self._landing.forget(owed[1])
        return True

    def link_down(self, peer: bytes) -> None:
        """The link's connections are closed: proof enough where this process writes itself, no proof otherwise."""
        if not self._one_sided:
            self.peer_gone(peer)

    def peer_gone(self, peer: bytes) -> None:
        for key in [key for key, (writer, _) in self._owed.items() if writer == peer]:
            self.settle(key, peer)
