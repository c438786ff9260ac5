"""Which changes of a status are worth an Event, and how many Events a deployment may have. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from baton_operator.schema.status import Condition, ConditionType, DeploymentStatus

SAME_S, WINDOW_S, MOST = 300.0, 600.0, 10
"""The same reason at most once in SAME_S; at most MOST Events in WINDOW_S."""


@dataclass(frozen=True, slots=True)
class Turn:
    warns: bool
    reason: str
    message: str


def turns(before: DeploymentStatus, after: DeploymentStatus) -> tuple[Turn, ...]:
    """What a person on call would want to find in the Events after the status went from one to the other."""
    found: list[Turn] = []
    was, now = _by_type(before), _by_type(after)
    if before.revision is not None and after.revision != before.revision:
        found.append(Turn(False, "RolloutStarted", f"new templates: {after.revision}"))
    if after.last_scaling is not None and after.last_scaling != before.last_scaling:
        decision = after.last_scaling
        move = f"{decision.pool} {decision.from_} to {decision.to}: {decision.reason}"
        found.append(Turn(False, "Scaled", move))
    old, new = was.get(ConditionType.DEGRADED), now.get(ConditionType.DEGRADED)
    if new is not None and new.status == "True" and (old is None or (old.status, old.reason) != ("True", new.reason)):
        found.append(Turn(True, new.reason, new.message))
    old, new = was.get(ConditionType.SCALING_LIMITED), now.get(ConditionType.SCALING_LIMITED)
    if new is not None and new.status == "True" and (old is None or (old.status, old.reason) != ("True", new.reason)):
        found.append(Turn(True, new.reason, new.message))
    old, new = was.get(ConditionType.AVAILABLE), now.get(ConditionType.AVAILABLE)
    if new is not None and new.status == "True" and (old is None or old.status != "True"):
        found.append(Turn(False, "Available", new.message or "serving"))
    if new is not None and new.status == "False" and old is not None and old.status == "True":
        found.append(Turn(True, new.reason, new.message))
    return tuple(found)


def _by_type(status: DeploymentStatus) -> dict[str, Condition]:
    return {condition.type: condition for condition in status.conditions}


class EventBudget:
    """How many Events one deployment has had lately."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._times: deque[float] = deque()

    def allows(self, turn: Turn, now: float) -> bool:
        """Whether this one may be told; if so, it counts."""
        while self._times and now - self._times[0] >= WINDOW_S:
            self._times.popleft()
        if now - self._last.get(turn.reason, -SAME_S) < SAME_S or len(self._times) >= MOST:
            return False
        self._last[turn.reason] = now
        self._times.append(now)
        return True
