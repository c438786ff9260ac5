"""Events for changes of a status, and the counting of repeated Events. Pure.

As with Kubernetes' own recorder, a repeated Event (same reason, same role, same words except for numbers) raises the
count of the existing one. Events that report an end (recovered, complete) are always written.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from baton_operator.schema.status import Condition, ConditionType, DeploymentStatus

WINDOW_S, MOST = 600.0, 25
"""At most MOST Events are written in WINDOW_S, not counting closing ones; further Events are counted with the next."""
FORGOTTEN_S = 3300.0
"""Seconds after which a repeated Event begins anew: API servers keep an Event for an hour after its last write."""
MAX_KNOWN = 64
_NUMBERS = re.compile(r"[0-9a-f]{8,}|[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class StatusEvent:
    """An Event about a deployment."""

    warns: bool
    reason: str
    message: str
    of: str = ""
    """The role that it is about; empty: the deployment."""
    closes: bool = False
    """True: it reports an end, and is never left out."""

    @property
    def key(self) -> str:
        """Equal for Events that are one with a count: reason, role and the message without its numbers."""
        return f"{self.reason}/{self.of}/{_NUMBERS.sub('#', self.message)}"


@dataclass(frozen=True, slots=True)
class Series:
    """An Event with its count, ready to be written."""

    first: float
    """The time of its first write, on the clock of the book. Together with the key it names the object."""
    count: int


def find_status_events(before: DeploymentStatus, after: DeploymentStatus) -> tuple[StatusEvent, ...]:
    """The Events that a person on call wants to see after the status changed, closing ones last."""
    was, now = _by_type(before), _by_type(after)
    events: list[StatusEvent] = []
    if before.revision is not None and after.revision != before.revision:
        events.append(StatusEvent(False, "RolloutStarted", f"new templates: {after.revision}"))
    known = set(before.scaling_decisions)
    for decision in after.scaling_decisions:
        if decision not in known:
            move = f"{decision.pool} {decision.from_} to {decision.to}: {decision.reason}"
            events.append(StatusEvent(False, "Scaled", move, decision.pool))
    for role, old_pool, new_pool in (
        ("prefill", before.prefill, after.prefill),
        ("decode", before.decode, after.decode),
    ):
        if old_pool is None or new_pool is None or None in (chosen := (old_pool.accelerator, new_pool.accelerator)):
            continue
        if chosen[0] != chosen[1]:
            events.append(StatusEvent(False, "AcceleratorChosen", new_pool.choice or f"{role} on {chosen[1]}", role))
    for kind, end in ((ConditionType.DEGRADED, "Recovered"), (ConditionType.SCALING_LIMITED, "ScalingFree")):
        events += _problem_events(was.get(kind), now.get(kind), end)
    events += _fetch_events(was.get(ConditionType.PROGRESSING), now.get(ConditionType.PROGRESSING))
    events += _serving_events(was.get(ConditionType.AVAILABLE), now.get(ConditionType.AVAILABLE))
    old, new = was.get(ConditionType.PROGRESSING), now.get(ConditionType.PROGRESSING)
    if old is not None and new is not None and old.reason != new.reason == "RolloutComplete":
        events.append(StatusEvent(False, "RolloutComplete", f"all workers are those of {after.revision}", closes=True))
    return tuple(sorted(events, key=lambda event: event.closes))


def _problem_events(old: Condition | None, new: Condition | None, end: str) -> list[StatusEvent]:
    """The Events of a condition that is True while something is wrong."""
    was_true = old is not None and old.status == "True"
    if new is None:
        return []
    if new.status == "True" and (old is None or not was_true or old.reason != new.reason):
        return [StatusEvent(True, new.reason, new.message)]
    if old is not None and was_true and new.status != "True":
        return [StatusEvent(False, end, f"over: {old.reason}", closes=True)]
    return []


def _fetch_events(old: Condition | None, new: Condition | None) -> list[StatusEvent]:
    was, now = (condition is not None and condition.reason == "FetchingModel" for condition in (old, new))
    if now and not was:
        return [StatusEvent(False, "FetchingModel", "the model is being fetched; workers start when it is complete")]
    return [StatusEvent(False, "ModelFetched", "the model is complete", closes=True)] if was and not now else []


def _serving_events(old: Condition | None, new: Condition | None) -> list[StatusEvent]:
    if new is not None and new.status == "True" and (old is None or old.status != "True"):
        return [StatusEvent(False, "Available", new.message, closes=True)]
    if new is not None and new.status == "False" and old is not None and old.status == "True":
        return [StatusEvent(True, new.reason, new.message)]
    return []


def _by_type(status: DeploymentStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


class EventBook:
    """The recent Events of one deployment."""

    def __init__(self) -> None:
        self._series: dict[str, tuple[Series, float]] = {}
        """The series by key, each with the time of its last write."""
        self._times: deque[float] = deque()

    def record(self, event: StatusEvent, now: float) -> Series | None:
        """Count an Event; returns the series to write, or None if there were too many lately."""
        known, last = self._series.pop(event.key, (Series(now, 0), now))
        if now - last > FORGOTTEN_S:
            known = Series(now, 0)
        series = Series(known.first, known.count + 1)
        self._series[event.key] = (series, now)
        if len(self._series) > MAX_KNOWN:
            del self._series[next(iter(self._series))]
        while self._times and now - self._times[0] >= WINDOW_S:
            self._times.popleft()
        if event.closes:
            return series
        if len(self._times) >= MOST:
            return None
        self._times.append(now)
        return series
