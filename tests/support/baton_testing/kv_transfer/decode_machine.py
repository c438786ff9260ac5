"""The decode worker's machine with a clock, driven by hand, and builders of the messages that it receives and sends."""

from __future__ import annotations

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, DecodeState, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import HandoverKey, Reservation, SendTo, TransferConfig
from baton_kv_transfer.landing import LandingWindow
from baton_kv_transfer.layout import Extent, StreamLayout
from baton_testing.kv_transfer.builders import GEOMETRY, WHOLE, first_tokens
from baton_wire.kv_shape import Units
from baton_wire.messages.pair_link import Abandon, Done, FirstToken, Grant, PairMessage, Reject, Seal, Span, Wait
from baton_wire.messages.values import Reason

UNIT = GEOMETRY.block_bytes
CONFIG = TransferConfig(max_put_bytes=2 * UNIT, link_wait_s=10.0, unannounced_s=30.0)
P1, P2 = b"1" * 16, b"2" * 16
KEY, OTHER = HandoverKey(b"r" * 16, 1), HandoverKey(b"s" * 16, 1)
TOKENS, BLOCKS = 14, (9, 4, 5, 2)
FIRST = first_tokens(0, 1)


def sums(first_unit: int = 0, end_unit: int = 4) -> bytes:
    pieces = StreamLayout(GEOMETRY, 4, 0, TOKENS).group_layers * 2
    return b"".join((unit * 100 + piece).to_bytes(8) for unit in range(first_unit, end_unit) for piece in range(pieces))


class Decode:
    """The machine, its clock, and everything it asked for."""

    def __init__(
        self, config: TransferConfig = CONFIG, landing_bytes: int = 16 * UNIT, one_sided: bool = False
    ) -> None:
        self.machine = DecodeHandovers(GEOMETRY, landing_bytes, config, one_sided=one_sided)
        self.now = 0.0
        self.links = 0
        self.all: list[DecodeAction] = []

    def _took(self, actions: list[DecodeAction]) -> list[DecodeAction]:
        self.all += actions
        return actions

    def link(self, peer: bytes = P1, block_tokens: int = 4) -> list[DecodeAction]:
        self.links += 1
        return self._took(self.machine.link_up(peer, block_tokens, self.now, link=self.links))

    def unlink(self, peer: bytes = P1) -> list[DecodeAction]:
        return self._took(self.machine.link_down(peer, "silent", self.now))

    def queue(self, key: HandoverKey = KEY) -> list[DecodeAction]:
        return self._took(self.machine.queued(key, P1, 3, 100.0, self.now))

    def expect(
        self, key: HandoverKey = KEY, cached: int = 0, tokens: int = TOKENS, deadline_s: float = 100.0
    ) -> list[DecodeAction]:
        choices = tuple(first.choice for first in FIRST)
        blocks = BLOCKS[: -(-tokens // 4)]
        reservation = Reservation(tokens, cached, blocks, choices, deadline_s)
        return self._took(self.machine.expected(key, P1, reservation, self.now))

    def refuse(self, key: HandoverKey = KEY) -> list[DecodeAction]:
        return self._took(self.machine.refused(key, P1, Reason.NO_CAPACITY, "queue full", self.now))

    def cancel(self, key: HandoverKey = KEY, reason: Reason = Reason.CANCELLED) -> list[DecodeAction]:
        return self._took(self.machine.cancelled(key, reason, "", self.now))

    def hear(self, message: PairMessage, peer: bytes = P1) -> list[DecodeAction]:
        return self._took(self.machine.message(peer, message, self.now))

    def land(self, first_unit: int, end_unit: int, transfer: int = 1, base: int = 0) -> list[DecodeAction]:
        return self.land_bytes(base + first_unit * UNIT, (end_unit - first_unit) * UNIT, transfer)

    def land_bytes(self, offset: int, length: int, transfer: int = 1) -> list[DecodeAction]:
        window = self.machine.claim(P1, transfer, offset, length)
        assert isinstance(window, LandingWindow)
        assert window.is_open
        return self._took(self.machine.arrived(window, self.now))

    def scattered(self, first_unit: int, end_unit: int, checksums: bytes | None = None) -> list[DecodeAction]:
        read = sums(first_unit, end_unit) if checksums is None else checksums
        return self._took(self.machine.scattered(KEY, first_unit, read, self.now))

    def tick(self, now: float) -> list[DecodeAction]:
        self.now = now
        return self._took(self.machine.tick(now))

    @property
    def states(self) -> set[DecodeState]:
        return {state for state, count in self.machine.stats().by_state.items() if count}

    def refused_count(self, cause: str) -> int:
        return self.machine.stats().refused.get(cause, 0)

    @property
    def grants(self) -> list[Grant]:
        return [a.message for a in self.all if isinstance(a, SendTo) and isinstance(a.message, Grant)]

    @property
    def is_empty(self) -> bool:
        stats = self.machine.stats()
        return not self.states and stats.landing.free_bytes == stats.landing.total_bytes and stats.lingering == 0

    @property
    def ends(self) -> list[DecodeAction]:
        return [action for action in self.all if isinstance(action, Landed | HandoverFailed)]


def grant(transfer: int = 1, start: int = 0, offset: int = 0, key: HandoverKey = KEY, end: int = TOKENS) -> SendTo:
    units = -(-end // 4) - start // 4
    spans = (Span(offset=offset, length=units * UNIT),) if units else ()
    message = Grant(
        request=key.request,
        attempt=key.attempt,
        transfer=transfer,
        start_tokens=start,
        end_tokens=end,
        unit_tokens=4,
        spans=spans,
    )
    return SendTo(P1, message)


def seal(transfer: int = 1, checksums: bytes | None = None, tokens: tuple[FirstToken, ...] = FIRST) -> Seal:
    read = sums() if checksums is None else checksums
    return Seal(request=KEY.request, attempt=KEY.attempt, transfer=transfer, checksums=read, first_tokens=tokens)


def abandon(reason: Reason = Reason.FINISHED) -> Abandon:
    return Abandon(request=KEY.request, attempt=KEY.attempt, reason=reason)


def reject(reason: Reason, detail: str = "", peer: bytes = P1) -> SendTo:
    return SendTo(peer, Reject(request=KEY.request, attempt=KEY.attempt, reason=reason, detail=detail))


def wait(position: int, key: HandoverKey = KEY) -> SendTo:
    return SendTo(P1, Wait(request=key.request, attempt=key.attempt, position=position))


DONE = SendTo(P1, Done(request=KEY.request, attempt=KEY.attempt))


def granted(**options: object) -> Decode:
    d = Decode(**options)  # type: ignore[arg-type]
    d.link()
    d.expect()
    return d


def scatter(first: int, end: int, base: int = 0) -> Scatter:
    return Scatter(KEY, Units(BLOCKS, 4, first, end, WHOLE), Extent(base + first * UNIT, (end - first) * UNIT))
