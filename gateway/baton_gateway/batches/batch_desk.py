"""The batches that one gateway process works on: it takes those without an owner, a bounded number, and lets go at its
end.

A batch's owner is the process that holds the lock of its folder. The kernel frees the lock of a killed process, and
the next look of any process takes the batch over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from baton_gateway.batches.batch_record import BatchStatus
from baton_gateway.batches.batch_run import AnswerLine, CountLines, OwnedBatch, RunParts, pause_of
from baton_gateway.batches.batch_store import ActiveBatch, BatchStore
from baton_gateway.batches.file_store import FileBounds, FileStore
from baton_gateway.batches.folder import check_batch_folder
from baton_gateway.batches.line_slots import LineSlots
from baton_gateway.errors import ends_task
from baton_gateway.helper_processes.tenant_threads import TenantThreads
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.batches")
LOOK_S: Final = 1.0
SWEEP_S: Final = 60.0
AGAIN_S: Final = 5.0
"""The wait before a run that failed is begun again."""
STOP_S: Final = 10.0
MAX_RUNS: Final = 32
MAX_OF_TENANT: Final = 2
"""Batches of one tenant at work in one process."""
MAX_LINES: Final = 200_000
NEVER_USABLE: Final = (errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM)
"""Errors of a folder that was given wrongly. With another one the process starts, since it has requests to serve."""


class BatchMetrics(Protocol):
    """Where batches are counted."""

    def batch_ended(self, status: BatchStatus) -> None: ...

    def batch_lines(self, result: str, lines: int = 1) -> None: ...

    def sample_batches(self, running: int, paused: int) -> None: ...


class BatchDesk:
    """The owner of runs in one process."""

    def __init__(
        self,
        root: Path,
        bounds: FileBounds,
        concurrency: int,
        metrics: BatchMetrics,
        most_lines: int = MAX_LINES,
    ) -> None:
        """Raises OSError where the folder can never be used. One whose disk is full or fails for now is tried again."""
        self._root, self._is_ready = root, False
        try:
            self._make_ready()
        except OSError as error:
            if error.errno in NEVER_USABLE:
                raise
            _log.error("files and batches cannot be used yet: %s: %s", error.filename or root, error.strerror or error)
        self.files = FileStore(root, bounds)
        self.store = BatchStore(root, self.files)
        self._metrics = metrics
        self._concurrency, self._most_lines = concurrency, most_lines
        self._runs: dict[ActiveBatch, OwnedBatch] = {}
        self._tasks: dict[ActiveBatch, asyncio.Task[None]] = {}
        self._not_before: dict[ActiveBatch, float] = {}
        """When a run that failed may begin again, by the loop's clock."""
        self._complaints = Complaints(_log)
        self._threads = TenantThreads("batches", MAX_RUNS, MAX_RUNS)
        self._looking: asyncio.Task[None] | None = None
        self._swept_s = 0.0
        self.wake = asyncio.Event()
        """Set when a batch was created, so that nobody waits for the next look."""

    def start(self, answering: AnswerLine) -> None:
        """Begin to work. `answering` answers lines."""
        count: CountLines = self._metrics.batch_lines
        slots = LineSlots(self._concurrency)
        parts = RunParts(self.files, answering, slots, self._concurrency, count, self._most_lines)
        self._looking = asyncio.create_task(self._look_on(parts), name="batches")

    async def stop(self) -> None:
        """Let go of every batch: lines at work are answered again by the next owner. A disk that hangs keeps its
        batches until the process ends."""
        tasks = [*self._tasks.values(), *([] if self._looking is None else [self._looking])]
        for task in tasks:
            task.cancel()
        if tasks:
            _, hanging = await asyncio.wait(tasks, timeout=STOP_S)
            if hanging:
                _log.error("the disk hangs: %d batches are not let go", len(hanging))

    async def _look_on(self, parts: RunParts) -> None:
        while True:
            try:
                await self._look(parts)
            except OSError as error:
                self._complaints.say("batches cannot be read", error.filename or "", error)
            paused = sum(run.is_paused for run in self._runs.values())
            self._metrics.sample_batches(len(self._runs), paused)
            self.wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.wake.wait()

    async def _look(self, parts: RunParts) -> None:
        """Take the batches that have no owner. Raises OSError."""
        now = asyncio.get_running_loop().time()
        await self._threads.run("", self._make_ready)
        active = await self._threads.run("", self.store.active)
        self._not_before = {batch: at_s for batch, at_s in self._not_before.items() if at_s > now}
        free = [batch for batch in active if batch not in self._tasks and batch not in self._not_before]
        for batch in select(free, list(self._tasks)):
            owner = await self._threads.run("", self._claim, batch)
            if owner is not None:
                task = self._tasks[batch] = asyncio.create_task(self._work(batch, owner, parts), name=batch.id)
                task.add_done_callback(lambda _, batch=batch: self._tasks.pop(batch, None))  # type: ignore[misc]
        if now - self._swept_s >= SWEEP_S:
            self._swept_s = now
            await self._threads.run("", self.store.sweep, time.time())

    def _make_ready(self) -> None:
        """Make the folder, once. Blocks. Raises OSError."""
        if not self._is_ready:
            check_batch_folder(self._root)
            self._is_ready = True

    def _claim(self, batch: ActiveBatch) -> int | None:
        """Become the owner of a batch. Blocks. Raises OSError."""
        folder = self.store.folder(batch)
        owner = folder.claim()
        if owner is None and not folder.has_record():
            self.store.forget_orphan(batch, time.time())
        return owner

    async def _work(self, batch: ActiveBatch, owner: int, parts: RunParts) -> None:
        folder = self.store.folder(batch)
        run = None
        try:
            record = await self._threads.run("", folder.read)
            if record is None:
                await self._threads.run("", self.store.forget_orphan, batch, time.time())
                return
            if not record.status.has_ended:
                run = self._runs[batch] = OwnedBatch(folder, record, parts)
                await self._threads.run("", run.note, None)
                await run.run()
                self._metrics.batch_ended(run.record.status)
                _log.info("%s is %s", batch.id, run.record.status)
            await self._threads.run("", self.store.forget, batch)
        except OSError as error:
            self._pause(batch)
            self._complaints.say("a batch pauses", batch.id, error)
            await self._threads.run("", folder.note, pause_of(error))
        except BaseException as error:
            if ends_task(error):
                raise
            self._pause(batch)
            self._complaints.say("a batch failed and is tried again", batch.id, error)
        finally:
            self._runs.pop(batch, None)
            await self._threads.free(partial(_let_go, run, owner))

    def _pause(self, batch: ActiveBatch) -> None:
        self._not_before[batch] = asyncio.get_running_loop().time() + AGAIN_S


def _let_go(run: OwnedBatch | None, owner: int) -> None:
    """Free a batch for another owner, once nothing writes to it. Blocks."""
    try:
        if run is not None:
            run.close()
    finally:
        os.close(owner)


def select(free: Sequence[ActiveBatch], at_work: Sequence[ActiveBatch]) -> list[ActiveBatch]:
    """The batches to take next: those of tenants that have the fewest at work first. Pure."""
    counts = Counter(batch.tenant_key for batch in at_work)
    chosen: list[ActiveBatch] = []
    for place in range(MAX_OF_TENANT):
        for batch in free:
            if len(at_work) + len(chosen) >= MAX_RUNS:
                return chosen
            if batch not in chosen and counts[batch.tenant_key] <= place:
                counts[batch.tenant_key] += 1
                chosen.append(batch)
    return chosen
