"""A helper process with the lock that shares it among clients, and its health."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from baton_gateway.errors import ProcessNotStartedError, TurnTimeoutError
from baton_gateway.helper_processes.fair_lock import FairLock
from baton_gateway.helper_processes.helper_process import HelperProcess

T = TypeVar("T")

TURN_S = 30.0
"""The longest that a question waits for its turn."""
NOT_READY_S = 10.0
"""A gateway whose helper process has answered nothing for this long is not ready, ..."""
WEDGED_S = 30.0
"""... and after this long it should be restarted."""


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """A problem of a helper process, and how long it has lasted."""

    description: str
    lasting_s: float

    def __str__(self) -> str:
        return f"{self.description}, for {self.lasting_s:.0f} s"


def longest_lasting(problems: list[HealthProblem], at_least_s: float) -> HealthProblem | None:
    """Return the problem that has lasted longest, if it has lasted at least this long."""
    problem = max(problems, key=lambda problem: problem.lasting_s, default=None)
    return None if problem is None or problem.lasting_s < at_least_s else problem


class ProcessHealth:
    """The health of a helper process, judged by the outcomes of its questions. Pure."""

    def __init__(self, name: str, max_hold_s: float) -> None:
        """`max_hold_s`: a question that has run for longer will never end."""
        self._name = name
        self._may_hold_s = max_hold_s
        self._fails_since_s: float | None = None
        self._reason = ""

    @property
    def is_failing(self) -> bool:
        return self._fails_since_s is not None

    def record_success(self) -> None:
        """Record that a question was answered, or was itself the reason why it was not."""
        self._fails_since_s = None

    def record_failure(self, reason: str, now: float) -> None:
        """Record that a question was not answered through no fault of its own."""
        self._fails_since_s = now if self._fails_since_s is None else self._fails_since_s
        self._reason = reason

    def problem(self, held_s: float, now: float) -> HealthProblem | None:
        """Return what is wrong now, if anything. `held_s`: how long the current question has run."""
        if held_s > self._may_hold_s:
            return HealthProblem(f"{self._name}: a question does not end", held_s)
        if self._fails_since_s is None:
            return None
        return HealthProblem(f"{self._name}: no answer ({self._reason})", now - self._fails_since_s)


class ProcessLane:
    """Questions to one process, one at a time, shared fairly among clients. The owner stops the lane."""

    def __init__(self, process: HelperProcess, name: str, max_hold_s: float) -> None:
        self.process = process
        self.lock = FairLock()
        self.health = ProcessHealth(name, max_hold_s)

    async def run(self, client: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work`, which asks the process, to its end, and return its result. Raises TurnTimeoutError."""
        return await self.lock.run(client, work, TURN_S)

    async def recheck(self) -> None:
        """Ask a failing process whether it serves again: its clients may have left."""
        if self.health.is_failing:
            try:
                await self.run("", self._ping)
            except TurnTimeoutError:
                pass  # the question that holds the lock reports its own outcome

    async def _ping(self) -> None:
        try:
            if await self.process.ping():
                self.health.record_success()
            else:
                self.health.record_failure("it does not answer", time.monotonic())
        except ProcessNotStartedError as error:
            self.health.record_failure(f"it does not start: {error}", time.monotonic())

    def health_problems(self, now: float) -> list[HealthProblem]:
        problem = self.health.problem(self.lock.held_s(now), now)
        return [] if problem is None else [problem]

    async def stop(self) -> None:
        """Cancel the current question and kill the process, without waiting for the lock."""
        await self.lock.stop()
        await self.process.kill()
