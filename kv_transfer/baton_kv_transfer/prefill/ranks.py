"""The prefill side of a worker with one or several ranks, in terms of workers: a machine per rank, one outcome for all.

A pure machine with the interface of `PrefillHandovers`. Between two workers of one rank it passes everything on to the
one machine. Every other pair has one link for all its legs: their messages travel inside `AtRanks`, and the link is up
or down for all of them at once. docs/protocol.md, "Several ranks".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import CutLink, HandoverKey, SendTo, TransferConfig
from baton_kv_transfer.prefill.group import AtPrefillRank, GroupPrefillAction, PrefillGroup
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import DropPuts, PrefillAction, PrefillState, PrefillStats, Put, Release
from baton_kv_transfer.ranks.tensor_parallel import LegWorker, leg_key, leg_worker, split_leg_key
from baton_wire.errors import BadMessageError
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import AtRanks, FirstToken, Heartbeat, LegMessage, PairMessage
from baton_wire.messages.values import Reason


class PrefillRanks:
    """All hand-overs of one prefill worker of `len(ranks)` ranks; `geometry` is the whole model's."""

    def __init__(self, geometry: KvGeometry, ranks: Sequence[PrefillHandovers], config: TransferConfig) -> None:
        """`ranks`: each with the geometry of its own heads."""
        self._kv_heads = geometry.kv_heads
        self._ranks = list(ranks)
        self._group = PrefillGroup(geometry, self._ranks, config)
        self._workers: dict[bytes, LegWorker] = {}
        """Linked decode workers with which legs are exchanged."""
        self._rank_epochs: dict[bytes, tuple[bytes, int]] = {}
        """Worker and rank by the rank's epoch."""
        self._ended: Counter[str] = Counter()

    # The engine's events ---------------------------------------------------------------------------------------------

    def opened(
        self, key: HandoverKey, peer: bytes, total_tokens: int, deadline_s: float, now: float
    ) -> list[PrefillAction]:
        if self._is_single(key) and peer not in self._workers:
            return self._at(0, self._ranks[0].opened(key, peer, total_tokens, deadline_s, now), now)
        progress = self._ranks[0].take_progress(key) if len(self._ranks) == 1 else None
        return self._outer(self._group.opened(key, peer, total_tokens, deadline_s, now, progress))

    def computed(self, key: HandoverKey, tokens: int, blocks: tuple[int, ...], now: float) -> list[PrefillAction]:
        """KV of [0, tokens) is in `blocks` of every rank."""
        if self._is_single(key):
            return self._at(0, self._ranks[0].computed(key, tokens, blocks, now), now)
        return self._outer(self._group.computed(key, tokens, blocks, now))

    def computing(
        self, key: HandoverKey, tokens: int, layers: int, blocks: tuple[int, ...], now: float
    ) -> list[PrefillAction]:
        """KV of [0, tokens) is complete in the first `layers` layers of one rank, which `key` names (`leg_key`)."""
        rank, key = split_leg_key(key)
        if self._is_single(key):
            return self._at(0, self._ranks[0].computing(key, tokens, layers, blocks, now), now)
        return self._outer(self._group.computing(rank, key, tokens, layers, blocks, now))

    def first_tokens(self, key: HandoverKey, tokens: tuple[FirstToken, ...], now: float) -> list[PrefillAction]:
        if self._is_single(key):
            return self._at(0, self._ranks[0].first_tokens(key, tokens, now), now)
        return self._outer(self._group.first_tokens(key, tokens, now))

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        if self._is_single(key):
            return self._at(0, self._ranks[0].cancelled(key, reason, detail, now), now)
        return self._outer(self._group.cancelled(key, reason, detail, now))

    def put_done(self, key: HandoverKey, put: int, checksums: bytes, now: float) -> list[PrefillAction]:
        rank, key = split_leg_key(key)
        return self._at(rank, self._ranks[rank].put_done(key, put, checksums, now), now)

    def put_failed(self, key: HandoverKey, put: int, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        rank, key = split_leg_key(key)
        return self._at(rank, self._ranks[rank].put_failed(key, put, reason, detail, now), now)

    # Links -----------------------------------------------------------------------------------------------------------

    def link_up(self, peer: bytes, facts: DecodePeer, now: float) -> list[PrefillAction]:
        """Raises UnfitPairError: ranks that do not divide the heads."""
        if len(self._ranks) == facts.ranks == 1:
            return self._at(0, self._ranks[0].link_up(peer, facts, now), now)
        worker = leg_worker(peer, self._kv_heads, len(self._ranks), facts.ranks)
        self._workers[peer] = worker
        self._rank_epochs |= {worker.peer(rank).epoch: (peer, rank) for rank in range(worker.ranks)}
        waiting = self._ranks[0].withdraw(peer) if len(self._ranks) == 1 else []
        actions: list[GroupPrefillAction] = []
        for rank, peer_rank in sorted(worker.pairs):
            actions += self._group.link_up(rank, worker.peer(peer_rank), facts, now)
        for handover in waiting:
            wanted = (handover.key, peer, handover.total_tokens, handover.deadline_s)
            actions += self._group.opened(*wanted, now, handover.progress)
        return self._outer(actions)

    def link_down(self, peer: bytes, reason: Reason, detail: str, now: float) -> list[PrefillAction]:
        """The link broke or could not be made."""
        worker = self._workers.pop(peer, None)
        if worker is None and len(self._ranks) == 1:
            return self._at(0, self._ranks[0].link_down(peer, reason, detail, now), now)
        actions = self._outer(self._group.worker_down(peer, reason, detail, now))
        if worker is not None:
            for rank in range(worker.ranks):
                self._rank_epochs.pop(worker.peer(rank).epoch, None)
        return actions

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[PrefillAction]:
        """A message of the decode worker `peer`. Raises BadMessageError when its kind is not for it to send."""
        worker = self._workers.get(peer)
        match message:
            case Heartbeat():
                return []
            case AtRanks(rank, peer_rank, inner):
                if worker is None or (rank, peer_rank) not in worker.pairs:
                    raise BadMessageError(f"AtRanks: prefill rank {rank} and decode rank {peer_rank} exchange no heads")
                return self._outer(self._group.message(rank, worker.peer(peer_rank), inner, now))
            case _ if worker is not None or len(self._ranks) > 1:
                raise BadMessageError(f"{type(message).__name__}: workers of several ranks send it inside AtRanks only")
        return self._at(0, self._ranks[0].message(peer, message, now), now)

    def spoilt(self, peer: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[PrefillAction]:
        if peer in self._workers or len(self._ranks) > 1:
            return self._outer(self._group.spoilt(peer, request, attempt, detail, now))
        return self._at(0, self._ranks[0].spoilt(peer, request, attempt, detail, now), now)

    # Time and looking ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[PrefillAction]:
        """Act on deadlines. Call it a few times per second."""
        return self._outer(self._group.tick(now))

    def open_keys(self) -> list[HandoverKey]:
        single = self._ranks[0].open_keys() if len(self._ranks) == 1 else []
        return [key for key in single if self._is_single(key)] + self._group.open_keys()

    def stats(self) -> PrefillStats:
        """The machines' statistics added up; endings count once for each hand-over."""
        ranks = self._group.stats()
        by_state = {state: sum(stats.by_state[state] for stats in ranks) for state in PrefillState}
        by_state[PrefillState.LINKING] += self._group.waiting
        return PrefillStats(
            by_state=by_state,
            puts_in_flight=sum(stats.puts_in_flight for stats in ranks),
            unannounced_messages=sum(stats.unannounced_messages for stats in ranks),
            unannounced_requests=self._group.unannounced + sum(stats.unannounced_requests for stats in ranks),
            overlapped_bytes=sum(stats.overlapped_bytes for stats in ranks),
            ended=dict(self._ended),
            refused=dict(sum((Counter(stats.refused) for stats in ranks), Counter())),
        )

    # Inside ----------------------------------------------------------------------------------------------------------

    def _is_single(self, key: HandoverKey) -> bool:
        """True for a hand-over that is the one rank's own, or not known: it has no legs."""
        return len(self._ranks) == 1 and not self._group.holds(key.without_rank)

    def _at(self, rank: int, actions: list[PrefillAction], now: float) -> list[PrefillAction]:
        return self._outer(self._group.at(rank, actions, now)) if actions else []

    def _outer(self, actions: Sequence[GroupPrefillAction]) -> list[PrefillAction]:
        """Actions about ranks as actions about workers."""
        result: list[PrefillAction] = []
        for action in actions:
            if isinstance(action, AtPrefillRank):
                result.append(self._of_worker(action.rank, action.action))
                continue
            if isinstance(action, Release):
                self._ended[action.reason or "done"] += 1
            result.append(action)
        return result

    def _of_worker(self, rank: int, action: PrefillAction) -> PrefillAction:
        match action:
            case SendTo(peer, message) if peer in self._rank_epochs:
                worker, peer_rank = self._rank_epochs[peer]
                assert isinstance(message, LegMessage)
                return SendTo(worker, AtRanks(rank, peer_rank, message))
            case CutLink(peer) if peer in self._rank_epochs:
                return replace(action, peer=self._rank_epochs[peer][0])
            case Put(key, peer) if rank or peer in self._rank_epochs:
                return replace(action, key=leg_key(key, rank), peer=self._rank_epochs.get(peer, (peer, 0))[0])
            case DropPuts(key) if rank:
                return DropPuts(leg_key(key, rank))
        return action
