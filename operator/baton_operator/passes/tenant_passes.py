"""LLMTenants of the namespaces: compiled into ConfigMaps and pushed to gateways, with the outcome in their status.

Work is by namespace, not by tenant: an edit of 10,000 tenants is one compilation, at most one write a shard, and then
their statuses one after the other. A change that comes meanwhile is compiled first.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from baton_control.errors import ManifestError
from baton_control.spec.api import API_VERSION
from baton_control.spec.manifest import parse_live_tenant
from baton_control.spec.tenant_fields import TENANT_KIND
from baton_control.tenant_compiler import TenantSource, compile_tenants
from baton_operator.kube.kinds import CONFIG_MAPS, TENANTS
from baton_operator.kube.kube_api import Change, KubeApi, KubeError, Listing, NotFound, WatchEvent
from baton_operator.kube.labels import FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest, mapping, mappings, metadata_of, name_of, uid_of
from baton_operator.objects.tenant_shards import read_shard, shard_map, shard_name
from baton_operator.passes.conditions import Finding, merge_conditions
from baton_operator.schema.status import Condition, TenantConditionType, TenantStatus, Truth
from baton_wire.tenant_table import NUM_SHARDS, TenantShard

log = logging.getLogger(__name__)
STATUS_MANAGER = "baton-status"
GAP_S = 0.25
"""A burst of edits becomes one compilation."""
RETRY_S = 2.0
Push = Callable[[str, Mapping[int, TenantShard]], None]


class TenantStore:
    """The LLMTenants of all namespaces, fed by an informer. `on_change` is called with the namespace of a change."""

    resource = TENANTS

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._on_change = on_change
        self._by_namespace: dict[str, dict[str, Manifest]] = {}

    def of(self, namespace: str) -> list[Manifest]:
        """The LLMTenants of a namespace."""
        return list(self._by_namespace.get(namespace, {}).values())

    def apply_list(self, listing: Listing, namespace: str | None) -> None:
        """Apply a whole list of a namespace (None: of all)."""
        listed: dict[str, dict[str, Manifest]] = {}
        for manifest in listing.items:
            listed.setdefault(_namespace(manifest), {})[name_of(manifest)] = _kept(manifest)
        for place in {*listed, *self._by_namespace}:
            if namespace in (None, place) and listed.get(place, {}) != self._by_namespace.get(place, {}):
                self._set(place, listed.get(place, {}))

    def apply_event(self, event: WatchEvent) -> None:
        """Apply an event of a watch."""
        if event.change is Change.BOOKMARK:
            return
        place, name = _namespace(event.object), name_of(event.object)
        tenants = dict(self._by_namespace.get(place, {}))
        if event.change is Change.DELETED:
            tenants.pop(name, None)
        else:
            tenants[name] = _kept(event.object)
        self._set(place, tenants)

    def store(self, manifest: Manifest) -> None:
        """Keep the answer to a write of a status."""
        tenants = self._by_namespace.get(_namespace(manifest), {})
        if name_of(manifest) in tenants:
            tenants[name_of(manifest)] = _kept(manifest)

    def _set(self, namespace: str, tenants: dict[str, Manifest]) -> None:
        former = self._by_namespace.pop(namespace, {})
        if tenants:
            self._by_namespace[namespace] = tenants
        if {name: _wanted(manifest) for name, manifest in former.items()} != {
            name: _wanted(manifest) for name, manifest in tenants.items()
        }:
            self._on_change(namespace)


@dataclass(slots=True)
class _Namespace:
    shards: dict[int, TenantShard] | None = None
    """The shards that were written last; None: not read yet."""
    due: bool = False


class TenantPasses:
    """Compiles namespaces as they change. `push` gets the shards of a namespace at once; `may_work` says whether this
    operator is the one for a namespace. `now` is the wall clock.
    """

    def __init__(
        self,
        api: KubeApi,
        push: Push,
        now: Callable[[], datetime.datetime],
        may_work: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._api, self._push, self._now, self._may_work = api, push, now, may_work
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
        while True:
            await self._changed.wait()
            await asyncio.sleep(GAP_S)
            self._changed.clear()
            for namespace, state in list(self._namespaces.items()):
                if state.due:
                    state.due = False
                    await self._work(namespace, state)

    async def _work(self, namespace: str, state: _Namespace) -> None:
        try:
            async with asyncio.timeout(60.0):
                if await self._may_work(namespace):
                    await self._compile(namespace, state)
                else:
                    self._retry(state)
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
            state.shards = await self._read(namespace)
        sources, refused = [], {}
        manifests = self.store.of(namespace)
        for manifest in manifests:
            try:
                tenant, _ = parse_live_tenant(manifest)
                sources.append(TenantSource(tenant, str(metadata_of(manifest).get("creationTimestamp", ""))))
            except ManifestError as error:
                refused[name_of(manifest)] = "; ".join(map(str, error.problems))
        compiled = compile_tenants(namespace, sources, state.shards, self._now().timestamp())
        refused |= {name: str(problem) for name, problem in compiled.problems.items()}
        self._push(namespace, compiled.shards)
        for place, shard in compiled.shards.items():
            if shard is not state.shards.get(place):
                await self._api.apply(CONFIG_MAPS, shard_map(namespace, shard), manager=FIELD_MANAGER, force=True)
                state.shards[place] = shard
        for manifest in manifests:
            if state.due:
                return  # an edit goes before the statuses of the last one
            await self._write_status(manifest, refused.get(name_of(manifest)))

    async def _read(self, namespace: str) -> dict[int, TenantShard]:
        shards = {}
        for place in range(NUM_SHARDS):
            try:
                shard = read_shard(await self._api.get(CONFIG_MAPS, namespace, shard_name(place)))
            except NotFound:
                continue
            if shard is not None:
                shards[place] = shard
        return shards

    async def _write_status(self, manifest: Manifest, problem: str | None) -> None:
        generation = metadata_of(manifest).get("generation")
        observed = generation if isinstance(generation, int) else 0
        before = [Condition.model_validate(one) for one in mappings(mapping(manifest.get("status")).get("conditions"))]
        ready = Finding(TenantConditionType.READY, Truth.TRUE, "Compiled", "gateways let this tenant in")
        if problem is not None:
            ready = Finding(TenantConditionType.READY, Truth.FALSE, "Refused", problem)
        conditions = merge_conditions(before, (ready,), observed, self._now())
        status = TenantStatus.model_validate({"observedGeneration": observed, "conditions": conditions})
        body = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        if body == mapping(manifest.get("status")):
            return
        metadata = {"name": name_of(manifest), "namespace": _namespace(manifest), "uid": uid_of(manifest)}
        wanted: Manifest = {"apiVersion": API_VERSION, "kind": TENANT_KIND, "metadata": metadata, "status": body}
        try:
            written = await self._api.apply(TENANTS, wanted, manager=STATUS_MANAGER, force=True, subresource="status")
        except NotFound:
            return
        self.store.store(written)


def _namespace(manifest: Manifest) -> str:
    return str(metadata_of(manifest).get("namespace", ""))


def _wanted(manifest: Manifest) -> object:
    return manifest.get("spec"), uid_of(manifest)


def _kept(manifest: Manifest) -> Manifest:
    names = ("name", "namespace", "uid", "generation", "creationTimestamp")
    given = metadata_of(manifest)
    metadata = {name: given[name] for name in names if name in given}
    return {**{key: value for key, value in manifest.items() if key != "metadata"}, "metadata": metadata}
