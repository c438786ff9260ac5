"""The changes that Kubernetes itself shows at the moment. Pure.

The latest decisions are in the status, which limit is met is a condition, and each Pod has how its containers last
ended. `stored_history` keeps them longer.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping

from baton_operator.kube.object_fields import Manifest, integer, mapping, mappings, name_of
from baton_operator.schema.status import Condition, ConditionType, DeploymentStatus, Truth
from baton_wire.deployment_history import ChangeKind, DeploymentHistory, HistoryChange, make_change

NO_HISTORY = DeploymentHistory()
_TROUBLES = (
    (ConditionType.READY, Truth.FALSE),
    (ConditionType.STALLED, Truth.TRUE),
    (ConditionType.DEGRADED, Truth.TRUE),
    (ConditionType.TRANSPORT_VERIFIED, Truth.FALSE),
)
"""Conditions that are changes, with the status that is one. Missed targets come and go: the page has them over time."""


def status_history(
    status: DeploymentStatus, pods: Iterable[Manifest], reasons: Mapping[str, str], wanted: Mapping[str, int]
) -> DeploymentHistory:
    """Return the history of a deployment. `reasons`: why each pool has its present size. `wanted`: how many workers
    each pool is to have."""
    changes = [*_decisions(status), *_limits(status.conditions), *_troubles(status.conditions), *_restarts(pods)]
    changes.sort(key=lambda change: (change.at, change.kind, change.subject, change.text))
    return NO_HISTORY.with_changes(changes).with_reasons(reasons, wanted)


def _decisions(status: DeploymentStatus) -> Iterator[HistoryChange]:
    for decision in status.scaling_decisions:
        text = f"{decision.from_} to {decision.to}: {decision.reason}"
        yield make_change(_seconds(decision.time), ChangeKind.DECISION, decision.pool, text)


def _limits(conditions: Iterable[Condition]) -> Iterator[HistoryChange]:
    for condition in conditions:
        if condition.type == ConditionType.SCALING_LIMITED and condition.status == "True":
            at = _seconds(condition.last_transition_time)
            yield make_change(at, ChangeKind.LIMIT, "deployment", condition.message)


def _troubles(conditions: Iterable[Condition]) -> Iterator[HistoryChange]:
    for condition in conditions:
        if (condition.type, condition.status) in _TROUBLES:
            at, text = _seconds(condition.last_transition_time), f"{condition.reason}: {condition.message}"
            yield make_change(at, ChangeKind.CONDITION, f"{condition.type} {condition.status}", text)


def _restarts(pods: Iterable[Manifest]) -> Iterator[HistoryChange]:
    for pod in pods:
        for container in mappings(mapping(pod.get("status")).get("containerStatuses")):
            ended = mapping(mapping(container.get("lastState")).get("terminated"))
            if not isinstance(finished := ended.get("finishedAt"), str):
                continue
            starts = (integer(container.get("restartCount")) or 0) + 1
            why = f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}"
            yield make_change(_seconds(finished), ChangeKind.RESTART, name_of(pod), f"start {starts}: {why}")


def _seconds(text: str) -> float:
    """The seconds since 1970 of a time as Kubernetes writes it; 0 for a text that is none."""
    try:
        return max(0.0, datetime.datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0.0
