"""The decode side of a worker with one or several ranks, in terms of workers: a machine per rank, one outcome for all.

A pure machine with the interface of `DecodeHandovers`, the mirror of `prefill.ranks`. The ranks' landing regions lie
one after the other in one memory, so an offset in it says which rank's bytes are meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from baton_kv_transfer.decode.group import AtDecodeRank, DecodeGroup, GroupDecodeAction
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, DecodeState, DecodeStats, Landed, Scatter
from baton_kv_transfer.handover import CutLink, HandoverKey, Reservation, SendTo, TransferConfig
from baton_kv_transfer.landing import ClaimRefusal, LandingStats, LandingWindow, SpanState
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.ranks.tensor_parallel import LegWorker, leg_key, leg_worker, split_leg_key
from baton_wire.errors import BadMessageError
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import AtRanks, Heartbeat, LegMessage, PairMessage
from baton_wire.messages.values import Reason


class DecodeRanks:
    """All hand-overs of one decode worker of `len(ranks)` ranks; `geometry` is the whole model's."""

    def __init__(self, geometry: KvGeometry, ranks: Sequence[DecodeHandovers], config: TransferConfig) -> None:
        """`ranks`: each with the geometry of its own heads, and landing bytes that follow the former rank's."""
        self._kv_heads = geometry.kv_heads
        self._ranks = list(ranks)
        self._group = DecodeGroup(geometry, self._ranks, config)
        self._workers: dict[bytes, LegWorker] = {}
        """Linked prefill workers with which legs are exchanged."""
        self._rank_epochs: dict[bytes, tuple[bytes, int]] = {}
        """Worker and rank by the rank's epoch."""
        self._ended: Counter[str] = Counter()

    @property
    def landing_bytes(self) -> int:
        """The total of all ranks."""
        return sum(machine.landing_bytes for machine in self._ranks)

    # The engine's events ---------------------------------------------------------------------------------------------

    def queued(self, key: HandoverKey, peer: bytes, position: int, deadline_s: float, now: float) -> list[DecodeAction]:
        if self._is_single(key) and peer not in self._workers:
            return self._at(0, self._ranks[0].queued(key, peer, position, deadline_s, now), now)
        return self._outer(self._group.queued(key, peer, position, deadline_s, now))

    def expected(self, key: HandoverKey, peer: bytes, reservation: Reservation, now: float) -> list[DecodeAction]:
        """The same blocks are reserved in every rank's pool."""
        if self._is_single(key) and peer not in self._workers:
            return self._at(0, self._ranks[0].expected(key, peer, reservation, now), now)
        return self._outer(self._group.expected(key, peer, reservation, now))

    def refused(self, key: HandoverKey, peer: bytes, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        if self._is_single(key) and peer not in self._workers:
            return self._at(0, self._ranks[0].refused(key, peer, reason, detail, now), now)
        return self._outer(self._group.refused(key, peer, reason, detail, now))

    def cancelled(self, key: HandoverKey, reason: Reason, detail: str, now: float) -> list[DecodeAction]:
        if self._is_single(key):
            return self._at(0, self._ranks[0].cancelled(key, reason, detail, now), now)
        return self._outer(self._group.cancelled(key, reason, detail, now))

    # Bytes -----------------------------------------------------------------------------------------------------------

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        """Permission for a worker to write here now: its ranks' transfers are its own."""
        machine = self._ranks[self._rank_at(offset)]
        if peer in self._workers:
            holder = machine.holder_of_transfer(transfer)
            if holder is not None and self._rank_epochs.get(holder, (holder, 0))[0] == peer:
                return machine.claim(holder, transfer, offset, length)
        return machine.claim(peer, transfer, offset, length)

    def arrived(self, window: LandingWindow, now: float) -> list[DecodeAction]:
        rank = self._rank_at(window.offset)
        return self._at(rank, self._ranks[rank].arrived(window, now), now)

    def scattered(self, key: HandoverKey, first_unit: int, checksums: bytes, now: float) -> list[DecodeAction]:
        rank, key = split_leg_key(key)
        return self._outer(self._group.scattered(rank, key, first_unit, checksums, now))

    def scatter_failed(self, key: HandoverKey, first_unit: int, detail: str, now: float) -> list[DecodeAction]:
        rank, key = split_leg_key(key)
        return self._outer(self._group.scatter_failed(rank, key, first_unit, detail, now))

    def holder_of(self, extent: Extent) -> bytes | None:
        """The prefill worker whose write may land there; None when no write may."""
        holder = self._ranks[self._rank_at(extent.offset)].holder_of(extent)
        return None if holder is None else self._rank_epochs.get(holder, (holder, 0))[0]

    # Links -----------------------------------------------------------------------------------------------------------

    def link_up(
        self,
        peer: bytes,
        block_tokens: int,
        now: float,
        *,
        one_sided: bool | None = None,
        link: int = 0,
        ranks: int = 1,
    ) -> list[DecodeAction]:
        """A prefill worker of `ranks` ranks is linked. Raises UnfitPairError: block sizes, or ranks that do not divide
        the heads."""
        if len(self._ranks) == ranks == 1:
            up = self._ranks[0].link_up(peer, block_tokens, now, one_sided=one_sided, link=link)
            return self._at(0, up, now)
        worker = leg_worker(peer, self._kv_heads, len(self._ranks), ranks, at_decode=True)
        self._workers[peer] = worker
        self._rank_epochs |= {worker.peer(rank).epoch: (peer, rank) for rank in range(ranks)}
        waiting = self._ranks[0].withdraw(peer) if len(self._ranks) == 1 else []
        actions: list[GroupDecodeAction] = []
        for rank, peer_rank in sorted(worker.pairs):
            name = worker.peer(peer_rank)
            actions += self._group.link_up(rank, name, block_tokens, now, one_sided=one_sided, link=link)
        for key, reservation in waiting:
            actions += self._group.expected(key, peer, reservation, now)
        return self._outer(actions)

    def link_down(self, peer: bytes, detail: str, now: float) -> list[DecodeAction]:
        worker = self._workers.pop(peer, None)
        if worker is None:
            return [] if len(self._ranks) > 1 else self._at(0, self._ranks[0].link_down(peer, detail, now), now)
        actions = self._outer(self._group.worker_down(peer, detail, now))
        for rank in range(worker.ranks):
            self._rank_epochs.pop(worker.peer(rank).epoch, None)
        return actions

    def writes_ended(self, link: int, now: float) -> list[DecodeAction]:
        """Proof that nothing granted over this link, which is down, can still be written."""
        ranks = range(len(self._ranks))
        return [action for rank in ranks for action in self._outer(self._group.writes_ended(rank, link, now))]

    def message(self, peer: bytes, message: PairMessage, now: float) -> list[DecodeAction]:
        """A message of the prefill worker `peer`. Raises BadMessageError when its kind is not for it to send."""
        worker = self._workers.get(peer)
        match message:
            case Heartbeat():
                return []
            case AtRanks(peer_rank, rank, inner):
                if worker is None or (rank, peer_rank) not in worker.pairs:
                    raise BadMessageError(f"AtRanks: prefill rank {peer_rank} and decode rank {rank} exchange no heads")
                return self._outer(self._group.message(rank, worker.peer(peer_rank), inner, now))
            case _ if worker is not None or len(self._ranks) > 1:
                raise BadMessageError(f"{type(message).__name__}: workers of several ranks send it inside AtRanks only")
        return self._at(0, self._ranks[0].message(peer, message, now), now)

    def spoilt(self, peer: bytes, request: bytes, attempt: int, detail: str, now: float) -> list[DecodeAction]:
        if peer in self._workers or len(self._ranks) > 1:
            return self._outer(self._group.spoilt(peer, request, attempt, detail, now))
        return self._at(0, self._ranks[0].spoilt(peer, request, attempt, detail, now), now)

    # Time and looking ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[DecodeAction]:
        """Act on deadlines. Call it a few times per second."""
        return self._outer(self._group.tick(now))

    def open_keys(self) -> list[HandoverKey]:
        single = self._ranks[0].open_keys() if len(self._ranks) == 1 else []
        return [key for key in single if self._is_single(key)] + self._group.open_keys()

    def stats(self) -> DecodeStats:
        """The machines' statistics added up; endings count once for each hand-over."""
        ranks = self._group.stats()
        by_state = {state: sum(stats.by_state[state] for stats in ranks) for state in DecodeState}
        by_state[DecodeState.LINKING] += self._group.waiting
        return DecodeStats(
            by_state=by_state,
            landing=_all_regions([stats.landing for stats in ranks]),
            sealed_bytes=sum(stats.sealed_bytes for stats in ranks),
            lingering=sum(stats.lingering for stats in ranks),
            ended=dict(self._ended),
            refused=dict(sum((Counter(stats.refused) for stats in ranks), Counter())),
        )

    # Inside ----------------------------------------------------------------------------------------------------------

    def _rank_at(self, offset: int) -> int:
        """The rank in whose landing bytes an offset is; the last for those beyond all."""
        if len(self._ranks) == 1:
            return 0
        return min(offset // max(1, self._ranks[0].landing_bytes), len(self._ranks) - 1)

    def _is_single(self, key: HandoverKey) -> bool:
        """True for a hand-over that is the one rank's own, or not known: it has no legs."""
        return len(self._ranks) == 1 and not self._group.holds(key.without_rank)

    def _at(self, rank: int, actions: list[DecodeAction], now: float) -> list[DecodeAction]:
        return self._outer(self._group.at(rank, actions, now)) if actions else []

    def _outer(self, actions: Sequence[GroupDecodeAction]) -> list[DecodeAction]:
        """Actions about ranks as actions about workers."""
        result: list[DecodeAction] = []
        for action in actions:
            if isinstance(action, AtDecodeRank):
                result.append(self._of_worker(action.rank, action.action))
                continue
            self._ended["landed" if isinstance(action, Landed) else action.reason] += 1
            result.append(action)
        return result

    def _of_worker(self, rank: int, action: DecodeAction) -> DecodeAction:
        match action:
            case SendTo(peer, message) if peer in self._rank_epochs:
                worker, peer_rank = self._rank_epochs[peer]
                assert isinstance(message, LegMessage)
                return SendTo(worker, AtRanks(peer_rank, rank, message))
            case CutLink(peer) if peer in self._rank_epochs:
                return replace(action, peer=self._rank_epochs[peer][0])
            case Scatter(key) if rank:
                return replace(action, key=leg_key(key, rank))
        return action


def _all_regions(regions: Sequence[LandingStats]) -> LandingStats:
    return LandingStats(
        total_bytes=sum(stats.total_bytes for stats in regions),
        free_bytes=sum(stats.free_bytes for stats in regions),
        by_state={state: sum(stats.by_state[state] for stats in regions) for state in SpanState},
        largest_free_bytes=max(stats.largest_free_bytes for stats in regions),
        refused_writes=sum(stats.refused_writes for stats in regions),
        discarded_writes=sum(stats.discarded_writes for stats in regions),
        quarantine_is_full=any(stats.quarantine_is_full for stats in regions),
    )


def decode_machines(shapes: Sequence[KvGeometry], landing_bytes: int, config: TransferConfig) -> list[DecodeHandovers]:
    """A machine for each rank's shape, with an equal share of the landing bytes."""
    machines: list[DecodeHandovers] = []
    for shape in shapes:
        start = sum(machine.landing_bytes for machine in machines)
        machines.append(DecodeHandovers(shape, landing_bytes // len(shapes), config, landing_start=start))
    return machines
