"""A worker's engine thread in virtual time: the production `EngineThread`, scheduler and stepper over a toy runner."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import SchedulerEvent
from baton_engine.scheduling.scheduler import Scheduler
from baton_testing.engine import toy_grammars
from baton_testing.engine.runners import ToyRunner
from baton_testing.kv_transfer.builders import FakePool
from baton_testing.simulation.kv import attach, geometry
from baton_testing.simulation.process import SimProcess, Violation, require
from baton_testing.simulation.scenario import CONTEXT_TOKENS, Shape
from baton_wire.messages.values import RequestKey, SamplingParams
from baton_worker.reporting.cached_places import PlaceQueue
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import Command, EngineThread, ReserveBlocks, Submit

IDLE_S = 0.4
STEP_S = 0.02
POST_S = 0.002
COMPILING_S = 0.6
T = TypeVar("T")


class LaterExecutor(Executor):
    """Threads of a process: what they are given is done after up to `most_s`, or at once. What comes first, the
    vocabulary, never takes any time."""

    def __init__(self, process: SimProcess, most_s: float) -> None:
        self._process, self._most_s = process, most_s
        self._dice = random.Random(process.name)
        self._is_first = True

    def submit(self, call: Callable[..., T], /, *args: Any, **named: Any) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(call(*args, **named))
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)

        if self._is_first or not self._most_s:
            work()
        else:
            self._process.later(self._dice.random() ** 2 * self._most_s, work)
        self._is_first = False
        return future


class SimEngine:
    """Turned by events instead of a thread. Everything that comes out goes through the service's callbacks."""

    def __init__(  # noqa: PLR0913 - each world replaces another part by a faulty one: one argument for each
        self,
        process: SimProcess,
        config: EngineConfig,
        make_scheduler: Callable[[EngineConfig, Callable[[SamplingParams], bool]], Scheduler],
        make_stepper: Callable[[Scheduler, ToyRunner], Stepper],
        make_runner: type[ToyRunner],
        ahead: float,
        on_events: Callable[[EngineSnapshot, list[SchedulerEvent]], None],
        on_cancel: Callable[[RequestKey], None],
        on_layers: Callable[[int, int], None] | None = None,
    ) -> None:
        """`on_layers` gets prompts whose first layer is computed while the second is running."""
        world = process.surroundings
        self.process = process
        grammars = GrammarCompiler(toy_grammars.vocabulary, self._threads, lambda: world.heap.now)
        self.scheduler = make_scheduler(config, grammars.is_ready)
        self.pool = FakePool(geometry(config.block_tokens), config.num_blocks)
        self.runner = make_runner(config.block_tokens, self.scheduler.pool, lambda: not world.chance(ahead))
        self.runner.masks = RowMasks(grammars, config.max_slots)
        words = attach(self.runner, self.pool)
        if on_layers is not None:
            self.runner.write_first_layer = words.set_first_layer
            self.runner.wrote_first_layer = lambda step: on_layers(step, 1)
        self.thread = EngineThread(
            self.scheduler,
            make_stepper(self.scheduler, self.runner),
            on_events,
            on_cancel,
            lambda error: None,
            lambda: world.heap.now,
            grammars.prepare,
        )
        grammars.on_ready = lambda: self._plan(POST_S)
        self.places = PlaceQueue()
        self.thread.on_places = self.places.add
        self.hiccup_s = 0.0
        self._turn_number = 0
        self._due_s = float("inf")
        self._is_checked = False
        self._salts: dict[tuple[int, int], str] = {}
        self._asked: dict[RequestKey, str] = {}
        self._plan(IDLE_S)

    @property
    def snapshot(self) -> EngineSnapshot:
        return self.thread.snapshot

    def post(self, command: Command) -> None:
        if isinstance(command, Submit | ReserveBlocks):
            self._asked[command.spec.key] = command.spec.salt
        self.thread.post(command)
        self._plan(POST_S)

    def _threads(self, name: str) -> Executor:
        """Compiling takes a while; rows of compiled grammars start at once."""
        return LaterExecutor(self.process, COMPILING_S if name == "grammars" else 0.0)

    def _plan(self, delay_s: float) -> None:
        at = self.process.now + delay_s
        if at >= self._due_s:
            return
        self._turn_number += 1
        self._due_s = at
        number = self._turn_number
        self.process.later(delay_s, lambda: self._turn(number))

    def _turn(self, number: int) -> None:
        if number != self._turn_number:
            return
        self._due_s = float("inf")
        self._is_checked = False
        is_busy = guarded(self.thread.turn)
        pause_s, self.hiccup_s = self.hiccup_s, 0.0
        self._plan((STEP_S if is_busy else IDLE_S) + pause_s)

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Only turns change anything here."""
        if self._is_checked:
            return
        self._is_checked = True
        try:
            self.scheduler.check()
        except AssertionError as error:
            raise Violation("I2", f"{self.process.name}: {error}") from error
        self._check_tenants()

    def _check_tenants(self) -> None:
        pool = self.scheduler.pool
        for owner in pool.owners():
            salt = self._asked[owner.key]
            for block in pool.table(owner):
                known = self._salts.setdefault((block, pool.generation(block)), salt)
                require(known == salt, "I14", f"block {block} of tenant {known!r} is held for {salt!r}")

    def leftovers(self) -> str | None:
        stats = self.scheduler.stats()
        held = stats.blocks_reserved + stats.blocks_in_use
        if held or stats.running or stats.waiting or self.scheduler._state.requests:
            return f"{self.process.name} engine: {stats}, requests {list(map(str, self.scheduler._state.requests))}"
        return None


def engine_config(shape: Shape, num_blocks: int, block_tokens: int) -> EngineConfig:
    """The configuration of a worker with this many blocks."""
    return EngineConfig(
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_slots=shape.slots,
        max_context_tokens=CONTEXT_TOKENS,
        max_step_tokens=shape.step_tokens,
        max_waiting=shape.max_waiting,
    )


def guarded(call: Callable[[], bool]) -> bool:
    """Assertions of the toy runner are violations: a launched step's blocks changed hands, or its plan is wrong."""
    try:
        return call()
    except AssertionError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        if "baton_testing" in frame.filename and not isinstance(error, Violation):
            raise Violation("I5", str(error)) from error
        raise
