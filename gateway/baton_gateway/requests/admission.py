"""Admission: a bounded number of running sequences, a bounded queue with a time limit, fair between tenants. Pure.

Quotas and queues are counted in sequences (prompts × n). The room of the process is shared by what sequences cost it:
one with log probabilities of alternatives costs several times as much as one without (`effort`). A request that is
larger than the room or its tenant's quota begins when nothing else of the tenant is running: its runs are released
piece by piece (see `held_runs`).

The tenant with the least running for its weight goes first, so that one tenant's flood delays only itself. Nor does it
take the room of others. The room has a spare part beyond its limit for tenants that have little running: the less a
tenant has, the more of the spare part it may use. And a tenant with less in the queue evicts the newest request of the
tenant with the most.

Classes and sessions order a tenant's own requests (`waiting_line`); between tenants weights decide, whatever class a
request names. The batch class alone goes after all tenants' other requests: it begins where none of them waits for
room and workers have slack (`batch_slack`), takes no spare room, has few requests on their way to workers, and is
evicted first.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.requests.batch_slack import BatchSlack
from baton_gateway.requests.fair_eviction import RoomClaim, select_evictions
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.tenant_queue import TenantQueue
from baton_gateway.requests.waiting_line import STANDARD_PLACE, QueuePlace, WaitingRequest
from baton_wire.messages.operator_link import LimitUse

SPARE = 8
"""1/SPARE of `max_running` is allowed on top, less what the tenant has running for its weight."""
BATCH_ON_THE_WAY = 16
"""Sequences of the batch class that may be admitted and not at a worker yet. So they build no queue there."""


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
class _Running:
    sequences: int
    effort: int
    is_batch: bool


class Admission:
    """Admits the requests of this process; it knows them by ticket, from their arrival to their end."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._tickets = itertools.count(1)
        self._queues: dict[str, TenantQueue] = {}
        self._first_use = 0
        """The place of the tenant with which the next list of sequences begins."""
        self._owner: dict[int, TenantQueue] = {}
        self._running: dict[int, _Running] = {}
        """Running requests by ticket."""
        self._num_running = 0
        self._room_taken = 0
        self._num_waiting = 0
        self._virtual = [0.0, 0.0]
        self._on_the_way: dict[int, int] = {}
        """Sequences of the batch class that were admitted and are not at a worker, by ticket."""
        self.slack: Callable[[], BatchSlack | None] = lambda: None
        """The slack of the workers for the batch class; None: it is not known, and bounds nothing."""

    def reconfigure(self, limits: AdmissionLimits) -> None:
        """Apply other limits; requests that are in already stay."""
        self._limits = limits

    def update_tenant(self, tenant: Tenant) -> list[int]:
        """Apply another quota to a tenant with requests here. Returns the tickets whose turn it now is."""
        if (queue := self._queues.get(tenant.name)) is None:
            return []
        queue.tenant = tenant
        return self._start_waiting()

    def sequence_uses(self, most: int) -> list[LimitUse]:
        """List the sequences of tenants that have a limit of them over all processes, of at most `most` tenants. Those
        that are left out come next time."""
        limited = [queue for queue in self._queues.values() if queue.tenant.limits.max_concurrent is not None]
        begin = self._first_use % len(limited) if len(limited) > most else 0
        self._first_use = begin + most
        return [queue.use() for queue in (limited[begin:] + limited[:begin])[:most]]

    @property
    def num_running(self) -> int:
        """Running sequences."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Waiting sequences."""
        return self._num_waiting

    def tenant_loads(self) -> dict[str, tuple[int, int]]:
        """Running and waiting sequences of each tenant that has some."""
        return {name: (queue.running, queue.queued) for name, queue in self._queues.items()}

    def offer(
        self,
        tenant: Tenant,
        sequences: int,
        now: float,
        at_once: int | None = None,
        effort: int = 1,
        place: QueuePlace = STANDARD_PLACE,
    ) -> tuple[int, Verdict] | Problem:
        """Take a new request: its ticket and whether it may start, or why it is refused. `at_once`: the sequences of
        its first run; the others are released as there is room. `effort`: the plain sequences that one of them counts
        as in the room of the process.
        """
        queue = self._queues.setdefault(tenant.name, TenantQueue(tenant, next_start=list(self._virtual)))
        queue.tenant = tenant
        at_once = sequences if at_once is None else at_once
        request = WaitingRequest(now + self._limits.max_wait_s, sequences, at_once, effort, place)
        if self._may_begin(queue, request):
            return self._start(next(self._tickets), queue, request), Verdict.ADMITTED
        if self._is_full(sequences) or self._is_over_quota(queue, sequences):
            if not queue.running and not queue.waiting:
                del self._queues[tenant.name]
            return errors.queue_full(self.retry_after_s(tenant))
        ticket = next(self._tickets)
        queue.waiting.add(ticket, request)
        self._num_waiting += sequences
        self._owner[ticket] = queue
        return ticket, Verdict.QUEUED

    def select_evictions(
        self,
        tenant: Tenant,
        sequences: int,
        at_once: int | None = None,
        effort: int = 1,
        place: QueuePlace = STANDARD_PLACE,
    ) -> list[int]:
        """Waiting tickets to refuse, so that a newcomer with more right to the queue fits into it. Each is still to
        `leave`. Empty: the newcomer needs no place of another request, or has no claim to one.
        """
        queue = self._queues.get(tenant.name) or TenantQueue(tenant, next_start=list(self._virtual))
        is_over_quota, is_full = self._is_over_quota(queue, sequences), self._is_full(sequences)
        if not is_full and not is_over_quota:
            return []
        request = WaitingRequest(0.0, sequences, sequences if at_once is None else at_once, effort, place)
        if self._may_begin(queue, request):
            return []
        over = self._num_waiting + sequences - self._limits.max_queued if is_full else 0
        if is_over_quota:
            return queue.own_evictions(place, max(over, queue.queued + sequences - (tenant.max_queued or 0)))
        evicted = self._batch_evictions(queue, request, over)
        if evicted is None and not place.is_batch:
            claim = RoomClaim(tenant.name, tenant.weight, sequences)
            usages = {name: queue.usage() for name, queue in self._queues.items() if queue.waiting}
            evicted = select_evictions(self._limits.max_queued, claim, usages, queue.queued)
        return queue.own_evictions(place, over) if evicted is None else evicted

    def _batch_evictions(self, queue: TenantQueue, request: WaitingRequest, over: int) -> list[int] | None:
        """Requests of the batch class to evict: every other request goes before them, and between them weights decide.
        None: they free too little, or are not to be evicted for this one."""
        tenant, own = queue.tenant, 0
        usages = {name: other.usage(is_batch=True) for name, other in self._queues.items() if other.waiting}
        room = sum(usage.size for usage in usages.values()) - over
        claim = RoomClaim("", math.inf, 0)
        if request.place.is_batch:
            claim, own = RoomClaim(tenant.name, tenant.weight, request.sequences), queue.waiting.batch_sequences
            room += request.sequences
        return None if room < 0 else select_evictions(room, claim, usages, own)

    def is_over_quota(self, tenant: Tenant, sequences: int) -> bool:
        """Return whether the tenant's own `max_queued` refuses a newcomer, whatever other tenants do."""
        queue = self._queues.get(tenant.name)
        return queue is not None and self._is_over_quota(queue, sequences)

    def quota_turns(self, tenant: Tenant, at_once: int, place: QueuePlace = STANDARD_PLACE) -> float:
        """How many times the quota's sequences end until a newcomer's turn; 0: the quota does not hold it back."""
        limit = tenant.max_running
        if (
            limit is None
            or (queue := self._queues.get(tenant.name)) is None
            or (not queue.waiting.has_before(place) and queue.may_run(at_once))
        ):
            return 0.0
        return max(0.0, (queue.running + queue.waiting.ahead(place) + at_once - limit) / max(1, limit))

    def startable(self, tenant: str) -> float:
        """The share of a tenant's queue that its quota lets begin now: the rest waits for its own sequences."""
        queue = self._queues.get(tenant)
        if queue is None or not queue.queued or (headroom := queue.headroom) is None:
            return 1.0
        return min(1.0, headroom / queue.queued)

    def share_ahead(self, name: str, tenant: str, place: QueuePlace) -> float:
        """The share of a tenant's queue that can go before a newcomer of `tenant` with this place: what the quota lets
        begin, without lower classes and later turns of the newcomer's own tenant, or the batch class of another."""
        queue = self._queues.get(name)
        if queue is None or not queue.queued:
            return 1.0
        if name == tenant:
            ahead = queue.waiting.ahead(place)
        else:
            ahead = queue.queued if place.is_batch else queue.queued - queue.waiting.batch_sequences
        return min(self.startable(name), ahead / queue.queued)

    def waiting_for_quota(self) -> set[int]:
        """Tickets that wait for sequences of their own tenant to end: neither room nor a worker would help."""
        blocked: set[int] = set()
        for queue in self._queues.values():
            left = queue.headroom
            if left is None:
                continue
            for ticket, waiting in queue.waiting:
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
        effort, is_batch = (1, False) if running is None else (running.effort, running.is_batch)
        if queue is None or not queue.may_run(sequences) or not self._has_room(queue, sequences * effort, is_batch):
            return False
        return not is_batch or (
            self._has_slack(sequences) and all(other.first().place.is_batch for other in self._ready())
        )

    def start_batches(self) -> list[int]:
        """Workers may have slack by now. Returns the tickets of the batch class whose turn it is."""
        is_waiting = any(queue.waiting.batch_sequences for queue in self._queues.values())
        return self._start_waiting() if is_waiting else []

    def set_running(self, ticket: int, sequences: int) -> list[int]:
        """Set how many of a request's sequences are running. Returns the tickets whose turn it now is."""
        running = self._running.get(ticket)
        if running is None:
            return []
        has_arrived = self._on_the_way.pop(ticket, None) is not None
        if more := sequences - running.sequences:
            running.sequences = sequences
            self._count(self._owner[ticket], more, running)
        return self._start_waiting() if more < 0 or has_arrived else []

    def leave(self, ticket: int) -> list[int]:
        """A running or waiting request ended. Returns the tickets whose turn it now is. Unknown tickets are ignored."""
        queue = self._owner.pop(ticket, None)
        if queue is None:
            return []
        if (running := self._running.pop(ticket, None)) is not None:
            self._count(queue, -running.sequences, running)
            self._on_the_way.pop(ticket, None)
        if (waiting := queue.waiting.remove(ticket)) is not None:
            self._num_waiting -= waiting.sequences
        if queue.running == 0 and not queue.waiting:
            del self._queues[queue.tenant.name]
        return self._start_waiting()

    def expired(self, now: float) -> list[int]:
        """Tickets that waited too long; each is still to `leave`."""
        expired = []
        for queue in self._queues.values():
            for ticket, waiting in queue.waiting:
                if waiting.gives_up_s > now:
                    break
                expired.append(ticket)
        return expired

    def next_expiry(self) -> float:
        return min(
            (queue.waiting.oldest().gives_up_s for queue in self._queues.values() if queue.waiting), default=math.inf
        )

    def retry_after_s(self, tenant: Tenant) -> int:
        """A rough guess: longer with the queue, in which other tenants count as far as they go first."""
        queue = self._queues.get(tenant.name)
        own, limit = 0 if queue is None else queue.queued, max(1, self._limits.max_running)
        ahead = sum(min(other.queued, own * other.tenant.weight / tenant.weight) for other in self._queues.values())
        ahead /= limit
        if tenant.max_running is not None:
            ahead = max(ahead, own / max(1, tenant.max_running))
        return 1 + min(30, int(4 * ahead))

    def _count(self, queue: TenantQueue, sequences: int, running: _Running) -> None:
        """This many more sequences of a request are running; negative: fewer."""
        room = sequences * running.effort
        queue.running += sequences
        queue.room += room
        queue.batch_room += room if running.is_batch else 0
        self._num_running += sequences
        self._room_taken += room

    def _may_begin(self, queue: TenantQueue, request: WaitingRequest) -> bool:
        """Return whether a request may begin at once, before all that wait."""
        is_batch = request.place.is_batch
        if queue.waiting.has_before(request.place) or not queue.may_run(request.at_once):
            return False
        if not self._has_room_for(queue, request):
            return False
        others = (other for other in self._ready() if other is not queue)
        return not self._num_waiting or all(_goes_before(queue, other, is_batch=is_batch) for other in others)

    def _turn(self, queue: TenantQueue) -> tuple[bool, float, float, int]:
        """The order of tenants: equally loaded ones take turns, because often none of them has anything running."""
        ticket, request = queue.waiting.first()
        is_batch = request.place.is_batch
        next_start = max(self._virtual[is_batch], queue.next_start[is_batch])
        return is_batch, queue.load(is_batch=is_batch), next_start, ticket

    def _ready(self) -> Iterator[TenantQueue]:
        """Queues whose first request waits for room alone."""
        queues = self._queues.values()
        return (queue for queue in queues if queue.waiting and queue.may_run(queue.first().at_once))

    def _has_room_for(self, queue: TenantQueue, request: WaitingRequest) -> bool:
        """Return whether the process has room for a request's first run."""
        is_batch = request.place.is_batch
        if is_batch and not self._has_slack(request.at_once):
            return False
        return self._has_room(queue, request.at_once * request.effort, is_batch)

    def _has_slack(self, sequences: int) -> bool:
        """Return whether the workers have slack for this many more sequences of the batch class."""
        on_the_way = sum(self._on_the_way.values())
        if on_the_way and on_the_way + sequences > BATCH_ON_THE_WAY:
            return False
        slack = self.slack()
        return slack is None or on_the_way + min(sequences, slack.most) <= slack.now

    def _has_room(self, queue: TenantQueue, room: int, is_batch: bool) -> bool:
        limit = self._limits.max_running
        if not is_batch:
            limit += max(0, int(limit // SPARE - queue.load(is_batch=False)))
        return not self._room_taken or self._room_taken + room <= limit

    def _is_full(self, sequences: int) -> bool:
        return bool(self._num_waiting or not self._limits.max_queued) and (
            self._num_waiting + sequences > self._limits.max_queued
        )

    def _is_over_quota(self, queue: TenantQueue, sequences: int) -> bool:
        limit = queue.tenant.max_queued
        return limit is not None and bool(queue.waiting) and queue.queued + sequences > limit

    def _start(self, ticket: int, queue: TenantQueue, request: WaitingRequest) -> int:
        self._owner[ticket] = queue
        is_batch = request.place.is_batch
        running = self._running[ticket] = _Running(request.at_once, request.effort, is_batch)
        self._count(queue, request.at_once, running)
        if is_batch:
            self._on_the_way[ticket] = request.at_once
        start = self._virtual[is_batch] = max(self._virtual[is_batch], queue.next_start[is_batch])
        queue.next_start[is_batch] = start + request.at_once * request.effort / queue.tenant.weight
        return ticket

    def _start_waiting(self) -> list[int]:
        started = []
        while True:
            queue = min(self._ready(), key=self._turn, default=None)
            if queue is None or not self._has_room_for(queue, queue.first()):
                break
            ticket, request = queue.waiting.start_first()
            self._num_waiting -= request.sequences
            started.append(self._start(ticket, queue, request))
        return started


def _goes_before(queue: TenantQueue, other: TenantQueue, *, is_batch: bool) -> bool:
    """Return whether a newcomer of a tenant goes before the first waiting request of another one."""
    is_other_batch = other.first().place.is_batch
    if is_batch != is_other_batch:
        return is_other_batch
    return queue.load(is_batch=is_batch) < other.load(is_batch=is_batch)
