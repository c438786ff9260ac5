"""Runs a batch through one engine on three threads: one prepares requests ahead, the caller's drives the engine, and
one turns tokens into answers and writes them. So neither tokenising nor JSON makes the device wait.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from baton_engine.scheduling.events import Drawn, Failed, PromptEncoded, PromptScored, SchedulerEvent
from baton_gateway.batches.lines import BadLine, BatchLine, answer_line
from baton_local.batch.encoding_job import EncodingJob
from baton_local.batch.jobs import Desk, Job, Refusal, failure
from baton_local.batch.order import Balance, windows
from baton_local.batch.refusals import Refusals, refusal_of
from baton_wire.messages.values import RequestKey
from baton_worker.building.parts import EngineParts

Drawing = list[tuple[Job | EncodingJob, SchedulerEvent]]
T = TypeVar("T")

AHEAD: Final = 256
"""Prepared requests that wait for the engine."""
BURSTS: Final = 8
"""Free slots are refilled together, once this fraction of the batch is free: a step with any prompt in it costs more
than one that only decodes."""
GPU_BLOCK_TOKENS: Final = 32
"""Smaller than for serving: half of each sequence's last block is unused, and no KV is transferred."""
UNREAD_STEPS: Final = 64
"""Steps whose tokens may wait to become text; then the engine waits."""
POLL_S: Final = 0.05
YEARS_S: Final = 10 * 365 * 86_400.0
"""A batch's requests have no deadline of their own."""


class LineWriter(Protocol):
    """A file of answers."""

    def write(self, line: bytes, /) -> object:
        """Write one line, which ends with a line end."""
        ...


@dataclass(slots=True)
class Progress:
    """Counters of a running batch, for a progress bar."""

    answered: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    prompt_tokens: int = 0
    output_tokens: int = 0
    running: int = 0


@dataclass(slots=True)
class _Open:
    """Requests in the engine: the job of each, and the choices of each key that still run."""

    jobs: dict[bytes, Job | EncodingJob] = field(default_factory=dict)
    choices: dict[RequestKey, set[int]] = field(default_factory=dict)


class BatchRun:
    """One pass over some lines. `progress` may be read from any thread."""

    def __init__(
        self, engine: EngineParts, desk: Desk, lines: Iterable[BatchLine | BadLine], output: LineWriter
    ) -> None:
        self.progress = Progress()
        self._engine = engine
        self._desk = desk
        self._lines = lines
        self._output = output
        self._balance = Balance(engine.scheduler.config.max_slots)
        self._prepared: queue.Queue[tuple[int, Job | EncodingJob | Refusal] | None] = queue.Queue(AHEAD)
        """Prepared jobs, each with the maximum number of tokens that it may draw."""
        self._drawn: queue.Queue[Drawing | Refusal | None] = queue.Queue(UNREAD_STEPS)
        self._stopped: queue.SimpleQueue[tuple[RequestKey, int]] = queue.SimpleQueue()
        self._is_ending = threading.Event()

    def run(self, tick: Callable[[], None] = lambda: None) -> None:
        """Answer every line; `tick` is called between steps. Exceptions of the threads are raised here.

        An exception out of `tick` (Ctrl-C) ends the run; complete answers are written.
        """
        with ThreadPoolExecutor(2, thread_name_prefix="batch") as threads:
            preparing = threads.submit(lambda: asyncio.run(self._prepare()))
            writing = threads.submit(self._write)
            try:
                self._drive(tick, (preparing, writing))
            finally:
                self._is_ending.set()
                _put(self._drawn, None, lambda: writing.done())
            preparing.result()
            writing.result()

    # The preparing thread ---------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        try:
            for window in windows(self._lines, self._engine.limits.max_context_tokens):
                self._balance.coming(sum(demand.total for demand, _ in window))
                for demand, line in window:
                    job = await self._desk.job(line)
                    _put(self._prepared, (demand.total, job), self._is_ending.is_set)
                    if self._is_ending.is_set():
                        return
        finally:
            _put(self._prepared, None, self._is_ending.is_set)
            await self._desk.stop()

    # The engine's thread ----------------------------------------------------------------------------------------------

    def _drive(self, tick: Callable[[], None], others: tuple[Future[None], ...]) -> None:
        scheduler, stepper = self._engine.scheduler, self._engine.stepper
        is_more, open_ = True, _Open()
        is_filling = True
        while is_more or open_.choices:
            running, rows = sum(map(len, open_.choices.values())), self._balance.rows()
            is_filling = running <= rows - max(1, rows // BURSTS) or (is_filling and running < rows)
            while is_more and is_filling and running < self._balance.rows():
                try:
                    taken = self._prepared.get(block=not open_.choices, timeout=POLL_S)
                except queue.Empty:
                    break
                is_more = taken is not None
                if taken is not None:
                    tokens, job = taken
                    self._balance.taken(tokens)
                    if isinstance(job, Refusal):
                        _put(self._drawn, job, others[1].done)
                    else:
                        running += self._submit(job, open_)
            for key, choice in self._stops():
                scheduler.cancel(key, choice, time.monotonic())
                self._close(open_, key, choice)
            stepper.turn(time.monotonic())
            self._pass_on(open_, scheduler.events(), others[1].done)
            self.progress.running = len(open_.choices)
            tick()
            for other in others:
                if other.done():
                    other.result()
                    if other is others[1]:
                        raise RuntimeError("the writing thread ended before the engine")

    def _submit(self, job: Job | EncodingJob, open_: _Open) -> int:
        """Submit a job to the engine; returns its number of choices."""
        now = time.monotonic()
        specs = job.specs(now + YEARS_S)
        for spec in specs:
            open_.jobs[spec.key.request] = job
            open_.choices[spec.key] = set(spec.choices)
            self.progress.prompt_tokens += len(spec.tokens)
            for choice in spec.choices:
                self._balance.began((spec.key, choice), spec.sampling.max_tokens)
            self._engine.scheduler.submit(spec, now)
        return sum(len(spec.choices) for spec in specs)

    def _pass_on(self, open_: _Open, events: Iterable[SchedulerEvent], is_dead: Callable[[], bool]) -> None:
        batch: Drawing = []
        for event in events:
            if isinstance(event, Drawn | Failed | PromptScored | PromptEncoded) and event.key in open_.choices:
                batch.append((open_.jobs[event.key.request], event))
                if isinstance(event, Failed | PromptEncoded):
                    self._close(open_, event.key, None)
                elif isinstance(event, PromptScored):
                    pass
                elif event.finish is not None:
                    self._close(open_, event.key, event.choice)
                elif event.choice in open_.choices[event.key]:
                    self._balance.drew((event.key, event.choice), len(event.ids))
        if batch:
            _put(self._drawn, batch, is_dead)

    def _stops(self) -> Iterator[tuple[RequestKey, int]]:
        while not self._stopped.empty():
            yield self._stopped.get()

    def _close(self, open_: _Open, key: RequestKey, choice: int | None) -> None:
        choices = open_.choices.get(key)
        if choices is None:
            return
        for ended in choices if choice is None else (choice,):
            self._balance.ended((key, ended))
        choices.discard(-1 if choice is None else choice)
        if choice is None or not choices:
            del open_.choices[key], open_.jobs[key.request]

    # The writing thread -----------------------------------------------------------------------------------------------

    def _write(self) -> None:
        failed: set[str] = set()
        while (item := self._drawn.get()) is not None:
            if isinstance(item, Refusal):
                self._answer(item)
                continue
            for job, event in item:
                if job.custom_id in failed:
                    continue
                if isinstance(event, Drawn | PromptEncoded):
                    self._take(job, event)
                elif isinstance(event, PromptScored):
                    assert isinstance(job, Job), "only answered prompts are scored"
                    job.score(event)
                else:
                    failed.add(job.custom_id)
                    self._answer(failure(job.custom_id))

    def _take(self, job: Job | EncodingJob, event: Drawn | PromptEncoded) -> None:
        if job.is_done:
            return
        if isinstance(job, EncodingJob):
            assert isinstance(event, PromptEncoded), "nothing is drawn for it"
            job.take(event)
        elif isinstance(event, Drawn):
            if job.take(event):
                self._stopped.put((event.key, event.choice))
            self.progress.output_tokens += len(event.ids)
        if job.is_done:
            self._output.write(answer_line(job.custom_id, 200, job.body()))
            self.progress.answered += 1

    def _answer(self, refusal: Refusal) -> None:
        self._output.write(refusal.line)
        self.progress.answered += 1
        if (reason := refusal_of(refusal.line)) is not None:
            self.progress.refusals.note(*reason)


def _put(channel: queue.Queue[T], item: T, is_over: Callable[[], bool]) -> None:
    """Put an item, unless its reader has ended."""
    while not is_over():
        try:
            channel.put(item, timeout=POLL_S)
        except queue.Full:
            continue
        return
