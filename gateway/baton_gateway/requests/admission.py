"""Whose turn it is: a bounded number of sequences at work, a bounded queue with a time limit, fair between tenants.
Pure.

Quotas and queues are counted in sequences (prompts × n). The room of the process is shared by what sequences cost it:
one with log probabilities of alternatives costs several times as much as one without (`effort`). A request that is
larger than the room or its tenant's quota begins when nothing else of the tenant is at work: its runs are let out piece
by piece (see `held_runs`).

The tenant that has the least at work for its weight goes first, so that one tenant's flood waits behind itself. Nor
does it take the room of others: one with nothing at work begins although others fill it, and one with less in the queue
takes the place of the newest of whoever has the most.
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
from baton_gateway.requests.full_room import Occupant, displaced
from baton_gateway.requests.tenant import Tenant

SPARE = 8
"""A part of so many of `max_running` is kept besides, for tenants with nothing at work."""


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Per gateway process. The workers queue too; these bounds keep the gateway's own memory bounded."""

    max_running: int = 1_024
    """Sequences; tenants with nothing at work may begin while there are an eighth more."""
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
class _TenantLine:
    tenant: Tenant
    running: int = 0
    """Sequences at work."""
    room: int = 0
    """What they take of the process's room: sequences times their effort."""
    queued: int = 0
    """Sequences that wait."""
    waiting: OrderedDict[int, _Waiting] = field(default_factory=OrderedDict)
    """By ticket, in order of arrival."""
    next_start: float = 0.0
    """In virtual time: where its next sequences start, behind those that began (as in `fair_share`)."""

    def may_run(self, sequences: int) -> bool:
        limit = self.tenant.max_running
        return limit is None or not self.running or self.running + sequences <= limit

    @property
    def load(self) -> float:
        return self.room / self.tenant.weight

    @property
    def headroom(self) -> int | None:
        """Sequences that its quota lets begin now; None: any number."""
        limit = self.tenant.max_running
        if limit is None:
            return None
        if not self.running:
            return max(limit, self.first().at_once if self.waiting else 0)
        return max(0, limit - self.running)

    def occupant(self) -> Occupant:
        newest = ((ticket, each.sequences) for ticket, each in reversed(self.waiting.items()))
        return Occupant(self.tenant.weight, self.queued, newest)

    def first(self) -> _Waiting:
        return next(iter(self.waiting.values()))


class Admission:
    """All requests of this process between arrival and end, by ticket."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._tickets = itertools.count(1)
        self._lines: dict[str, _TenantLine] = {}
        self._owner: dict[int, _TenantLine] = {}
        self._running: dict[int, _Running] = {}
        """Tickets to their sequences at work."""
        self._num_running = 0
        self._room_taken = 0
        self._num_waiting = 0
        self._virtual = 0.0

    def reconfigure(self, limits: AdmissionLimits) -> None:
        """Other limits; who is in already stays."""
        self._limits = limits

    @property
    def num_running(self) -> int:
        """Sequences."""
        return self._num_running

    @property
    def num_waiting(self) -> int:
        """Sequences."""
        return self._num_waiting

    def offer(
        self, tenant: Tenant, sequences: int, now: float, at_once: int | None = None, effort: int = 1
    ) -> tuple[int, Verdict] | Problem:
        """A request arrived: its ticket and whether it may start, or why it is refused. `at_once`: the sequences of its
        first run; the others are let out as there is room. `effort`: how many plain sequences one of them counts as in
        the room of the process.
        """
        line = self._lines.setdefault(tenant.name, _TenantLine(tenant, next_start=self._virtual))
        line.tenant = tenant
        at_once = sequences if at_once is None else at_once
        if self._may_begin(line, at_once, effort):
            return self._start(next(self._tickets), line, at_once, effort), Verdict.ADMITTED
        if self._is_full(sequences) or self._is_over_quota(line, sequences):
            if not line.running and not line.waiting:
                del self._lines[tenant.name]
            return errors.queue_full(self.retry_after_s(tenant))
        ticket = next(self._tickets)
        line.waiting[ticket] = _Waiting(now + self._limits.max_wait_s, sequences, at_once, effort)
        line.queued += sequences
        self._num_waiting += sequences
        self._owner[ticket] = line
        return ticket, Verdict.QUEUED

    def displaced_by(self, tenant: Tenant, sequences: int, at_once: int | None = None, effort: int = 1) -> list[int]:
        """Tickets that wait and are to be refused, so that a newcomer of a tenant with less in the queue fits into it.
        Each is still to `leave`. Empty: it needs nobody's place, or has no claim to one.
        """
        if not self._is_full(sequences):
            return []
        line = self._lines.get(tenant.name) or _TenantLine(tenant, next_start=self._virtual)
        at_once = sequences if at_once is None else at_once
        if self._may_begin(line, at_once, effort) or self._is_over_quota(line, sequences):
            return []
        occupants = {name: each.occupant() for name, each in self._lines.items() if each.waiting}
        leaving = displaced(self._limits.max_queued, tenant.name, tenant.weight, sequences, occupants, line.queued)
        return leaving or []

    def is_over_quota(self, tenant: Tenant, sequences: int) -> bool:
        """Whether its own `max_queued` keeps a newcomer out, whatever others do."""
        line = self._lines.get(tenant.name)
        return line is not None and self._is_over_quota(line, sequences)

    def quota_turns(self, tenant: Tenant, at_once: int) -> float:
        """How many times the sequences of a tenant that is at its quota end until a newcomer's turn; 0: its quota does
        not hold it back.
        """
        limit = tenant.max_running
        if (
            limit is None
            or (line := self._lines.get(tenant.name)) is None
            or (not line.waiting and line.may_run(at_once))
        ):
            return 0.0
        return max(0.0, (line.running + line.queued + at_once - limit) / limit)

    def startable(self, tenant: str) -> float:
        """The part of a tenant's queue that its quota lets begin now: the rest waits for its own tenant only."""
        line = self._lines.get(tenant)
        if line is None or not line.queued or (headroom := line.headroom) is None:
            return 1.0
        return min(1.0, headroom / line.queued)

    def waiting_for_quota(self) -> set[int]:
        """Tickets that wait for sequences of their own tenant to end: no room and no worker would help them."""
        blocked: set[int] = set()
        for line in self._lines.values():
            left = line.headroom
            if left is None:
                continue
            for ticket, waiting in line.waiting.items():
                left -= waiting.at_once
                if left < 0:
                    blocked.add(ticket)
        return blocked

    @property
    def max_wait_s(self) -> float:
        return self._limits.max_wait_s

    def may_grow(self, ticket: int, sequences: int) -> bool:
        """Whether so many more of a request's sequences may be let out, beside those that are at work."""
        line, running = self._owner.get(ticket), self._running.get(ticket)
        effort = 1 if running is None else running.effort
        return line is not None and line.may_run(sequences) and self._has_room(line, sequences * effort)

    def at_work(self, ticket: int, sequences: int) -> list[int]:
        """So many of a request's sequences are at work now. Returns the tickets whose turn it now is."""
        running = self._running.get(ticket)
        if running is None or running.sequences == sequences:
            return []
        more, running.sequences = sequences - running.sequences, sequences
        self._count(self._owner[ticket], more, running.effort)
        return self._start_waiting() if more < 0 else []

    def leave(self, ticket: int) -> list[int]:
        """A request ended, at work or waiting. Returns the tickets whose turn it now is. Unknown
        tickets are ignored.
        """
        line = self._owner.pop(ticket, None)
        if line is None:
            return []
        if (running := self._running.pop(ticket, None)) is not None:
            self._count(line, -running.sequences, running.effort)
        if (waiting := line.waiting.pop(ticket, None)) is not None:
            self._num_waiting -= waiting.sequences
            line.queued -= waiting.sequences
        if line.running == 0 and not line.waiting:
            del self._lines[line.tenant.name]
        return self._start_waiting()

    def expired(self, now: float) -> list[int]:
        """Tickets that waited too long; each is still to `leave`."""
        found = []
        for line in self._lines.values():
            for ticket, waiting in line.waiting.items():
                if waiting.gives_up_s > now:
                    break
                found.append(ticket)
        return found

    def next_expiry(self) -> float:
        return min((line.first().gives_up_s for line in self._lines.values() if line.waiting), default=math.inf)

    def retry_after_s(self, tenant: Tenant) -> int:
        """A rough guess: longer the longer the queue, of which others count as far as they go first."""
        line = self._lines.get(tenant.name)
        own, limit = 0 if line is None else line.queued, max(1, self._limits.max_running)
        ahead = sum(min(each.queued, own * each.tenant.weight / tenant.weight) for each in self._lines.values()) / limit
        if tenant.max_running is not None:
            ahead = max(ahead, own / tenant.max_running)
        return 1 + min(30, int(4 * ahead))

    def _count(self, line: _TenantLine, sequences: int, effort: int) -> None:
        """So many more of a tenant's sequences are at work, or fewer."""
        line.running += sequences
        line.room += sequences * effort
        self._num_running += sequences
        self._room_taken += sequences * effort

    def _may_begin(self, line: _TenantLine, at_once: int, effort: int) -> bool:
        """At once, before whoever waits."""
        if line.waiting or not line.may_run(at_once) or not self._has_room(line, at_once * effort):
            return False
        return not self._num_waiting or all(line.load < other.load for other in self._ready())

    def _turn(self, line: _TenantLine) -> tuple[float, float, int]:
        """Who has as little at work goes in turn: where few begin at once, mostly nobody has any."""
        return line.load, max(self._virtual, line.next_start), next(iter(line.waiting))

    def _ready(self) -> Iterator[_TenantLine]:
        """Lines whose first request waits for room alone."""
        lines = self._lines.values()
        return (line for line in lines if line.waiting and line.may_run(line.first().at_once))

    def _has_room(self, line: _TenantLine, room: int) -> bool:
        limit = self._limits.max_running
        if not line.running:
            limit += limit // SPARE
        return not self._room_taken or self._room_taken + room <= limit

    def _is_full(self, sequences: int) -> bool:
        return bool(self._num_waiting or not self._limits.max_queued) and (
            self._num_waiting + sequences > self._limits.max_queued
        )

    def _is_over_quota(self, line: _TenantLine, sequences: int) -> bool:
        limit = line.tenant.max_queued
        return limit is not None and bool(line.waiting) and line.queued + sequences > limit

    def _start(self, ticket: int, line: _TenantLine, sequences: int, effort: int) -> int:
        self._owner[ticket] = line
        self._running[ticket] = _Running(sequences, effort)
        self._count(line, sequences, effort)
        self._virtual = max(self._virtual, line.next_start)
        line.next_start = self._virtual + sequences * effort / line.tenant.weight
        return ticket

    def _start_waiting(self) -> list[int]:
        started = []
        while True:
            line = min(self._ready(), key=self._turn, default=None)
            if line is None or not self._has_room(line, line.first().at_once * line.first().effort):
                break
            ticket, waiting = line.waiting.popitem(last=False)
            self._num_waiting -= waiting.sequences
            line.queued -= waiting.sequences
            started.append(self._start(ticket, line, waiting.at_once, waiting.effort))
        return started
