"""The decode worker's side of every hand-over: a pure machine `(event, now) → actions`.

It decides which hand-over gets landing bytes and when, what is scattered into blocks, whether a sealed hand-over is
admitted, and when bytes of the landing region may be granted again. Every `expected` ends in exactly one
`Landed` or `HandoverFailed`, after which nothing writes into the reservation's blocks. docs/protocol.md has the table
of states and faults.

Units are scattered as they arrive and compared with P's checksums at the Seal: the blocks belong to the reservation
and are not read before `Landed`.
"""

from __future__ import annotations

from collections import Counter

from baton_kv_transfer import messages
from baton_kv_transfer.decode.records import (
    DecodeAction,
    DecodeHandover,
    DecodeState,
    DecodeStats,
    HandoverFailed,
    Landed,
    Scatter,
)
from baton_kv_transfer.decode.spans import PendingProof, SpanQueue, SpanReclaim
from baton_kv_transfer.grant import LinkedPeer, wanted_layout
from baton_kv_transfer.handover import (
    ENDED_CAPACITY,
    ENDED_S,
    UNANNOUNCED_CAPACITY,
    HandoverKey,
    Reservation,
    SendTo,
    TransferConfig,
    Verify,
)
from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingWindow
from baton_kv_transfer.layout import (
    ALL,
    Extent,
    Leg,
    StreamLayout,
    group_blocks,
    joined,
    landing_extents,
    negotiated_unit,
)
from baton_kv_transfer.sealed_checksums import first_bad_piece, seal_fault, stream_fault
from baton_wire.errors import BadMessageError, UnfitPairError
from baton_wire.expiring import ExpiringMap
from baton_wire.kv_shape import KvGeometry, PoolPart, Units
from baton_wire.messages.pair_link import Abandon, Heartbeat, PairMessage, Seal, Standing
from baton_wire.messages.values import Reason


class DecodeHandovers:
    """All hand-overs of one decode worker, and its landing region.

    `one_sided`, unless a link says otherwise: the peer writes without this process taking part (UCX); arrival is known
    from its messages only, and spans of a failed hand-over are quarantined until the writer says that nothing is in
    flight.
    """

    def __init__(
        self,
        geometry: KvGeometry,
        landing_bytes: int,
        config: TransferConfig,
        *,
        one_sided: bool = False,
        landing_start: int = 0,
    ) -> None:
        """`landing_start`: where its landing region begins in the memory that it shares with other ranks'."""
        self._geometry = geometry
        self._config = config
        self._one_sided = one_sided
        self._landing = LandingRegion(landing_bytes, quarantine_share=config.quarantine_share, start=landing_start)
        self._handovers: dict[HandoverKey, DecodeHandover] = {}
        self._transfers: dict[int, HandoverKey] = {}
        self._unannounced_abandons: ExpiringMap[tuple[bytes, HandoverKey], Abandon] = ExpiringMap(
            config.unannounced_s, UNANNOUNCED_CAPACITY
        )
        """Abandons of requests that are not reserved yet."""
        self._ended: ExpiringMap[HandoverKey, Reason] = ExpiringMap(ENDED_S, ENDED_CAPACITY)
        self._ended_by_reason: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._queue = SpanQueue(self._landing)
        self._peers: dict[bytes, LinkedPeer] = {}
        self._reclaim = SpanReclaim(self._landing)
        self._sealed_bytes = 0

    @property
    def landing_bytes(self) -> int:
        return self._landing.total_bytes

    # The engine's events ---------------------------------------------------------------------------------------------

    def queued(self, key: HandoverKey, peer: bytes, position: int, deadline_s: float, now: float) -> list[DecodeAction]:
        """The engine has no blocks yet; `position` requests are before this one."""
        if self._is_under_way(key):
            self._refused["duplicate_queued"] += 1
            return []
        self._handovers[key] = DecodeHandover(key, peer, deadline_s, DecodeState.QUEUED, deadline_s)
        return self._tell(peer, messages.wait(key, position))

    def expected(self, key: HandoverKey, peer: bytes, reservation: Reservation, now: float) -> list[DecodeAction]:
        """Blocks are reserved and wait for the KV of the tokens that are not cached from the prefill worker `peer`."""
        if self._is_under_way(key):
            self._refused["duplicate_expected"] += 1
            return []
        handover = DecodeHandover(key, peer, reservation.deadline_s, DecodeState.LINKING, 0.0)
        handover.total_tokens, handover.cached_tokens = reservation.total_tokens, reservation.cached_tokens
        handover.blocks, handover.choices = reservation.blocks, frozenset(reservation.choices)
        self._handovers[key] = handover
        if key in self._ended:
            return self._fail(handover, Reason.BAD_REQUEST, "this attempt already ended here", now)
        abandoned = self._unannounced_abandons.pop((peer, key))
        if abandoned is not None:
            return self._fail(handover, abandoned.reason, abandoned.detail, now)
        if peer not in self._peers:
            self._enter(handover, DecodeState.LINKING, now + self._config.link_wait_s)
            return []
        return self._stand_in_line(handover, now)

    def refused(self, key: HandoverKey, peer: bytes, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """The engine will not reserve for this request: it was never expected, or only queued."""
        if self._is_under_way(key):
            return self.cancelled(key, reason, detail, now)
        self._handovers.pop(key, None)
        self._ended.put(key, reason, now)  # the worker gets no report, so no ending is counted
        return self._tell(peer, messages.reject(key, reason, detail))

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
        """Permission for `peer` to write here now; asked by transports whose receiver writes itself."""
        return self._landing.claim(peer, transfer, offset, length)

    def holder_of_transfer(self, transfer: int) -> bytes | None:
        """The prefill worker that this transfer is, or was, granted to; None when it is not known."""
        return self._landing.holder_of_transfer(transfer)

    def arrived(self, window: LandingWindow, now: float) -> list[DecodeAction]:
        """A claimed window's bytes are all written."""
        self._landing.arrived(window)
        key = self._transfers.get(window.transfer)
        return [] if key is None else self._advance(self._handovers[key], now)

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        """The running scatter of `key` is done; `checksums` of the pieces it read, in stream order."""
        handover = self._scattering(key, first_unit)
        if handover is None or handover.scattering is None:
            return []
        handover.checksums[handover.scattering], handover.scattering = checksums, None
        return self._advance(handover, now)

    def scatter_failed(self, key: HandoverKey, first_unit: int, detail: str, now: float) -> list[DecodeAction]:
        handover = self._scattering(key, first_unit)
        if handover is None:
            return []
        handover.scattering = None
        if handover.state is DecodeState.CLOSING:
            return self._finish(handover, now)
        return self._fail(handover, Reason.INTERNAL, f"scatter: {detail}", now, tell_peer=True)

    def _scattering(self, key: HandoverKey, first_unit: int) -> DecodeHandover | None:
        """The hand-over whose running scatter this is; None, and counted, when there is no such scatter."""
        handover = self._handovers.get(key)
        if handover is None or handover.scattering is None or handover.scattering[1] != first_unit:
            self._refused["unknown_scatter"] += 1
            return None
        return handover

    # Links -----------------------------------------------------------------------------------------------------------

    def link_up(
        self,
        peer: bytes,
        block_tokens: int,
        now: float,
        *,
        one_sided: bool | None = None,
        link: int = 0,
        leg: Leg = ALL,
    ) -> list[DecodeAction]:
        """A prefill worker is linked, `writes_ended` will name it by `link`. Raises UnfitPairError: block sizes."""
        negotiated_unit(self._geometry.block_tokens, block_tokens)
        self._peers[peer] = LinkedPeer(block_tokens, self._one_sided if one_sided is None else one_sided, link, leg)
        linking = self._of(peer, DecodeState.LINKING)
        return [action for handover in linking for action in self._stand_in_line(handover, now)]

    def withdraw(self, peer: bytes) -> list[tuple[HandoverKey, Reservation]]:
        """Forget the hand-overs that wait for a link to this prefill worker, and return them."""
        withdrawn = self._of(peer, DecodeState.LINKING)
        for handover in withdrawn:
            del self._handovers[handover.key]
        return [(handover.key, handover.reservation) for handover in withdrawn]

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        """The link broke. What was sealed no longer needs it; all else that was under way fails."""
        self._peers.pop(peer, None)
        for entry in [entry for entry, _ in self._unannounced_abandons.items() if entry[0] == peer]:
            self._unannounced_abandons.pop(entry)
        self._reclaim.link_down(peer)
        actions: list[DecodeAction] = []
        for handover in self._of(peer, DecodeState.CLOSING):
            handover.writes_may_follow &= handover.one_sided
        for state in (DecodeState.WAITING, DecodeState.GRANTED):
            for handover in self._of(peer, state):
                handover.writes_may_follow &= handover.one_sided  # the next link may be up before its scatter ends
                actions += self._fail(handover, Reason.PEER_LOST, detail, now)
        return actions + self._grant_waiting(now)

    def writes_ended(self, link: int, now: float) -> list[DecodeAction]:
        """Proof that nothing granted over this link, which is down, can still be written."""
        self._reclaim.writes_ended(link)
        return self._grant_waiting(now)

    # The peer's messages ---------------------------------------------------------------------------------------------

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[DecodeAction]:
        """A message of the prefill worker `peer`. Raises BadMessageError when its kind is not for it to send."""
        match message:
            case Heartbeat():
                return []
            case Standing():
                return self._standing(peer, message, now)
            case Seal():
                return self._seal(peer, message, now)
            case Abandon():
                return self._abandon(peer, message, now)
            case _:
                raise BadMessageError(f"{type(message).__name__}: not a prefill worker's message")

    def spoilt(self, peer: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[DecodeAction]:
        """A message of this hand-over, to or from that prefill worker, does not fit its type: the hand-over is over,
        unless it is sealed already."""
        self._refused["spoilt"] += 1
        facts = self._peers.get(peer)
        key = HandoverKey(request, attempt, 0 if facts is None else facts.leg.rank)
        handover = self._handovers.get(key)
        if handover is None or handover.peer != peer or handover.state is DecodeState.SEALED:
            return []
        return self.cancelled(key, Reason.INTERNAL, detail, now)

    def _standing(self, peer: bytes, message: Standing, now: float) -> list[DecodeAction]:
        handover = self._handovers.get(messages.key_of(message, self._peers.get(peer)))
        if handover is None or (handover.peer, handover.transfer) != (peer, message.transfer):
            self._refused["standing"] += 1
            return []
        if handover.one_sided:
            handover.standing_groups = max(handover.standing_groups, message.groups)
        return self._advance(handover, now)

    def _seal(self, peer: bytes, seal: Seal, now: float) -> list[DecodeAction]:
        key = messages.key_of(seal, self._peers.get(peer))
        handover = self._handovers.get(key)
        if handover is None or handover.peer != peer or handover.state is DecodeState.QUEUED:
            if handover is None and key in self._ended:
                self._refused["late"] += 1
                self._reclaim.confirm(key, peer)
                return self._grant_waiting(now)
            self._refused["unknown_seal" if handover is None else "foreign_epoch"] += 1
            return [SendTo(peer, messages.reject(key, Reason.UNKNOWN_REQUEST, "no such hand-over from this epoch"))]
        if handover.state is DecodeState.CLOSING and seal.transfer == handover.transfer:
            handover.writes_may_follow = False
        if handover.state is not DecodeState.GRANTED:
            self._refused["late" if handover.state is not DecodeState.WAITING else "seal_before_grant"] += 1
            return []
        if seal.transfer != handover.transfer:
            self._refused["wrong_transfer"] += 1
            return [SendTo(peer, messages.reject(key, Reason.BAD_REQUEST, "seal of another transfer"))]
        return self._sealed(handover, seal, now)

    def _sealed(self, handover: DecodeHandover, seal: Seal, now: float) -> list[DecodeAction]:
        assert handover.transfer is not None
        assert handover.layout is not None
        handover.writes_may_follow = False
        gap = None if handover.one_sided else self._landing.first_gap(handover.transfer)
        fault = seal_fault(handover.layout, handover.choices, seal, gap, self._config.verify)
        if fault is not None:
            return self._spoilt(handover, *fault, now)
        handover.seal = seal
        self._sealed_bytes += handover.layout.stream_bytes if handover.one_sided else 0
        self._landing.seal(handover.transfer)
        self._enter(handover, DecodeState.SEALED, handover.deadline_s)
        return self._advance(handover, now)

    def _spoilt(self, handover: DecodeHandover, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """A sealed hand-over that is not admitted."""
        done = messages.spoilt(handover.key, reason, detail)
        return [SendTo(handover.peer, done), *self._fail(handover, reason, detail, now)]

    def _abandon(self, peer: bytes, abandon: Abandon, now: float) -> list[DecodeAction]:
        key = messages.key_of(abandon, self._peers.get(peer))
        if self._reclaim.confirm(key, peer):
            return self._grant_waiting(now)
        handover = self._handovers.get(key)
        if handover is None or handover.state is DecodeState.QUEUED:
            if key in self._ended or (handover is not None and handover.peer != peer):
                self._refused["late" if handover is None else "foreign_epoch"] += 1
            else:
                self._unannounced_abandons.put((peer, key), abandon, now)
            return []
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

    # Time ------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[DecodeAction]:
        """Act on deadlines. Call it a few times per second."""
        self._ended.expire(now)
        self._unannounced_abandons.expire(now)
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
        """The peer is linked: fix units and stream, then wait for landing bytes in order of arrival."""
        try:
            peer = self._peers[handover.peer]
            handover.one_sided, handover.link = peer.one_sided, peer.link
            tokens = (handover.cached_tokens, handover.total_tokens)
            layout = wanted_layout(self._geometry, peer, *tokens, self._config)
        except (ValueError, UnfitPairError) as error:
            return self._fail(handover, Reason.INTERNAL, str(error), now, tell_peer=True)
        fault = stream_fault(layout, self._landing.total_bytes, self._config.verify)
        if fault is not None:
            return self._fail(handover, Reason.TOO_LONG, fault, now, tell_peer=True)
        handover.layout = layout
        handover.next_units = [layout.group_first_unit(group) for group in range(layout.groups)]
        self._queue.join(handover.key, handover.peer, layout.stream_bytes, layout.grain_bytes)
        self._enter(handover, DecodeState.WAITING, handover.deadline_s)
        actions = self._grant_waiting(now)
        if handover.state is DecodeState.WAITING:
            actions += self._tell(handover.peer, messages.wait(handover.key, self._queue.position(handover.key)))
        return actions

    def _grant_waiting(self, now: float) -> list[DecodeAction]:
        actions: list[DecodeAction] = []
        for served in self._queue.serve():
            handover = self._handovers[served.key]
            self._transfers[served.transfer] = served.key
            assert handover.layout is not None
            handover.transfer, handover.spans = served.transfer, served.spans
            handover.granted_s, handover.writes_may_follow = now, True
            self._enter(handover, DecodeState.GRANTED, handover.deadline_s)
            grant = messages.grant(served.key, served.transfer, handover.layout, served.spans)
            actions.append(SendTo(handover.peer, grant))
        return actions

    def _advance(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        """Take the steps that the state allows: scatter arrived units, verify a whole hand-over, finish a failed
        one."""
        if handover.state is DecodeState.CLOSING:
            return [] if handover.scattering else self._finish(handover, now)
        if handover.state not in (DecodeState.GRANTED, DecodeState.SEALED) or handover.scattering:
            return []
        assert handover.layout is not None
        if any(unit < handover.layout.end_unit for unit in handover.next_units):
            scatter = next_scatter(handover, handover.layout, self._landing, self._config.max_put_bytes)
            return [] if scatter is None else [scatter]
        return self._verify(handover, now) if handover.state is DecodeState.SEALED else []

    def _verify(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        assert handover.seal is not None
        assert handover.layout is not None
        assert handover.transfer is not None
        if self._config.verify is Verify.FULL:
            landed = (handover.checksums[place] for place in sorted(handover.checksums))
            bad = first_bad_piece(handover.layout, handover.seal.checksums, b"".join(landed))
            if bad is not None:
                return self._spoilt(handover, Reason.KV_CORRUPT, bad, now)
        self._landing.scattered(handover.transfer)
        self._landing.release(handover.transfer)
        self._end(handover, "landed", Reason.UNKNOWN_REQUEST, now)
        return [
            Landed(handover.key, handover.seal.first_tokens, handover.granted_s),
            SendTo(handover.peer, messages.verified(handover.key)),
            *self._grant_waiting(now),
        ]

    def _fail(
        self, handover: DecodeHandover, reason: Reason, detail: str, now: float, *, tell_peer: bool = False
    ) -> list[DecodeAction]:
        """Stop everything of this hand-over; `HandoverFailed` follows as soon as nothing writes into its blocks."""
        actions = self._tell(handover.peer, messages.reject(handover.key, reason, detail)) if tell_peer else []
        self._queue.leave(handover.key)
        if handover.transfer is not None:
            self._landing.stop_writes(handover.transfer)
        handover.failure = (reason, detail)
        self._enter(handover, DecodeState.CLOSING, now)
        return actions if handover.scattering else actions + self._finish(handover, now)

    def _finish(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        assert handover.failure is not None
        reason, detail = handover.failure
        if handover.transfer is not None:
            self._reclaim.end(
                handover.key,
                PendingProof(handover.peer, handover.transfer, handover.one_sided, handover.link),
                writes_may_follow=handover.writes_may_follow,
                linked=handover.peer in self._peers,
            )
        self._end(handover, reason, reason, now)
        return [HandoverFailed(handover.key, reason, detail), *self._grant_waiting(now)]

    def _end(self, handover: DecodeHandover, outcome: str, reason: Reason, now: float) -> None:
        """Forget the hand-over; its caller reports the end to the worker."""
        del self._handovers[handover.key]
        if handover.transfer is not None:
            del self._transfers[handover.transfer]
        self._ended.put(handover.key, reason, now)
        self._ended_by_reason[outcome] += 1

    def _is_under_way(self, key: HandoverKey) -> bool:
        """Open, and past waiting for blocks."""
        known = self._handovers.get(key)
        return known is not None and known.state is not DecodeState.QUEUED

    def _of(self, peer: bytes, state: DecodeState) -> list[DecodeHandover]:
        return [h for h in self._handovers.values() if h.peer == peer and h.state is state]

    def _enter(self, handover: DecodeHandover, state: DecodeState, until_s: float) -> None:
        handover.state = state
        handover.state_until_s = min(until_s, handover.deadline_s)

    def _tell(self, peer: bytes, message: PairMessage) -> list[DecodeAction]:
        return [SendTo(peer, message)] if peer in self._peers else []

    def holder_of(self, extent: Extent) -> bytes | None:
        """The prefill worker whose write may land there; None when no write may."""
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
            sealed_bytes=self._sealed_bytes,
            lingering=len(self._reclaim),
            ended=dict(self._ended_by_reason),
            refused=dict(self._refused),
        )


def next_scatter(
    handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int
) -> Scatter | None:
    """The next units of some layer group that are complete in one stretch of landing bytes; None while there are none.

    They then count as begun. A sealed hand-over's bytes are all complete. At most `max_bytes` at once, but always a
    unit.
    """
    choice = _whole_groups(handover, layout, max_bytes) or _units_of_a_group(handover, layout, landing, max_bytes)
    if choice is None:
        return None
    first_group, scatter = choice
    for group in range(first_group, first_group + scatter.units.groups):
        handover.next_units[group] = scatter.units.end
    handover.scattering = (first_group, scatter.units.first)
    return scatter


def _units_of_a_group(
    handover: DecodeHandover, layout: StreamLayout, landing: LandingRegion, max_bytes: int
) -> tuple[int, Scatter] | None:
    assert handover.transfer is not None
    most = max(1, max_bytes // layout.group_unit_bytes)
    for group, first in enumerate(handover.next_units):
        end = layout.end_unit
        if first == end:
            continue
        if handover.seal is None and group >= handover.standing_groups:
            start = layout.extent(group, first, end).offset
            arrived = landing.arrived_to(handover.transfer, start) - start
            end = min(first + arrived // layout.group_unit_bytes, end)
        end = min(end, first + most)
        if end > first:
            extent = landing_extents(handover.spans, layout.extent(group, first, end))[0]
            end = first + extent.length // layout.group_unit_bytes
            blocks = group_blocks(handover.blocks, layout, group)
            units = Units(blocks, layout.unit_tokens, first, end, layout.part(group))
            return group, Scatter(handover.key, units, extent, handover.one_sided, layout.kv_group(group))
    return None


def _whole_groups(handover: DecodeHandover, layout: StreamLayout, max_bytes: int) -> tuple[int, Scatter] | None:
    """All complete layer groups that were not begun, at once, for a peer whose writes are not seen to arrive one by
    one.

    A scatter is a call to another thread and a wait for a device, however little it moves. Groups of several tables
    cannot be in one.
    """
    if len(layout.geometry.windows) > 1:
        return None
    begin = next(group for group, unit in enumerate(handover.next_units) if unit < layout.end_unit)
    end = min(handover.standing_groups, layout.groups) if handover.seal is None else layout.groups
    group_bytes, first_unit = layout.bytes_before(1), layout.group_first_unit(0)
    is_untouched = all(unit == first_unit for unit in handover.next_units[begin:end])
    if not handover.one_sided or begin >= end or not is_untouched or (end - begin) * group_bytes > max_bytes:
        return None
    stream = Extent(begin * group_bytes, (end - begin) * group_bytes)
    extents = joined(landing_extents(handover.spans, stream))
    if len(extents) != 1:
        return None
    first, last = layout.part(begin), layout.part(end - 1)
    part = PoolPart(first.first_layer, last.end_layer, first.first_head, first.end_head)
    units = Units(handover.blocks, layout.unit_tokens, first_unit, layout.end_unit, part, end - begin)
    return begin, Scatter(handover.key, units, extents[0], True)
