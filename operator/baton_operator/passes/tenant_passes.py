"""LLMTenants of the namespaces: compiled into ConfigMaps and pushed to gateways, with the outcome in their status.

Work is by namespace, not by tenant: an edit of 10,000 tenants is one compilation, at most one write a shard, and then
their statuses one after the other. A change that comes meanwhile is compiled first. What tenants used of their tokens
of the month is saved in the same ConfigMaps now and then.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from baton_control.errors import FieldProblem, ManifestError
from baton_control.spec.manifest import parse_live_tenant
from baton_control.telemetry.month_counts import MonthCounts, read_counts
from baton_control.tenant_compiler import TenantSource, compile_tenants
from baton_operator.kube.kinds import CONFIG_MAPS
from baton_operator.kube.kube_api import KubeApi, KubeError, NotFound
from baton_operator.kube.labels import FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest, metadata_of, name_of
from baton_operator.objects.tenant_shards import read_shard, read_usage, shard_map, shard_name
from baton_operator.passes.conditions import Finding
from baton_operator.passes.tenant_statuses import (
    LET_IN,
    conflicting,
    month_limit,
    ready_of,
    refused,
    shown_usage,
    usage_of,
    wanted_status,
    without_gateways,
    write_status,
)
from baton_operator.passes.tenant_store import TenantStore
from baton_wire.tenant_table import NUM_SHARDS, TenantShard
from baton_wire.tenant_usage import UsageShard

log = logging.getLogger(__name__)
GAP_S = 0.25
"""A burst of edits becomes one compilation."""
RETRY_S = 2.0
ROLL_S = 1.0
"""The time between two looks for a new month."""
SAVE_S = 30.0
"""The time between two writes of what was used. Gateways know it meanwhile."""
MAX_STATUSES = 200
"""Statuses with another use that one save writes; others follow with the next one."""


@dataclass(frozen=True, slots=True)
class TenantGateways:
    """The gateways, as far as tenants concern them."""

    push: Callable[[str, Mapping[int, TenantShard]], None]
    """Called with the shards of a namespace at once."""
    set_counts: Callable[[str, MonthCounts], None] = lambda namespace, counts: None
    """Called once with the counts of a namespace, which follow the gateways' reports from then on."""
    conflicts: Callable[[str], Mapping[str, FieldProblem]] = lambda namespace: {}
    """The tenants that a gateway's own keys keep out."""


@dataclass(slots=True)
class _Namespace:
    shards: dict[int, TenantShard] | None = None
    """The shards that were written last; None: not read yet."""
    counts: MonthCounts | None = None
    saved: dict[int, UsageShard] = field(default_factory=dict)
    """The counts that were written last."""
    due: bool = False
    is_save_due: bool = False


class TenantPasses:
    """Compiles namespaces as they change. `may_work` says whether this operator is the one for a namespace, `is_used`
    whether any deployment of it lets tenants in. `now` is the wall clock.
    """

    def __init__(
        self,
        api: KubeApi,
        gateways: TenantGateways,
        now: Callable[[], datetime.datetime],
        may_work: Callable[[str], Awaitable[bool]],
        is_used: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        self._api, self._gateways, self._now = api, gateways, now
        self._may_work, self._is_used = may_work, is_used
        self.store = TenantStore(self.offer)
        self._namespaces: dict[str, _Namespace] = {}
        self._changed = asyncio.Event()

    def offer(self, namespace: str) -> None:
        """Compile a namespace soon."""
        self._namespaces.setdefault(namespace, _Namespace()).due = True
        self._changed.set()

    def offer_user(self, namespace: str) -> None:
        """Compile a namespace whose gateways let tenants in, unless that was done: its table may be older than this
        process, and its last tenant may have gone meanwhile."""
        if namespace not in self._namespaces:
            self.offer(namespace)

    async def run(self) -> None:
        """Run until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_months())
            tasks.create_task(self._work_on_changes())

    async def _work_on_changes(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GAP_S)
            self._changed.clear()
            for namespace, state in list(self._namespaces.items()):
                if state.due or state.is_save_due:
                    await self._work(namespace, state)

    async def _keep_months(self) -> None:
        """Begin new months, and have what was used saved."""
        clock = asyncio.get_running_loop().time
        saved_s = clock()
        while True:
            await asyncio.sleep(ROLL_S)
            now_s, is_due = self._now().timestamp(), clock() - saved_s >= SAVE_S
            if is_due:
                saved_s = clock()
            for state in self._namespaces.values():
                if state.counts is not None:
                    month = state.counts.month
                    state.counts.roll(now_s)
                    state.is_save_due |= is_due or month != state.counts.month
                    if state.is_save_due:
                        self._changed.set()

    async def _work(self, namespace: str, state: _Namespace) -> None:
        is_due, state.due, state.is_save_due = state.due, False, False
        try:
            async with asyncio.timeout(60.0):
                if not await self._may_work(namespace):
                    if is_due:
                        self._retry(state)
                elif is_due or state.shards is None or state.counts is None:
                    await self._compile(namespace, state)
                else:
                    await self._save(namespace, state, state.shards, state.counts)
        except NotFound:  # the namespace is gone, and so is what was written there
            state.shards = None
            if self.store.of(namespace):
                self._retry(state)
            elif not state.due:
                del self._namespaces[namespace]
        except (KubeError, TimeoutError) as error:
            log.warning("tenants of %s: %s: retries", namespace, str(error) or "too slow")
            self._retry(state)
        except Exception:  # one namespace must not end the work for all others
            log.exception("tenants of %s: the pass failed: retries", namespace)
            self._retry(state)

    def _retry(self, state: _Namespace) -> None:
        state.due = True
        asyncio.get_running_loop().call_later(RETRY_S, self._changed.set)

    async def _compile(self, namespace: str, state: _Namespace) -> None:
        if state.shards is None:
            state.shards, state.saved = await self._read(namespace)
        manifests = self.store.of(namespace)
        if state.counts is None:
            state.counts = self._counts(manifests, state.saved)
        sources, problems = [], {}
        for manifest in manifests:
            try:
                tenant, _ = parse_live_tenant(manifest)
                sources.append(TenantSource(tenant, str(metadata_of(manifest).get("creationTimestamp", ""))))
            except ManifestError as error:
                problems[name_of(manifest)] = "; ".join(map(str, error.problems))
        compiled = compile_tenants(namespace, sources, state.shards, self._now().timestamp())
        problems |= {name: str(problem) for name, problem in compiled.problems.items()}
        self._gateways.push(namespace, compiled.shards)
        self._gateways.set_counts(namespace, state.counts)
        used = state.counts.shards()
        for place, shard in compiled.shards.items():
            if shard is not state.shards.get(place):
                await self._write(namespace, state, shard, used[place])
                state.shards[place] = shard
        conflicts = self._gateways.conflicts(namespace)
        for manifest in manifests:
            if state.due:
                return  # an edit goes before the statuses of the last one
            name = name_of(manifest)
            ready = LET_IN if self._is_used(namespace) else without_gateways(namespace)
            if name in conflicts:
                ready = conflicting(str(conflicts[name]))
            if name in problems:
                ready = refused(problems[name])
            await write_status(self._api, self.store, manifest, self._status(manifest, ready, state.counts))

    async def _save(
        self, namespace: str, state: _Namespace, shards: Mapping[int, TenantShard], counts: MonthCounts
    ) -> None:
        """Write what was used since the last time: for gateways that start, for the next operator, and in statuses."""
        for place, usage in counts.shards().items():
            shard = shards.get(place)
            if shard is not None and _is_counted(shard, usage) and usage != state.saved.get(place):
                await self._write(namespace, state, shard, usage)
        num_written = 0
        for manifest in self.store.of(namespace):
            ready = ready_of(manifest)
            if month_limit(manifest) is None or ready is None:
                continue
            if state.due or num_written == MAX_STATUSES:
                return
            body = self._status(manifest, ready, counts)
            num_written += await write_status(self._api, self.store, manifest, body)

    async def _write(self, namespace: str, state: _Namespace, shard: TenantShard, usage: UsageShard) -> None:
        is_counted = _is_counted(shard, usage)
        wanted = shard_map(namespace, shard, usage if is_counted else None)
        await self._api.apply(CONFIG_MAPS, wanted, manager=FIELD_MANAGER, force=True)
        if is_counted:
            state.saved[shard.place] = usage

    def _counts(self, manifests: list[Manifest], saved: Mapping[int, UsageShard]) -> MonthCounts:
        """Return the tokens used as they were saved, or as statuses have it, where that is more: a ConfigMap may have
        been deleted."""
        counts = read_counts(saved, self._now().timestamp())
        for manifest in manifests:
            usage = usage_of(manifest)
            if usage is not None and usage.month == counts.month:
                counts.raise_to(name_of(manifest), usage.tokens)
        return counts

    def _status(self, manifest: Manifest, ready: Finding, counts: MonthCounts) -> Manifest:
        usage = shown_usage(manifest, counts.month, counts.used.get(name_of(manifest), 0.0))
        return wanted_status(manifest, ready, usage, self._now())

    async def _read(self, namespace: str) -> tuple[dict[int, TenantShard], dict[int, UsageShard]]:
        shards, saved = {}, {}
        for place in range(NUM_SHARDS):
            try:
                manifest = await self._api.get(CONFIG_MAPS, namespace, shard_name(place))
            except NotFound:
                continue
            shard, usage = read_shard(manifest), read_usage(manifest)
            if shard is not None:
                shards[place] = shard
            if usage is not None:
                saved[place] = usage
        return shards, saved


def _is_counted(shard: TenantShard, usage: UsageShard) -> bool:
    """Return whether gateways need the count of a shard's tenants."""
    return bool(usage.used) or any(row.limits.tokens_per_month is not None for row in shard.tenants)
