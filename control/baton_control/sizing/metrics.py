"""Metrics of sizing: pools as they are and as they should be, decisions by direction. Names: docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, Sized
from baton_wire.messages.values import POOL_ROLES, Role

DIRECTIONS = ("up", "down", "hold")


class SizingMetrics:
    """Series exist for the deployments that were seen and not forgotten."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("namespace", "deployment", "role")
        self._workers = Gauge(
            "baton_pool_workers",
            "Workers of a pool: wanted, running (started and not asked to stop), routable",
            (*labels, "state"),
            registry=registry,
        )
        self._decisions = Counter(
            "baton_sizing_decisions", "Decisions by direction", (*labels, "direction"), registry=registry
        )
        self._holds = Gauge(
            "baton_sizing_holds",
            "1 while demand is not known and pools stay as they are",
            labels[:2],
            registry=registry,
        )
        self._last: dict[Key, Sized] = {}

    def saw(self, key: Key, sized: Sized, pools: Mapping[Role, PoolNow]) -> None:
        """Report an answer of sizing and its pools. The same answer again counts no decision."""
        is_new = self._last.get(key) != sized
        before = self._last.get(key)
        if before is None:
            for role in POOL_ROLES:
                for direction in DIRECTIONS:  # a series that begins with its first count shows no increase
                    self._decisions.labels(key.namespace, key.name, role.value, direction)
        self._last[key] = sized
        self._holds.labels(key.namespace, key.name).set(sized.holds)
        self.saw_pools(key, sized.workers, pools)
        for role in POOL_ROLES:
            pool = pools[role]
            if is_new:
                was = pool.workers if before is None else before.workers[role]
                place = (sized.workers[role] < was) + 2 * (sized.workers[role] == was)
                self._decisions.labels(key.namespace, key.name, role.value, DIRECTIONS[place]).inc()

    def saw_pools(self, key: Key, wanted: Mapping[Role, int], pools: Mapping[Role, PoolNow]) -> None:
        """Report pools that Baton does not size."""
        for role in POOL_ROLES:
            states = {"wanted": wanted[role], "running": pools[role].workers, "routable": pools[role].routable}
            for state, count in states.items():
                gauge = self._workers.labels(key.namespace, key.name, role.value, state)
                gauge.set(float("nan") if count is None else count)

    def forget(self, key: Key) -> None:
        """Drop the series of a deployment that is gone."""
        self._last.pop(key, None)
        for role in POOL_ROLES:
            for state in ("wanted", "running", "routable"):
                self._workers.remove(key.namespace, key.name, role.value, state)
            for direction in DIRECTIONS:
                self._decisions.remove(key.namespace, key.name, role.value, direction)
        self._holds.remove(key.namespace, key.name)
