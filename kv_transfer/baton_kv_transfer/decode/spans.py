"""Spans of the landing region: who is granted them next, and when those of an ended hand-over are free again. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.landing import REMEMBERED_LINKS, LandingRegion
from baton_wire.errors import LandingFullError
from baton_wire.messages.pair_link import Span


@dataclass(frozen=True, slots=True)
class GrantedSpans:
    key: HandoverKey
    transfer: int
    spans: tuple[Span, ...]


class SpanQueue:
    """The line before one landing region. The first that finds no room holds up the rest, so that nobody starves."""

    def __init__(self, landing: LandingRegion) -> None:
        self._landing = landing
        self._waiting: OrderedDict[HandoverKey, tuple[bytes, int, int]] = OrderedDict()
        self._next_transfer = 1

    def join(self, key: HandoverKey, peer: bytes, stream_bytes: int, unit_bytes: int) -> None:
        self._waiting[key] = (peer, stream_bytes, unit_bytes)

    def leave(self, key: HandoverKey) -> None:
        self._waiting.pop(key, None)

    def position(self, key: HandoverKey) -> int:
        """How many are before `key`, which is in the line."""
        return list(self._waiting).index(key)

    def serve(self) -> list[GrantedSpans]:
        """Take spans for as many as there is room for; each gets a transfer number that was never used before."""
        served: list[GrantedSpans] = []
        while self._waiting:
            key, (peer, stream_bytes, unit_bytes) = next(iter(self._waiting.items()))
            try:
                spans = self._landing.grant(self._next_transfer, peer, stream_bytes, unit_bytes)
            except LandingFullError:
                break
            del self._waiting[key]
            served.append(GrantedSpans(key, self._next_transfer, spans))
            self._next_transfer += 1
        return served


@dataclass(frozen=True, slots=True)
class PendingProof:
    """A span, whose writes its ending is about, and over which link they were granted."""

    peer: bytes
    transfer: int
    one_sided: bool
    link: int


class SpanReclaim:
    """Decides what becomes of a span when its hand-over ends, and remembers what is still owed a proof.

    Where this process writes itself, the span is free at once and only late writes are swallowed. Where a one-sided
    write may still arrive, the span stays quarantined until the writer says so, or is proven gone.
    """

    def __init__(self, landing: LandingRegion) -> None:
        self._landing = landing
        self._owed: dict[HandoverKey, PendingProof] = {}
        self._ended_links: set[int] = set()

    def __len__(self) -> int:
        return len(self._owed)

    def end(self, key: HandoverKey, owed: PendingProof, *, writes_may_follow: bool, linked: bool) -> None:
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

    def _settle_all(self, is_proven: Callable[[PendingProof], bool]) -> None:
        for key, owed in list(self._owed.items()):
            if is_proven(owed):
                self.settle(key, owed.peer)
