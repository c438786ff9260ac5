"""The decode side of hand-overs between workers of several ranks: a `DecodeHandovers` per rank, one outcome for all.

A pure machine, like the machines that it drives. A hand-over has a *leg* for each pair of ranks that exchange heads
(`tensor_parallel.rank_pairs`); each is a whole hand-over of its heads, with its own grant, Seal, checksums and spans,
so that the ranks' machines decide when a span is free, as always. Decided here: nothing begins before all links that it
needs are up, the KV is admitted only when every leg of every rank is verified and no unit is missing,
and a leg that fails ends all others. docs/protocol.md, "Several ranks".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, DecodeStats, HandoverFailed, Landed, Scatter
from baton_kv_transfer.grant import LinkedPeer, wanted_layout
from baton_kv_transfer.handover import HandoverKey, Reservation, TransferConfig
from baton_kv_transfer.landing import ALIGNMENT_BYTES, ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Leg
from baton_kv_transfer.ranks.tensor_parallel import (
    RankLinks,
    RankPair,
    RankPeer,
    local_heads,
    rank_epoch,
    rank_pairs,
)
from baton_kv_transfer.ranks.unit_coverage import UnitCoverage
from baton_wire.errors import UnfitPairError
from baton_wire.kv_shape import KvGeometry, first_seen
from baton_wire.messages.pair_link import FirstToken, PairMessage
from baton_wire.messages.values import Reason

LegId = tuple[int, int]
"""A decode rank and a prefill rank."""


@dataclass(frozen=True, slots=True)
class AtDecodeRank:
    """An action of one rank; `Landed` and `HandoverFailed` belong to the worker and are never inside."""

    rank: int
    action: DecodeAction


GroupDecodeAction = AtDecodeRank | Landed | HandoverFailed


@dataclass(slots=True)
class _Handover:
    key: HandoverKey
    peer: bytes
    reservation: Reservation
    link_until_s: float | None
    """While it waits for links."""
    pending: set[LegId] = field(default_factory=set)
    """Legs that have not begun."""
    open: set[LegId] = field(default_factory=set)
    coverage: dict[int, list[UnitCoverage]] = field(default_factory=dict)
    """By rank, of each KV group."""
    scattering: dict[LegId, Scatter] = field(default_factory=dict)
    first_tokens: tuple[FirstToken, ...] | None = None
    granted_s: float = float("inf")
    failure: tuple[Reason, str] | None = None

    def leg_key(self, leg: LegId) -> HandoverKey:
        return replace(self.key, rank=leg[1])


class DecodeGroup:
    """All hand-overs of one decode worker of `len(ranks)` ranks; `geometry` is the whole model's."""

    def __init__(self, geometry: KvGeometry, ranks: Sequence[DecodeHandovers], config: TransferConfig) -> None:
        """`ranks`: each with the geometry of its own heads."""
        self.ranks = list(ranks)
        self._geometry = geometry
        self._config = config
        self._links = RankLinks()
        self._block_tokens: dict[bytes, int] = {}
        self._open: dict[HandoverKey, _Handover] = {}
        self._queued: dict[HandoverKey, tuple[bytes, set[LegId]]] = {}

    # The engine's events ---------------------------------------------------------------------------------------------

    def queued(
        self, key: HandoverKey, peer: bytes, position: int, deadline_s: float, now: float
    ) -> list[GroupDecodeAction]:
        """The engine has no blocks yet. Without a later `expected` it ends by `refused` or `cancelled`."""
        pairs = self._pairs(peer)
        self._queued[key] = (peer, {(pair.decode, pair.prefill) for pair in pairs})
        actions: list[GroupDecodeAction] = []
        for pair in pairs:
            name, source = replace(key, rank=pair.prefill), rank_epoch(peer, pair.prefill)
            actions += self.at(
                pair.decode, self.ranks[pair.decode].queued(name, source, position, deadline_s, now), now
            )
        return actions

    def expected(self, key: HandoverKey, peer: bytes, reservation: Reservation, now: float) -> list[GroupDecodeAction]:
        """As for one rank; the same blocks are reserved in every rank's pool, `peer` is the prefill worker's epoch."""
        if key in self._open:
            return []
        self._queued.pop(key, None)
        until_s = min(reservation.deadline_s, now + self._config.link_wait_s)
        handover = self._open[key] = _Handover(key, peer, reservation, until_s)
        return self._begin(handover, now)

    def refused(
        self, key: HandoverKey, peer: bytes, reason: Reason, detail: str, now: float
    ) -> list[GroupDecodeAction]:
        """The engine will not reserve: it was never expected, or only queued."""
        _, queued = self._queued.pop(key, (peer, set()))
        legs = queued | {(pair.decode, pair.prefill) for pair in self._pairs(peer)}
        return [action for leg in sorted(legs) for action in self._refuse(key, peer, leg, reason, detail, now)]

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[GroupDecodeAction]:
        if key in self._queued:
            return self.refused(key, self._queued[key][0], reason, detail, now)
        handover = self._open.get(key)
        return [] if handover is None else self._fail(handover, reason, detail, now)

    # A rank's events -------------------------------------------------------------------------------------------------

    def claim(self, rank: int, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        return self.ranks[rank].claim(peer, transfer, offset, length)

    def arrived(self, rank: int, window: LandingWindow, now: float) -> list[GroupDecodeAction]:
        return self.at(rank, self.ranks[rank].arrived(window, now), now)

    def scattered(
        self, rank: int, key: HandoverKey, first_unit: int, checksums: bytes, now: float
    ) -> list[GroupDecodeAction]:
        handover = self._open.get(key.without_rank)
        done = None if handover is None else handover.scattering.pop((rank, key.rank), None)
        doubled = False
        if handover is not None and done is not None:
            doubled = not handover.coverage[rank][done.kv_group].add(key.rank, done.units)
        actions = self.at(rank, self.ranks[rank].scattered(key, first_unit, checksums, now), now)
        if doubled and handover is not None and handover.key in self._open:
            actions += self._fail(handover, Reason.INTERNAL, f"{done} a second time, or not this rank's", now)
        return actions

    def scatter_failed(
        self, rank: int, key: HandoverKey, first_unit: int, detail: str, now: float
    ) -> list[GroupDecodeAction]:
        return self.at(rank, self.ranks[rank].scatter_failed(key, first_unit, detail, now), now)

    def link_up(
        self,
        rank: int,
        peer: RankPeer,
        block_tokens: int,
        now: float,
        *,
        one_sided: bool | None = None,
        link: int = 0,
    ) -> list[GroupDecodeAction]:
        """Raises UnfitPairError: block sizes, or ranks that do not divide the heads."""
        pairs = rank_pairs(self._geometry.kv_heads, peer.ranks, len(self.ranks))
        mine = [pair for pair in pairs if (pair.prefill, pair.decode) == (peer.rank, rank)]
        leg = Leg(peer.rank, self._local(mine[0]) if mine else range(0))
        rank_actions = self.ranks[rank].link_up(peer.epoch, block_tokens, now, one_sided=one_sided, link=link, leg=leg)
        self._links.up(rank, peer)
        self._block_tokens[peer.worker] = block_tokens
        actions = self.at(rank, rank_actions, now)
        for handover in [handover for handover in self._open.values() if handover.peer == peer.worker]:
            actions += self._begin(handover, now)
        return actions

    def link_down(self, rank: int, peer: RankPeer, detail: str, now: float) -> list[GroupDecodeAction]:
        self._links.down(rank, peer)
        if self._links.ranks_of(peer.worker) is None:
            self._block_tokens.pop(peer.worker, None)
        return self.at(rank, self.ranks[rank].link_down(peer.epoch, detail, now), now)

    def worker_down(self, worker: bytes, detail: str, now: float) -> list[GroupDecodeAction]:
        """All links with this worker are down at once."""
        lost: list[tuple[int, list[DecodeAction]]] = []
        for rank, peer_rank in self._links.of(worker):
            peer = RankPeer(worker, self._links.ranks_of(worker) or 1, peer_rank)
            self._links.down(rank, peer)
            lost.append((rank, self.ranks[rank].link_down(peer.epoch, detail, now)))
        self._block_tokens.pop(worker, None)
        return [action for rank, rank_actions in lost for action in self.at(rank, rank_actions, now)]

    def spoilt(self, worker: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[GroupDecodeAction]:
        """A message about a leg with this worker does not fit its type: the hand-over is over."""
        actions: list[GroupDecodeAction] = []
        for rank, peer_rank in self._links.of(worker):
            source = rank_epoch(worker, peer_rank)
            actions += self.at(rank, self.ranks[rank].spoilt(source, request, attempt, detail, now), now)
        return actions

    def writes_ended(self, rank: int, link: int, now: float) -> list[GroupDecodeAction]:
        return self.at(rank, self.ranks[rank].writes_ended(link, now), now)

    def message(self, rank: int, peer: RankPeer, message: PairMessage, now: float) -> list[GroupDecodeAction]:
        return self.at(rank, self.ranks[rank].message(peer.epoch, message, now), now)

    def tick(self, now: float) -> list[GroupDecodeAction]:
        actions = self.tick_links(now)
        for rank, machine in enumerate(self.ranks):
            actions += self.at(rank, machine.tick(now), now)
        return actions

    def tick_links(self, now: float) -> list[GroupDecodeAction]:
        """Act on the deadlines of hand-overs that wait for links."""
        actions: list[GroupDecodeAction] = []
        for handover in list(self._open.values()):
            if handover.link_until_s is not None and now >= handover.link_until_s:
                actions += self._fail(handover, Reason.PEER_LOST, "not all ranks of the prefill worker are linked", now)
        return actions

    def holds(self, key: HandoverKey) -> bool:
        """True if the hand-over is open or queued."""
        return key in self._open or key in self._queued

    @property
    def waiting(self) -> int:
        """Hand-overs that wait for links."""
        return sum(handover.link_until_s is not None for handover in self._open.values())

    def open_keys(self) -> list[HandoverKey]:
        return list(self._open)

    def stats(self) -> list[DecodeStats]:
        """By rank."""
        return [machine.stats() for machine in self.ranks]

    # Inside ----------------------------------------------------------------------------------------------------------

    def _pairs(self, peer: bytes) -> tuple[RankPair, ...]:
        """Empty while the peer is not known."""
        ranks = self._links.ranks_of(peer)
        return () if ranks is None else rank_pairs(self._geometry.kv_heads, ranks, len(self.ranks))

    def _local(self, pair: RankPair) -> range:
        return local_heads(self._geometry.kv_heads, len(self.ranks), pair.decode, pair.heads)

    def _begin(self, handover: _Handover, now: float) -> list[GroupDecodeAction]:
        """All legs at once, so that every rank's line for landing bytes has the hand-overs in the same order: two could
        otherwise wait for what the other holds."""
        pairs = self._pairs(handover.peer)
        legs = {(pair.decode, pair.prefill) for pair in pairs}
        if handover.link_until_s is None or not pairs or not self._links.are_up(handover.peer, legs):
            return []
        handover.link_until_s = None
        handover.pending = set(legs)
        try:
            self._prepare(handover, pairs)
        except (ValueError, UnfitPairError) as error:
            return self._fail(handover, Reason.INTERNAL, str(error), now)
        if (fault := self._too_long(handover, pairs)) is not None:
            return self._fail(handover, Reason.TOO_LONG, fault, now)
        actions: list[GroupDecodeAction] = []
        for leg in sorted(legs):
            if leg in handover.pending:  # a leg that fails at once takes the later ones away
                handover.pending.remove(leg)
                handover.open.add(leg)
                source = rank_epoch(handover.peer, leg[1])
                rank_actions = self.ranks[leg[0]].expected(handover.leg_key(leg), source, handover.reservation, now)
                actions += self.at(leg[0], rank_actions, now)
        return actions

    def _prepare(self, handover: _Handover, pairs: tuple[RankPair, ...]) -> None:
        for rank in range(len(self.ranks)):
            sources = {pair.prefill: self._local(pair) for pair in pairs if pair.decode == rank}
            unit = min(self._geometry.block_tokens, self._block_tokens[handover.peer])
            cached, total = handover.reservation.cached_tokens, handover.reservation.total_tokens
            firsts = [max(cached, first_seen(total, window)) // unit for window in self._geometry.windows]
            end = -(-total // unit)
            handover.coverage[rank] = [UnitCoverage(self._geometry.layers, first, end, sources) for first in firsts]

    def _too_long(self, handover: _Handover, pairs: tuple[RankPair, ...]) -> str | None:
        """Legs of one rank wait for each other's room only if they fit together."""
        for rank, machine in enumerate(self.ranks):
            wanted = 0
            for pair in pairs:
                if pair.decode == rank:
                    heads = replace(self._geometry, kv_heads=len(pair.heads))
                    peer = LinkedPeer(self._block_tokens[handover.peer], one_sided=False, link=0)
                    tokens = (handover.reservation.cached_tokens, handover.reservation.total_tokens)
                    stream = wanted_layout(heads, peer, *tokens, self._config).stream_bytes
                    wanted += -(-stream // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if wanted > machine.landing_bytes:
                return f"{wanted} bytes at rank {rank}, its landing region has {machine.landing_bytes}"
        return None

    def at(self, rank: int, actions: list[DecodeAction], now: float) -> list[GroupDecodeAction]:
        """The actions that one rank's machine wants. Its hand-overs that are no leg of this group end as they are."""
        result: list[GroupDecodeAction] = []
        for action in actions:
            match action:
                case Landed(key) | HandoverFailed(key):
                    handover = self._open.get(key.without_rank)
                    if handover is None:
                        result.append(action)
                    elif isinstance(action, Landed):
                        result += self._landed(rank, key, action.first_tokens, action.granted_s, now)
                    else:
                        handover.open.discard((rank, key.rank))
                        result += self._fail(
                            handover, action.reason, f"rank {rank} from {key.rank}: {action.detail}", now
                        )
                case Scatter(key):
                    if (handover := self._open.get(key.without_rank)) is not None:
                        handover.scattering[rank, key.rank] = action
                    result.append(AtDecodeRank(rank, action))
                case _:
                    result.append(AtDecodeRank(rank, action))
        return result

    def _landed(
        self, rank: int, key: HandoverKey, first_tokens: tuple[FirstToken, ...], granted_s: float, now: float
    ) -> list[GroupDecodeAction]:
        handover = self._open[key.without_rank]
        handover.open.discard((rank, key.rank))
        handover.granted_s = min(handover.granted_s, granted_s)
        if handover.first_tokens not in (None, first_tokens):
            return self._fail(handover, Reason.BAD_REQUEST, "the prefill ranks drew different first tokens", now)
        handover.first_tokens = first_tokens
        return self._end(handover)

    def _fail(self, handover: _Handover, reason: Reason, detail: str, now: float) -> list[GroupDecodeAction]:
        """The first failure counts; every leg that is not over ends with its reason."""
        actions: list[GroupDecodeAction] = []
        if handover.failure is None:
            handover.failure = (reason, detail)
            if handover.link_until_s is not None:
                handover.pending = {(pair.decode, pair.prefill) for pair in self._pairs(handover.peer)}
            pending, handover.pending, handover.link_until_s = sorted(handover.pending), set(), None
            for leg in pending:
                actions += self._refuse(handover.key, handover.peer, leg, reason, detail, now)
            for leg in sorted(handover.open):
                rank_actions = self.ranks[leg[0]].cancelled(handover.leg_key(leg), reason, detail, now)
                actions += self.at(leg[0], rank_actions, now)
        return actions + self._end(handover)

    def _refuse(
        self, key: HandoverKey, peer: bytes, leg: LegId, reason: Reason, detail: str, now: float
    ) -> list[GroupDecodeAction]:
        rank, source = leg
        rank_actions = self.ranks[rank].refused(
            replace(key, rank=source), rank_epoch(peer, source), reason, detail, now
        )
        return self.at(rank, rank_actions, now)

    def _end(self, handover: _Handover) -> list[GroupDecodeAction]:
        """When no leg is under way any more: the verdict, once."""
        if handover.open or handover.pending or self._open.get(handover.key) is not handover:
            return []
        del self._open[handover.key]
        parts = [part for coverage in handover.coverage.values() for part in coverage]
        gaps = [gap for part in parts if (gap := part.gap()) is not None]
        if handover.failure is None and gaps:
            handover.failure = (Reason.KV_CORRUPT, f"never scattered: {gaps[0]}")
        if handover.failure is not None:
            return [HandoverFailed(handover.key, *handover.failure)]
        assert handover.first_tokens is not None
        return [Landed(handover.key, handover.first_tokens, handover.granted_s)]
