"""Whose turn it is: a bounded number of requests at work, a bounded queue with a time limit, fair between tenants.
Pure.

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
    max_queued: int = 4_096
    max_wait_s: float = 60.0


class Verdict(enum.Enum):
    ADMITTED = enum.auto()
    QUEUED = enum.auto()


@dataclass(slots=True)
class _TenantLine:
    tenant: Tenant
    running: int = 0
    waiting: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Tickets to the time they give up, in order of arrival."""

    def may_run(self) -> bool:
        return self.tenant.max_running is None or self.running < self.tenant.max_running

    def is_idle(self) -> bool:
        return self.running == 0 and not self.waiting


class Admission:
    """All requests of this process between arrival and end, by ticket."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._tickets = itertools.count(1)
        self._lines: dict[str, _TenantLine] = {}
        self._owner: dict[int, _TenantLine] = {}
        self._running: set[int] = set()

    def reconfigure(self, limits: AdmissionLimits) -> None:
        """Other limits; who is in already stays."""
        self._limits = limits

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._owner) - len(self._running)

    def offer(self, tenant: Tenant, now: float) -> tuple[int, Verdict] | Problem:
        """A request arrived: its ticket and whether it may start, or why it is refused."""
        line = self._lines.setdefault(tenant.name, _TenantLine(tenant))
        line.tenant = tenant
        if self._has_room() and line.may_run() and not line.waiting:
            return self._start(next(self._tickets), line), Verdict.ADMITTED
        if self.num_waiting >= self._limits.max_queued or self._is_over_quota(line):
            return errors.queue_full(self.retry_after_s())
        ticket = next(self._tickets)
        line.waiting[ticket] = now + self._limits.max_wait_s
        self._owner[ticket] = line
        return ticket, Verdict.QUEUED

    def leave(self, ticket: int) -> list[int]:
        """A request ended, at work or waiting. Returns the tickets whose turn it now is. Unknown
        tickets are ignored.
        """
        line = self._owner.pop(ticket, None)
        if line is None:
            return []
        if ticket in self._running:
            self._running.discard(ticket)
            line.running -= 1
        line.waiting.pop(ticket, None)
        if line.is_idle():
            del self._lines[line.tenant.name]
        return self._start_waiting()

    def expired(self, now: float) -> list[int]:
        """Tickets that waited too long; each is still to `leave`."""
        found = []
        for line in self._lines.values():
            for ticket, until in line.waiting.items():
                if until > now:
                    break
                found.append(ticket)
        return found

    def next_expiry(self) -> float:
        firsts = (next(iter(line.waiting.values())) for line in self._lines.values() if line.waiting)
        return min(firsts, default=math.inf)

    def retry_after_s(self) -> int:
        """A rough guess: longer the longer the queue."""
        return 1 + min(30, self.num_waiting * 4 // max(1, self._limits.max_running))

    def _has_room(self) -> bool:
        return len(self._running) < self._limits.max_running

    def _is_over_quota(self, line: _TenantLine) -> bool:
        return line.tenant.max_queued is not None and len(line.waiting) >= line.tenant.max_queued

    def _start(self, ticket: int, line: _TenantLine) -> int:
        self._owner[ticket] = line
        self._running.add(ticket)
        line.running += 1
        return ticket

    def _start_waiting(self) -> list[int]:
        started = []
        while self._has_room():
            ready = [line for line in self._lines.values() if line.waiting and line.may_run()]
            if not ready:
                break
            line = min(ready, key=lambda each: (each.running / each.tenant.weight, next(iter(each.waiting))))
            ticket, _ = line.waiting.popitem(last=False)
            started.append(self._start(ticket, line))
        return started
