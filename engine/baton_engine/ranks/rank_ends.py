"""All that one rank shares with the worker's process and the other ranks, made by the worker's process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from baton_engine.collectives.event_counter import EventCounter
from baton_engine.collectives.shared_memory_collective import CollectiveParts
from baton_engine.memory.shared_memory import reserve_memory
from baton_engine.ranks.byte_ring import RingParts
from baton_engine.ranks.stage_links import attach_links

_RING_DESCRIPTORS = 3


@dataclass(frozen=True, slots=True)
class RankEnds:
    """The shared parts of one rank. The rank inherits their descriptors when it starts."""

    orders: RingParts
    """From the worker's process to the rank."""
    reports: RingParts
    """From the rank to the worker's process."""
    beats: EventCounter
    """Signs of the rank's life."""
    pool: int
    """Descriptor of the memory of the rank's KV pool, empty until the pool is sized."""

    @classmethod
    def create(cls, rank: int, pool: int | None = None) -> Self:
        """`pool`: the descriptor of memory that ranks have together; None: the rank has memory of its own."""
        memory = reserve_memory(f"baton-kv-{rank}") if pool is None else os.dup(pool)
        return cls(RingParts.create(), RingParts.create(), EventCounter.create(), memory)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return *self.orders.descriptors, *self.reports.descriptors, self.beats.descriptor, self.pool

    @classmethod
    def attach(cls, descriptors: Sequence[int]) -> Self:
        """Map what another process created, from its `descriptors`."""
        rings, (beats, pool) = descriptors[: 2 * _RING_DESCRIPTORS], descriptors[2 * _RING_DESCRIPTORS :]
        orders, reports = rings[:_RING_DESCRIPTORS], rings[_RING_DESCRIPTORS:]
        return cls(RingParts.attach(orders), RingParts.attach(reports), EventCounter(beats), pool)

    def close(self) -> None:
        """Close all descriptors but the pool's, which belongs to the pool's memory once that is grown."""
        self.orders.close()
        self.reports.close()
        self.beats.close()


@dataclass(frozen=True, slots=True)
class RankParts:
    """All that a rank inherits."""

    ends: RankEnds
    sums: CollectiveParts
    links: Sequence[RingParts]
    """The rings between the stages of a pipeline; none between ranks that share each layer."""


def count_descriptors(ranks: int, *, are_stages: bool) -> tuple[int, int, int]:
    """How many descriptors a rank inherits: its own, those of the sums, and those of the rings between stages."""
    return 2 * _RING_DESCRIPTORS + 2, 1 + ranks * ranks, (ranks - 1) * _RING_DESCRIPTORS if are_stages else 0


def attach_all(descriptors: Sequence[int], ranks: int, *, are_stages: bool = False) -> RankParts:
    """Map what a rank inherits. Raises ValueError for another number of descriptors."""
    own, shared, linked = count_descriptors(ranks, are_stages=are_stages)
    if len(descriptors) != own + shared + linked:
        raise ValueError(f"descriptors: {len(descriptors)} for {ranks} ranks; must be {own + shared + linked}")
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    sums = CollectiveParts.attach(descriptors[own : own + shared], ranks)
    links = attach_links(descriptors[own + shared :], _RING_DESCRIPTORS)
    return RankParts(RankEnds.attach(descriptors[:own]), sums, links)
