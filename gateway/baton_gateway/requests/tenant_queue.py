"""One tenant's requests in admission: what runs, what waits, and the room that it takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_gateway.requests.fair_eviction import TenantUsage
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import QueuePlace, WaitingLine, WaitingRequest
from baton_wire.messages.operator_link import LimitMeasure, LimitUse


@dataclass(slots=True)
class TenantQueue:
    """The running and waiting requests of one tenant."""

    tenant: Tenant
    running: int = 0
    """Running sequences."""
    room: int = 0
    """The process's room that they take: sequences times their effort."""
    batch_room: int = 0
    """The part of `room` that its batch class takes."""
    waiting: WaitingLine = field(default_factory=WaitingLine)
    next_start: list[float] = field(default_factory=lambda: [0.0, 0.0])
    """Virtual time at which its next sequences start, after those that have begun (as in `fair_share`): those
    of `Batch` second, all others first."""

    def may_run(self, sequences: int) -> bool:
        limit = self.tenant.max_running
        return limit is None or (limit > 0 and not self.running) or self.running + sequences <= limit

    @property
    def queued(self) -> int:
        """Waiting sequences."""
        return self.waiting.sequences

    def load(self, *, is_batch: bool) -> float:
        """The room that it takes for its weight. Its batch class fills slack, so it counts against that class alone."""
        return (self.room if is_batch else self.room - self.batch_room) / self.tenant.weight

    @property
    def headroom(self) -> int | None:
        """The number of sequences that its quota lets begin now; None: any number."""
        limit = self.tenant.max_running
        if limit is None:
            return None
        if limit and not self.running:
            return max(limit, self.first().at_once if self.waiting else 0)
        return max(0, limit - self.running)

    def usage(self, *, is_batch: bool = False) -> TenantUsage:
        """Its use of the queue; `is_batch`: that of its batch class."""
        size = self.waiting.batch_sequences if is_batch else self.queued
        return TenantUsage(self.tenant.weight, size, self.waiting.evictable(is_batch=is_batch))

    def sequence_use(self) -> LimitUse:
        """Its sequences against their limit over all processes, for the operator."""
        limit = self.tenant.limits.max_concurrent or 0
        return LimitUse(self.tenant.name, LimitMeasure.CONCURRENT, limit, self.running + self.queued, self.running)

    def first(self) -> WaitingRequest:
        return self.waiting.first()[1]

    def own_evictions(self, newcomer: QueuePlace, over: int) -> list[int]:
        """Its requests to evict for one of its own, which free `over` sequences: of lower classes, and of sessions with
        more. Empty: they free too little."""
        evicted = []
        for ticket, sequences in self.waiting.evictable(newcomer):
            evicted.append(ticket)
            over -= sequences
            if over <= 0:
                return evicted
        return []
