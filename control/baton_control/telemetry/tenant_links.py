"""The messages of the gateways' links about tenants: tables and tokens of the month down, their use and conflicts up.

Tables and counts belong to a namespace, conflicts to a gateway process of one deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton_control.errors import FieldProblem
from baton_control.names import Key
from baton_control.telemetry.month_counts import MonthCounts
from baton_wire.messages.operator_link import (
    MAX_LIMITS,
    MonthReport,
    MonthTotals,
    TenantConflict,
    TenantConflicts,
    TenantTable,
)
from baton_wire.tenant_table import TenantShard, encode_shard
from baton_wire.tenant_usage import month_number


@dataclass(slots=True)
class TenantLink:
    """One gateway process's link: what was sent on it, and what it acknowledged."""

    epoch: bytes
    generations: dict[int, int] = field(default_factory=dict)
    """Generations of the shards that were sent, by place."""
    counts: MonthCounts | None = None
    """The counts whose totals are sent on this link; None: none are known yet."""
    month: str = ""
    since: int = 0
    """Number of the last change of a total that was sent."""
    taken: int = 0
    """Number of the last MonthReport that was taken."""
    acknowledged: int = 0
    processes: int = 0


class TenantLinks:
    """The tenants of all namespaces as links need them. `on_conflicts` is called with a namespace whose gateways report
    other conflicts than before."""

    def __init__(self) -> None:
        self.on_conflicts: Callable[[str], None] = lambda namespace: None
        self._tables: dict[str, dict[int, TenantShard]] = {}
        self._counts: dict[str, MonthCounts] = {}
        self._conflicts: dict[Key, dict[bytes, tuple[TenantConflict, ...]]] = {}
        self._linked: dict[Key, set[bytes]] = {}

    def set_table(self, namespace: str, shards: Mapping[int, TenantShard]) -> bool:
        """Set the compiled tenants of a namespace; returns whether they changed."""
        if self._tables.get(namespace, {}) == shards:
            return False
        self._tables[namespace] = dict(shards)
        return True

    def set_counts(self, namespace: str, counts: MonthCounts) -> None:
        """Set what the tenants of a namespace used this month. Until then it is unknown, and no report is taken."""
        self._counts[namespace] = counts

    def conflicts(self, namespace: str) -> dict[str, FieldProblem]:
        """The LLMTenants that some gateway of a namespace does not let in, and why."""
        problems: dict[str, FieldProblem] = {}
        for key, processes in sorted(self._conflicts.items()):
            if key.namespace != namespace:
                continue
            for conflict in (conflict for process in processes.values() for conflict in process):
                message = f"not allowed: the API keys of LLMDeployment {key.name} (gateway.apiKeys) have the same"
                problems.setdefault(conflict.tenant, FieldProblem(conflict.field, message))
        return problems

    def join(self, key: Key, epoch: bytes) -> TenantLink:
        """A gateway process is linked. Conflicts of processes that are gone are forgotten: it reports its own."""
        linked = self._linked.setdefault(key, set())
        linked.add(epoch)
        before = self._conflicts.get(key, {})
        self._set_conflicts(key, {process: conflicts for process, conflicts in before.items() if process in linked})
        return TenantLink(epoch)

    def leave(self, key: Key, link: TenantLink) -> None:
        """A process's link has ended. The conflicts of the last one stay, because nobody says that they ended."""
        linked = self._linked.get(key, set())
        linked.discard(link.epoch)
        if not linked:
            self._linked.pop(key, None)
        if link.counts is not None:
            link.counts.leave(link.epoch)

    def forget(self, key: Key) -> None:
        """Forget a deployment that is gone."""
        self._set_conflicts(key, {})

    def take(self, key: Key, link: TenantLink, message: MonthReport | TenantConflicts) -> None:
        """Take a report of a gateway process."""
        if isinstance(message, TenantConflicts):
            self._set_conflicts(key, self._conflicts.get(key, {}) | {link.epoch: message.conflicts})
        elif link.counts is not None and message.number > link.taken:
            link.counts.report(link.epoch, message)
            link.taken = message.number

    def messages(self, key: Key, link: TenantLink) -> list[TenantTable | MonthTotals]:
        """The messages that a link has not got."""
        messages: list[TenantTable | MonthTotals] = []
        for place, shard in list(self._tables.get(key.namespace, {}).items()):
            if link.generations.get(place, 0) < shard.generation:
                messages.append(TenantTable(encode_shard(shard)))
                link.generations[place] = shard.generation
        messages.extend(self._totals(key, link))
        return messages

    def _totals(self, key: Key, link: TenantLink) -> list[MonthTotals]:
        counts = self._counts.get(key.namespace)
        if counts is None:
            return []
        if counts is not link.counts:
            counts.join(link.epoch)
            link.counts, link.month = counts, ""
        is_new = link.month != counts.month
        if is_new:
            link.month, link.since = counts.month, 0
        messages: list[MonthTotals] = []
        processes, is_whole = counts.num_processes, False
        while not is_whole:
            totals, link.since, is_whole = counts.totals(link.epoch, link.since, MAX_LIMITS)
            is_needed = bool(totals) or is_new or link.taken != link.acknowledged or processes != link.processes
            if is_whole:
                link.acknowledged, link.processes = link.taken, processes
            if is_needed:
                messages.append(MonthTotals(month_number(counts.month), link.acknowledged, processes, totals, is_whole))
        return messages

    def _set_conflicts(self, key: Key, processes: dict[bytes, tuple[TenantConflict, ...]]) -> None:
        processes = {process: conflicts for process, conflicts in processes.items() if conflicts}
        if processes == self._conflicts.get(key, {}):
            return
        self._conflicts.pop(key, None)
        if processes:
            self._conflicts[key] = processes
        self.on_conflicts(key.namespace)
