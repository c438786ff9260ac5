"""The operator without its shell: caches are filled, changes queue keys, workers run passes. No kopf, no signals.

Passes begin when every cache holds its first list. A key is worked on by one worker at a time; every pass has a
deadline; whatever one deployment makes go wrong is logged and tried again later, and keeps no other one waiting.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton_control.names import Key
from baton_control.sizing.metrics import SizingMetrics
from baton_control.sizing.scaling import Sizing
from baton_operator import metrics
from baton_operator.kube.cache import Cache
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.informer import RELIST_S, WATCH_S, Informer
from baton_operator.kube.kinds import DEPLOYMENTS, OPTIONAL, OWNED
from baton_operator.kube.kube_api import Forbidden, KubeApi, KubeError, Resource, TooManyRequests
from baton_operator.kube.work_queue import WorkQueue
from baton_operator.objects.metadata import DEPLOYMENT_LABEL
from baton_operator.passes.reconcile import Installation, Reconciler
from baton_operator.telemetry import Telemetry

log = logging.getLogger(__name__)
_NOBODY = "no_body"
"""A value that the label never has, as no name has an underscore."""
PASS_S, STALL_S = 120.0, 300.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how much at once."""

    workers: int = 8
    resync_s: float = 300.0
    """Every deployment gets a pass at least this often; one that finds nothing to do makes no request."""
    relist_s: float = RELIST_S
    watch_s: float = WATCH_S


class Runtime:
    """One active operator. `namespaces` None: all of them. Somebody else feeds `custom`."""

    def __init__(
        self,
        api: KubeApi,
        custom: CustomResources,
        installation: Installation,
        namespaces: tuple[str, ...] | None,
        *,
        sizing: Sizing | None = None,
        telemetry: Telemetry | None = None,
        measured: SizingMetrics | None = None,
        pace: Pace = Pace(),
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
        rng: random.Random | None = None,
    ) -> None:
        self._api, self._custom, self._installation = api, custom, installation
        self._namespaces, self._pace = namespaces, pace
        self._sizing, self._telemetry, self._measured, self._now = sizing, telemetry, measured, now
        self._rng = rng or random.Random()
        self._queue = WorkQueue(self._rng)
        self._wake = asyncio.Event()
        self._listing = asyncio.Lock()
        self._ended_at: float | None = None
        self._beats: dict[str, float] = {}
        self.caches: dict[Resource, Cache] = dict(custom.caches)
        custom.listeners.append(self.offer)
        self.synced = asyncio.Event()
        """Set when all caches hold their first list."""

    async def run(self) -> None:
        """Until cancelled. Raises KubeError when the server cannot be asked what it serves."""
        optional = [each for each in OPTIONAL if await self._can_use(each)]
        installation = replace(self._installation, served=frozenset(optional))
        watched = {each: Cache(each, self.offer) for each in (*OWNED, *optional)}
        self.caches |= watched
        reconciler = Reconciler(
            self._api,
            self.caches,
            installation,
            sizing=self._sizing,
            telemetry=self._telemetry,
            measured=self._measured,
            now=self._now,
            clock=asyncio.get_running_loop().time,
        )
        informers = [self._informer(cache, each) for cache in watched.values() for each in self._namespaces or (None,)]
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            for informer in informers:
                await informer.synced.wait()
            await self._custom.synced.wait()
            self.synced.set()
            log.info("caches are filled: %d deployments", len(self.caches[DEPLOYMENTS]))
            for _ in range(self._pace.workers):
                tasks.create_task(self._work(reconciler))
            tasks.create_task(self._resync())

    async def _can_use(self, optional: Resource) -> bool:
        """Whether the server has this kind, and the operator may list it: rights may be those of an older chart."""
        if optional.plural not in await self._api.served(optional.group, optional.version):
            return False
        try:
            for namespace in self._namespaces or (None,):
                await self._api.list(optional, namespace, f"{DEPLOYMENT_LABEL}={_NOBODY}")
        except Forbidden as error:
            log.warning("%ss are left out: %s", optional.kind, error)
            return False
        except KubeError:
            return True  # the informer asks again
        return True

    def offer(self, key: Key) -> None:
        """Let a deployment have a pass soon."""
        self._queue.offer(key, asyncio.get_running_loop().time())
        self._wake.set()

    def offer_all(self) -> None:
        """The same for every deployment: something that all depend on has changed."""
        for key in self.caches[DEPLOYMENTS].deployments():
            self.offer(key)

    @property
    def is_idle(self) -> bool:
        """Nothing is due now and nothing is being worked on; what is due later does not count."""
        return self._queue.is_idle(asyncio.get_running_loop().time())

    def stalled(self) -> str | None:
        """Why this process should be ended because it makes no progress; None: it does. A server that does not answer
        is no such reason: that a pass fails is progress too."""
        now = asyncio.get_running_loop().time()
        late_s = now - self._queue.waiting_since(now)
        if self._ended_at is not None and late_s > STALL_S and now - self._ended_at > STALL_S:
            return f"no pass has ended for {now - self._ended_at:.0f} s while one has been due for {late_s:.0f} s"
        for name, at in self._beats.items():
            if now - at > 2 * self._pace.watch_s + STALL_S:
                return f"the watch of {name} has been silent for {now - at:.0f} s"
        return None

    def _informer(self, cache: Cache, namespace: str | None) -> Informer:
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
            turn=self._listing,
        )

    async def _work(self, reconciler: Reconciler) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            key = await self._next()
            started = clock()
            try:
                async with asyncio.timeout(PASS_S):
                    again_s = await reconciler.reconcile(key)
            except (KubeError, TimeoutError) as error:
                at_least_s = error.retry_after_s if isinstance(error, TooManyRequests) else 0.0
                delay_s = self._queue.failed(key, clock(), at_least_s)
                log.info("%s: %s: again in %.1f s", key, str(error) or "too slow", delay_s)
                outcome = type(error).__name__
            except Exception:  # one deployment must not end the work for all others
                delay_s = self._queue.failed(key, clock())
                log.exception("%s: the pass failed: again in %.1f s", key, delay_s)
                outcome = "Error"
            else:
                self._queue.done(key, clock(), None if again_s is None else clock() + again_s)
                if again_s is None and self.caches[DEPLOYMENTS].get(*key) is None:
                    self._queue.forget(key)
                outcome = "Done"
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
