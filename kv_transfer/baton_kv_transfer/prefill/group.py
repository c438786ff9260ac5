"""The prefill side of hand-overs between workers of several ranks: a `PrefillHandovers` per rank, one outcome for all.

A pure machine, like the machines that it drives; legs as in `decode.group`. A leg that fails ends all others, the
gateway gets one report of the hand-over, and the blocks are released when no leg reads them any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import ENDED_CAPACITY, ENDED_S, UNANNOUNCED_CAPACITY, HandoverKey, TransferConfig
from baton_kv_transfer.layout import Leg
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import (
    Granted,
    HandoverOutcome,
    PrefillAction,
    PrefillStats,
    PromptProgress,
    Release,
    Report,
    UnannouncedProgress,
)
from baton_kv_transfer.ranks.tensor_parallel import (
    RankLinks,
    RankPair,
    RankPeer,
    local_heads,
    rank_epoch,
    rank_pairs,
)
from baton_wire.errors import UnfitPairError
from baton_wire.expiring import ExpiringMap
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import FirstToken, PairMessage
from baton_wire.messages.values import Reason

LegId = tuple[int, int]
"""A prefill rank and a decode rank."""


@dataclass(frozen=True, slots=True)
class AtPrefillRank:
    """An action of one rank; `Granted`, `Report` and `Release` belong to the worker and are never inside."""

    rank: int
    action: PrefillAction


GroupPrefillAction = AtPrefillRank | Granted | Report | Release


@dataclass(slots=True)
class _Handover:
    key: HandoverKey
    peer: bytes
    total_tokens: int
    deadline_s: float
    link_until_s: float | None
    """While it waits for links."""
    open: set[LegId] = field(default_factory=set)
    ungranted: set[LegId] = field(default_factory=set)
    progress: PromptProgress = field(default_factory=PromptProgress)
    failure: tuple[Reason, str] | None = None
    is_reported: bool = False
    is_beginning: bool = False


class PrefillGroup:
    """All hand-overs of one prefill worker of `len(ranks)` ranks; `geometry` is the whole model's."""

    def __init__(self, geometry: KvGeometry, ranks: Sequence[PrefillHandovers], config: TransferConfig) -> None:
        """`ranks`: each with the geometry of its own heads."""
        self.ranks = list(ranks)
        self._geometry = geometry
        self._config = config
        self._links = RankLinks()
        self._open: dict[HandoverKey, _Handover] = {}
        self._unannounced = UnannouncedProgress(config.unannounced_s, UNANNOUNCED_CAPACITY)
        self._ended: ExpiringMap[HandoverKey, None] = ExpiringMap(ENDED_S, ENDED_CAPACITY)

    # The engine's events ---------------------------------------------------------------------------------------------

    def opened(
        self,
        key: HandoverKey,
        peer: bytes,
        total_tokens: int,
        deadline_s: float,
        now: float,
        progress: PromptProgress | None = None,
    ) -> list[GroupPrefillAction]:
        """As of one rank; `peer` is the decode worker's epoch. `progress`: None is what was reported to this group."""
        if key in self._open:
            return []
        until = min(deadline_s, now + self._config.link_wait_s)
        handover = self._open[key] = _Handover(key, peer, total_tokens, deadline_s, until)
        handover.progress = progress or self._unannounced.take(key)
        if (over := handover.progress.over) is not None:
            return self._fail(handover, over.reason or Reason.CANCELLED, over.detail, now)
        return self._begin(handover, now)

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> list[GroupPrefillAction]:
        """KV of [0, tokens) is in `blocks` of every rank."""
        handover = self._open.get(key)
        if handover is None:
            if key not in self._ended:
                self._unannounced.computed(key, tokens, blocks, now)
            return []
        handover.progress = replace(handover.progress, computed=(tokens, blocks))
        return self._each_leg(handover, lambda machine, leg: machine.computed(leg, tokens, blocks, now), now)

    def computing(
        self, rank: int, key: HandoverKey, tokens: int, layers: int, blocks: tuple[int, ...], now: float
    ) -> list[GroupPrefillAction]:
        """One rank's KV of [0, tokens) is complete in its first `layers` layers."""
        handover = self._open.get(key)
        if handover is None:
            return []
        legs = {leg for leg in handover.open if leg[0] == rank}
        return self._each_leg(
            handover, lambda machine, leg: machine.computing(leg, tokens, layers, blocks, now), now, legs
        )

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> list[GroupPrefillAction]:
        """Every choice has its first token, the same at every rank."""
        handover = self._open.get(key)
        if handover is None:
            if key not in self._ended:
                self._unannounced.first_tokens(key, tokens, now)
            return []
        handover.progress = replace(handover.progress, first_tokens=tokens)
        if handover.link_until_s is not None and all(token.finish is not None for token in tokens):
            return self._fail(handover, Reason.FINISHED, "", now)
        return self._each_leg(handover, lambda machine, leg: machine.first_tokens(leg, tokens, now), now)

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[GroupPrefillAction]:
        handover = self._open.get(key)
        if handover is None:
            if key not in self._ended:
                self._unannounced.over(key, HandoverOutcome(reason, detail, tell_peer=True), now)
            return []
        return self._fail(handover, reason, detail, now)

    # A rank's events -------------------------------------------------------------------------------------------------

    def put_done(self, rank: int, key: HandoverKey, put: int, checksums: bytes, now: float) -> list[GroupPrefillAction]:
        return self.at(rank, self.ranks[rank].put_done(key, put, checksums, now), now)

    def put_failed(
        self, rank: int, key: HandoverKey, put: int, reason: Reason, detail: str, now: float
    ) -> list[GroupPrefillAction]:
        return self.at(rank, self.ranks[rank].put_failed(key, put, reason, detail, now), now)

    def link_up(self, rank: int, peer: RankPeer, facts: DecodePeer, now: float) -> list[GroupPrefillAction]:
        """`facts` as the decode rank reported them. Raises UnfitPairError: ranks that do not divide the heads."""
        pairs = rank_pairs(self._geometry.kv_heads, len(self.ranks), peer.ranks)
        mine = [pair for pair in pairs if (pair.prefill, pair.decode) == (rank, peer.rank)]
        leg = Leg(peer.rank, self._local(mine[0]) if mine else range(0))
        rank_actions = self.ranks[rank].link_up(peer.epoch, replace(facts, leg=leg), now)
        self._links.up(rank, peer)
        actions = self.at(rank, rank_actions, now)
        for handover in [handover for handover in self._open.values() if handover.peer == peer.worker]:
            actions += self._begin(handover, now)
        return actions

    def link_down(self, rank: int, peer: RankPeer, reason: Reason, detail: str, now: float) -> list[GroupPrefillAction]:
        self._links.down(rank, peer)
        return self.at(rank, self.ranks[rank].link_down(peer.epoch, reason, detail, now), now)

    def worker_down(self, worker: bytes, reason: Reason, detail: str, now: float) -> list[GroupPrefillAction]:
        """All links with this worker are down at once, or none can be made: every hand-over to it ends."""
        lost: list[tuple[int, list[PrefillAction]]] = []
        for rank, peer_rank in self._links.of(worker):
            peer = RankPeer(worker, self._links.ranks_of(worker) or 1, peer_rank)
            self._links.down(rank, peer)
            lost.append((rank, self.ranks[rank].link_down(peer.epoch, reason, detail, now)))
        actions = [action for rank, rank_actions in lost for action in self.at(rank, rank_actions, now)]
        for handover in [handover for handover in self._open.values() if handover.peer == worker]:
            if handover.link_until_s is not None:
                handover.is_reported = True
                actions += self._fail(handover, reason, detail, now)
        return actions

    def spoilt(self, worker: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[GroupPrefillAction]:
        """A message about a leg with this worker does not fit its type: the hand-over is over."""
        actions: list[GroupPrefillAction] = []
        for rank, peer_rank in self._links.of(worker):
            source = rank_epoch(worker, peer_rank)
            actions += self.at(rank, self.ranks[rank].spoilt(source, request, attempt, detail, now), now)
        return actions

    def message(self, rank: int, peer: RankPeer, message: PairMessage, now: float) -> list[GroupPrefillAction]:
        return self.at(rank, self.ranks[rank].message(peer.epoch, message, now), now)

    def tick(self, now: float) -> list[GroupPrefillAction]:
        actions = self.tick_links(now)
        for rank, machine in enumerate(self.ranks):
            actions += self.at(rank, machine.tick(now), now)
        return actions

    def tick_links(self, now: float) -> list[GroupPrefillAction]:
        """Act on the deadlines of hand-overs that wait for links."""
        self._unannounced.expire(now)
        self._ended.expire(now)
        actions: list[GroupPrefillAction] = []
        for handover in list(self._open.values()):
            if handover.link_until_s is not None and now >= handover.link_until_s:
                handover.is_reported = True
                actions += self._fail(handover, Reason.PEER_LOST, "not all ranks of the decode worker are linked", now)
        return actions

    def holds(self, key: HandoverKey) -> bool:
        return key in self._open

    @property
    def waiting(self) -> int:
        """Hand-overs that wait for links."""
        return sum(handover.link_until_s is not None for handover in self._open.values())

    @property
    def unannounced(self) -> int:
        """Requests that the engine reported on and that are not open yet."""
        return len(self._unannounced)

    def open_keys(self) -> list[HandoverKey]:
        return list(self._open)

    def stats(self) -> list[PrefillStats]:
        """By rank."""
        return [machine.stats() for machine in self.ranks]

    # Inside ----------------------------------------------------------------------------------------------------------

    def _local(self, pair: RankPair) -> range:
        return local_heads(self._geometry.kv_heads, len(self.ranks), pair.prefill, pair.heads)

    def _begin(self, handover: _Handover, now: float) -> list[GroupPrefillAction]:
        ranks = self._links.ranks_of(handover.peer)
        if handover.link_until_s is None or ranks is None:
            return []
        try:
            pairs = rank_pairs(self._geometry.kv_heads, len(self.ranks), ranks)
        except UnfitPairError as error:
            handover.is_reported = True
            return self._fail(handover, Reason.UNFIT_PAIR, str(error), now)
        legs = {(pair.prefill, pair.decode) for pair in pairs}
        if not self._links.are_up(handover.peer, legs):
            return []
        handover.link_until_s, handover.is_beginning = None, True
        handover.ungranted = set(legs)
        actions: list[GroupPrefillAction] = []
        for rank, peer_rank in sorted(legs):
            handover.open.add((rank, peer_rank))
            leg, machine = replace(handover.key, rank=peer_rank), self.ranks[rank]
            peer = rank_epoch(handover.peer, peer_rank)
            opened = machine.opened(leg, peer, handover.total_tokens, handover.deadline_s, now)
            actions += self.at(rank, opened, now)
            if handover.failure is not None:  # of an earlier leg: a grant that came for this one is answered
                actions += self.at(rank, machine.cancelled(leg, *handover.failure, now), now)
        handover.is_beginning = False
        done = handover.progress
        if done.computed is not None:
            actions += self.computed(handover.key, *done.computed, now)
        if done.first_tokens is not None:
            actions += self.first_tokens(handover.key, done.first_tokens, now)
        return actions + self._end(handover, now)

    def _each_leg(
        self,
        handover: _Handover,
        call: Callable[[PrefillHandovers, HandoverKey], list[PrefillAction]],
        now: float,
        legs: set[LegId] | None = None,
    ) -> list[GroupPrefillAction]:
        actions: list[GroupPrefillAction] = []
        for leg in sorted(handover.open if legs is None else legs):
            if leg in handover.open:
                rank_actions = call(self.ranks[leg[0]], replace(handover.key, rank=leg[1]))
                actions += self.at(leg[0], rank_actions, now)
        return actions

    def at(self, rank: int, actions: list[PrefillAction], now: float) -> list[GroupPrefillAction]:
        """The actions that one rank's machine wants. Its hand-overs that are no leg of this group end as they are."""
        result: list[GroupPrefillAction] = []
        for action in actions:
            match action:
                case Granted(key) | Report(key) | Release(key):
                    handover = self._open.get(key.without_rank)
                    if handover is None:
                        result.append(action)
                    else:
                        result += self._leg_event(handover, (rank, key.rank), action, now)
                case _:
                    result.append(AtPrefillRank(rank, action))
        return result

    def _leg_event(
        self, handover: _Handover, leg: LegId, event: Granted | Report | Release, now: float
    ) -> list[GroupPrefillAction]:
        name = f"rank {leg[0]} to {leg[1]}"
        match event:
            case Granted():
                handover.ungranted.discard(leg)
                return [] if handover.ungranted else [Granted(handover.key)]
            case Report(_, reason, detail):
                handover.is_reported = handover.is_reported or handover.failure is None
                return self._fail(handover, reason, f"{name}: {detail}", now)
            case Release(_, _, ended):
                handover.open.discard(leg)
                return self._end(handover, now) if ended is None else self._fail(handover, ended, name, now)

    def _fail(self, handover: _Handover, reason: Reason, detail: str, now: float) -> list[GroupPrefillAction]:
        """The first failure counts; every leg that is not over ends with its reason."""
        actions: list[GroupPrefillAction] = []
        if handover.failure is None:
            if handover.link_until_s is not None:
                for machine in self.ranks:
                    machine.never_began(handover.key, reason, now)
            handover.failure, handover.link_until_s = (reason, detail), None
            actions += self._each_leg(handover, lambda machine, leg: machine.cancelled(leg, reason, detail, now), now)
        return actions + self._end(handover, now)

    def _end(self, handover: _Handover, now: float) -> list[GroupPrefillAction]:
        """When no leg is under way any more: the blocks go, once."""
        waits = handover.open or handover.is_beginning or handover.link_until_s is not None
        if waits or self._open.get(handover.key) is not handover:
            return []
        del self._open[handover.key]
        self._ended.put(handover.key, None, now)
        reason = None if handover.failure is None else handover.failure[0]
        ended: list[GroupPrefillAction] = []
        if handover.failure is not None and handover.is_reported:
            ended.append(Report(handover.key, *handover.failure))
        return [*ended, Release(handover.key, handover.progress, reason)]
