"""Who waits for landing bytes: first come, first served. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from baton_kv_transfer.handover import HandoverKey
from baton_kv_transfer.landing import LandingRegion
from baton_wire.errors import LandingFullError
from baton_wire.messages.pair_link import Span


@dataclass(frozen=True, slots=True)
class Served:
    key: HandoverKey
    transfer: int
    spans: tuple[Span, ...]


class LandingLine:
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

    def serve(self) -> list[Served]:
        """Take spans for as many as there is room for; each gets a transfer number that was never used before."""
        served: list[Served] = []
        while self._waiting:
            key, (peer, stream_bytes, unit_bytes) = next(iter(self._waiting.items()))
            try:
                spans = self._landing.grant(self._next_transfer, peer, stream_bytes, unit_bytes)
            except LandingFullError:
                break
            del self._waiting[key]
            served.append(Served(key, self._next_transfer, spans))
            self._next_transfer += 1
        return served
