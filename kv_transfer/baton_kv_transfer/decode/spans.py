"""Spans of the landing region: the line for them, and when spans of an ended hand-over are free again. Pure."""

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
    """The line before one landing region. The first hand-over that finds no room holds up the rest: none starves."""

    def __init__(self, landing: LandingRegion) -> None:
        self._landing = landing
        self._waiting: OrderedDict[HandoverKey, tuple[bytes, int, int]] = OrderedDict()
        self._next_transfer = 1

    def join(self, key: HandoverKey, peer: bytes, stream_bytes: int, unit_bytes: int) -> None:
        self._waiting[key] = (peer, stream_bytes, unit_bytes)

    def leave(self, key: HandoverKey) -> None:
        self._waiting.pop(key, None)

    def position(self, key: HandoverKey) -> int:
        """Number of hand-overs before `key`, which is in the line."""
        return list(self._waiting).index(key)

    def serve(self) -> list[GrantedSpans]:
        """Grant spans to as many as fit; each gets a transfer number that was never used before."""
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
    """A span of an ended hand-over that its writer must prove to be at rest, and the link that it was granted over."""

    peer: bytes
    transfer: int
    one_sided: bool
    link: int


class SpanReclaim:
    """Decides what becomes of a span when its hand-over ends, and keeps the proofs that are pending.

    Where this process writes itself, the span is free at once and only late writes are swallowed. Where a one-sided
    write may still arrive, the span stays quarantined until the writer says so, or is proven gone.
    """

    def __init__(self, landing: LandingRegion) -> None:
        self._landing = landing
        self._pending: dict[HandoverKey, PendingProof] = {}
        self._ended_links: set[int] = set()

    def __len__(self) -> int:
        return len(self._pending)

    def end(self, key: HandoverKey, proof: PendingProof, *, writes_may_follow: bool, linked: bool) -> None:
        """Free the span, or keep it while a write may still arrive that this process cannot stop."""
        if proof.one_sided and writes_may_follow and proof.link not in self._ended_links:
            self._landing.quarantine(proof.transfer)
            self._pending[key] = proof
        elif not proof.one_sided and writes_may_follow and linked:
            self._landing.release(proof.transfer, writes_may_follow=True)
            self._pending[key] = proof
        else:
            self._landing.release(proof.transfer)

    def confirm(self, key: HandoverKey, peer: bytes) -> bool:
        """`peer` said that nothing of `key` is in flight any more. False when no proof was pending."""
        proof = self._pending.get(key)
        if proof is None or proof.peer != peer:
            return False
        del self._pending[key]
        self._landing.release(proof.transfer)
        self._landing.forget(proof.transfer)
        return True

    def link_down(self, peer: bytes) -> None:
        """The link's connections are closed: proof enough where this process writes itself, no proof otherwise."""
        self._confirm_all(lambda proof: proof.peer == peer and not proof.one_sided)

    def writes_ended(self, link: int) -> None:
        """Proof that nothing that was granted over this link, which is down, can still be written."""
        self._ended_links = {ended for ended in self._ended_links if link - ended < REMEMBERED_LINKS} | {link}
        self._confirm_all(lambda proof: proof.link == link)

    def _confirm_all(self, is_proven: Callable[[PendingProof], bool]) -> None:
        for key, proof in list(self._pending.items()):
            if is_proven(proof):
                self.confirm(key, proof.peer)
