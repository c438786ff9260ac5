"""Whose turn it is: a bounded number of sequences at work, a bounded queue with a time limit, fair between tenants.
Pure.

Everything is counted in sequences (prompts × n). A request that is larger than the room or its tenant's quota begins
when nothing else of the tenant is at work: its runs are let out piece by piece (see `held_runs`).

The tenant that has the least at work for its weight goes first, so that one tenant's flood waits behind itself.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections import OrderedDict
from dataclasses import dataclass, field

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.http_api.tenants import Tenant


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Per gateway process. The workers queue too; these bounds keep the gateway's own memory bounded."""

    max_running: int = 1_024
    """Sequences."""
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


@dataclass(slots=True)
class _TenantLine:
    tenant: Tenant
    running: int = 0
    """Sequences at work."""
    waiting: OrderedDict[int, _Waiting] = field(default_factory=OrderedDict)
    """By ticket, in order of arrival."""

    def may_run(self, sequences: int) -> bool:
        limit = self.tenant.max_running
        return limit is None or not self.running or self.running + sequences <= limit

    @property
    def queued(self) -> int:
        return sum(each.sequences for each in self.waiting.values())

    def first(self) -> _Waiting:
        return next(iter(self.waiting.values()))


class Admission:
    """All requests of this process between arrival and end, by ticket."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._tickets = itertools.count(1)
        self._lines: dict[str, _TenantLine] = {}
        self._owner: dict[int, _TenantLine] = {}
        self._running: dict[int, int] = {}
        """Tickets to their sequences at work."""
        self._num_running = 0
        self._num_waiting = 0

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
        self, tenant: Tenant, sequences: int, now: float, at_once: int | None = None
    ) -> tuple[int, Verdict] | Problem:
        """A request arrived: its ticket and whether it may start, or why it is refused. `at_once`: the sequences of its
        first run; the others are let out as there is room.
        """
        line = self._lines.setdefault(tenant.name, _TenantLine(tenant))
        line.tenant = tenant
        at_once = sequences if at_once is None else at_once
        if self._has_room(at_once) and line.may_run(at_once) and not line.waiting:
            return self._start(next(self._tickets), line, at_once), Verdict.ADMITTED
        if self._is_full(sequences) or self._is_over_quota(line, sequences):
            if not line.running and not line.waiting:
                del self._lines[tenant.name]
            return errors.queue_full(self.retry_after_s())
        ticket = next(self._tickets)
        line.waiting[ticket] = _Waiting(now + self._limits.max_wait_s, sequences, at_once)
        self._num_waiting += sequences
        self._owner[ticket] = line
        return ticket, Verdict.QUEUED

    def may_grow(self, ticket: int, sequences: int) -> bool:
        """Whether so many more of a request's sequences may be let out, beside those that are at work."""
        line = self._owner.get(ticket)
        return line is not None and line.may_run(sequences) and self._has_room(sequences)

    def at_work(self, ticket: int, sequences: int) -> list[int]:
        """So many of a request's sequences are at work now. Returns the tickets whose turn it now is."""
        before = self._running.get(ticket)
        if before is None or before == sequences:
            return []
        self._running[ticket] = sequences
        self._owner[ticket].running += sequences - before
        self._num_running += sequences - before
        return self._start_waiting() if sequences < before else []

    def leave(self, ticket: int) -> list[int]:
        """A request ended, at work or waiting. Returns the tickets whose turn it now is. Unknown
        tickets are ignored.
        """
        line = self._owner.pop(ticket, None)
        if line is None:
            return []
        if (held := self._running.pop(ticket, None)) is not None:
            line.running -= held
            self._num_running -= held
        if (waiting := line.waiting.pop(ticket, None)) is not None:
            self._num_waiting -= waiting.sequences
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

    def retry_after_s(self) -> int:
        """A rough guess: longer the longer the queue."""
        return 1 + min(30, self.num_waiting * 4 // max(1, self._limits.max_running))

    def _has_room(self, sequences: int) -> bool:
        return not self._num_running or self._num_running + sequences <= self._limits.max_running

    def _is_full(self, sequences: int) -> bool:
        return bool(self._num_waiting or not self._limits.max_queued) and (
            self._num_waiting + sequences > self._limits.max_queued
        )

    def _is_over_quota(self, line: _TenantLine, sequences: int) -> bool:
        limit = line.tenant.max_queued
        return limit is not None and bool(line.waiting) and line.queued + sequences > limit

    def _start(self, ticket: int, line: _TenantLine, sequences: int) -> int:
        self._owner[ticket] = line
        self._running[ticket] = sequences
        self._num_running += sequences
        line.running += sequences
        return ticket

    def _start_waiting(self) -> list[int]:
        started = []
        while True:
            ready = [line for line in self._lines.values() if line.waiting and line.may_run(line.first().at_once)]
            if not ready:
                break
            line = min(ready, key=lambda each: (each.running / each.tenant.weight, next(iter(each.waiting))))
            if not self._has_room(line.first().at_once):
                break
            ticket, waiting = line.waiting.popitem(last=False)
            self._num_waiting -= waiting.sequences
            started.append(self._start(ticket, line, waiting.at_once))
        return started
