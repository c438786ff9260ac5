"""Spans of ended hand-overs whose writer has not said yet that nothing is in flight. Pure.

Where this process writes itself, the span is free at once and only late writes are swallowed. Where a one-sided write
may still arrive, the span stays quarantined until the writer says so, or is proven gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.landing import REMEMBERED_LINKS, LandingRegion


@dataclass(frozen=True, slots=True)
class Owed:
    """A span, whose writes its ending is about, and over which link they were granted."""

    peer: bytes
    transfer: int
    one_sided: bool
    link: int


class Lingering:
    """Decides what becomes of a span when its hand-over ends, and remembers what is still owed a proof."""

    def __init__(self, landing: LandingRegion) -> None:
        self._landing = landing
        self._owed: dict[HandoverKey, Owed] = {}
        self._ended_links: set[int] = set()

    def __len__(self) -> int:
        return len(self._owed)

    def end(self, key: HandoverKey, owed: Owed, *, writes_may_follow: bool, linked: bool) -> None:
        """Free the span, or keep it while a write may still arrive that nobody here can stop."""
        if owed.one_sided and writes_may_follow and owed.link not in self._ended_links:
            self._landing.quarantine(owed.transfer)
            self._owed[key] = owed
        elif not owed.one_sided and writes_may_follow and linked:
            self._landing.release(owed.transfer, writes_may_follow=True)
            self._owed[key] = owed
        else:
            self._landing.release(owed.transfer)

    def settle(self, key: HandoverKey, peer: bytes) -> bool:
        """`peer` said that nothing of `key` is in flight any more. False when that was not owed."""
        owed = self._owed.get(key)
        if owed is None or owed.peer != peer:
            return False
        del self._owed[key]
        self._landing.release(owed.transfer)
        self._landing.forget(owed.transfer)
        return True

    def link_down(self, peer: bytes) -> None:
        """The link's connections are closed: proof enough where this process writes itself, no proof otherwise."""
        self._settle_all(lambda owed: owed.peer == peer and not owed.one_sided)

    def writes_ended(self, link: int) -> None:
        """Proof that nothing that was granted over this link, which is down, can still be written."""
        self._ended_links = {ended for ended in self._ended_links if link - ended < REMEMBERED_LINKS} | {link}
        self._settle_all(lambda owed: owed.link == link)

    def peer_gone(self, peer: bytes) -> None:
        self._settle_all(lambda owed: owed.peer == peer)

    def _settle_all(self, is_proven: Callable[[Owed], bool]) -> None:
        for key, owed in list(self._owed.items()):
            if is_proven(owed):
                self.settle(key, owed.peer)
