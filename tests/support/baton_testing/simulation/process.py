"""What simulated processes stand on: life, pauses, threads' inboxes, and violations of the invariants."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from baton_testing.simulation.event_heap import EventHeap
from baton_testing.simulation.scenario import Fault


class Violation(AssertionError):
    """An invariant does not hold; `invariant` is its number in reliability-security."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


def require(holds: bool, invariant: str, text: str) -> None:
    if not holds:
        raise Violation(invariant, text)


class Surroundings(Protocol):
    """What a process sees of the world."""

    heap: EventHeap
    touched: dict[SimProcess, None]

    def delay(self, most_s: float) -> float: ...

    def chance(self, share: float) -> bool: ...

    def count(self, fault: Fault) -> None: ...


class SimProcess:
    """A process: what it does later happens only while it lives, and waits while it is paused."""

    def __init__(self, world: Surroundings, name: str, epoch: bytes, address: str) -> None:
        self.surroundings = world
        self.name, self.epoch, self.address = name, epoch, address
        self.is_alive = True
        self.is_paused = False
        self._slept_s = 0.0
        self.backlog: deque[Callable[[], None]] = deque()

    @property
    def now(self) -> float:
        return self.surroundings.heap.now

    @property
    def awake_s(self) -> float:
        """As `now`, but standing while the process is paused: what it can be held to."""
        return self.now - self._slept_s

    @property
    def is_running(self) -> bool:
        return self.is_alive and not self.is_paused

    def note(self, text: str) -> None:
        self.surroundings.heap.note(f"{self.name:<4} {text}")

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.surroundings.heap.after(delay_s, lambda: self.run(call))

    def run(self, call: Callable[[], None]) -> None:
        """Now, or when it is woken; never when it is dead."""
        if not self.is_alive:
            return
        if self.is_paused:
            self.backlog.append(call)
            return
        self.surroundings.touched[self] = None
        call()

    def pause(self) -> None:
        self.is_paused = True
        self._slept_s -= self.now

    def wake(self) -> None:
        self.is_paused = False
        self._slept_s += self.now
        while self.backlog and self.is_running:
            self.run(self.backlog.popleft())

    def check(self) -> None:
        """Whatever must hold between events."""

    def leftovers(self) -> str | None:
        """What it still holds, for the check at rest."""
        return None


class Inbox:
    """A thread's queue: calls arrive in the order in which they were posted."""

    def __init__(self, process: SimProcess, most_s: float) -> None:
        self._process = process
        self._most_s = most_s
        self._last_s = 0.0

    def post(self, call: Callable[[], None]) -> None:
        world = self._process.surroundings
        self._last_s = max(self._last_s + 1e-6, world.heap.now + world.delay(self._most_s))
        self._process.later(self._last_s - world.heap.now, call)

    def call_soon_threadsafe(self, call: Callable[..., Any], *arguments: Any) -> None:
        """As of an event loop."""
        self.post(lambda: call(*arguments))
