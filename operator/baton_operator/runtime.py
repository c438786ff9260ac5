"""The operator without its process: fills caches, queues the keys of changes, runs passes. No kopf, no signals.

Passes over a namespace begin when every kind in it has been listed. A namespace that cannot be read waits alone, and
its deployments say so. At most one pass at a time works on a key. Every pass has a deadline, and a slow pass gives up
its slot to another one. A failure of one deployment or namespace is retried later and keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton_control.names import Key
from baton_control.sizing.decision.scaling import Sizing
from baton_control.sizing.metrics import SizingMetrics
from baton_operator import metrics
from baton_operator.kube.cache import Cache
from baton_operator.kube.claims import Claims
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.informer import RELIST_S, WATCH_S, Informer, Store, Turns
from baton_operator.kube.kinds import DEPLOYMENTS, OPTIONAL, OWNED
from baton_operator.kube.kube_api import KubeApi, KubeError, Resource, TooManyRequests
from baton_operator.kube.nodes import Nodes
from baton_operator.kube.object_fields import mapping
from baton_operator.kube.reach import Scope
from baton_operator.kube.work_queue import WorkQueue
from baton_operator.passes.pass_reporter import Announce
from baton_operator.passes.reconcile import Installation, Reconciler
from baton_operator.passes.tenant_passes import TenantGateways, TenantPasses
from baton_operator.telemetry import Telemetry

log = logging.getLogger(__name__)
PASS_S, STALL_S = 120.0, 300.0
SLOW_S = 2.0
"""A pass that takes longer gives up its slot: it waits for a server."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the operator works, and on how much at once."""

    workers: int = 8
    """Most passes at a time, and most in one namespace including slow ones."""
    resync_s: float = 300.0
    """Every deployment gets a pass at least this often; one that finds nothing to do makes no request."""
    relist_s: float = RELIST_S
    watch_s: float = WATCH_S


class Runtime:
    """One active operator for the namespaces of `custom`, whose caches are fed elsewhere."""

    def __init__(  # noqa: PLR0913 - keyword only: the sources, limits and clocks of one process
        self,
        api: KubeApi,
        custom: CustomResources,
        installation: Installation,
        *,
        sizing: Sizing | None = None,
        telemetry: Telemetry | None = None,
        measured: SizingMetrics | None = None,
        claims: Claims | None = None,
        reads_nodes: bool = False,
        tenant_gateways: TenantGateways | None = None,
        announce: Announce = lambda key, history: None,
        pace: Pace = Pace(),
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._custom, self._installation = api, custom, installation
        self._pace, self._claims, self._announce = pace, claims, announce
        self.nodes = Nodes(self.offer_all) if reads_nodes else None
        self.tenants: TenantPasses | None = None
        """None: LLMTenants are left alone."""
        self._letting_in: dict[str, set[str]] = {}
        """The deployments whose gateways let tenants in, by namespace."""
        if tenant_gateways is not None:
            is_used = self._letting_in.__contains__
            self.tenants = TenantPasses(api, tenant_gateways, now, self._may_compile, is_used)
            custom.listeners.append(self._deployment_changed)
        if claims is not None:
            claims.on_change = self._claim_changed
        self._sizing, self._telemetry, self._measured, self._now = sizing, telemetry, measured, now
        self._rng = rng or random.Random()
        self._queue = WorkQueue(self._rng, together=pace.workers)
        self._wake = asyncio.Event()
        self._turns = Turns()
        self._slots = asyncio.Semaphore(pace.workers)
        self._ended_at: float | None = None
        """When the last pass ended, or the first one could have begun."""
        self._saw_at = 0.0
        """When the operator could last read a namespace."""
        self._beats: dict[str, float] = {}
        self.caches: dict[Resource, Cache] = dict(custom.caches)
        self.reach = custom.reach
        custom.listeners.append(self.offer)
        self.synced = asyncio.Event()
        """Set when every list of every namespace has succeeded or failed once."""

    async def run(self) -> None:
        """Run until cancelled. Raises KubeError when the server does not say what it serves."""
        clock = asyncio.get_running_loop().time
        self._ended_at = self._saw_at = clock()
        optional = frozenset([kind for kind in OPTIONAL if await self._is_served(kind)])
        installation = replace(self._installation, served=lambda name: optional - self.reach.left_out(name))
        watched = {kind: Cache(kind, self.offer, self._custom.namespaces) for kind in (*OWNED, *optional)}
        self.caches |= watched
        reconciler = Reconciler(
            self._api,
            self.caches,
            installation,
            sizing=self._sizing,
            telemetry=self._telemetry,
            measured=self._measured,
            now=self._now,
            clock=clock,
            emptying=lambda: None if self.nodes is None else self.nodes.emptying,
            announce=self._announce,
        )
        scopes = self._custom.scopes
        informers = [
            self._informer(cache, scope, cache.resource in optional) for cache in watched.values() for scope in scopes
        ]
        self.reach.listeners.append(self._reach_changed)
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            if self.nodes is not None:
                tasks.create_task(self._nodes_informer(self.nodes).run())
            if self.tenants is not None:
                for scope in scopes:
                    tasks.create_task(self._own_informer(self.tenants.store, scope).run())
                tasks.create_task(self.tenants.run())
            tasks.create_task(self._dispatch(tasks, reconciler))
            tasks.create_task(self._resync())
            if self._claims is not None:
                tasks.create_task(self._claims.keep(self._namespaces_at_work))
            await self.reach.settled()
            self.synced.set()
            log.info("caches are filled: %d deployments", len(self.caches[DEPLOYMENTS]))

    async def _is_served(self, optional: Resource) -> bool:
        return optional.plural in await self._api.served(optional.group, optional.version)

    def _reach_changed(self, scope: Scope) -> None:
        """Queue the deployments of a namespace that can be worked on now, or no longer can."""
        name = scope or "*"
        problems = self.reach.problems()
        metrics.unreadable(frozenset(problems))
        if name in problems:
            log.warning("namespace %s cannot be read, its deployments wait: %s", name, problems[name])
        for key in self.caches[DEPLOYMENTS].deployments():
            if scope in (None, key.namespace):
                self.offer(key)

    def _namespaces_at_work(self) -> frozenset[str]:
        return frozenset(key.namespace for key in self.caches[DEPLOYMENTS].deployments())

    def _claim_changed(self, namespace: str) -> None:
        assert self._claims is not None, "claims call this"
        metrics.claimed_elsewhere(self._claims.others())
        for key in self.caches[DEPLOYMENTS].deployments():
            if key.namespace == namespace:
                self.offer(key)

    def offer(self, key: Key) -> None:
        """Queue a pass over a deployment."""
        self._queue.offer(key, asyncio.get_running_loop().time())
        self._wake.set()

    def offer_all(self) -> None:
        """Queue a pass over every deployment, because something has changed that all depend on."""
        for key in self.caches[DEPLOYMENTS].deployments():
            self.offer(key)

    @property
    def is_idle(self) -> bool:
        """True if no pass runs and none is due now; a pass that is due later does not count."""
        return self._queue.is_idle(asyncio.get_running_loop().time())

    def stalled(self) -> str | None:
        """Why this process should end, because it makes no progress; None: it makes progress. A server that does not
        answer is no such reason: a failed pass counts as progress too."""
        now = asyncio.get_running_loop().time()
        late_s = now - self._queue.waiting_since(now)
        if self._ended_at is None:
            return None  # waits for the Lease
        if late_s > STALL_S and now - self._ended_at > STALL_S:
            return f"no pass has ended for {now - self._ended_at:.0f} s while one has been due for {late_s:.0f} s"
        if not self.reach.is_blind:
            self._saw_at = now
        if now - self._saw_at > STALL_S:
            problems = "; ".join(f"{name}: {why}" for name, why in list(self.reach.problems().items())[:3])
            return f"no namespace could be read for {now - self._saw_at:.0f} s: {problems or 'no list came'}"
        for name, at in self._beats.items():
            if now - at > 2 * self._pace.watch_s + STALL_S:
                return f"the watch of {name} has been silent for {now - at:.0f} s"
        return None

    def _informer(self, cache: Cache, namespace: Scope, is_optional: bool) -> Informer:
        self.reach.expect(cache.resource, namespace, is_optional)
        name = cache.resource.plural + (f" in {namespace}" if namespace else "")

        def beat() -> None:
            self._beats[name] = asyncio.get_running_loop().time()

        return Informer(
            self._api,
            cache,
            namespace,
            beat=beat,
            relist_s=self._pace.relist_s,
            watch_s=self._pace.watch_s,
            rng=self._rng,
            turns=self._turns,
            reach=self.reach,
            is_optional=is_optional,
        )

    def _nodes_informer(self, nodes: Nodes) -> Informer:
        """The informer of nodes, for the whole cluster. Without the right to read nodes, `nodes` stays unknown."""
        return self._own_informer(nodes, None)

    def _own_informer(self, store: Store, scope: Scope) -> Informer:
        """The informer of a kind that no pass over a deployment waits for."""
        pace = self._pace
        return Informer(
            self._api, store, scope, relist_s=pace.relist_s, watch_s=pace.watch_s, rng=self._rng, is_optional=True
        )

    async def _may_compile(self, namespace: str) -> bool:
        """Return whether this operator is the one that works on a namespace."""
        if not self.reach.is_known(namespace):
            return False
        return self._claims is None or not await self._claims.other(namespace)

    def _deployment_changed(self, key: Key) -> None:
        """Compile the tenants of a namespace whose gateways let them in, or do so no longer."""
        live = self.caches[DEPLOYMENTS].get(*key)
        if self.tenants is None:
            return
        names = self._letting_in.pop(key.namespace, set())
        was_used = bool(names)
        names.discard(key.name)
        if mapping(mapping((live or {}).get("spec")).get("gateway")).get("tenants"):
            names.add(key.name)
        if names:
            self._letting_in[key.namespace] = names
            self.tenants.offer_user(key.namespace)
        if bool(names) != was_used:
            self.tenants.offer(key.namespace)

    async def _dispatch(self, tasks: asyncio.TaskGroup, reconciler: Reconciler) -> None:
        """Start a pass whenever a key is due and a slot is free."""
        while True:
            await self._slots.acquire()
            tasks.create_task(self._work(reconciler, await self._next()))

    async def _work(self, reconciler: Reconciler, key: Key) -> None:
        with contextlib.ExitStack() as slot:
            slot.callback(self._slots.release)
            slow = asyncio.get_running_loop().call_later(SLOW_S, slot.close)
            try:
                await self._pass(reconciler, key)
            finally:
                slow.cancel()

    async def _pass(self, reconciler: Reconciler, key: Key) -> None:
        clock = asyncio.get_running_loop().time
        started, is_known = clock(), self.reach.is_known(key.namespace)
        outcome = "Done" if is_known else "Held"
        try:
            async with asyncio.timeout(PASS_S):
                next_s: float | None = None
                other = await self._claims.other(key.namespace) if is_known and self._claims is not None else ""
                if other:
                    outcome = "ClaimedElsewhere"
                    await reconciler.stay_out(key, other)
                elif is_known:
                    next_s = await reconciler.reconcile(key)
                elif why := self.reach.problem(key.namespace):
                    await reconciler.hold(key, why)
        except (KubeError, TimeoutError) as error:
            least_s = error.retry_after_s if isinstance(error, TooManyRequests) else 0.0
            delay_s = self._queue.failed(key, clock(), least_s)
            log.info("%s: %s: retries in %.1f s", key, str(error) or "too slow", delay_s)
            outcome = type(error).__name__
        except Exception:  # one deployment must not end the work for all others
            delay_s = self._queue.failed(key, clock())
            log.exception("%s: the pass failed: retries in %.1f s", key, delay_s)
            outcome = "Error"
        else:
            self._queue.done(key, clock(), None if next_s is None else clock() + next_s)
            if next_s is None and self.caches[DEPLOYMENTS].get(*key) is None:
                self._queue.forget(key)
        self._ended_at = clock()
        self._wake.set()
        metrics.pass_ended(outcome, clock() - started, len(self._queue))

    async def _next(self) -> Key:
        clock = asyncio.get_running_loop().time
        while True:
            key = self._queue.take(clock())
            if key is not None:
                return key
            due = self._queue.next_at()
            self._wake.clear()
            try:
                async with asyncio.timeout(None if due is None else max(due - clock(), 0.0)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _resync(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            for key in self.caches[DEPLOYMENTS].deployments():
                self._queue.offer(key, clock() + self._rng.uniform(0.0, self._pace.resync_s))
            self._wake.set()
            await asyncio.sleep(self._pace.resync_s)
