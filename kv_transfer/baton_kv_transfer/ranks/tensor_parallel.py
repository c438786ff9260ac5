"""Pairs of ranks that exchange heads when prefill and decode workers have different numbers of ranks. Pure.

A rank of `ranks` holds kv_heads / ranks heads, adjacent ones in order; with fewer heads than ranks each head is held by
ranks / kv_heads ranks, adjacent ones too.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, replace

from baton_kv_transfer.handover import HandoverKey
from baton_wire.errors import UnfitPairError
from baton_wire.kv_shape import KvGeometry, heads_fit, held_kv_heads
from baton_wire.messages.pair_link import MAX_RANKS


@dataclass(frozen=True, slots=True)
class RankPeer:
    """A rank of a worker at the other end of a link."""

    worker: bytes
    """The worker's epoch."""
    ranks: int
    rank: int = 0

    @property
    def epoch(self) -> bytes:
        return rank_epoch(self.worker, self.rank)


@dataclass(frozen=True, slots=True)
class LegWorker:
    """A worker with which legs are exchanged over one link, and its part of every leg."""

    epoch: bytes
    ranks: int
    pairs: frozenset[tuple[int, int]]
    """(own rank, its rank) of every leg."""

    def peer(self, rank: int) -> RankPeer:
        return RankPeer(self.epoch, self.ranks, rank)


def leg_key(key: HandoverKey, own_rank: int) -> HandoverKey:
    """A key by which a worker knows one leg: a machine's key, whose `rank` is the peer's, with the worker's own rank.

    Between workers of one rank each it is the hand-over's own key.
    """
    return replace(key, rank=own_rank * MAX_RANKS + key.rank) if own_rank else key


def split_leg_key(key: HandoverKey) -> tuple[int, HandoverKey]:
    """The own rank in a `leg_key`, and the key of that rank's machine."""
    own_rank, peer_rank = divmod(key.rank, MAX_RANKS)
    return own_rank, replace(key, rank=peer_rank) if own_rank else key


@dataclass(frozen=True, slots=True)
class RankPair:
    """Heads of the model that one prefill rank sends to one decode rank."""

    prefill: int
    decode: int
    heads: range


def rank_epoch(worker: bytes, rank: int) -> bytes:
    """A name of its own for each rank of a worker, which its peers know without asking; rank 0 has the worker's."""
    return worker if rank == 0 else hashlib.blake2b(worker + bytes([rank]), digest_size=len(worker)).digest()


def heads_of(kv_heads: int, ranks: int, rank: int) -> range:
    """The model's KV heads that `rank` holds. Raises UnfitPairError unless one of the two numbers divides the other."""
    if not heads_fit(kv_heads, ranks):
        raise UnfitPairError(f"tensor_parallel: {ranks} ranks for {kv_heads} KV heads: one must divide the other")
    return held_kv_heads(kv_heads, rank, ranks)


@functools.lru_cache(maxsize=128)
def rank_pairs(kv_heads: int, prefill_ranks: int, decode_ranks: int) -> tuple[RankPair, ...]:
    """Every head of every decode rank from exactly one prefill rank.

    Of the prefill ranks that hold a head the decode ranks take turns. Raises UnfitPairError.
    """
    held = [heads_of(kv_heads, prefill_ranks, rank) for rank in range(prefill_ranks)]
    pairs: list[RankPair] = []
    for decode in range(decode_ranks):
        wanted = heads_of(kv_heads, decode_ranks, decode)
        for head in wanted:
            holders = [rank for rank, heads in enumerate(held) if head in heads]
            sender = holders[decode % len(holders)]
            last = pairs[-1] if pairs else None
            if last is not None and (last.prefill, last.decode) == (sender, decode):
                pairs[-1] = RankPair(sender, decode, range(last.heads.start, head + 1))
            else:
                pairs.append(RankPair(sender, decode, range(head, head + 1)))
    return tuple(pairs)


def require_ranks_fit(kv_heads: int, own: int, peer: int) -> None:
    """Raises UnfitPairError where the heads of two workers with these numbers of ranks do not fit."""
    for ranks in (own, peer):
        if not heads_fit(kv_heads, ranks):
            raise UnfitPairError(
                f"tensor_parallel: {own} here, {peer} there: {ranks} ranks do not fit {kv_heads} KV heads: "
                "one must divide the other"
            )


def leg_worker(epoch: bytes, kv_heads: int, own: int, peer: int, *, at_decode: bool = False) -> LegWorker:
    """The worker at the other end of a link. Raises UnfitPairError where the heads do not fit."""
    require_ranks_fit(kv_heads, own, peer)
    if at_decode:
        return LegWorker(
            epoch, peer, frozenset((pair.decode, pair.prefill) for pair in rank_pairs(kv_heads, peer, own))
        )
    return LegWorker(epoch, peer, frozenset((pair.prefill, pair.decode) for pair in rank_pairs(kv_heads, own, peer)))


def rank_geometries(geometry: KvGeometry, ranks: int) -> list[KvGeometry]:
    """The shape of each rank's pool, from that of the whole model. Raises UnfitPairError."""
    return [replace(geometry, kv_heads=len(heads_of(geometry.kv_heads, ranks, rank))) for rank in range(ranks)]


def local_heads(kv_heads: int, ranks: int, rank: int, heads: range) -> range:
    """Where heads of the model lie in the pool of a rank that holds them."""
    first = heads_of(kv_heads, ranks, rank).start
    return range(heads.start - first, heads.stop - first)


class RankLinks:
    """Which ranks of a worker are linked with which of its peers'."""

    def __init__(self) -> None:
        self._up: dict[bytes, set[tuple[int, int]]] = {}
        self._ranks: dict[bytes, int] = {}

    def up(self, rank: int, peer: RankPeer) -> None:
        self._up.setdefault(peer.worker, set()).add((rank, peer.rank))
        self._ranks[peer.worker] = peer.ranks

    def down(self, rank: int, peer: RankPeer) -> None:
        up = self._up.get(peer.worker, set())
        up.discard((rank, peer.rank))
        if not up:
            self._up.pop(peer.worker, None)
            self._ranks.pop(peer.worker, None)

    def of(self, worker: bytes) -> list[tuple[int, int]]:
        """All links with this worker that are up, (own rank, peer's rank)."""
        return sorted(self._up.get(worker, ()))

    def ranks_of(self, worker: bytes) -> int | None:
        """Ranks of this worker; None while no link to it is up."""
        return self._ranks.get(worker)

    def are_up(self, worker: bytes, links: set[tuple[int, int]]) -> bool:
        """True if all these links, (own rank, peer's rank), are up."""
        return links <= self._up.get(worker, set())
