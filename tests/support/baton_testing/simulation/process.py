"""The base of simulated processes: life, pauses, threads' inboxes, and violations of the invariants."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import Protocol

from baton_testing.virtual_time.event_heap import EventHeap
from baton_testing.virtual_time.loop import EXPECTED, VirtualLoop
from baton_wire.errors import TransferError

RAISED: list[Violation] = []
"""Violations of the world that runs: they are kept also where production code catches what its callers raise."""


class Violation(AssertionError):
    """An invariant does not hold; `invariant` is its number in reliability-security."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant
        RAISED.append(self)


def require(holds: bool, invariant: str, text: str) -> None:
    if not holds:
        raise Violation(invariant, text)


class Surroundings(Protocol):
    """The part of the world that a process sees."""

    heap: EventHeap
    touched: dict[SimProcess, None]

    def delay(self, most_s: float) -> float: ...

    def chance(self, share: float) -> bool: ...

    def count(self, fault: enum.StrEnum) -> None: ...


THREAD_S = 0.003
"""The longest time that a message from one thread to another takes."""
ASIDE_S = 0.03
"""The most that a call on a helper thread takes."""


class SimProcess:
    """A process: what it does later happens only while it lives, and waits while it is paused.

    Its loops are its threads; `run` and `later` are calls in the first one.
    """

    expected_errors: tuple[type[BaseException], ...] = (TransferError, *EXPECTED)
    """Errors with which its tasks may end."""

    def __init__(self, world: Surroundings, name: str, epoch: bytes, address: str) -> None:
        self.surroundings = world
        self.name, self.epoch, self.address = name, epoch, address
        self.is_alive = True
        self.is_paused = False
        self._slept_s = 0.0
        self.backlog: deque[Callable[[], None]] = deque()
        self.loops: list[VirtualLoop] = []
        self.loop = self.add_loop()

    def add_loop(self) -> VirtualLoop:
        """One more thread with a loop of its own."""
        world = self.surroundings
        loop = VirtualLoop(
            world.heap,
            expected=self.expected_errors,
            post_s=lambda: world.delay(THREAD_S),
            aside_s=lambda: world.delay(ASIDE_S),
            on_turn=self._touch,
        )
        self.loops.append(loop)
        return loop

    def _touch(self) -> None:
        self.surroundings.touched[self] = None

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
        if self.is_alive:
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
        self._touch()
        with self.loop.entered():
            call()

    def die(self) -> None:
        """Nothing that it does from now on has an effect."""
        self.is_alive = False
        for loop in self.loops:
            loop.bury()

    def pause(self) -> None:
        self.is_paused = True
        for loop in self.loops:
            loop.hold()
        self._slept_s -= self.now

    def wake(self) -> None:
        self.is_paused = False
        self._slept_s += self.now
        while self.backlog and self.is_running:
            self.run(self.backlog.popleft())
        for loop in self.loops if self.is_running else ():
            loop.let_go()

    def check(self) -> None:
        """Whatever must hold between events."""

    def leftovers(self) -> str | None:
        """The resources that it still holds, for the check at rest."""
        return None
