"""A process apart, whose turn it is to ask it, and whether it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from baton_gateway.errors import ProcessNotStartedError, TurnTimeoutError
from baton_gateway.helper_processes.fair_lock import FairTurns
from baton_gateway.helper_processes.helper_process import ProcessApart

T = TypeVar("T")

TURN_S = 30.0
"""How long a question waits for its turn at most."""
NOT_READY_S = 10.0
"""A gateway with a process that has served nobody for so long is not ready, ..."""
WEDGED_S = 30.0
"""... and after this it is to be restarted."""


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """What is wrong with a process apart, and for how long."""

    what: str
    for_s: float

    def __str__(self) -> str:
        return f"{self.what}, for {self.for_s:.0f} s"


def worst(ailments: list[HealthProblem], at_least_s: float) -> HealthProblem | None:
    """The one that lasts longest, if it lasts so long."""
    ailment = max(ailments, key=lambda ailment: ailment.for_s, default=None)
    return None if ailment is None or ailment.for_s < at_least_s else ailment


class ProcessHealth:
    """Whether a process apart serves, judged by the questions that it was asked. Pure."""

    def __init__(self, name: str, may_hold_s: float) -> None:
        """`may_hold_s`: a question that is at work for longer will never end."""
        self._name = name
        self._may_hold_s = may_hold_s
        self._fails_since_s: float | None = None
        self._reason = ""

    @property
    def is_failing(self) -> bool:
        return self._fails_since_s is not None

    def served(self) -> None:
        """A question was answered, or shown to be the reason why it was not."""
        self._fails_since_s = None

    def failed(self, reason: str, now: float) -> None:
        """A question was not answered, and that is not its own fault."""
        self._fails_since_s = now if self._fails_since_s is None else self._fails_since_s
        self._reason = reason

    def ailment(self, held_s: float, now: float) -> HealthProblem | None:
        """`held_s`: for how long the question that is at work has been."""
        if held_s > self._may_hold_s:
            return HealthProblem(f"{self._name}: a question does not end", held_s)
        if self._fails_since_s is None:
            return None
        return HealthProblem(f"{self._name}: no answer ({self._reason})", now - self._fails_since_s)


class ProcessLane:
    """Questions to one process, one at a time, in turns among clients. Its owner stops it."""

    def __init__(self, process: ProcessApart, name: str, may_hold_s: float) -> None:
        self.process = process
        self.turns = FairTurns()
        self.health = ProcessHealth(name, may_hold_s)

    async def run(self, who: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, which asks the process, to its end. Raises TurnTimeoutError."""
        return await self.turns.run(who, work, TURN_S)

    async def look(self) -> None:
        """Ask a process that fails whether it serves again: its clients may have left."""
        if self.health.is_failing:
            try:
                await self.run("", self._say_hello)
            except TurnTimeoutError:
                pass  # what holds the turn tells of itself

    async def _say_hello(self) -> None:
        try:
            if await self.process.say_hello():
                self.health.served()
            else:
                self.health.failed("it does not answer", time.monotonic())
        except ProcessNotStartedError as error:
            self.health.failed(f"it does not start: {error}", time.monotonic())

    def ailments(self, now: float) -> list[HealthProblem]:
        ailment = self.health.ailment(self.turns.held_s(now), now)
        return [] if ailment is None else [ailment]

    async def stop(self) -> None:
        """End what is asked, and the process. Waits for nobody's turn."""
        await self.turns.stop()
        await self.process.kill()
