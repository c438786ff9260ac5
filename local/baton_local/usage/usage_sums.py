"""Adds up lines of the ledger: each request once, however often its lines come. Pure.

The memory follows the groups and the requests without a closing line, not the lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_local.usage.number_set import NumberSet
from baton_wire.ledger_line import LedgerLine, LineEvent

Group = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """The requests that count. None: all."""

    since: str | None = None
    until: str | None = None
    tenant: str | None = None
    model: str | None = None

    def takes(self, line: LedgerLine) -> bool:
        """Return whether a request counts."""
        day = line.opened_at[:10]
        return (
            (self.since is None or day >= self.since)
            and (self.until is None or day < self.until)
            and (self.tenant is None or line.tenant == self.tenant)
            and (self.model is None or line.model == self.model)
        )


@dataclass(slots=True)
class UsageSum:
    """The usage of one group of requests."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    input_tokens: int = 0
    cached_tokens: int | None = None
    """None: no worker reported it."""
    output_tokens: int = 0
    prefill_accelerator_seconds: float | None = None
    """None: no prefill worker reported any."""
    decode_accelerator_seconds: float | None = None

    def add(self, line: LedgerLine) -> None:
        """Add a request that has ended."""
        self.requests += 1
        self.failed += line.status == "failed"
        self.cancelled += line.status == "cancelled"
        self.interrupted += line.interrupted
        self.input_tokens += line.input_tokens
        self.output_tokens += line.output_tokens or 0
        if line.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + line.cached_tokens
        if line.accelerator_seconds is not None:
            self.prefill_accelerator_seconds = _plus(
                self.prefill_accelerator_seconds, line.accelerator_seconds.get("prefill")
            )
            self.decode_accelerator_seconds = _plus(
                self.decode_accelerator_seconds, line.accelerator_seconds.get("decode")
            )


@dataclass(slots=True)
class UsageSums:
    """The usage by group."""

    by: Sequence[str]
    filter: UsageFilter = UsageFilter()
    groups: dict[Group, UsageSum] = field(default_factory=dict)
    duplicates: int = 0
    """Closing lines of requests that had one already."""
    unread: int = 0
    """Lines that are torn, or that this release cannot read."""
    unclosed: dict[tuple[str, int], int] = field(default_factory=dict)
    """Input tokens of requests without a closing line: they are open, or their gateway was lost with its folder."""
    _closed: dict[str, NumberSet] = field(default_factory=dict)

    def add(self, line: LedgerLine) -> None:
        """Add a line."""
        run, _, number = line.id.partition("-")
        closed = self._closed.get(run)
        if closed is None:
            closed = self._closed[run] = NumberSet()
        place = run, int(number)
        if line.event is LineEvent.OPENED:
            if place[1] not in closed and self.filter.takes(line):
                self.unclosed[place] = line.input_tokens
            return
        if not closed.add(place[1]):
            self.duplicates += 1
            return
        self.unclosed.pop(place, None)
        if self.filter.takes(line):
            group = tuple(column_of(line, column) for column in self.by)
            usage = self.groups.get(group)
            if usage is None:
                usage = self.groups[group] = UsageSum()
            usage.add(line)

    def total(self) -> UsageSum:
        """The sum of all groups."""
        total = UsageSum()
        for usage in self.groups.values():
            total.requests += usage.requests
            total.failed += usage.failed
            total.cancelled += usage.cancelled
            total.interrupted += usage.interrupted
            total.input_tokens += usage.input_tokens
            total.output_tokens += usage.output_tokens
            if usage.cached_tokens is not None:
                total.cached_tokens = (total.cached_tokens or 0) + usage.cached_tokens
            total.prefill_accelerator_seconds = _plus(
                total.prefill_accelerator_seconds, usage.prefill_accelerator_seconds
            )
            total.decode_accelerator_seconds = _plus(total.decode_accelerator_seconds, usage.decode_accelerator_seconds)
        return total


def _plus(sum_s: float | None, more_s: float | None) -> float | None:
    """The sum of what is known; None: nothing is."""
    return sum_s if more_s is None else round((sum_s or 0.0) + more_s, 6)


def column_of(line: LedgerLine, column: str) -> str:
    """The value of a request in a column. Its day is the one on which its work began."""
    match column:
        case "day":
            return line.opened_at[:10]
        case "month":
            return line.opened_at[:7]
        case "tenant":
            return line.tenant
        case "model":
            return line.model
        case "task":
            return line.task
        case "priority":
            return line.priority
        case _:
            return line.status or ""
