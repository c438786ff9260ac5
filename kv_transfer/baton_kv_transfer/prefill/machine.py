"""The prefill worker's side of every hand-over: a pure machine `(event, now) → actions`.

It decides when units are put, when the hand-over is sealed or abandoned, and when nothing reads the request's blocks
any more (`Release`, exactly once for every `opened`). It knows peers by their epoch, touches no socket and no memory.
docs/protocol.md has the table of states and faults.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from baton_kv_transfer import messages
from baton_kv_transfer.grant import DecodePeer, FormerGrants, granted_layout
from baton_kv_transfer.handover import (
    ENDED_CAPACITY,
    ENDED_S,
    UNANNOUNCED_CAPACITY,
    CutLink,
    HandoverKey,
    SendTo,
    TransferConfig,
    Verify,
)
from baton_kv_transfer.layout import StreamLayout, group_blocks, landing_extents
from baton_kv_transfer.prefill.records import (
    DropPuts,
    Granted,
    GroupUnits,
    HandoverOutcome,
    PrefillAction,
    PrefillHandover,
    PrefillState,
    PrefillStats,
    PromptProgress,
    Put,
    Release,
    Report,
    UnannouncedProgress,
)
from baton_kv_transfer.prefill.suspicion import IN_A_ROW, SilentHandovers, is_silent
from baton_kv_transfer.sealed_checksums import sealed_checksums
from baton_wire.errors import BadMessageError, UnfitPairError
from baton_wire.expiring import ExpiringMap
from baton_wire.kv_shape import KvGeometry, Units
from baton_wire.messages.pair_link import Done, FirstToken, Grant, Heartbeat, PairMessage, Reject, Seal, Standing, Wait
from baton_wire.messages.values import Reason

_UNREPORTED = (Reason.CANCELLED, Reason.FINISHED)


class PrefillHandovers:
    """All hand-overs of one prefill worker.

    >>> from baton_wire.messages.pair_link import Span
    >>> geometry = KvGeometry(layers=1, kv_heads=1, head_dim=4, element_bytes=4, block_tokens=4)
    >>> machine = PrefillHandovers(geometry, TransferConfig())
    >>> key, decode = HandoverKey(b"r" * 16, 1), b"d" * 16
    >>> machine.link_up(decode, DecodePeer(block_tokens=4, landing_bytes=4096), now=0.0)
    []
    >>> machine.opened(key, decode, total_tokens=4, deadline_s=30.0, now=0.0)
    []
    >>> grant = messages.grant(key, 1, StreamLayout(geometry, 4, 0, 4), (Span(offset=0, length=128),))
    >>> machine.message(decode, grant, now=0.1) == [Granted(key)]
    True
    >>> (put,) = machine.computed(key, 4, blocks=(7,), now=0.2)
    >>> put.length, put.landing
    (128, (Extent(offset=0, length=128),))
    >>> machine.first_tokens(key, (FirstToken(choice=0, token=42),), now=0.2)
    []
    >>> (sent,) = machine.put_done(key, put.put, checksums=bytes(16), now=0.3)
    >>> type(sent.message).__name__
    'Seal'
    >>> machine.message(decode, messages.verified(key), now=0.4) == [Release(key)]
    True
    """

    def __init__(self, geometry: KvGeometry, config: TransferConfig) -> None:
        self._geometry = geometry
        self._config = config
        self._handovers: dict[HandoverKey, PrefillHandover] = {}
        self._peers: dict[bytes, DecodePeer] = {}
        self._unannounced_messages: ExpiringMap[tuple[bytes, HandoverKey], Grant | Wait | Reject] = ExpiringMap(
            config.unannounced_s, UNANNOUNCED_CAPACITY
        )
        self._unannounced_progress = UnannouncedProgress(config.unannounced_s, UNANNOUNCED_CAPACITY)
        self._ended: ExpiringMap[HandoverKey, Reason | None] = ExpiringMap(ENDED_S, ENDED_CAPACITY)
        self._former = FormerGrants()
        self._silent = SilentHandovers()
        self._next_put = 1
        self._overlapped_bytes = 0
        self._ended_by_reason: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    # The engine's events ---------------------------------------------------------------------------------------------

    def opened(
        self, key: HandoverKey, peer: bytes, total_tokens: int, deadline_s: float, now: float
    ) -> list[PrefillAction]:
        """The gateway asked for a prefill whose KV goes to the decode worker with epoch `peer`."""
        if key in self._handovers:
            self._refused["duplicate_opened"] += 1
            return []
        handover = PrefillHandover(key, peer, total_tokens, deadline_s, opened_s=now, moved_s=now)
        self._handovers[key] = handover
        if key in self._ended:
            outcome = HandoverOutcome(Reason.BAD_REQUEST, "this attempt already ended here", report=True)
            return self._close(handover, outcome, now)
        message = self._unannounced_messages.pop((peer, key))
        if isinstance(message, Reject):
            self._unannounced_progress.take(key)
            return self._close(handover, self._rejected_outcome(message, handover), now)
        if peer not in self._peers:
            self._enter(handover, PrefillState.LINKING, now + self._config.link_wait_s)
            return self._catch_up(key, now)
        self._enter(handover, PrefillState.UNGRANTED, deadline_s)
        handover.is_answered = message is not None
        actions = self._granted(handover, message, now) if isinstance(message, Grant) else []
        return actions + self._catch_up(key, now)

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> list[PrefillAction]:
        """KV of [0, tokens) is in `blocks`, the sequence's block table so far."""
        handover = self._handovers.get(key)
        if handover is None:
            if key not in self._ended:
                self._unannounced_progress.computed(key, tokens, blocks, now)
            return []
        if tokens < handover.computed_tokens:
            return []
        handover.computed_tokens, handover.blocks = tokens, blocks
        return self._advance(handover, now)

    def computing(
        self, key: HandoverKey, tokens: int, layers: int, blocks: tuple[int, ...], now: float
    ) -> list[PrefillAction]:
        """KV of [0, tokens) is complete in the first `layers` layers, while the others are still computed."""
        handover = self._handovers.get(key)
        if handover is None or handover.state is PrefillState.CLOSING or tokens <= handover.computed_tokens:
            return []
        if (tokens, layers) <= (handover.partial_tokens, handover.partial_layers):
            return []
        handover.partial_tokens, handover.partial_layers, handover.blocks = tokens, layers, blocks
        return self._advance(handover, now)

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> list[PrefillAction]:
        """Every choice has its first token. If all ended with it, there is nothing to hand over."""
        handover = self._handovers.get(key)
        if handover is None:
            if key not in self._ended:
                self._unannounced_progress.first_tokens(key, tokens, now)
            return []
        if handover.first_tokens is not None:
            return []
        handover.first_tokens = tokens
        if handover.state is PrefillState.CLOSING:
            return []  # the KV may go on to another decode worker, with these
        self._overlapped_bytes += handover.sent_bytes
        if all(token.finish is not None for token in tokens):
            return self._close(handover, HandoverOutcome(Reason.FINISHED, tell_peer=True), now)
        if handover.state is PrefillState.UNGRANTED and not handover.is_answered:
            self._enter(handover, PrefillState.UNGRANTED, now + self._config.pin_s)
        return self._advance(handover, now)

    def _catch_up(self, key: HandoverKey, now: float) -> list[PrefillAction]:
        progress = self._unannounced_progress.take(key)
        if progress.over is not None:
            return self.cancelled(key, progress.over.reason or Reason.CANCELLED, progress.over.detail, now)
        actions = [] if progress.computed is None else self.computed(key, *progress.computed, now)
        if progress.first_tokens is not None:
            actions += self.first_tokens(key, progress.first_tokens, now)
        return actions

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        """The gateway or the engine gave the request up."""
        handover = self._handovers.get(key)
        if handover is None:
            if key not in self._ended:
                self._unannounced_progress.over(key, HandoverOutcome(reason, detail, tell_peer=True), now)
            return []
        if handover.state is PrefillState.CLOSING:
            return []
        tell_peer = handover.state is not PrefillState.SEALED
        suspected = self._suspected(handover, now)
        return [*self._close(handover, HandoverOutcome(reason, detail, tell_peer=tell_peer), now), *suspected]

    def put_done(self, key: HandoverKey, put: int, checksums: bytes, now: float) -> list[PrefillAction]:
        """The put's bytes have reached the decode worker; `checksums` of its pieces in stream order (empty with
        stamps)."""
        handover = self._handovers.get(key)
        units = None if handover is None else handover.in_flight.pop(put, None)
        if handover is None or units is None or handover.layout is None:
            self._refused["unknown_put"] += 1
            return []
        handover.moved_s = now
        handover.checksums[units.group, units.first] = checksums
        handover.sent_bytes += (units.end - units.first) * handover.layout.group_unit_bytes
        return self._advance(handover, now)

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        """The put ended without success and will not write any more."""
        handover = self._handovers.get(key)
        if handover is None or handover.in_flight.pop(put, None) is None:
            self._refused["unknown_put"] += 1
            return []
        if handover.state is not PrefillState.CLOSING:
            return self._close(handover, HandoverOutcome(reason, detail, report=True, tell_peer=True), now)
        return self._advance(handover, now)

    # Links -----------------------------------------------------------------------------------------------------------

    def link_up(self, peer: bytes, facts: DecodePeer, now: float) -> list[PrefillAction]:
        self._peers[peer] = facts
        actions: list[PrefillAction] = []
        for handover in self._of(peer, PrefillState.LINKING):
            waits, handover.moved_s = handover.is_computed and not handover.is_answered, now
            self._enter(handover, PrefillState.UNGRANTED, now + self._config.pin_s if waits else handover.deadline_s)
        return actions

    def withdraw(self, peer: bytes) -> list[PrefillHandover]:
        """Forget the hand-overs that wait for a link to this decode worker, and return them."""
        withdrawn = self._of(peer, PrefillState.LINKING)
        for handover in withdrawn:
            del self._handovers[handover.key]
        return withdrawn

    def never_began(self, key: HandoverKey, reason: Reason, now: float) -> None:
        """A hand-over that would have had legs here is over: grants for them are answered with the reason."""
        self._ended.put(key, reason, now)

    def take_progress(self, key: HandoverKey) -> PromptProgress:
        """Forget, and return, what the engine reported of a request that is not open here."""
        return self._unannounced_progress.take(key)

    def link_down(self, peer: bytes, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        """The link broke or could not be made. Sealed hand-overs are up to the decode worker; all others fail."""
        self._peers.pop(peer, None)
        self._silent.answered(peer)
        self._former.link_down(peer)
        for entry in [entry for entry, _ in self._unannounced_messages.items() if entry[0] == peer]:
            self._unannounced_messages.pop(entry)
        actions: list[PrefillAction] = []
        for handover in self._of(peer):
            if handover.state is PrefillState.CLOSING:
                assert handover.outcome is not None
                handover.outcome = replace(handover.outcome, tell_peer=False)
                continue
            sealed = handover.state is PrefillState.SEALED
            actions += self._close(handover, HandoverOutcome(reason, detail, report=not sealed), now)
        return actions

    # The peer's messages ---------------------------------------------------------------------------------------------

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[PrefillAction]:
        """A message of the decode worker `peer`. Raises BadMessageError when its kind is not for it to send."""
        match message:
            case Heartbeat():
                return []
            case Grant() | Wait() | Reject() | Done():
                key = messages.key_of(message, self._peers.get(peer))
                handover = self._handovers.get(key)
                if isinstance(message, Grant) and self._former.has(peer, message.transfer):
                    self._refused["former_link"] += 1
                    return []
                if handover is None or handover.peer != peer:
                    return self._unknown(peer, key, message, now)
                return self._known(handover, message, now)
            case _:
                raise BadMessageError(f"{type(message).__name__}: not a decode worker's message")

    def spoilt(self, peer: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[PrefillAction]:
        """A message of this hand-over, to or from that decode worker, does not fit its type: the hand-over is over."""
        self._refused["spoilt"] += 1
        facts = self._peers.get(peer)
        key = HandoverKey(request, attempt, 0 if facts is None else facts.leg.rank)
        handover = self._handovers.get(key)
        if handover is None:
            return [] if key in self._ended else [self._abandon(peer, key, Reason.INTERNAL, detail)]
        if handover.peer != peer or handover.state is PrefillState.CLOSING:
            return []
        is_sealed = handover.state is PrefillState.SEALED
        outcome = HandoverOutcome(Reason.INTERNAL, detail, report=not is_sealed, tell_peer=True)
        return self._close(handover, outcome, now)

    def _unknown(
        self, peer: bytes, key: HandoverKey, message: Grant | Wait | Reject | Done, now: float
    ) -> list[PrefillAction]:
        if isinstance(message, Done):
            self._refused["late_done"] += 1
            return []
        is_open = key in self._handovers  # with another decode worker
        # a leg that never began has the ending of its hand-over
        ended_key = key if is_open or key in self._ended else key.without_rank
        if is_open or ended_key in self._ended:
            is_late = ended_key in self._ended
            self._refused["late" if is_late else "foreign_epoch"] += 1
            ended = self._ended.get(ended_key) if is_late else Reason.UNKNOWN_REQUEST
            return [self._abandon(peer, key, ended)] if isinstance(message, Grant) and ended is not None else []
        actions: list[PrefillAction] = []
        known = self._unannounced_messages.get((peer, key))
        if isinstance(known, Reject):  # the last answer; what it overtook, or what is repeated, changes nothing
            return [self._abandon(peer, key, known.reason)] if isinstance(message, Grant) else []
        if isinstance(known, Grant) and isinstance(message, Wait):
            return []
        if isinstance(known, Grant) and isinstance(message, Reject):
            actions.append(self._abandon(peer, key, message.reason))
        for (other, dropped), lost in self._unannounced_messages.put((peer, key), message, now):
            if isinstance(lost, Grant):
                actions.append(self._abandon(other, dropped, Reason.NO_CAPACITY))
        return actions

    def _known(
        self, handover: PrefillHandover, message: Grant | Wait | Reject | Done, now: float
    ) -> list[PrefillAction]:
        if handover.state is PrefillState.CLOSING:
            self._refused["late"] += 1
            return []
        match message:
            case Grant():
                return self._granted(handover, message, now)
            case Wait():
                if handover.state is PrefillState.UNGRANTED:
                    handover.is_answered = True
                    self._enter(handover, PrefillState.UNGRANTED, handover.deadline_s)
                return []
            case Reject():
                suspected = self._rejected(handover, message, now)
                return [*self._close(handover, self._rejected_outcome(message, handover), now), *suspected]
            case Done():
                if handover.state is not PrefillState.SEALED:
                    self._refused["done_before_seal"] += 1
                    return []
                self._silent.answered(handover.peer)
                return self._close(handover, HandoverOutcome(message.reason, message.detail), now)

    def _rejected(self, handover: PrefillHandover, message: Reject, now: float) -> list[PrefillAction]:
        """A decode worker that gives a hand-over up, at its deadline or because it was cancelled, has not answered
        it."""
        if message.reason in (Reason.DEADLINE, Reason.CANCELLED):
            return self._suspected(handover, now)
        self._silent.answered(handover.peer)
        return []

    def _rejected_outcome(self, message: Reject, handover: PrefillHandover) -> HandoverOutcome:
        granted = handover.grant is not None and handover.state is not PrefillState.SEALED
        report = handover.state is not PrefillState.SEALED and message.reason not in _UNREPORTED
        return HandoverOutcome(
            message.reason, f"rejected by decode: {message.detail}", report=report, tell_peer=granted
        )

    def _granted(self, handover: PrefillHandover, grant: Grant, now: float) -> list[PrefillAction]:
        if handover.grant is not None:
            if handover.grant == grant:
                self._refused["duplicate_grant"] += 1
                return []
            return self._close(handover, self._bad("a second, different grant"), now)
        try:
            layout = granted_layout(self._geometry, self._peers[handover.peer], handover.total_tokens, grant)
        except (ValueError, UnfitPairError) as error:
            return self._close(handover, self._bad(str(error)), now)
        handover.grant, handover.layout, handover.moved_s = grant, layout, now
        handover.next_units = [layout.group_first_unit(group) for group in range(layout.groups)]
        self._enter(handover, PrefillState.SENDING, handover.deadline_s)
        return [Granted(handover.key), *self._advance(handover, now)]

    def _bad(self, detail: str) -> HandoverOutcome:
        self._refused["bad_grant"] += 1
        return HandoverOutcome(Reason.BAD_REQUEST, f"grant: {detail}", report=True, tell_peer=True)

    # Time ------------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[PrefillAction]:
        """Act on deadlines. Call it a few times per second."""
        actions: list[PrefillAction] = []
        self._ended.expire(now)
        self._unannounced_progress.expire(now)
        for (peer, key), message in self._unannounced_messages.expire(now):
            self._refused["early_expired"] += 1
            if isinstance(message, Grant):
                actions.append(self._abandon(peer, key, Reason.UNKNOWN_REQUEST))
        for handover in list(self._handovers.values()):
            if now >= handover.state_until_s:
                actions += self._expired(handover, now)
        return actions

    def _expired(self, handover: PrefillHandover, now: float) -> list[PrefillAction]:
        if handover.state is PrefillState.CLOSING:
            handover.state_until_s = now + self._config.closing_s
            return [CutLink(handover.peer, f"a write of {handover.key} does not end")]
        suspected = self._suspected(handover, now)
        if handover.state is PrefillState.SEALED:
            return [*self._close(handover, HandoverOutcome(Reason.DEADLINE, "no verdict"), now), *suspected]
        reason, detail = Reason.DEADLINE, f"in state {handover.state}"
        if now < handover.deadline_s:
            reason, detail = Reason.PEER_LOST, "no link to, or no answer of, the decode worker"
        return [*self._close(handover, HandoverOutcome(reason, detail, report=True, tell_peer=True), now), *suspected]

    def _suspected(self, handover: PrefillHandover, now: float) -> list[PrefillAction]:
        """The hand-over is given up. Cut the link if its decode worker left too many in a row without an answer."""
        if not is_silent(handover, now, self._config.liveness.dead_s) or not self._silent.ended(handover.peer):
            return []
        return [CutLink(handover.peer, f"{IN_A_ROW} hand-overs in a row ended without an answer of the decode worker")]

    # Inside ----------------------------------------------------------------------------------------------------------

    def _advance(self, handover: PrefillHandover, now: float) -> list[PrefillAction]:
        """Take the steps that the state allows: finish a closing hand-over, put computed units, seal a whole stream."""
        if handover.state is PrefillState.CLOSING:
            return [] if handover.in_flight else self._finish(handover, now)
        if handover.state is not PrefillState.SENDING or handover.layout is None or handover.grant is None:
            return []
        layout, config = handover.layout, self._config
        ready = next_units(handover, layout, config.max_put_bytes)
        if ready and not handover.in_flight:
            handover.moved_s = now
        actions: list[PrefillAction] = [self._put(handover, layout, handover.grant, units) for units in ready]
        actions += progress_messages(handover, layout, config.portion_bytes)
        is_put = all(unit == layout.end_unit for unit in handover.next_units)
        if is_put and not handover.in_flight and handover.is_computed:
            handover.moved_s = now
            actions.append(self._seal(handover, handover.grant))
        return actions

    def _put(self, handover: PrefillHandover, layout: StreamLayout, grant: Grant, units: GroupUnits) -> Put:
        put, self._next_put = self._next_put, self._next_put + 1
        handover.in_flight[put] = units
        return put_of(handover, put, layout, grant, units)

    def _seal(self, handover: PrefillHandover, grant: Grant) -> SendTo:
        assert handover.first_tokens is not None
        self._enter(handover, PrefillState.SEALED, handover.deadline_s)
        checksums = b"".join(handover.checksums[place] for place in sorted(handover.checksums))
        assert handover.layout is not None
        checksums = b"" if self._config.verify is Verify.STAMPS else sealed_checksums(handover.layout, checksums)
        return SendTo(
            handover.peer,
            Seal(
                request=handover.key.request,
                attempt=handover.key.attempt,
                transfer=grant.transfer,
                checksums=checksums,
                first_tokens=handover.first_tokens,
            ),
        )

    def _enter(self, handover: PrefillHandover, state: PrefillState, until_s: float) -> None:
        handover.state = state
        handover.state_until_s = min(until_s, handover.deadline_s)

    def _close(self, handover: PrefillHandover, outcome: HandoverOutcome, now: float) -> list[PrefillAction]:
        handover.state, handover.state_until_s = PrefillState.CLOSING, now + self._config.closing_s
        handover.outcome = outcome
        if handover.in_flight:
            return [DropPuts(handover.key)]
        return self._finish(handover, now)

    def _finish(self, handover: PrefillHandover, now: float) -> list[PrefillAction]:
        """No write is in flight any more: report it to the peer and the gateway, and release the blocks."""
        outcome = handover.outcome
        assert outcome is not None
        assert not handover.in_flight
        del self._handovers[handover.key]
        unproven = handover.grant is not None and not outcome.tell_peer  # writes of a lost link may land later
        self._ended.put(handover.key, None if unproven else outcome.reason or Reason.UNKNOWN_REQUEST, now)
        self._ended_by_reason[outcome.reason or "done"] += 1
        actions: list[PrefillAction] = []
        if outcome.tell_peer and outcome.reason is not None and handover.peer in self._peers:
            actions.append(self._abandon(handover.peer, handover.key, outcome.reason, outcome.detail))
        if outcome.report and outcome.reason is not None:
            actions.append(Report(handover.key, outcome.reason, outcome.detail))
        actions.append(Release(handover.key, handover.progress, outcome.reason))
        return actions

    def _abandon(self, peer: bytes, key: HandoverKey, reason: Reason, detail: str = "") -> SendTo:
        return SendTo(peer, messages.abandon(key, reason, detail))

    def _of(self, peer: bytes, state: PrefillState | None = None) -> list[PrefillHandover]:
        return [h for h in self._handovers.values() if h.peer == peer and (state is None or h.state is state)]

    def open_keys(self) -> list[HandoverKey]:
        return list(self._handovers)

    def stats(self) -> PrefillStats:
        by_state = dict.fromkeys(PrefillState, 0)
        for handover in self._handovers.values():
            by_state[handover.state] += 1
        return PrefillStats(
            by_state=by_state,
            puts_in_flight=sum(len(handover.in_flight) for handover in self._handovers.values()),
            unannounced_messages=len(self._unannounced_messages),
            unannounced_requests=len(self._unannounced_progress),
            overlapped_bytes=self._overlapped_bytes,
            ended=dict(self._ended_by_reason),
            refused=dict(self._refused),
        )


def next_units(handover: PrefillHandover, layout: StreamLayout, max_bytes: int) -> list[GroupUnits]:
    """All units that are computed and were not put yet, in pieces of at most `max_bytes` (but always a unit).

    They count as put then.
    """
    ready: list[GroupUnits] = []
    step = max(1, max_bytes // layout.group_unit_bytes)
    for group, first in enumerate(handover.next_units):
        end = layout.whole_units(handover.complete_tokens(layout.end_layer(group)))
        ready += [GroupUnits(group, at, min(at + step, end)) for at in range(first, end, step)]
        handover.next_units[group] = max(first, end)
    return ready


def put_of(handover: PrefillHandover, put: int, layout: StreamLayout, grant: Grant, units: GroupUnits) -> Put:
    """The action that moves these units to their place in the grant's spans."""
    stream = layout.extent(units.group, units.first, units.end)
    landing = tuple(landing_extents(grant.spans, stream))
    blocks = group_blocks(handover.blocks, layout, units.group)
    moved = Units(blocks, layout.unit_tokens, units.first, units.end, layout.part(units.group))
    return Put(handover.key, handover.peer, put, grant.transfer, moved, landing)


def progress_messages(handover: PrefillHandover, layout: StreamLayout, portion_bytes: int | None) -> list[SendTo]:
    """Messages that report the first layer groups whose puts are all done, once they are a portion more than reported.

    Not when less than a portion is left: the decode worker would still be scattering when the Seal comes.
    """
    if portion_bytes is None:
        return []
    flying = min((units.group for units in handover.in_flight.values()), default=layout.groups)
    put = next((group for group, unit in enumerate(handover.next_units) if unit < layout.end_unit), layout.groups)
    complete = min(flying, put)
    reported_bytes, complete_bytes = layout.bytes_before(handover.reported_groups), layout.bytes_before(complete)
    if min(complete_bytes - reported_bytes, layout.stream_bytes - complete_bytes) < portion_bytes:
        return []
    handover.reported_groups = complete
    assert handover.grant is not None
    key, transfer = handover.key, handover.grant.transfer
    return [
        SendTo(handover.peer, Standing(request=key.request, attempt=key.attempt, transfer=transfer, groups=complete))
    ]
