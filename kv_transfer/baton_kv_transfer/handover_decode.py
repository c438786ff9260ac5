"""The decode worker's side of every hand-over: a pure machine `(event, now) → actions`.

It decides who gets landing bytes and when, what of them is scattered into blocks, whether a sealed hand-over is
admitted, and when bytes of the landing region may be given to somebody else. Every `expected` ends in exactly one
`Landed` or `Failed`, after which nothing writes into the reservation's blocks. docs/protocol.md has the table of states
and faults.

Units are scattered as they arrive and compared with P's checksums at the Seal: the blocks are the reservation's own and
nobody reads them before `Landed`.
"""

from __future__ import annotations

from collections import Counter

from baton_kv_transfer.decode_records import (
    DecodeAction,
    DecodeHandover,
    DecodeState,
    DecodeStats,
    Failed,
    Landed,
    Scatter,
)
from baton_kv_transfer.errors import BadMessageError, UnfitPairError
from baton_kv_transfer.expiring import ExpiringMap
from baton_kv_transfer.grant import grant_of
from baton_kv_transfer.handover import HandoverKey, Send, TransferConfig, Verify
from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingWindow
from baton_kv_transfer.landing_line import LandingLine
from baton_kv_transfer.layout import (
    Extent,
    KvGeometry,
    StreamLayout,
    landing_extents,
    negotiated_unit,
)
from baton_kv_transfer.lingering import Lingering
from baton_kv_transfer.verification import first_bad_piece, seal_fault, stream_fault
from baton_kv_transfer.wire.pair_link import (
    Abandon,
    Done,
    Heartbeat,
    PairMessage,
    Reject,
    Seal,
    Wait,
)
from baton_kv_transfer.wire.values import Reason

EARLY_CAPACITY = 4_096
ENDED_CAPACITY = 16_384
ENDED_S = 120.0


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
        self._handovers: dict[HandoverKey, DecodeHandover] = {}
        self._line = LandingLine(self._landing)
        self._peers: dict[bytes, int] = {}
        self._lingering = Lingering(self._landing, one_sided=one_sided)
        self._early: ExpiringMap[tuple[bytes, HandoverKey], Abandon] = ExpiringMap(config.early_s, EARLY_CAPACITY)
        self._ended: ExpiringMap[HandoverKey, Reason] = ExpiringMap(ENDED_S, ENDED_CAPACITY)
        self._transfers: dict[int, HandoverKey] = {}
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
        self._handovers[key] = DecodeHandover(key, peer, deadline_s, DecodeState.QUEUED, deadline_s)
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
        handover = DecodeHandover(key, peer, deadline_s, DecodeState.LINKING, 0.0, total_tokens, cached_tokens, blocks)
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
        self._lingering.link_down(peer)
        actions: list[DecodeAction] = []
        for state in (DecodeState.WAITING, DecodeState.GRANTED):
            for handover in self._of(peer, state):
                actions += self._fail(handover, Reason.PEER_LOST, detail, now)
        return actions + self._grant_waiting(now)

    def peer_gone(self, peer: bytes, now: float) -> list[DecodeAction]:
        """Proof that the process `peer` is gone: nothing of it can still be written."""
        self._lingering.peer_gone(peer)
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
                self._lingering.settle(key, peer)
                return self._grant_waiting(now)
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

    def _sealed(self, handover: DecodeHandover, seal: Seal, now: float) -> list[DecodeAction]:
        assert handover.transfer is not None
        assert handover.layout is not None
        handover.writes_may_follow = False
        gap = None if self._one_sided else self._landing.first_gap(handover.transfer)
        fault = seal_fault(handover.layout, handover.choices, seal, gap, self._config.verify)
        if fault is not None:
            return self._spoilt(handover, *fault, now)
        handover.seal = seal
        self._landing.seal(handover.transfer)
        self._enter(handover, DecodeState.SEALED, handover.deadline_s)
        return self._advance(handover, now)

    def _spoilt(self, handover: DecodeHandover, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """A sealed hand-over that is not admitted."""
        done = Done(request=handover.key.request, attempt=handover.key.attempt, reason=reason, detail=detail[:256])
        return [Send(handover.peer, done), *self._fail(handover, reason, detail, now)]

    def _abandon(self, peer: bytes, abandon: Abandon, now: float) -> list[DecodeAction]:
        key = HandoverKey(abandon.request, abandon.attempt)
        if self._lingering.settle(key, peer):
            return self._grant_waiting(now)
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
        self, peer: bytes, key: HandoverKey, queued: DecodeHandover | None, abandon: Abandon, now: float
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

    def _stand_in_line(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        """The peer is linked: fix units and stream, then wait for landing bytes behind those who came before."""
        try:
            unit = negotiated_unit(self._geometry.block_tokens, self._peers[handover.peer])
            layout = StreamLayout(self._geometry, unit, handover.cached_tokens, handover.total_tokens)
        except (ValueError, UnfitPairError) as error:
            return self._fail(handover, Reason.INTERNAL, str(error), now, tell_peer=True)
        fault = stream_fault(layout, self._landing.total_bytes, self._config.verify)
        if fault is not None:
            return self._fail(handover, Reason.TOO_LONG, fault, now, tell_peer=True)
        handover.layout, handover.next_unit = layout, layout.first_unit
        self._line.join(handover.key, handover.peer, layout.stream_bytes, layout.unit_bytes)
        self._enter(handover, DecodeState.WAITING, handover.deadline_s)
        actions = self._grant_waiting(now)
        if handover.state is DecodeState.WAITING:
            actions += self._wait(handover.key, handover.peer, self._line.position(handover.key))
        return actions

    def _grant_waiting(self, now: float) -> list[DecodeAction]:
        actions: list[DecodeAction] = []
        for served in self._line.serve():
            handover = self._handovers[served.key]
            assert handover.layout is not None
            handover.transfer, handover.spans = served.transfer, served.spans
            handover.granted_s, handover.writes_may_follow = now, True
            self._transfers[served.transfer] = served.key
            self._enter(handover, DecodeState.GRANTED, handover.deadline_s)
            grant = grant_of(served.key, served.transfer, handover.layout, served.spans)
            actions.append(Send(handover.peer, grant))
        return actions

    def _advance(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        """Whatever follows from the state: scatter what stands, verify what is all scattered, finish what failed."""
        if handover.state is DecodeState.CLOSING:
            return [] if handover.scattering else self._finish(handover, now)
        if handover.state not in (DecodeState.GRANTED, DecodeState.SEALED) or handover.scattering:
            return []
        assert handover.layout is not None
        if handover.next_unit < handover.layout.end_unit:
            return self._scatter_next(handover, handover.layout)
        return self._verify(handover, now) if handover.state is DecodeState.SEALED else []

    def _scatter_next(self, handover: DecodeHandover, layout: StreamLayout) -> list[DecodeAction]:
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

    def _verify(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        assert handover.seal is not None
        assert handover.layout is not None
        assert handover.transfer is not None
        if self._config.verify is Verify.FULL:
            bad = first_bad_piece(handover.layout, handover.seal.checksums, b"".join(handover.checksums))
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
        self, handover: DecodeHandover, reason: Reason, detail: str, now: float, *, tell_peer: bool = False
    ) -> list[DecodeAction]:
        """Stop everything of this hand-over; `Failed` follows as soon as nothing writes into its blocks."""
        actions = self._reject(handover.peer, handover.key, reason, detail) if tell_peer else []
        self._line.leave(handover.key)
        if handover.transfer is not None:
            self._landing.stop_writes(handover.transfer)
        handover.failure = (reason, detail)
        self._enter(handover, DecodeState.CLOSING, now)
        if handover.scattering is None:
            actions += self._finish(handover, now)
        return actions

    def _finish(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        assert handover.failure is not None
        reason, detail = handover.failure
        if handover.transfer is not None:
            self._lingering.end(
                handover.key,
                handover.peer,
                handover.transfer,
                writes_may_follow=handover.writes_may_follow,
                linked=handover.peer in self._peers,
            )
        self._forget(handover, reason, reason, now)
        return [Failed(handover.key, reason, detail), *self._grant_waiting(now)]

    def _forget(self, handover: DecodeHandover, outcome: str, reason: Reason, now: float) -> None:
        del self._handovers[handover.key]
        if handover.transfer is not None:
            del self._transfers[handover.transfer]
        self._ended.put(handover.key, reason, now)
        self._ended_by_reason[outcome] += 1

    def _enter(self, handover: DecodeHandover, state: DecodeState, until_s: float) -> None:
        handover.state = state
        handover.state_until_s = min(until_s, handover.deadline_s)

    def _wait(self, key: HandoverKey, peer: bytes, position: int) -> list[DecodeAction]:
        if peer not in self._peers:
            return []
        return [Send(peer, Wait(request=key.request, attempt=key.attempt, position=position))]

    def _reject(self, peer: bytes, key: HandoverKey, reason: Reason, detail: str) -> list[DecodeAction]:
        return [Send(peer, _reject(key, reason, detail))] if peer in self._peers else []

    def _of(self, peer: bytes, state: DecodeState) -> list[DecodeHandover]:
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
