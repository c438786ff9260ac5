"""Writes the status of a deployment and of its facades, only when it changed, and Events about the changes.

An Event is written after the status that it belongs to, so that a repeated pass does not write it again. An Event that
cannot be written is lost; the status says the same.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Iterable, Mapping

from baton_control.hashes import content_hash
from baton_control.names import Key, pool_name
from baton_control.spec.api import API_VERSION, KIND, LLMDeployment
from baton_control.worker_specs import pool_roles, pool_spec
from baton_operator.kube.kinds import EVENTS
from baton_operator.kube.kube_api import KubeApi, KubeError
from baton_operator.kube.object_fields import Manifest, mapping, mappings, metadata_of, uid_of
from baton_operator.metrics import CONDITIONS
from baton_operator.objects.fetch_progress import without_progress
from baton_operator.objects.metadata import selector_text
from baton_operator.passes.apply import Applier
from baton_operator.passes.conditions import Finding, merge_conditions, timestamp
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.status_events import EventBook, Series, StatusEvent, find_status_events
from baton_operator.schema.llm_pool import POOL_KIND
from baton_operator.schema.status import (
    Condition,
    ConditionType,
    DeploymentStatus,
    PoolConditionType,
    PoolFacadeStatus,
    Truth,
)
from baton_wire.messages.values import Role

log = logging.getLogger(__name__)
STATUS_MANAGER = "baton-status"
SELDOM_S = 60.0
"""Least time between two writes of numbers that change all the time."""
_SELDOM = ("slo", "kvTransfer", "sizingMemory")
_SELDOM_MESSAGES = (ConditionType.SLO_MET, ConditionType.SCALING_LIMITED, ConditionType.TRANSPORT_VERIFIED)
"""Conditions with such numbers in their messages."""


class StatusWriter:
    """Writes for all deployments. `now` is the wall clock, `clock` is monotonic."""

    def __init__(
        self, api: KubeApi, applier: Applier, now: Callable[[], datetime.datetime], clock: Callable[[], float]
    ) -> None:
        self._api, self._applier, self._now, self._clock = api, applier, now, clock
        self._written_at: dict[Key, float] = {}
        self._books: dict[Key, EventBook] = {}

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._books.pop(key, None)
        self._written_at.pop(key, None)
        CONDITIONS.forget(key)

    async def write(self, seen: Snapshot, after: DeploymentStatus) -> float | None:
        """Write a status that differs from the live one. Returns the seconds until the next write, if only numbers
        differ that were written a moment ago; else None."""
        CONDITIONS.saw(seen.key, after)
        status, live = without_empty(after), mapping(seen.raw.get("status"))
        if status == live:
            return None
        uid, now = seen.owner.uid, self._clock()
        if _steady(status) == _steady(live):
            left_s = self._written_at.get(seen.key, now - SELDOM_S) + SELDOM_S - now
            if left_s > 0:
                return left_s
        changed = sorted(name for name in {*status, *live} if status.get(name) != live.get(name))
        log.debug("%s: status: %s", seen.key, {name: [live.get(name), status.get(name)] for name in changed})
        await self._apply(API_VERSION, KIND, seen.key.namespace, seen.key.name, uid, status)
        self._written_at[seen.key] = now
        await self.write_events(seen, find_status_events(seen.before, after))
        return None

    async def write_pools(self, seen: Snapshot, deployment: LLMDeployment, plans: Mapping[Role, PoolPlan]) -> None:
        """Write the statuses of the facades, which `/scale` and autoscalers read."""
        roles = pool_roles(deployment)
        bounds = {role: pool_spec(deployment, role).replicas for role in roles}
        CONDITIONS.saw_bounds(seen.key, {role: pool.max for role, pool in bounds.items() if pool.max > pool.min})
        for role in roles:
            live = seen.pools.get(role)
            if live is None:
                continue  # made by this pass, and its event brings the next pass
            status = without_empty(self._pool_status(seen, deployment, role, plans[role], live))
            if status != mapping(live.get("status")):
                name = pool_name(seen.key.name, role)
                await self._apply(API_VERSION, POOL_KIND, seen.key.namespace, name, uid_of(live), status)

    def _pool_status(
        self, seen: Snapshot, deployment: LLMDeployment, role: Role, plan: PoolPlan, live: Manifest
    ) -> PoolFacadeStatus:
        mode = deployment.spec.autoscaling.mode
        generation = metadata_of(live).get("generation")
        observed = generation if isinstance(generation, int) else 0
        given = mapping(live.get("status")).get("conditions")
        before = [Condition.model_validate(condition) for condition in given] if isinstance(given, list) else []
        finding = Finding(PoolConditionType.SIZED, Truth.TRUE, mode.value, plan.limit)
        raw = {
            "observedGeneration": observed,
            "replicas": sum(worker_set.existing for worker_set in seen.sets if worker_set.role is role),
            "selector": selector_text(deployment, role),
            "effective": plan.workers,
            "conditions": merge_conditions(before, (finding,), observed, self._now()),
        }
        return PoolFacadeStatus.model_validate(raw)

    async def _apply(self, api_version: str, kind: str, namespace: str, name: str, uid: str, status: Manifest) -> None:
        metadata = {"namespace": namespace, "name": name, "uid": uid}
        body: Manifest = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "status": status}
        await self._applier.apply(body, manager=STATUS_MANAGER, force=True, subresource="status")

    async def write_events(self, seen: Snapshot, events: Iterable[StatusEvent]) -> None:
        """Write Events, or raise the counts of existing ones. An Event that cannot be written is lost."""
        book = self._books.setdefault(seen.key, EventBook())
        for event in events:
            series = book.record(event, self._now().timestamp())
            if series is None:
                continue
            try:
                await self._api.apply(EVENTS, self._event(seen, event, series), manager=STATUS_MANAGER, force=True)
            except KubeError as error:
                log.warning("%s: Event %s not written: %s", seen.key, event.reason, error)

    def _event(self, seen: Snapshot, event: StatusEvent, series: Series) -> Manifest:
        first = timestamp(datetime.datetime.fromtimestamp(series.first, datetime.UTC))
        namespace, name = seen.key
        regarding = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": namespace,
            "name": name,
            "uid": seen.owner.uid,
        }
        unique = content_hash({"uid": seen.owner.uid, "key": event.key, "first": first})
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{unique}", "namespace": namespace},
            "involvedObject": regarding,
            "type": "Warning" if event.warns else "Normal",
            "reason": event.reason,
            "message": event.message[:1024],
            "source": {"component": "baton-operator"},
            "firstTimestamp": first,
            "lastTimestamp": timestamp(self._now()),
            "count": series.count,
        }


def _steady(status: Manifest) -> Manifest:
    """The status without the numbers that change all the time."""
    steady = {name: value for name, value in status.items() if name not in _SELDOM}
    steady["message"] = without_progress(str(steady.get("message")))
    steady["conditions"] = [
        {**condition, "message": _steady_message(condition)} for condition in mappings(steady.get("conditions"))
    ]
    return steady


def _steady_message(condition: Manifest) -> str:
    text = str(condition.get("message"))
    return "" if condition.get("type") in _SELDOM_MESSAGES else without_progress(text)


def without_empty(status: DeploymentStatus | PoolFacadeStatus) -> Manifest:
    """The status as it is sent, without empty objects and lists. A server turns an object that loses all fields into
    `null` and then refuses the whole status (kubernetes#117447). Some servers drop empty lists, which would be written
    each time."""
    return _without_empty(status.model_dump(mode="json", by_alias=True, exclude_none=True))


def _without_empty(manifest: Manifest) -> Manifest:
    inner = {name: _without_empty(value) if isinstance(value, dict) else value for name, value in manifest.items()}
    return {name: value for name, value in inner.items() if value not in ({}, [])}
