"""The engine thread: takes commands, turns the stepper, hands out events. It never waits for a network.

Commands are plain values put on a queue by the io and transfer threads. Events of a turn leave as one batch through a
callback that must only post them elsewhere. A snapshot of the scheduler's counts is published after every turn;
reading it from another thread needs no lock because it is one immutable object.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton_engine.collectives.collective import RankLostError
from baton_engine.memory.place_journal import PlaceChanges
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.events import SchedulerEvent, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Grammar, RequestKey
from baton_worker.reporting.views import EngineSnapshot

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.05
"""Longest sleep of an idle engine: deadlines of waiting requests are checked this often."""

LOOK_S = 0.00025
"""Interval of checking whether a running step is over, while nothing can be planned after it and no command comes."""

SPARE_S = 0.05
"""Longest wait for commands before a step is planned, even if the step before it runs longer."""

PLACES_S = 0.02
"""Least time between two looks at what changed in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Submit:
    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class ReserveBlocks:
    spec: SequenceSpec


@dataclass(frozen=True, slots=True)
class HandoverLanded:
    key: RequestKey
    first_tokens: tuple[FirstToken, ...]


@dataclass(frozen=True, slots=True)
class GrantedRoom:
    """A decode worker has room for this held prompt."""

    key: RequestKey


@dataclass(frozen=True, slots=True)
class ReleaseBlocks:
    key: RequestKey


@dataclass(frozen=True, slots=True)
class CancelWork:
    key: RequestKey
    choice: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """Something that a sequence waited for is ready, such as a grammar."""


Command = Look | Submit | ReserveBlocks | HandoverLanded | GrantedRoom | ReleaseBlocks | CancelWork | Drain


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Numbers of requests and of prompt tokens to compute so far."""

    requests: int = 0
    tokens: int = 0

    def plus(self, command: Submit | ReserveBlocks) -> _Arrivals:
        spec, tokens = command.spec, 0
        if isinstance(command, Submit):
            tokens = len(spec.tokens) if spec.missing_tokens is None else min(spec.missing_tokens, len(spec.tokens))
        return _Arrivals(self.requests + 1, self.tokens + tokens)


class EngineThread:
    """Owns the scheduler and the stepper; nothing else may touch them once started."""

    def __init__(
        self,
        scheduler: Scheduler,
        stepper: Stepper,
        on_events: Callable[[EngineSnapshot, list[SchedulerEvent]], None],
        on_cancel: Callable[[RequestKey], None],
        on_crash: Callable[[BaseException], None],
        clock: Callable[[], float] = time.monotonic,
        prepare: Callable[[Grammar], object] = lambda grammar: None,
    ) -> None:
        """All three callbacks run in this thread: `on_events` after a turn with events, `on_cancel` after a whole
        request was cancelled (so that the transfer learns of it after all earlier events), `on_crash` once, if the loop
        dies. `clock` is the clock of deadlines. `prepare` gets a grammar when its request arrives, long before the
        grammar is needed; it must not wait.
        """
        self._clock = clock
        self._scheduler = scheduler
        self._stepper = stepper
        self._on_events = on_events
        self._on_cancel = on_cancel
        self._on_crash = on_crash
        self._prepare = prepare
        self.on_places: Callable[[PlaceChanges], None] = lambda changes: None
        """Gets changes of the prefix cache, in this thread; must not wait. Set it before the start."""
        self._places_s = clock()
        stepper.before_launch = self._hand_out_events
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        now = clock()
        self._given = self._taken = _Arrivals()
        self._published = EngineSnapshot(scheduler.stats(), 0, 0.0, now, now, now), self._taken

    @property
    def snapshot(self) -> EngineSnapshot:
        snapshot, taken = self._published
        given = self._given
        return replace(snapshot, arriving=given.requests - taken.requests, arriving_tokens=given.tokens - taken.tokens)

    def start(self) -> None:
        self._thread.start()

    def post(self, command: Command) -> None:
        """Queue a command; safe from any thread. Requests come from one: only that one may count them."""
        if isinstance(command, Submit | ReserveBlocks):
            self._given = self._given.plus(command)
        self._commands.put(command)

    def look(self) -> None:
        """Wake the engine because something that a sequence waited for is ready; safe from any thread."""
        self._commands.put(Look())

    def stop(self, timeout_s: float) -> bool:
        """Ask the loop to end and wait for it. Returns whether it ended in time."""
        self._commands.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except RankLostError as error:  # the process's last line names the rank
            self._on_crash(error)
        except BaseException as error:
            log.exception("engine loop failed")
            self._on_crash(error)

    def _turn(self) -> bool:
        if not self._take_commands():
            return False
        self._stepper.settle(self._clock)
        if not self._take_commands_while_spare():
            return False
        if not self._go_on(waits=False) and self._commands.empty():
            self._wait()
        return True

    def turn(self) -> bool:
        """Run the loop's body once without waiting, for an engine that was not started (simulation).

        Returns whether a step advanced.
        """
        self._take_commands()
        self._stepper.settle(self._clock)
        return self._go_on()

    def _go_on(self, *, waits: bool = True) -> bool:
        """Run one step and hand out its events. `waits`: as in `Stepper.go_on`."""
        busy = self._stepper.go_on(self._clock, waits=waits)
        self._publish()
        self._hand_out_events()
        return busy

    def _hand_out_events(self) -> None:
        if events := self._scheduler.events():
            self._on_events(self._published[0], events)

    def _take_commands(self) -> bool:
        now = self._clock()
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return True
            if command is None:
                return False
            self._carry_out(command, now)

    def _take_commands_while_spare(self) -> bool:
        """Take commands that arrived during a step, and that arrive while the next need not be planned yet: otherwise
        they would wait for one step more. The step's events go out before. Bounded by `SPARE_S`. False: stop."""
        until_s = self._clock() + SPARE_S
        while self._take_commands():
            self._hand_out_events()
            spare_s = min(self._stepper.spare_s(self._clock()), until_s - self._clock())
            if spare_s <= 0:
                return True
            try:
                command = self._commands.get(timeout=spare_s)
            except queue.Empty:
                return self._take_commands()
            if command is None:
                return False
            self._carry_out(command, self._clock())
        return False

    def _wait(self) -> None:
        """Wait for a command, or for the end of the running step. A prompt that arrives meanwhile is planned right
        after that step, and does not wait for further prompts."""
        while True:
            is_launched = self._stepper.is_launched
            if is_launched and not self._stepper.is_computing:
                return
            try:
                command = self._commands.get(timeout=LOOK_S if is_launched else IDLE_WAIT_S)
            except queue.Empty:
                if is_launched:
                    continue
                return
            break
        if command is None:
            self._commands.put(None)
        else:
            self._carry_out(command, self._clock())

    def _carry_out(self, command: Command, now: float) -> None:
        if isinstance(command, Submit | ReserveBlocks):
            self._taken = self._taken.plus(command)
            if (grammar := command.spec.sampling.grammar) is not None:
                self._prepare(grammar)
        match command:
            case Submit(spec):
                self._scheduler.submit(spec, now)
            case ReserveBlocks(spec):
                self._scheduler.reserve(spec, now)
            case HandoverLanded(key, first_tokens):
                self._scheduler.landed(key, first_tokens, now)
            case GrantedRoom(key):
                self._scheduler.granted(key, now)
            case ReleaseBlocks(key):
                self._scheduler.release(key, now)
            case CancelWork(key, choice):
                self._hand_out_events()  # earlier decisions are reported before the cancel
                self._scheduler.cancel(key, choice, now)
                if choice is None:
                    self._on_cancel(key)
            case Drain():
                self._scheduler.drain()
            case Look():
                pass  # the next plan checks

    def _publish(self) -> None:
        now, steps = self._clock(), self._stepper.steps
        last, _ = self._published
        stats = self._scheduler.stats()
        stepped = now if steps != last.steps else last.stepped_s
        had_work = last.stats.running > 0
        work_since = last.work_since_s if had_work else now
        computing = self._stepper.computing_tokens
        snapshot = EngineSnapshot(stats, steps, self._stepper.step_s, now, stepped, work_since, computing)
        self._published = snapshot, self._taken
        if now - self._places_s >= PLACES_S:
            self._places_s = now
            if changes := self._scheduler.take_places():
                self.on_places(changes)
