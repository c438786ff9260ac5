"""Which changes of a status are worth an Event, and how Events of one kind are told as one with a count. Pure.

As a recorder of Kubernetes does: an Event again, of the same reason about the same role in the same words but for the
numbers, raises the count of the one that is there. What closes a story (recovered, complete) is always told.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from baton_operator.schema.status import Condition, ConditionType, DeploymentStatus

WINDOW_S, MOST = 600.0, 25
"""At most MOST Events are written in WINDOW_S, closing ones aside; those above are counted with the next."""
FORGOTTEN_S = 3300.0
"""API servers keep an Event for an hour after it was told last; then it begins anew."""
MAX_KNOWN = 64
_NUMBERS = re.compile(r"[0-9a-f]{8,}|[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class StatusEvent:
    warns: bool
    reason: str
    message: str
    of: str = ""
    """The role that it is about; empty: the deployment."""
    closes: bool = False
    """The end of a story: it is never kept back."""

    @property
    def key(self) -> str:
        """Equal for Events that are one with a count: reason, role and the message without its numbers."""
        return f"{self.reason}/{self.of}/{_NUMBERS.sub('#', self.message)}"


@dataclass(frozen=True, slots=True)
class Series:
    """An Event as it is to be written."""

    first: float
    """When it was told first, on the clock of the book: with the key it names the object."""
    count: int


def find_status_events(before: DeploymentStatus, after: DeploymentStatus) -> tuple[StatusEvent, ...]:
    """What a person on call would want to find in the Events after the status went from one to the other. What closes
    comes last."""
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
        events += _troubled(was.get(kind), now.get(kind), end)
    events += _fetched(was.get(ConditionType.PROGRESSING), now.get(ConditionType.PROGRESSING))
    events += _served(was.get(ConditionType.AVAILABLE), now.get(ConditionType.AVAILABLE))
    old, new = was.get(ConditionType.PROGRESSING), now.get(ConditionType.PROGRESSING)
    if old is not None and new is not None and old.reason != new.reason == "RolloutComplete":
        events.append(StatusEvent(False, "RolloutComplete", f"all workers are those of {after.revision}", closes=True))
    return tuple(sorted(events, key=lambda turn: turn.closes))


def _troubled(old: Condition | None, new: Condition | None, end: str) -> list[StatusEvent]:
    """Of a condition that is True while something is wrong."""
    was_true = old is not None and old.status == "True"
    if new is None:
        return []
    if new.status == "True" and (old is None or not was_true or old.reason != new.reason):
        return [StatusEvent(True, new.reason, new.message)]
    if old is not None and was_true and new.status != "True":
        return [StatusEvent(False, end, f"over: {old.reason}", closes=True)]
    return []


def _fetched(old: Condition | None, new: Condition | None) -> list[StatusEvent]:
    was, now = (condition is not None and condition.reason == "FetchingModel" for condition in (old, new))
    if now and not was:
        return [StatusEvent(False, "FetchingModel", "the model is being fetched; workers start when it is there")]
    return [StatusEvent(False, "ModelFetched", "the model is there", closes=True)] if was and not now else []


def _served(old: Condition | None, new: Condition | None) -> list[StatusEvent]:
    if new is not None and new.status == "True" and (old is None or old.status != "True"):
        return [StatusEvent(False, "Available", new.message, closes=True)]
    if new is not None and new.status == "False" and old is not None and old.status == "True":
        return [StatusEvent(True, new.reason, new.message)]
    return []


def _by_type(status: DeploymentStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


class EventBook:
    """The Events that one deployment has had lately."""

    def __init__(self) -> None:
        self._series: dict[str, tuple[Series, float]] = {}
        """By key, with when it was told last."""
        self._times: deque[float] = deque()

    def tell(self, turn: StatusEvent, now: float) -> Series | None:
        """The Event to write for this turn; None: it is only counted, there were too many."""
        known, last = self._series.pop(turn.key, (Series(now, 0), now))
        if now - last > FORGOTTEN_S:
            known = Series(now, 0)
        series = Series(known.first, known.count + 1)
        self._series[turn.key] = (series, now)
        if len(self._series) > MAX_KNOWN:
            del self._series[next(iter(self._series))]
        while self._times and now - self._times[0] >= WINDOW_S:
            self._times.popleft()
        if turn.closes:
            return series
        if len(self._times) >= MOST:
            return None
        self._times.append(now)
        return series
