"""Counts the tokens that the tenants of a namespace use in a calendar month, over all of its gateway processes. Pure.

A process reports what it spent once, and what its requests at work are expected to take. It also reports what it was
given before, so that a count survives this process's restart as long as one gateway process lives.
"""

from __future__ import annotations

from collections.abc import Mapping

from baton_wire.messages.operator_link import MonthReport, MonthTotal
from baton_wire.tenant_usage import MAX_TOKENS, UsageShard, month_at, month_text, split_usage


class MonthCounts:
    """The counts of one namespace. `used`: the tokens of `month` that were saved last."""

    def __init__(self, month: str, used: Mapping[str, float]) -> None:
        self.month = month
        self.used: dict[str, float] = dict(used)
        self._open: dict[bytes, dict[str, float]] = {}
        """Tokens that requests at work are expected to take, by process and tenant."""
        self._open_sums: dict[str, float] = {}
        self._changes: dict[str, int] = {}
        """Number of each tenant's last change, the oldest first."""
        self._number = 0
        for name in self.used:
            self._touch(name)

    @property
    def num_processes(self) -> int:
        return max(1, len(self._open))

    def join(self, process: bytes) -> None:
        """A process is linked; it reports all that it has at work again."""
        self.leave(process)
        self._open[process] = {}

    def leave(self, process: bytes) -> None:
        """A process is gone. What its requests took and were not reported is lost."""
        for name, tokens in self._open.pop(process, {}).items():
            self._add_open(name, -tokens)

    def roll(self, now_s: float) -> None:
        """Begin a new month where the wall clock says so. Called every second."""
        month = month_at(now_s, self.month)
        if month != self.month:
            self.month, self.used, self._changes = month, {}, {}
            for name in self._open_sums:
                self._touch(name)

    def raise_to(self, name: str, tokens: float) -> None:
        """A tenant used at least this many tokens."""
        if tokens > self.used.get(name, 0.0):
            self.used[name] = tokens
            self._touch(name)

    def report(self, process: bytes, report: MonthReport) -> None:
        """Take a report. What was spent in a former month is not counted in this one."""
        if process not in self._open:
            return
        month = month_text(report.month)
        for use in report.uses:
            if month >= self.month:
                known = use.known if month == self.month else 0.0
                former = max(self.used.get(use.tenant, 0.0), known)
                self.used[use.tenant] = min(float(MAX_TOKENS), former + use.spent)
            own = self._open[process]
            self._add_open(use.tenant, use.open - own.pop(use.tenant, 0.0))
            if use.open:
                own[use.tenant] = use.open

    def totals(self, process: bytes, since: int, most: int) -> tuple[tuple[MonthTotal, ...], int, bool]:
        """At most `most` totals of tenants that changed since a number, for one process; the number of the last of
        them; and whether no later change is left out."""
        names = []
        for name in reversed(self._changes):
            if self._changes[name] <= since:
                break
            names.append(name)
        names.reverse()
        own = self._open.get(process, {})
        totals = tuple(
            MonthTotal(name, self.used.get(name, 0.0), max(0.0, self._open_sums.get(name, 0.0) - own.get(name, 0.0)))
            for name in names[:most]
        )
        return totals, self._changes[totals[-1].tenant] if totals else since, len(names) <= most

    def shards(self) -> dict[int, UsageShard]:
        """The counts to be saved, by place."""
        return split_usage(self.month, self.used)

    def _add_open(self, name: str, tokens: float) -> None:
        left = self._open_sums.pop(name, 0.0) + tokens
        if left > 0.5:
            self._open_sums[name] = left
        self._touch(name)

    def _touch(self, name: str) -> None:
        self._number += 1
        self._changes.pop(name, None)
        self._changes[name] = self._number


def read_counts(shards: Mapping[int, UsageShard], now_s: float) -> MonthCounts:
    """The counts of this month in saved shards; those of former months say nothing of it. `now_s`: the wall clock."""
    month = month_at(now_s, max((shard.month for shard in shards.values()), default=""))
    used: dict[str, float] = {}
    for shard in shards.values():
        if shard.month == month:
            used |= shard.used
    return MonthCounts(month, used)
