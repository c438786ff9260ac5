"""The decode worker's side of every hand-over: a pure machine `(event, now) → actions`.

It decides who gets landing bytes and when, what of them is scattered into blocks, whether a sealed hand-over is
admitted, and when bytes of the landing region may be given to somebody else. Every `expected` ends in exactly one
`Landed` or `Failed`, after which nothing writes into the reservation's blocks. docs/protocol.md has the table of states
and faults.

Units are scattered as they arrive and compared with P's checksums at the Seal: the blocks are the reservation's own and
nobody reads them before `Landed`.
"""

from __future__ import annotations

from baton_kv_transfer.decode import answers
from baton_kv_transfer.decode.landing_line import LandingLine
from baton_kv_transfer.decode.ledger import DecodeLedger
from baton_kv_transfer.decode.lingering import Lingering, Owed
from baton_kv_transfer.decode.records import DecodeAction, DecodeHandover, DecodeState, DecodeStats, Failed, Landed
from baton_kv_transfer.decode.scattering import next_scatter
from baton_kv_transfer.decode.verification import first_bad_piece, seal_fault, stream_fault
from baton_kv_transfer.grant import LinkedPeer, grant_of, key_of, wanted_layout
from baton_kv_transfer.handover import HandoverKey, Send, TransferConfig, Verify
from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingWindow
from baton_kv_transfer.layout import ALL, Extent, Leg, negotiated_unit
from baton_wire.errors import BadMessageError, UnfitPairError
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import Abandon, Heartbeat, PairMessage, Seal, Standing
from baton_wire.messages.values import Reason


class DecodeHandovers:
    """All hand-overs of one decode worker, and its landing region.

    `one_sided`, unless a link says otherwise: the peer writes without this process taking part (UCX); arrival is known
    on its word only, and spans of a failed hand-over are quarantined until the writer says that nothing is in flight.
    """

    def __init__(
        self, geometry: KvGeometry, landing_bytes: int, config: TransferConfig, *, one_sided: bool = False
    ) -> None:
        self._geometry = geometry
        self._config = config
        self._one_sided = one_sided
        self._landing = LandingRegion(landing_bytes, quarantine_share=config.quarantine_share)
        self._ledger = DecodeLedger(config.early_s)
        self._line = LandingLine(self._landing)
        self._peers: dict[bytes, LinkedPeer] = {}
        self._lingering = Lingering(self._landing)
        self._sealed_bytes = 0

    @property
    def landing_bytes(self) -> int:
        return self._landing.total_bytes

    # The engine's events ---------------------------------------------------------------------------------------------

    def queued(self, key: HandoverKey, peer: bytes, position: int, deadline_s: float, now: float) -> list[DecodeAction]:
        """The engine has no blocks yet; `position` requests are before this one."""
        if self._ledger.is_under_way(key):
            self._ledger.refuse("duplicate_queued")
            return []
        self._ledger.add(DecodeHandover(key, peer, deadline_s, DecodeState.QUEUED, deadline_s))
        return self._tell(peer, answers.wait(key, position))

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
        if self._ledger.is_under_way(key):
            self._ledger.refuse("duplicate_expected")
            return []
        handover = DecodeHandover(key, peer, deadline_s, DecodeState.LINKING, 0.0, total_tokens, cached_tokens, blocks)
        handover.choices = frozenset(choices)
        self._ledger.add(handover)
        if self._ledger.has_ended(key):
            return self._fail(handover, Reason.BAD_REQUEST, "this attempt already ended here", now)
        abandoned = self._ledger.take_early(peer, key)
        if abandoned is not None:
            return self._fail(handover, abandoned.reason, abandoned.detail, now)
        if peer not in self._peers:
            self._enter(handover, DecodeState.LINKING, now + self._config.link_wait_s)
            return []
        return self._stand_in_line(handover, now)

    def refused(self, key: HandoverKey, peer: bytes, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """The engine will not reserve for this request: it was never expected, or only queued."""
        if self._ledger.is_under_way(key):
            return self.cancelled(key, reason, detail, now)
        self._ledger.never_began(key, reason, now)
        return self._tell(peer, answers.reject(key, reason, detail))

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        """The gateway or the engine gave the request up."""
        handover = self._ledger.get(key)
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
        handover = self._ledger.of_transfer(window.transfer)
        return [] if handover is None else self._advance(handover, now)

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
        handover = self._ledger.get(key)
        if handover is None or handover.scattering is None or handover.scattering[1] != first_unit:
            self._ledger.refuse("unknown_scatter")
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
        linking = self._ledger.of_peer(peer, DecodeState.LINKING)
        return [action for handover in linking for action in self._stand_in_line(handover, now)]

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        """The link broke. What was sealed no longer needs it; all else that was under way fails."""
        self._peers.pop(peer, None)
        self._ledger.link_down(peer)
        self._lingering.link_down(peer)
        actions: list[DecodeAction] = []
        for handover in self._ledger.of_peer(peer, DecodeState.CLOSING):
            handover.writes_may_follow &= handover.one_sided
        for state in (DecodeState.WAITING, DecodeState.GRANTED):
            for handover in self._ledger.of_peer(peer, state):
                handover.writes_may_follow &= handover.one_sided  # the next link may be up before its scatter ends
                actions += self._fail(handover, Reason.PEER_LOST, detail, now)
        return actions + self._grant_waiting(now)

    def peer_gone(self, peer: bytes, now: float) -> list[DecodeAction]:
        """Proof that the process `peer` is gone: nothing of it can still be written."""
        self._lingering.peer_gone(peer)
        return self._grant_waiting(now)

    def writes_ended(self, link: int, now: float) -> list[DecodeAction]:
        """Proof that nothing granted over this link, which is down, can still be written."""
        self._lingering.writes_ended(link)
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

    def _standing(self, peer: bytes, word: Standing, now: float) -> list[DecodeAction]:
        handover = self._ledger.get(key_of(word, self._peers.get(peer)))
        if handover is None or (handover.peer, handover.transfer) != (peer, word.transfer):
            self._ledger.refuse("standing")
            return []
        if handover.one_sided:
            handover.standing_groups = max(handover.standing_groups, word.groups)
        return self._advance(handover, now)

    def _seal(self, peer: bytes, seal: Seal, now: float) -> list[DecodeAction]:
        key = key_of(seal, self._peers.get(peer))
        handover = self._ledger.get(key)
        if handover is None or handover.peer != peer or handover.state is DecodeState.QUEUED:
            if handover is None and self._ledger.has_ended(key):
                self._ledger.refuse("late")
                self._lingering.settle(key, peer)
                return self._grant_waiting(now)
            self._ledger.refuse("unknown_seal" if handover is None else "foreign_epoch")
            return [Send(peer, answers.reject(key, Reason.UNKNOWN_REQUEST, "no such hand-over from this epoch"))]
        if handover.state is DecodeState.CLOSING and seal.transfer == handover.transfer:
            handover.writes_may_follow = False
        if handover.state is not DecodeState.GRANTED:
            self._ledger.refuse("late" if handover.state is not DecodeState.WAITING else "seal_before_grant")
            return []
        if seal.transfer != handover.transfer:
            self._ledger.refuse("wrong_transfer")
            return [Send(peer, answers.reject(key, Reason.BAD_REQUEST, "seal of another transfer"))]
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
        done = answers.spoilt(handover.key, reason, detail)
        return [Send(handover.peer, done), *self._fail(handover, reason, detail, now)]

    def _abandon(self, peer: bytes, abandon: Abandon, now: float) -> list[DecodeAction]:
        key = key_of(abandon, self._peers.get(peer))
        if self._lingering.settle(key, peer):
            return self._grant_waiting(now)
        handover = self._ledger.get(key)
        if handover is None or handover.state is DecodeState.QUEUED:
            self._ledger.abandoned_early(peer, key, abandon, now)
            return []
        if handover.peer != peer:
            self._ledger.refuse("foreign_epoch")
            return []
        if handover.state is DecodeState.SEALED:
            self._ledger.refuse("abandon_after_seal")
            return []
        handover.writes_may_follow = False
        if handover.state is DecodeState.CLOSING:
            return []
        return self._fail(handover, abandon.reason, abandon.detail, now)

    # Time ------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[DecodeAction]:
        """Act on deadlines. Call it a few times per second."""
        self._ledger.expire(now)
        actions: list[DecodeAction] = []
        for handover in self._ledger.all():
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
            peer = self._peers[handover.peer]
            handover.one_sided, handover.link = peer.one_sided, peer.link
            tokens = (handover.cached_tokens, handover.total_tokens)
            layout = wanted_layout(self._geometry, peer, *tokens, self._config)
        except (ValueError, UnfitPairError) as error:
            return self._fail(handover, Reason.INTERNAL, str(error), now, tell_peer=True)
        fault = stream_fault(layout, self._landing.total_bytes, self._config.verify)
        if fault is not None:
            return self._fail(handover, Reason.TOO_LONG, fault, now, tell_peer=True)
        handover.layout, handover.next_units = layout, [layout.first_unit] * layout.groups
        self._line.join(handover.key, handover.peer, layout.stream_bytes, layout.unit_bytes)
        self._enter(handover, DecodeState.WAITING, handover.deadline_s)
        actions = self._grant_waiting(now)
        if handover.state is DecodeState.WAITING:
            actions += self._tell(handover.peer, answers.wait(handover.key, self._line.position(handover.key)))
        return actions

    def _grant_waiting(self, now: float) -> list[DecodeAction]:
        actions: list[DecodeAction] = []
        for served in self._line.serve():
            handover = self._ledger.granted(served.transfer, served.key)
            assert handover.layout is not None
            handover.transfer, handover.spans = served.transfer, served.spans
            handover.granted_s, handover.writes_may_follow = now, True
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
        self._ledger.end(handover, "landed", Reason.UNKNOWN_REQUEST, now)
        return [
            Landed(handover.key, handover.seal.first_tokens, handover.granted_s),
            Send(handover.peer, answers.verified(handover.key)),
            *self._grant_waiting(now),
        ]

    def _fail(
        self, handover: DecodeHandover, reason: Reason, detail: str, now: float, *, tell_peer: bool = False
    ) -> list[DecodeAction]:
        """Stop everything of this hand-over; `Failed` follows as soon as nothing writes into its blocks."""
        actions = self._tell(handover.peer, answers.reject(handover.key, reason, detail)) if tell_peer else []
        self._line.leave(handover.key)
        if handover.transfer is not None:
            self._landing.stop_writes(handover.transfer)
        handover.failure = (reason, detail)
        self._enter(handover, DecodeState.CLOSING, now)
        return actions if handover.scattering else actions + self._finish(handover, now)

    def _finish(self, handover: DecodeHandover, now: float) -> list[DecodeAction]:
        assert handover.failure is not None
        reason, detail = handover.failure
        if handover.transfer is not None:
            self._lingering.end(
                handover.key,
                Owed(handover.peer, handover.transfer, handover.one_sided, handover.link),
                writes_may_follow=handover.writes_may_follow,
                linked=handover.peer in self._peers,
            )
        self._ledger.end(handover, reason, reason, now)
        return [Failed(handover.key, reason, detail), *self._grant_waiting(now)]

    def _enter(self, handover: DecodeHandover, state: DecodeState, until_s: float) -> None:
        handover.state = state
        handover.state_until_s = min(until_s, handover.deadline_s)

    def _tell(self, peer: bytes, message: PairMessage) -> list[DecodeAction]:
        return [Send(peer, message)] if peer in self._peers else []

    def holder_of(self, extent: Extent) -> bytes | None:
        """The prefill worker whose write may land there; None when nobody's may."""
        return self._landing.holder_of(extent)

    def open_keys(self) -> list[HandoverKey]:
        return [handover.key for handover in self._ledger.all()]

    def stats(self) -> DecodeStats:
        return DecodeStats(
            by_state=self._ledger.by_state(),
            landing=self._landing.stats(),
            sealed_bytes=self._sealed_bytes,
            lingering=len(self._lingering),
            ended=self._ledger.ended_by_reason(),
            refused=self._ledger.refused_by_cause(),
        )
