"""The engine thread carries out commands in order and never reorders what it says about them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from baton_engine.memory.place_journal import PlaceChanges
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import ChunkLaunched, Drawn, Failed, Reserved, SchedulerEvent, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_load import StepLoad
from baton_engine.scheduling.step_plan import StepResult
from baton_testing.engine.runners import ToyRunner
from baton_wire.messages.values import Finish, Grammar, RequestKey, SamplingParams
from baton_worker.reporting.reports import worker_state
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import CancelWork, EngineThread, ReserveBlocks, Submit

CONFIG = EngineConfig(num_blocks=16, block_tokens=4, max_slots=4, max_context_tokens=32)
KEY = RequestKey(b"k" * 16, 1)


class EngineRecord:
    """Every event and cancel of the thread, in order; `wait_for` blocks until there are enough."""

    def __init__(self) -> None:
        self.log: list[SchedulerEvent | RequestKey] = []
        self.crash: BaseException | None = None
        self.crashed_event = threading.Event()
        self._news = threading.Condition()

    def events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        with self._news:
            self.log.extend(events)
            self._news.notify_all()

    def cancelled(self, key: RequestKey) -> None:
        with self._news:
            self.log.append(key)
            self._news.notify_all()

    def crashed(self, error: BaseException) -> None:
        self.crash = error
        self.crashed_event.set()

    def wait_for(self, count: int) -> list[SchedulerEvent | RequestKey]:
        with self._news:
            assert self._news.wait_for(lambda: len(self.log) >= count, timeout=60)
            return list(self.log)


def spec(deadline_s: float = 60.0) -> SequenceSpec:
    return SequenceSpec(
        key=KEY,
        tokens=(1, 2, 3, 4, 5),
        prompt_tokens=5,
        choices=(0,),
        sampling=SamplingParams(max_tokens=3, temperature=0.0),
        salt="",
        deadline_s=time.monotonic() + deadline_s,
    )


def started(record: EngineRecord) -> EngineThread:
    scheduler = Scheduler(CONFIG)
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens, scheduler.pool))
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed)
    thread.start()
    return thread


def test_a_submitted_prompt_comes_back_as_tokens() -> None:
    record = EngineRecord()
    thread = started(record)
    thread.post(Submit(spec()))
    drawn = [event for event in record.wait_for(3) if isinstance(event, Drawn)]
    assert [event.first_index for event in drawn] == [0, 1, 2]
    assert drawn[-1].finish is Finish.LENGTH
    assert thread.stop(60.0)
    assert thread.snapshot.stats.running == 0
    assert thread.snapshot.steps >= 3


def test_a_cancel_is_heard_after_the_reservation_that_it_ends() -> None:
    record = EngineRecord()
    thread = started(record)
    thread.post(ReserveBlocks(spec()))
    thread.post(CancelWork(KEY))
    reserved, cancelled = record.wait_for(2)
    assert isinstance(reserved, Reserved)
    assert cancelled == KEY
    assert thread.stop(60.0)


def test_a_grammar_is_prepared_when_its_request_arrives() -> None:
    record, scheduler, prepared = EngineRecord(), Scheduler(CONFIG), list[Grammar]()
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens, scheduler.pool))
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed, prepare=prepared.append)
    bound = SamplingParams(max_tokens=3, temperature=0.0, grammar=Grammar("{}"), stop_token_ids=(999,))
    thread.post(ReserveBlocks(replace(spec(), sampling=bound)))
    thread.post(Submit(replace(spec(), key=RequestKey(b"r" * 16, 1))))
    thread.turn()
    assert prepared == [Grammar("{}")]


def test_what_a_sequence_waited_for_wakes_an_idle_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_worker.serving.engine_thread.IDLE_WAIT_S", 60.0)
    record, asked, is_there = EngineRecord(), threading.Event(), threading.Event()

    def is_ready(sampling: SamplingParams) -> bool:
        asked.set()
        return is_there.is_set()

    scheduler = Scheduler(CONFIG, is_ready)
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens, scheduler.pool))
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed)
    thread.start()
    thread.post(Submit(spec()))
    assert asked.wait(60.0)
    assert not any(isinstance(entry, Drawn) for entry in record.log)
    is_there.set()
    thread.look()
    assert [type(event) for event in record.wait_for(4)] == [ChunkLaunched, Drawn, Drawn, Drawn]
    assert thread.stop(60.0)


def test_an_idle_engine_still_notices_deadlines() -> None:
    record = EngineRecord()
    thread = started(record)
    thread.post(ReserveBlocks(spec(deadline_s=1.5)))  # not over yet when the engine looks at it first
    log = record.wait_for(2)
    assert isinstance(log[-1], Failed)
    assert thread.stop(60.0)


def test_a_broken_loop_is_reported_once() -> None:
    record = EngineRecord()
    scheduler = Scheduler(CONFIG)
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens), observe=_fail)
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed)
    thread.start()
    thread.post(Submit(spec()))
    assert record.crashed_event.wait(60.0)
    assert isinstance(record.crash, ZeroDivisionError)
    assert thread.stop(60.0)


def _fail(step: int, load: StepLoad, seconds: float) -> None:
    raise ZeroDivisionError("a bug in the loop")


def test_what_comes_while_a_step_runs_is_planned_behind_it_before_that_is_over() -> None:
    record, is_over = EngineRecord(), threading.Event()
    scheduler = Scheduler(CONFIG)
    runner = ToyRunner(CONFIG.block_tokens, scheduler.pool, is_ready=is_over.is_set)
    collect = runner.collect

    def collect_when_over() -> StepResult:
        assert is_over.wait(60.0)
        return collect()

    runner.collect = collect_when_over  # type: ignore[method-assign]
    thread = EngineThread(scheduler, Stepper(scheduler, runner), record.events, record.cancelled, record.crashed)
    thread.start()
    held = replace(spec(), hold=True)
    thread.post(Submit(held))
    record.wait_for(1)  # it is being computed
    thread.post(Submit(replace(held, key=RequestKey(b"r" * 16, 1))))
    record.wait_for(2)
    assert not is_over.is_set()
    assert [len(plan.prefill) for plan in runner.plans] == [1, 1]
    is_over.set()
    assert thread.stop(60.0)
    assert record.crash is None


def test_load_is_what_runs_what_waits_and_what_was_not_looked_at_yet() -> None:
    scheduler, record = Scheduler(CONFIG), EngineRecord()
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens, scheduler.pool, is_ready=lambda: False))
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed)

    def load() -> tuple[int, int, int]:
        state = worker_state(thread.snapshot, draining=False)
        return state.waiting, state.waiting_tokens, state.computing_tokens

    thread.post(Submit(spec()))
    thread.post(ReserveBlocks(replace(spec(), key=RequestKey(b"r" * 16, 1))))
    assert load() == (2, 5, 0), "the engine has not taken them"
    thread.turn()
    assert load() == (0, 0, 5), "the step runs, the reservation is granted"
    thread.turn()  # the next step is launched ahead
    thread.turn()
    assert load() == (0, 0, 0)


def test_a_waiting_prompt_counts_what_it_probably_misses_until_it_starts() -> None:
    """Else a session that is cached here looks like a long queue, and goes elsewhere to be computed again."""
    scheduler, record = Scheduler(CONFIG), EngineRecord()
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens, scheduler.pool, is_ready=lambda: False))
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed)
    for number, estimate in enumerate((2, 99, None)):
        thread.post(Submit(replace(spec(), key=RequestKey(bytes([number]) * 16, 1), missing_tokens=estimate)))
    assert worker_state(thread.snapshot, draining=False).waiting_tokens == 2 + 5 + 5
    for number in range(3):
        scheduler.submit(replace(spec(), key=RequestKey(bytes([9 + number]) * 16, 1), missing_tokens=number), 0.0)
    assert scheduler.stats().waiting_tokens == 0 + 1 + 2
    scheduler.check()
    thread.turn()
    scheduler.check()


def test_changes_of_the_prefix_cache_are_handed_out() -> None:
    now = 0.0
    scheduler, record = Scheduler(CONFIG), EngineRecord()
    stepper = Stepper(scheduler, ToyRunner(CONFIG.block_tokens, scheduler.pool))
    thread = EngineThread(scheduler, stepper, record.events, record.cancelled, record.crashed, lambda: now)
    changes: list[PlaceChanges] = []
    thread.on_places = changes.append
    thread.post(Submit(spec()))
    for _ in range(8):
        now += 0.01
        thread.turn()
    (first, *_) = changes
    assert [blocks for _, blocks in first.added] == [1]
