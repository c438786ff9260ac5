"""Meters of the tenants' tokens of the month in this process: what is left, and what this process may take of it. Pure.

The process that divides limits adds up what all gateway processes report, and announces the totals. Between two totals
a process takes at most a part of what is left, so that all of them together stay within it though their knowledge is a
few seconds old. Without a link each one has an equal part of what was left when the link ended. A count that nobody
announced and no file has is unknown: its tenant is refused until it is known.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from baton_gateway.requests.tenant import Tenant
from baton_wire.messages.operator_link import MonthReport, MonthTotals, MonthUse
from baton_wire.tenant_table import NUM_SHARDS, shard_of
from baton_wire.tenant_usage import UsageShard, month_at, month_ends_s, month_number, month_text

PER_MONTH = "tokensPerMonth"
"""The field of the LLMTenant."""
ROUNDS = 4
"""Announcements of totals that a process may be behind others."""


class QuotaState(enum.Enum):
    """The reason why a request gets no tokens of the month."""

    UNKNOWN = enum.auto()
    """The tokens used so far are not known."""
    USED_UP = enum.auto()
    ELSEWHERE = enum.auto()
    """The rest is for other processes at present."""


@dataclass(frozen=True, slots=True)
class OverQuota:
    """The refusal of a request."""

    state: QuotaState
    limit: int
    used: int
    resets_after_s: float
    """Seconds until the next month begins."""


@dataclass(slots=True)
class MonthCharge:
    """The tokens that a request is expected to take, until `MonthMeters.settle`."""

    tenant: str
    tokens: float


class MonthMeters:
    """The meters of this process. `share`: its part of what is left while no link says more."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._is_linked = False
        self._is_announced = False
        """True once the other end of the link announced totals; files are not read any more then."""
        self._processes = 1
        self._month = ""
        self._is_whole = False
        """True once every tenant's use is known."""
        self._known = [False] * NUM_SHARDS
        """The places of the table whose tenants' use is known from files."""
        self._used: dict[str, float] = {}
        self._open_elsewhere: dict[str, float] = {}
        self._open: dict[str, float] = {}
        self._reported_open: dict[str, float] = {}
        self._fresh: dict[str, float] = {}
        """Tokens that were spent here and are not reported."""
        self._sent: dict[str, float] = {}
        """Tokens of the report that is not acknowledged yet."""
        self._number = 0
        self._acknowledged = 0
        self._repeated: set[str] = set()
        """Tenants whose totals the other end may have lost."""
        self._taken: dict[str, float] = {}
        """Tokens that were charged here since the last total of a tenant."""

    @property
    def month(self) -> str:
        """The month that is counted; empty: unknown."""
        return self._month

    def used(self, name: str) -> float | None:
        """Return the tokens that a tenant used this month, with those of requests at work; None: unknown."""
        if not (self._is_whole or self._known[shard_of(name)]):
            return None
        used = self._used.get(name, 0.0) + self._fresh.get(name, 0.0) + self._sent.get(name, 0.0)
        return used + self._open.get(name, 0.0) + self._open_elsewhere.get(name, 0.0)

    def check(self, tenant: Tenant, tokens: float, now_s: float) -> OverQuota | None:
        """Return why a request may not take these tokens; None: it may. `now_s`: the wall clock."""
        limit = tenant.limits.tokens_per_month
        if limit is None:
            return None
        self._roll(now_s)
        used = self.used(tenant.name)
        if used is None:
            return OverQuota(QuotaState.UNKNOWN, limit, 0, 0.0)
        rest, taken = limit - used, self._taken.get(tenant.name, 0.0)
        part = max(0.0, rest + taken) * self._part()
        if tokens <= rest and tokens <= part - taken:
            return None
        is_elsewhere = tokens <= rest and (tokens <= part or not self._is_linked)
        state = QuotaState.ELSEWHERE if is_elsewhere else QuotaState.USED_UP
        return OverQuota(state, limit, int(used), max(1.0, month_ends_s(self._month) - now_s))

    def charge(self, tenant: Tenant, tokens: float) -> MonthCharge | None:
        """Charge a request that `check` lets through; None: its tenant has no such limit."""
        if tenant.limits.tokens_per_month is None:
            return None
        _add(self._open, tenant.name, tokens)
        _add(self._taken, tenant.name, tokens)
        return MonthCharge(tenant.name, tokens)

    def settle(self, charge: MonthCharge | None, tokens: float) -> None:
        """A request ended and took `tokens`. Once per charge."""
        if charge is None:
            return
        _add(self._open, charge.tenant, -charge.tokens)
        _add(self._taken, charge.tenant, tokens - charge.tokens)
        _add(self._fresh, charge.tenant, tokens)

    def read(self, shard: UsageShard, now_s: float) -> None:
        """Take a saved count, unless totals were announced: these are newer. A count of a former month is none."""
        if self._is_announced or shard.month < month_at(now_s, self._month):
            return
        if shard.month != self._month:
            self._begin(shard.month)
        self._known[shard.place] = True
        self._raise((name, float(tokens)) for name, tokens in shard.used.items())

    # The link ---------------------------------------------------------------------------------------------------------

    def link_begins(self) -> None:
        """A link is there: all that was not acknowledged is reported on it."""
        for name, tokens in self._sent.items():
            _add(self._fresh, name, tokens)
        self._sent.clear()
        self._reported_open.clear()
        self._repeated = set(self._used)
        self._number = self._acknowledged = 0

    def link_ends(self) -> None:
        """There is no link: this process keeps its part of what is left."""
        self._is_linked = False

    def take(self, totals: MonthTotals) -> None:
        """Take what the other end of the link announces."""
        month = month_text(totals.month)
        if month != self._month:
            is_ahead = month < self._month  # this machine's clock is: what was spent belongs to the former month
            spent = self._fresh if is_ahead else {}
            self._begin(month, dict(spent))
        self._is_linked = self._is_announced = True
        self._processes = totals.processes
        for total in totals.totals:
            self._open_elsewhere[total.tenant] = total.open
            if not total.open:
                del self._open_elsewhere[total.tenant]
            self._taken.pop(total.tenant, None)
        self._raise((total.tenant, total.used) for total in totals.totals)
        if totals.acknowledged == self._number > self._acknowledged:
            self._acknowledged = self._number
            self._sent.clear()
        self._is_whole |= totals.is_whole

    def report(self, most: int) -> MonthReport | None:
        """Build the next report of at most `most` tenants; None: there is nothing to report, or the last report is not
        acknowledged."""
        if not self._is_linked or self._acknowledged < self._number:
            return None
        opened = (name for name, tokens in self._open.items() if self._reported_open.get(name) != tokens)
        closed = self._reported_open.keys() - self._open.keys()
        names = list(dict.fromkeys((*self._fresh, *opened, *closed, *self._repeated)))[:most]
        if not names:
            return None
        self._number += 1
        return MonthReport(self._number, month_number(self._month), tuple(map(self._use, names)))

    @property
    def is_behind(self) -> bool:
        """True while the other end of the link does not know all that was spent here."""
        return self._is_linked and bool(self._fresh or self._sent)

    def _use(self, name: str) -> MonthUse:
        self._repeated.discard(name)
        self._reported_open.pop(name, None)
        if name in self._open:
            self._reported_open[name] = self._open[name]
        spent = self._fresh.pop(name, 0.0)
        if spent:
            self._sent[name] = spent
        return MonthUse(name, max(0.0, spent), max(0.0, self._open.get(name, 0.0)), self._used.get(name, 0.0))

    def set_share(self, share: float) -> None:
        """Set this process's part of what is left without a link."""
        self._share = share

    def _part(self) -> float:
        """This process's part of what is left, until the next total."""
        if not self._is_linked:
            return 1 / self._processes if self._is_announced else self._share
        return 1.0 if self._processes == 1 else 1 / (ROUNDS * self._processes)

    def _roll(self, now_s: float) -> None:
        """Begin the next month where no link says which one it is. This process has counted since it began."""
        if self._is_linked or not self._month:
            return
        month = month_at(now_s, self._month)
        if month > self._month:
            is_whole, known = self._is_whole, self._known
            self._begin(month)
            self._is_whole, self._known = is_whole, known

    def _begin(self, month: str, spent: Mapping[str, float] = MappingProxyType({})) -> None:
        self._month = month
        self._is_whole, self._known = False, [False] * NUM_SHARDS
        for counts in (self._used, self._sent, self._fresh, self._open_elsewhere, self._taken):
            counts.clear()
        self._fresh |= spent
        self._repeated.clear()
        self._acknowledged = self._number

    def _raise(self, totals: Iterable[tuple[str, float]]) -> None:
        """Take totals that are larger: within a month none goes back."""
        for name, tokens in totals:
            if tokens > self._used.get(name, 0.0):
                self._used[name] = tokens


def _add(counts: dict[str, float], name: str, tokens: float) -> None:
    """Add to a count; one that is zero is not kept."""
    count = counts.pop(name, 0.0) + tokens
    if abs(count) > 1e-6:
        counts[name] = count
