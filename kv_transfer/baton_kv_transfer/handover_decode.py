"""The decode worker's side of every hand-over: a pure machine `(event, now) → actions`.

It decides who gets landing bytes and when, what of them is scattered into blocks, whether a sealed hand-over is
admitted, and when bytes of the landing region may be given to somebody else. Every `expected` ends in exactly one
`Landed` or `Failed`, after which nothing writes into the reservation's blocks. docs/protocol.md has the table of states
and faults.

Units are scattered as they arrive and compared with P's checksums at the Seal: the blocks are the reservation's own and
nobody reads them before `Landed`.
"""

from __future__ import annotations

import enum
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from baton_kv_transfer.errors import BadMessageError, LandingFullError, UnfitPairError
from baton_kv_transfer.expiring import ExpiringMap
from baton_kv_transfer.handover import CutLink, HandoverKey, Send, TransferConfig, Verify
from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingStats, LandingWindow
from baton_kv_transfer.layout import (
    CHECKSUM_BYTES,
    Extent,
    KvGeometry,
    StreamLayout,
    landing_extents,
    negotiated_unit,
)
from baton_kv_transfer.wire.pair_link import (
    MAX_CHECKSUM_BYTES,
    Abandon,
    Done,
    FirstToken,
    Grant,
    Heartbeat,
    PairMessage,
    Reject,
    Seal,
    Span,
    Wait,
)
from baton_kv_transfer.wire.values import Reason

EARLY_CAPACITY = 4_096
ENDED_CAPACITY = 16_384
ENDED_S = 120.0


class DecodeState(enum.StrEnum):
    QUEUED = "queued"
    """The engine has no blocks for it yet."""
    LINKING = "linking"
    """No link from the prefill worker yet."""
    WAITING = "waiting"
    """In the queue for landing bytes."""
    GRANTED = "granted"
    SEALED = "sealed"
    """All bytes are here; the rest of the scatter and the verification are under way."""
    CLOSING = "closing"
    """Failed; a scatter into the blocks that already runs is waited for."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Write units [first_unit, end_unit), lying at `landing`, into `blocks`; tell `scattered` or `scatter_failed`."""

    key: HandoverKey
    blocks: tuple[int, ...]
    unit_tokens: int
    first_unit: int
    end_unit: int
    landing: Extent


@dataclass(frozen=True, slots=True)
class Landed:
    key: HandoverKey
    first_tokens: tuple[FirstToken, ...]
    granted_s: float
    """When the grant was sent: the hand-over's duration counts from here."""


@dataclass(frozen=True, slots=True)
class Failed:
    key: HandoverKey
    reason: Reason
    detail: str


DecodeAction = Send | CutLink | Scatter | Landed | Failed


@dataclass(slots=True)
class _Handover:
    key: HandoverKey
    peer: bytes
    deadline_s: float
    state: DecodeState
    state_until_s: float
    total_tokens: int = 0
    cached_tokens: int = 0
    blocks: tuple[int, ...] = ()
    choices: frozenset[int] = frozenset()
    transfer: int | None = None
    layout: StreamLayout | None = None
    spans: tuple[Span, ...] = ()
    granted_s: float = 0.0
    next_unit: int = 0
    scattering: tuple[int, int] | None = None
    checksums: list[bytes] = field(default_factory=list)
    seal: Seal | None = None
    failure: tuple[Reason, str] | None = None
    writes_may_follow: bool = False


@dataclass(frozen=True, slots=True)
class DecodeStats:
    by_state: dict[DecodeState, int]
    landing: LandingStats
    lingering: int
    """Ended hand-overs whose writer has not said yet that nothing is in flight."""
    ended: dict[str, int]
    refused: dict[str, int]


class DecodeHandovers:
    """All hand-overs of one decode worker, and its landing region.

    `one_sided`: the transport writes without this process taking part (UCX); then arrival is known from the Seal only,
    and spans of a failed hand-over are quarantined until the writer says that nothing is in flight.
    """

    def __init__(
        self, geometry: KvGeometry, landing_bytes: int, config: TransferConfig, *, one_sided: bool = False
    ) -> None:
        self._geometry = geometry
        self._config = config
        self._one_sided = one_sided
        self._landing = LandingRegion(landing_bytes, quarantine_share=config.quarantine_share)
        self._handovers: dict[HandoverKey, _Handover] = {}
        self._line: OrderedDict[HandoverKey, None] = OrderedDict()
        self._peers: dict[bytes, int] = {}
        self._lingering: dict[HandoverKey, tuple[bytes, int]] = {}
        self._early: ExpiringMap[tuple[bytes, HandoverKey], Abandon] = ExpiringMap(config.early_s, EARLY_CAPACITY)
        self._ended: ExpiringMap[HandoverKey, Reason] = ExpiringMap(ENDED_S, ENDED_CAPACITY)
        self._transfers: dict[int, HandoverKey] = {}
        self._next_transfer = 1
        self._ended_by_reason: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    @property
    def landing_bytes(self) -> int:
        return self._landing.total_bytes

    # The engine's events ---------------------------------------------------------------------------------------------

    def queued(self, key: HandoverKey, peer: bytes, position: int, deadline_s: float, now: float) -> list[DecodeAction]:
        """The engine has no blocks yet; `position` requests are before this one."""
        if key in self._handovers and self._handovers[key].state is not DecodeState.QUEUED:
            self._refused["duplicate_queued"] += 1
            return []
        self._handovers[key] = _Handover(key, peer, deadline_s, DecodeState.QUEUED, deadline_s)
        return self._wait(key, peer, position)

    def expected(
        self,
        key: HandoverKey,
        peer: bytes,
        total_tokens: int,
        cached_tokens: int,
        blocks: tuple[int, ...],
        choices: tuple[int, ...],
        deadline_s: float,
        now: float,
    ) -> list[DecodeAction]:
        """Blocks are reserved and wait for the KV of [cached_tokens, total_tokens) from the prefill worker `peer`."""
        known = self._handovers.get(key)
        if known is not None and known.state is not DecodeState.QUEUED:
            self._refused["duplicate_expected"] += 1
            return []
        handover = _Handover(key, peer, deadline_s, DecodeState.LINKING, 0.0, total_tokens, cached_tokens, blocks)
        handover.choices = frozenset(choices)
        self._handovers[key] = handover
        if key in self._ended:
            return self._fail(handover, Reason.BAD_REQUEST, "this attempt already ended here", now)
        abandoned = self._early.pop((peer, key))
        if abandoned is not None:
            return self._fail(handover, abandoned.reason, abandoned.detail, now)
        if peer not in self._peers:
            self._enter(handover, DecodeState.LINKING, now + self._config.link_wait_s)
            return []
        return self._stand_in_line(handover, now)

    def refused(self, key: HandoverKey, peer: bytes, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """The engine will not reserve for this request: it was never expected, or only queued."""
        known = self._handovers.get(key)
        if known is not None and known.state is not DecodeState.QUEUED:
            return self.cancelled(key, reason, detail, now)
        self._handovers.pop(key, None)
        self._ended.put(key, reason, now)
        return self._reject(peer, key, reason, detail)

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """The gateway or the engine gave the request up."""
        handover = self._handovers.get(key)
        if handover is None or handover.state is DecodeState.CLOSING:
            return []
        if handover.state is DecodeState.QUEUED:
            return self.refused(key, handover.peer, reason, detail, now)
        return self._fail(handover, reason, detail, now, tell_peer=True)

    # Bytes -----------------------------------------------------------------------------------------------------------

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        """Whether `peer` may write here now; asked by transports whose receiver writes itself."""
        return self._landing.claim(peer, transfer, offset, length)

    def arrived(self, window: LandingWindow, now: float) -> list[DecodeAction]:
        """A claimed window's bytes stand."""
        self._landing.arrived(window)
        key = self._transfers.get(window.transfer)
        return [] if key is None else self._advance(self._handovers[key], now)

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        """The running scatter of `key` is done; `checksums` of the pieces it read, in stream order."""
        handover = self._handovers.get(key)
        if handover is None or handover.scattering is None or handover.scattering[0] != first_unit:
            self._refused["unknown_scatter"] += 1
            return []
        handover.scattering = None
        handover.checksums.append(checksums)
        return self._advance(handover, now)

    def scatter_failed(self, key: HandoverKey, first_unit: int, detail: str, now: float) -> list[DecodeAction]:
        handover = self._handovers.get(key)
        if handover is None or handover.scattering is None or handover.scattering[0] != first_unit:
            self._refused["unknown_scatter"] += 1
            return []
        handover.scattering = None
        if handover.state is DecodeState.CLOSING:
            return self._finish(handover, now)
        return self._fail(handover, Reason.INTERNAL, f"scatter: {detail}", now, tell_peer=True)

    # Links -----------------------------------------------------------------------------------------------------------

    def link_up(self, peer: bytes, block_tokens: int, now: float) -> list[DecodeAction]:
        """A prefill worker is linked. Raises UnfitPairError when the block sizes cannot be brought together."""
        negotiated_unit(self._geometry.block_tokens, block_tokens)
        self._peers[peer] = block_tokens
        actions: list[DecodeAction] = []
        for handover in self._of(peer, DecodeState.LINKING):
            actions += self._stand_in_line(handover, now)
        return actions

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        """The link broke. What was sealed no longer needs it; all else that was under way fails."""
        self._peers.pop(peer, None)
        for entry in [entry for entry, _ in self._early.items() if entry[0] == peer]:
            self._early.pop(entry)
        if not self._one_sided:
            for key in [key for key, (writer, _) in self._lingering.items() if writer == peer]:
                self._settle(key)
        actions: list[DecodeAction] = []
        for state in (DecodeState.WAITING, DecodeState.GRANTED):
            for handover in self._of(peer, state):
                actions += self._fail(handover, Reason.PEER_LOST, detail, now)
        return actions + self._grant_waiting(now)

    def peer_gone(self, peer: bytes, now: float) -> list[DecodeAction]:
        """Proof that the process `peer` is gone: nothing of it can still be written."""
        for key in [key for key, (writer, _) in self._lingering.items() if writer == peer]:
            self._settle(key)
        return self._grant_waiting(now)

    # The peer's messages ---------------------------------------------------------------------------------------------

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[DecodeAction]:
        """A message of the prefill worker `peer`. Raises BadMessageError when its kind is not for it to send."""
        match message:
            case Heartbeat():
                return []
            case Seal():
                return self._seal(peer, message, now)
            case Abandon():
                return self._abandon(peer, message, now)
            case _:
                raise BadMessageError(f"{type(message).__name__}: not a prefill worker's message")

    def _seal(self, peer: bytes, seal: Seal, now: float) -> list[DecodeAction]:
        key = HandoverKey(seal.request, seal.attempt)
        handover = self._handovers.get(key)
        if handover is None or handover.peer != peer or handover.state is DecodeState.QUEUED:
            if handover is None and key in self._ended:
                self._refused["late"] += 1
                return self._settle_and_grant(peer, key, now)
            self._refused["unknown_seal" if handover is None else "foreign_epoch"] += 1
            return [Send(peer, _reject(key, Reason.UNKNOWN_REQUEST, "no such hand-over from this epoch"))]
        if handover.state is DecodeState.CLOSING and seal.transfer == handover.transfer:
            handover.writes_may_follow = False
        if handover.state is not DecodeState.GRANTED:
            self._refused["late" if handover.state is not DecodeState.WAITING else "seal_before_grant"] += 1
            return []
        if seal.transfer != handover.transfer:
            self._refused["wrong_transfer"] += 1
            return [Send(peer, _reject(key, Reason.BAD_REQUEST, "seal of another transfer"))]
        return self._sealed(handover, seal, now)

    def _sealed(self, handover: _Handover, seal: Seal, now: float) -> list[DecodeAction]:
        assert handover.transfer is not None
        assert handover.layout is not None
        handover.writes_may_follow = False
        named = [first.choice for first in seal.first_tokens]
        if len(set(named)) != len(named) or set(named) != handover.choices:
            detail = f"first tokens for choices {sorted(named)}, expected {sorted(handover.choices)}"
            return self._spoilt(handover, Reason.BAD_REQUEST, detail, now)
        gap = None if self._one_sided else self._landing.first_gap(handover.transfer)
        if gap is not None:
            return self._spoilt(handover, Reason.KV_CORRUPT, f"stream bytes [{gap[0]}, {gap[1]}) never came", now)
        expected_bytes = handover.layout.checksum_bytes if self._config.verify is Verify.FULL else len(seal.checksums)
        if len(seal.checksums) != expected_bytes:
            detail = f"{len(seal.checksums)} bytes of checksums, expected {expected_bytes}"
            return self._spoilt(handover, Reason.KV_CORRUPT, detail, now)
        handover.seal = seal
        self._landing.seal(handover.transfer)
        self._enter(handover, DecodeState.SEALED, handover.deadline_s)
        return self._advance(handover, now)

    def _spoilt(self, handover: _Handover, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """A sealed hand-over that is not admitted."""
        done = Done(request=handover.key.request, attempt=handover.key.attempt, reason=reason, detail=detail[:256])
        return [Send(handover.peer, done), *self._fail(handover, reason, detail, now)]

    def _abandon(self, peer: bytes, abandon: Abandon, now: float) -> list[DecodeAction]:
        key = HandoverKey(abandon.request, abandon.attempt)
        if self._lingering.get(key, (b"", 0))[0] == peer:
            return self._settle_and_grant(peer, key, now)
        handover = self._handovers.get(key)
        if handover is None or handover.state is DecodeState.QUEUED:
            return self._abandoned_early(peer, key, handover, abandon, now)
        if handover.peer != peer:
            self._refused["foreign_epoch"] += 1
            return []
        if handover.state is DecodeState.SEALED:
            self._refused["abandon_after_seal"] += 1
            return []
        handover.writes_may_follow = False
        if handover.state is DecodeState.CLOSING:
            return []
        return self._fail(handover, abandon.reason, abandon.detail, now)

    def _abandoned_early(
        self, peer: bytes, key: HandoverKey, queued: _Handover | None, abandon: Abandon, now: float
    ) -> list[DecodeAction]:
        if key in self._ended or (queued is not None and queued.peer != peer):
            self._refused["late" if queued is None else "foreign_epoch"] += 1
            return []
        self._early.put((peer, key), abandon, now)
        return []

    # Time ------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[DecodeAction]:
        """Act on deadlines. Call it a few times per second."""
        self._ended.expire(now)
        self._early.expire(now)
        actions: list[DecodeAction] = []
        for handover in list(self._handovers.values()):
            if handover.state is DecodeState.CLOSING or now < handover.state_until_s:
                continue
            if handover.state is DecodeState.QUEUED:
                actions += self.refused(handover.key, handover.peer, Reason.DEADLINE, "while queued", now)
                continue
            reason, detail = Reason.DEADLINE, f"in state {handover.state}"
            if now < handover.deadline_s:
                reason, detail = Reason.PEER_LOST, "the prefill worker did not link"
            actions += self._fail(handover, reason, detail, now, tell_peer=True)
        return actions

    # Inside ----------------------------------------------------------------------------------------------------------

    def _stand_in_line(self, handover: _Handover, now: float) -> list[DecodeAction]:
        """The peer is linked: fix units and stream, then wait for landing bytes behind those who came before."""
        try:
            unit = negotiated_unit(self._geometry.block_tokens, self._peers[handover.peer])
            layout = StreamLayout(self._geometry, unit, handover.cached_tokens, handover.total_tokens)
        except (ValueError, UnfitPairError) as error:
            return self._fail(handover, Reason.INTERNAL, str(error), now, tell_peer=True)
        if not self._landing.can_ever_fit(layout.stream_bytes):
            detail = f"{layout.stream_bytes} bytes, the landing region has {self._landing.total_bytes}"
            return self._fail(handover, Reason.TOO_LONG, detail, now, tell_peer=True)
        if self._config.verify is Verify.FULL and layout.checksum_bytes > MAX_CHECKSUM_BYTES:
            detail = f"{layout.pieces} pieces, a seal carries {MAX_CHECKSUM_BYTES // CHECKSUM_BYTES} checksums"
            return self._fail(handover, Reason.TOO_LONG, detail, now, tell_peer=True)
        handover.layout, handover.next_unit = layout, layout.first_unit
        self._line[handover.key] = None
        self._enter(handover, DecodeState.WAITING, handover.deadline_s)
        actions = self._grant_waiting(now)
        if handover.state is DecodeState.WAITING:
            actions += self._wait(handover.key, handover.peer, len(self._line) - 1)
        return actions

    def _grant_waiting(self, now: float) -> list[DecodeAction]:
        """Grant in order of arrival; the first that finds no room holds up the rest, so that nobody starves."""
        actions: list[DecodeAction] = []
        while self._line:
            handover = self._handovers[next(iter(self._line))]
            assert handover.layout is not None
            try:
                handover.spans = self._landing.grant(
                    self._next_transfer, handover.peer, handover.layout.stream_bytes, handover.layout.unit_bytes
                )
            except LandingFullError:
                break
            self._line.popitem(last=False)
            handover.transfer, self._next_transfer = self._next_transfer, self._next_transfer + 1
            self._transfers[handover.transfer] = handover.key
            handover.granted_s, handover.writes_may_follow = now, True
            self._enter(handover, DecodeState.GRANTED, handover.deadline_s)
            actions.append(Send(handover.peer, self._grant_message(handover, handover.layout)))
        return actions

    def _grant_message(self, handover: _Handover, layout: StreamLayout) -> Grant:
        assert handover.transfer is not None
        return Grant(
            request=handover.key.request,
            attempt=handover.key.attempt,
            transfer=handover.transfer,
            start_tokens=layout.start_tokens,
            end_tokens=layout.end_tokens,
            unit_tokens=layout.unit_tokens,
            spans=handover.spans,
        )

    def _advance(self, handover: _Handover, now: float) -> list[DecodeAction]:
        """Whatever follows from the state: scatter what stands, verify what is all scattered, finish what failed."""
        if handover.state is DecodeState.CLOSING:
            return [] if handover.scattering else self._finish(handover, now)
        if handover.state not in (DecodeState.GRANTED, DecodeState.SEALED) or handover.scattering:
            return []
        assert handover.layout is not None
        if handover.next_unit < handover.layout.end_unit:
            return self._scatter_next(handover, handover.layout)
        return self._verify(handover, now) if handover.state is DecodeState.SEALED else []

    def _scatter_next(self, handover: _Handover, layout: StreamLayout) -> list[DecodeAction]:
        assert handover.transfer is not None
        standing = layout.stream_bytes if handover.seal else self._landing.arrived_prefix(handover.transfer)
        first = handover.next_unit
        end = min(layout.first_unit + standing // layout.unit_bytes, layout.end_unit)
        end = min(end, first + max(1, self._config.max_put_bytes // layout.unit_bytes))
        if end <= first:
            return []
        landing = landing_extents(handover.spans, layout.stream_extents(first, end)[0])[0]
        end = first + landing.length // layout.unit_bytes
        handover.next_unit, handover.scattering = end, (first, end)
        return [Scatter(handover.key, handover.blocks, layout.unit_tokens, first, end, landing)]

    def _verify(self, handover: _Handover, now: float) -> list[DecodeAction]:
        assert handover.seal is not None
        assert handover.layout is not None
        assert handover.transfer is not None
        if self._config.verify is Verify.FULL:
            bad = _first_bad_piece(handover.layout, handover.seal.checksums, b"".join(handover.checksums))
            if bad is not None:
                return self._spoilt(handover, Reason.KV_CORRUPT, bad, now)
        self._landing.scattered(handover.transfer)
        self._landing.release(handover.transfer)
        self._forget(handover, "landed", Reason.UNKNOWN_REQUEST, now)
        return [
            Landed(handover.key, handover.seal.first_tokens, handover.granted_s),
            Send(handover.peer, Done(request=handover.key.request, attempt=handover.key.attempt)),
            *self._grant_waiting(now),
        ]

    def _fail(
        self, handover: _Handover, reason: Reason, detail: str, now: float, *, tell_peer: bool = False
    ) -> list[DecodeAction]:
        """Stop everything of this hand-over; `Failed` follows as soon as nothing writes into its blocks."""
        actions = self._reject(handover.peer, handover.key, reason, detail) if tell_peer else []
        self._line.pop(handover.key, None)
        if handover.transfer is not None:
            self._landing.stop_writes(handover.transfer)
        handover.failure = (reason, detail)
        self._enter(handover, DecodeState.CLOSING, now)
        if handover.scattering is None:
            actions += self._finish(handover, now)
        return actions

    def _finish(self, handover: _Handover, now: float) -> list[DecodeAction]:
        assert handover.failure is not None
        reason, detail = handover.failure
        if handover.transfer is not None:
            self._end_of_span(handover, handover.transfer)
        self._forget(handover, reason, reason, now)
        return [Failed(handover.key, reason, detail), *self._grant_waiting(now)]

    def _end_of_span(self, handover: _Handover, transfer: int) -> None:
        """Free the span, or keep it while a write may still arrive that nobody here can stop."""
        linked = handover.peer in self._peers
        if self._one_sided and handover.writes_may_follow:
            self._landing.quarantine(transfer)
            self._lingering[handover.key] = (handover.peer, transfer)
        elif handover.writes_may_follow and linked:
            self._landing.release(transfer, writes_may_follow=True)
            self._lingering[handover.key] = (handover.peer, transfer)
        else:
            self._landing.release(transfer)

    def _settle(self, key: HandoverKey) -> None:
        """Nothing of this ended hand-over is in flight any more."""
        _, transfer = self._lingering.pop(key)
        self._landing.release(transfer)
        self._landing.forget(transfer)

    def _settle_and_grant(self, peer: bytes, key: HandoverKey, now: float) -> list[DecodeAction]:
        if self._lingering.get(key, (b"", 0))[0] != peer:
            return []
        self._settle(key)
        return self._grant_waiting(now)

    def _forget(self, handover: _Handover, outcome: str, reason: Reason, now: float) -> None:
        del self._handovers[handover.key]
        if handover.transfer is not None:
            del self._transfers[handover.transfer]
        self._ended.put(handover.key, reason, now)
        self._ended_by_reason[outcome] += 1

    def _enter(self, handover: _Handover, state: DecodeState, until_s: float) -> None:
        handover.state = state
        handover.state_until_s = min(until_s, handover.deadline_s)

    def _wait(self, key: HandoverKey, peer: bytes, position: int) -> list[DecodeAction]:
        if peer not in self._peers:
            return []
        return [Send(peer, Wait(request=key.request, attempt=key.attempt, position=position))]

    def _reject(self, peer: bytes, key: HandoverKey, reason: Reason, detail: str) -> list[DecodeAction]:
        return [Send(peer, _reject(key, reason, detail))] if peer in self._peers else []

    def _of(self, peer: bytes, state: DecodeState) -> list[_Handover]:
        return [h for h in self._handovers.values() if h.peer == peer and h.state is state]

    def holder_of(self, extent: Extent) -> bytes | None:
        """The prefill worker whose write may land there; None when nobody's may."""
        return self._landing.holder_of(extent)

    def open_keys(self) -> list[HandoverKey]:
        return list(self._handovers)

    def stats(self) -> DecodeStats:
        by_state = dict.fromkeys(DecodeState, 0)
        for handover in self._handovers.values():
            by_state[handover.state] += 1
        return DecodeStats(
            by_state=by_state,
            landing=self._landing.stats(),
            lingering=len(self._lingering),
            ended=dict(self._ended_by_reason),
            refused=dict(self._refused),
        )


def _reject(key: HandoverKey, reason: Reason, detail: str) -> Reject:
    return Reject(request=key.request, attempt=key.attempt, reason=reason, detail=detail[:256])


def _first_bad_piece(layout: StreamLayout, sealed: bytes, landed: bytes) -> str | None:
    """Name the first piece whose checksums differ; None when all agree."""
    if sealed == landed:
        return None
    if len(sealed) != len(landed):
        return f"checksums of {len(landed) // CHECKSUM_BYTES} pieces, expected {layout.pieces}"
    size = CHECKSUM_BYTES
    index = next(
        i for i in range(layout.pieces) if sealed[i * size : (i + 1) * size] != landed[i * size : (i + 1) * size]
    )
    unit, layer, value, group = layout.piece_at(index)
    return f"checksum of unit {unit}, layer {layer}, {'KV'[value]}, head group {group} differs"
