"""Admission: a bounded number of running sequences, a bounded queue with a time limit, fair between tenants. Pure.

Quotas and queues are counted in sequences (prompts × n). The room of the process is shared by what sequences cost it:
one with log probabilities of alternatives costs several times as much as one without (`effort`). A request that is
larger than the room or its tenant's quota begins when nothing else of the tenant is running: its runs are released
piece by piece (see `held_runs`).

The tenant with the least running for its weight goes first, so that one tenant's flood delays only itself. Nor does it
take the room of others. The room has a spare part beyond its limit for tenants that have little running: the less a
tenant has, the more of the spare part it may use. And a tenant with less in the queue evicts the newest request of the
tenant with the most.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.requests.fair_eviction import RoomClaim, TenantUsage, select_evictions
from baton_gateway.requests.tenant import Tenant

SPARE = 8
"""1/SPARE of `max_running` is allowed on top, less what the tenant has running for its weight."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits per gateway process. The workers queue too; these limits bound the gateway's own memory."""

    max_running: int = 1_024
    """Sequences; tenants with little running may begin while there are up to an eighth more."""
    max_queued: int = 4_096
    """Sequences."""
    max_wait_s: float = 60.0


class Verdict(enum.Enum):
    ADMITTED = enum.auto()
    QUEUED = enum.auto()


@dataclass(slots=True)
class _Waiting:
    gives_up_s: float
    sequences: int
    at_once: int
    effort: int


@dataclass(slots=True)
class _Running:
    sequences: int
    effort: int


@dataclass(slots=True)
class _TenantQueue:
    tenant: Tenant
    running: int = 0
    """Running sequences."""
    room: int = 0
    """The process's room that they take: sequences times their effort."""
    queued: int = 0
    """Waiting sequences."""
    waiting: OrderedDict[int, _Waiting] = field(default_factory=OrderedDict)
    """By ticket, in order of arrival."""
    next_start: float = 0.0
    """Virtual time at which its next sequences start, after those that have begun (as in `fair_share`)."""

    def may_run(self, sequences: int) -> bool:
        limit = self.tenant.max_running
        return limit is None or not self.running or self.running + sequences <= limit

    @property
    def load(self) -> float:
        return self.room / self.tenant.weight

    @property
    def headroom(self) -> int | None:
        """The number of sequences that its quota lets begin now; None: any number."""
        limit = self.tenant.max_running
        if limit is None:
            return None
        if not self.running:
            return max(limit, self.first().at_once if self.waiting else 0)
        return max(0, limit - self.running)

    def usage(self) -> TenantUsage:
        newest = ((ticket, waiting.sequences) for ticket, waiting in reversed(self.waiting.items()))
        return TenantUsage(self.tenant.weight, self.queued, newest)

    def first(self) -> _Waiting:
        return next(iter(self.waiting.values()))


class Admission:
    """Admits the requests of this process; it knows them by ticket, from their arrival to their end."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._tickets = itertools.count(1)
        self._queues: dict[str, _TenantQueue] = {}
        self._owner: dict[int, _TenantQueue] = {}
        self._running: dict[int, _Running] = {}
        """Running requests by ticket."""
        self._num_running = 0
        self._room_taken = 0
        self._num_waiting = 0
        self._virtual = 0.0

    def reconfigure(self, limits: AdmissionLimits) -> None:
        """Apply other limits; requests that are in already stay."""
        self._limits = limits

    @property
    def num_running(self) -> int:
        """Running sequences."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Waiting sequences."""
        return self._num_waiting

    def offer(
        self, tenant: Tenant, sequences: int, now: float, at_once: int | None = None, effort: int = 1
    ) -> tuple[int, Verdict] | Problem:
        """Take a new request: its ticket and whether it may start, or why it is refused. `at_once`: the sequences of
        its first run; the others are released as there is room. `effort`: the plain sequences that one of them counts
        as in the room of the process.
        """
        queue = self._queues.setdefault(tenant.name, _TenantQueue(tenant, next_start=self._virtual))
        queue.tenant = tenant
        at_once = sequences if at_once is None else at_once
        if self._may_begin(queue, at_once, effort):
            return self._start(next(self._tickets), queue, at_once, effort), Verdict.ADMITTED
        if self._is_full(sequences) or self._is_over_quota(queue, sequences):
            if not queue.running and not queue.waiting:
                del self._queues[tenant.name]
            return errors.queue_full(self.retry_after_s(tenant))
        ticket = next(self._tickets)
        queue.waiting[ticket] = _Waiting(now + self._limits.max_wait_s, sequences, at_once, effort)
        queue.queued += sequences
        self._num_waiting += sequences
        self._owner[ticket] = queue
        return ticket, Verdict.QUEUED

    def select_evictions(
        self, tenant: Tenant, sequences: int, at_once: int | None = None, effort: int = 1
    ) -> list[int]:
        """Waiting tickets to refuse, so that a newcomer of a tenant with less in the queue fits into it. Each is still
        to `leave`. Empty: the newcomer needs no place of another request, or has no claim to one.
        """
        if not self._is_full(sequences):
            return []
        queue = self._queues.get(tenant.name) or _TenantQueue(tenant, next_start=self._virtual)
        at_once = sequences if at_once is None else at_once
        if self._may_begin(queue, at_once, effort) or self._is_over_quota(queue, sequences):
            return []
        claim = RoomClaim(tenant.name, tenant.weight, sequences)
        usages = {name: queue.usage() for name, queue in self._queues.items() if queue.waiting}
        return select_evictions(self._limits.max_queued, claim, usages, queue.queued) or []

    def is_over_quota(self, tenant: Tenant, sequences: int) -> bool:
        """Return whether the tenant's own `max_queued` refuses a newcomer, whatever other tenants do."""
        queue = self._queues.get(tenant.name)
        return queue is not None and self._is_over_quota(queue, sequences)

    def quota_turns(self, tenant: Tenant, at_once: int) -> float:
        """How many times the quota's sequences end until a newcomer's turn; 0: the quota does not hold it back."""
        limit = tenant.max_running
        if (
            limit is None
            or (queue := self._queues.get(tenant.name)) is None
            or (not queue.waiting and queue.may_run(at_once))
        ):
            return 0.0
        return max(0.0, (queue.running + queue.queued + at_once - limit) / limit)

    def startable(self, tenant: str) -> float:
        """The share of a tenant's queue that its quota lets begin now: the rest waits for its own sequences."""
        queue = self._queues.get(tenant)
        if queue is None or not queue.queued or (headroom := queue.headroom) is None:
            return 1.0
        return min(1.0, headroom / queue.queued)

    def waiting_for_quota(self) -> set[int]:
        """Tickets that wait for sequences of their own tenant to end: neither room nor a worker would help."""
        blocked: set[int] = set()
        for queue in self._queues.values():
            left = queue.headroom
            if left is None:
                continue
            for ticket, waiting in queue.waiting.items():
                left -= waiting.at_once
                if left < 0:
                    blocked.add(ticket)
        return blocked

    @property
    def max_wait_s(self) -> float:
        return self._limits.max_wait_s

    def may_grow(self, ticket: int, sequences: int) -> bool:
        """Return whether this many more of a request's sequences may run, besides those that are running."""
        queue, running = self._owner.get(ticket), self._running.get(ticket)
        effort = 1 if running is None else running.effort
        return queue is not None and queue.may_run(sequences) and self._has_room(queue, sequences * effort)

    def set_running(self, ticket: int, sequences: int) -> list[int]:
        """Set how many of a request's sequences are running. Returns the tickets whose turn it now is."""
        running = self._running.get(ticket)
        if running is None or running.sequences == sequences:
            return []
        more, running.sequences = sequences - running.sequences, sequences
        self._count(self._owner[ticket], more, running.effort)
        return self._start_waiting() if more < 0 else []

    def leave(self, ticket: int) -> list[int]:
        """A running or waiting request ended. Returns the tickets whose turn it now is. Unknown tickets are ignored."""
        queue = self._owner.pop(ticket, None)
        if queue is None:
            return []
        if (running := self._running.pop(ticket, None)) is not None:
            self._count(queue, -running.sequences, running.effort)
        if (waiting := queue.waiting.pop(ticket, None)) is not None:
            self._num_waiting -= waiting.sequences
            queue.queued -= waiting.sequences
        if queue.running == 0 and not queue.waiting:
            del self._queues[queue.tenant.name]
        return self._start_waiting()

    def expired(self, now: float) -> list[int]:
        """Tickets that waited too long; each is still to `leave`."""
        expired = []
        for queue in self._queues.values():
            for ticket, waiting in queue.waiting.items():
                if waiting.gives_up_s > now:
                    break
                expired.append(ticket)
        return expired

    def next_expiry(self) -> float:
        return min((queue.first().gives_up_s for queue in self._queues.values() if queue.waiting), default=math.inf)

    def retry_after_s(self, tenant: Tenant) -> int:
        """A rough guess: longer with the queue, in which other tenants count as far as they go first."""
        queue = self._queues.get(tenant.name)
        own, limit = 0 if queue is None else queue.queued, max(1, self._limits.max_running)
        ahead = sum(min(other.queued, own * other.tenant.weight / tenant.weight) for other in self._queues.values())
        ahead /= limit
        if tenant.max_running is not None:
            ahead = max(ahead, own / tenant.max_running)
        return 1 + min(30, int(4 * ahead))

    def _count(self, queue: _TenantQueue, sequences: int, effort: int) -> None:
        """This many more of a tenant's sequences are running; negative: fewer."""
        queue.running += sequences
        queue.room += sequences * effort
        self._num_running += sequences
        self._room_taken += sequences * effort

    def _may_begin(self, queue: _TenantQueue, at_once: int, effort: int) -> bool:
        """Return whether a request may begin at once, before all that wait."""
        if queue.waiting or not queue.may_run(at_once) or not self._has_room(queue, at_once * effort):
            return False
        return not self._num_waiting or all(queue.load < other.load for other in self._ready())

    def _turn(self, queue: _TenantQueue) -> tuple[float, float, int]:
        """The order of tenants: equally loaded ones take turns, because often none of them has anything running."""
        return queue.load, max(self._virtual, queue.next_start), next(iter(queue.waiting))

    def _ready(self) -> Iterator[_TenantQueue]:
        """Queues whose first request waits for room alone."""
        queues = self._queues.values()
        return (queue for queue in queues if queue.waiting and queue.may_run(queue.first().at_once))

    def _has_room(self, queue: _TenantQueue, room: int) -> bool:
        limit = self._limits.max_running
        limit += max(0, int(limit // SPARE - queue.load))
        return not self._room_taken or self._room_taken + room <= limit

    def _is_full(self, sequences: int) -> bool:
        return bool(self._num_waiting or not self._limits.max_queued) and (
            self._num_waiting + sequences > self._limits.max_queued
        )

    def _is_over_quota(self, queue: _TenantQueue, sequences: int) -> bool:
        limit = queue.tenant.max_queued
        return limit is not None and bool(queue.waiting) and queue.queued + sequences > limit

    def _start(self, ticket: int, queue: _TenantQueue, sequences: int, effort: int) -> int:
        self._owner[ticket] = queue
        self._running[ticket] = _Running(sequences, effort)
        self._count(queue, sequences, effort)
        self._virtual = max(self._virtual, queue.next_start)
        queue.next_start = self._virtual + sequences * effort / queue.tenant.weight
        return ticket

    def _start_waiting(self) -> list[int]:
        started = []
        while True:
            queue = min(self._ready(), key=self._turn, default=None)
            if queue is None or not self._has_room(queue, queue.first().at_once * queue.first().effort):
                break
            ticket, waiting = queue.waiting.popitem(last=False)
            self._num_waiting -= waiting.sequences
            queue.queued -= waiting.sequences
            started.append(self._start(ticket, queue, waiting.at_once, waiting.effort))
        return started
