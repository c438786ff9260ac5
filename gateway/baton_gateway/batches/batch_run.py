"""One batch at work in the process that owns it: checked, answered line by line, and turned into files.

Whatever stops it, the next owner goes on from the record and the journal. A line whose answer was not written yet is
answered again; a line in the journal never is. All work on the disk is done by the run's one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol, TypeVar, TypeVarTuple

from baton_gateway.batches import batch_record
from baton_gateway.batches.answer_journal import AnswerJournal
from baton_gateway.batches.batch_record import BatchProblem, BatchRecord, BatchStatus
from baton_gateway.batches.batch_store import BatchFolder
from baton_gateway.batches.file_store import FileStore, StoredFile, is_published, publish, used_bytes
from baton_gateway.batches.folder import TenantFolder
from baton_gateway.batches.input_check import check_input
from baton_gateway.batches.line_slots import LineSlots
from baton_gateway.batches.lines import BatchLine, answer_line, read_checked_lines, unanswered_line

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
CHUNK_LINES: Final = 16
CHUNK_BYTES: Final = 1 << 20
"""The most that is read ahead, but for the last line of it."""
WATCH_S: Final = 1.0
"""How often a run looks whether it is to be cancelled, and notes how far it is."""
SIZE_S: Final = 5.0
"""How often a run looks whether its tenant may store more."""
PAUSE_S: Final = 5.0
"""The wait before a failed write is tried again."""
LONGEST_WAIT_S: Final = 30.0
MAX_FAILURES: Final = 3
"""Attempts of a line that fails on the side of the server."""
ANSWERS: Final = "batch_output"


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """The answer to one line, or why there is none yet."""

    status: int
    body: bytes
    request_id: str
    is_transient: bool = False
    """True if it is to be tried again: there was no room, no worker or no tenant."""
    retry_after_s: float | None = None


class AnswerLine(Protocol):
    """Answers lines: the HTTP room does."""

    async def answer(self, tenant: str, line: BatchLine) -> LineAnswer: ...

    def context(self, tenant: str) -> Context:
        """The context in which work for a tenant is done."""
        ...


class CountLines(Protocol):
    """Counts what became of lines: `completed`, `failed`, `expired`, or `retried`."""

    def __call__(self, result: str, lines: int = 1) -> None: ...


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts that all runs of a process share."""

    files: FileStore
    answering: AnswerLine
    slots: LineSlots
    """Lines of all batches at the workers, or waiting for room there."""
    lines_in_hand: int
    """The most lines of one batch in memory, with those that wait to be tried again."""
    count: CountLines
    most_lines: int
    wall: Callable[[], float] = time.time


class OwnedBatch:
    """The work on one batch, which this process owns as long as `owner` is open."""

    def __init__(self, batch: BatchFolder, record: BatchRecord, parts: RunParts) -> None:
        self.record = record
        self.is_paused = False
        self._batch = batch
        self._parts = parts
        self._folder: TenantFolder = parts.files.folder(record.tenant)
        self._input = self._folder.files / f"{record.input_file_id}.data"
        self._thread = ThreadPoolExecutor(1, "batch")
        self._journal: AnswerJournal | None = None
        self._has_room = asyncio.Event()
        """Set while the tenant may store more answers."""
        self._has_room.set()
        self._sized_s = float("-inf")

    async def run(self) -> None:
        """Work until the batch has ended. Raises OSError; another run continues then."""
        if self.record.status is BatchStatus.VALIDATING:
            await self._validate()
        if self.record.status is BatchStatus.IN_PROGRESS:
            await self._answer_all()
        if self.record.status is BatchStatus.FINALIZING:
            await self._disk(self._publish)

    def close(self) -> None:
        """Wait for the thread, so that nothing is written after the batch has another owner. Blocks."""
        self._thread.shutdown()
        if self._journal is not None:
            self._journal.close()

    def note(self, pause: BatchProblem | None) -> None:
        """Say why the batch does not go on; None: it does. Blocks."""
        self.is_paused = pause is not None
        self._batch.note(pause)

    # Checking ---------------------------------------------------------------------------------------------------------

    async def _validate(self) -> None:
        if (status := await self._disk(self._stop_reason)) is not None:
            await self._save(batch_record.finalize(self.record, status, self._now()))
            return
        try:
            total, problems = await self._disk(check_input, self._input, self.record.endpoint, self._parts.most_lines)
        except FileNotFoundError:
            total, problems = 0, [BatchProblem("file_not_found", "The input file is gone.", "input_file_id")]
        if problems:
            await self._save(batch_record.fail(self.record, problems, self._now()))
        else:
            await self._save(batch_record.begin(self.record, total, self._now()))

    def _stop_reason(self) -> BatchStatus | None:
        """Why no further line is answered; None: lines are. Raises OSError."""
        if self._batch.wish().cancelled_at is not None:
            return BatchStatus.CANCELLED
        return BatchStatus.EXPIRED if self._parts.wall() >= self.record.expires_at else None

    # Answering --------------------------------------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        journal = self._journal = await self._disk(AnswerJournal, self._batch.path)
        status = await self._disk(self._stop_reason) or await self._answer_until_stopped(journal)
        if status is BatchStatus.EXPIRED:
            expired = await self._disk(self._note_expired, journal)
            self._parts.count("expired", expired)
        await self._disk(journal.sync)
        counted = batch_record.count(self.record, journal.completed, journal.failed)
        await self._save(batch_record.finalize(counted, status, self._now()))

    async def _answer_until_stopped(self, journal: AnswerJournal) -> BatchStatus:
        """Answer lines until there are none left, or no further one is to be answered; returns how the batch ends."""
        watching, answering = (
            asyncio.create_task(self._watch(journal)),
            asyncio.create_task(self._answer_lines(journal)),
        )
        try:
            await asyncio.wait((watching, answering), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (watching, answering):
                task.cancel()
            results = await asyncio.gather(watching, answering, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseExceptionGroup) and (disk := result.subgroup(OSError)) is not None:
                raise disk.exceptions[0]
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result
        return results[0] if isinstance(results[0], BatchStatus) else BatchStatus.COMPLETED

    async def _watch(self, journal: AnswerJournal) -> BatchStatus:
        """Return once no further line is to be answered."""
        while True:
            await asyncio.sleep(WATCH_S)
            with contextlib.suppress(OSError):  # what could not be noted now is in the journal
                if (status := await self._disk(self._look, journal)) is not None:
                    return status
                await self._look_for_room()

    async def _look_for_room(self) -> None:
        """Begin no further line while the tenant stores as much as it may: answers in hand are still written."""
        now = asyncio.get_running_loop().time()
        if now - self._sized_s < SIZE_S:
            return
        self._sized_s = now
        used, most = await self._disk(used_bytes, self._folder), self._parts.files.bounds.all_bytes
        if used < most and not self._has_room.is_set():
            self._has_room.set()
            await self._disk(self.note, None)
        elif used >= most:  # noted each time: an answer that the disk took late clears the note
            self._has_room.clear()
            message = (
                f"The batch pauses: your files and your batches' answers have {used} bytes, "
                f"and may have {most} together. Delete some files."
            )
            await self._disk(self.note, BatchProblem("file_quota_exceeded", message))

    def _look(self, journal: AnswerJournal) -> BatchStatus | None:
        status = self._stop_reason()
        counted = batch_record.count(self.record, journal.completed, journal.failed)
        if status is None and counted != self.record:
            journal.sync()
            self._batch.write(counted)
            self.record = counted
        return status

    async def _answer_lines(self, journal: AnswerJournal) -> None:
        lines = read_checked_lines(self._input)
        in_hand = asyncio.Semaphore(self._parts.lines_in_hand)
        async with asyncio.TaskGroup() as group:
            while chunk := await self._disk(_next_lines, lines, journal):
                for line in chunk:
                    await in_hand.acquire()
                    context = self._parts.answering.context(self.record.tenant)
                    task = group.create_task(self._answer(line, journal), context=context)
                    task.add_done_callback(lambda _: in_hand.release())

    async def _answer(self, line: BatchLine, journal: AnswerJournal) -> None:
        wait_s, failures = 1.0, 0
        while True:
            await self._has_room.wait()
            async with self._parts.slots.slot(self.record.tenant):
                answer = await self._parts.answering.answer(self.record.tenant, line)
            failures += answer.status >= 500 and not answer.is_transient
            if not answer.is_transient and (answer.status < 500 or failures >= MAX_FAILURES):
                break
            self._parts.count("retried")
            await asyncio.sleep(max(wait_s, answer.retry_after_s or 0.0))
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
        is_error = answer.status != 200
        content = answer_line(line.custom_id, answer.status, answer.body, answer.request_id)
        await self._insist(lambda: journal.write(content, is_error=is_error))
        self._parts.count("failed" if is_error else "completed")

    async def _insist(self, write: Callable[[], None]) -> None:
        """Write until the disk takes it: an answer is not thrown away."""
        has_failed = False
        while True:
            try:
                await self._disk(write)
                break
            except OSError as error:
                has_failed = True
                await self._disk(self.note, pause_of(error))
            await asyncio.sleep(PAUSE_S)
        if has_failed:
            await self._disk(self.note, None)

    # Ending -----------------------------------------------------------------------------------------------------------

    def _note_expired(self, journal: AnswerJournal) -> int:
        """Write a line about each request that was not answered in time; returns how many. Raises OSError."""
        expired = 0
        with contextlib.suppress(FileNotFoundError):
            for line in read_checked_lines(self._input):
                if not journal.has(line.id):
                    message = "The request was not answered before the batch's completion window expired."
                    journal.write(unanswered_line(line.custom_id, "batch_expired", message), is_error=True)
                    expired += 1
        return expired

    def _publish(self) -> None:
        """Turn the journal into files, and end the batch. Raises OSError; it may be repeated."""
        record, has = self.record, []
        for name, file_id in (("output", record.output_file_id), ("errors", record.error_file_id)):
            source = self._batch.path / f"{name}.jsonl"
            is_written = source.exists() and source.stat().st_size > 0
            if is_written or is_published(self._folder, file_id):
                now = self._now()
                file = StoredFile(file_id, f"{record.id}_{name}.jsonl", 0, ANSWERS, now, now + record.output_kept_s)
                publish(self._folder, source, file)
                has.append(True)
            else:
                source.unlink(missing_ok=True)
                has.append(False)
        self._write(batch_record.end(record, self._now(), has_output=has[0], has_errors=has[1]))

    # The disk ---------------------------------------------------------------------------------------------------------

    async def _disk(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _save(self, record: BatchRecord) -> None:
        await self._disk(self._write, record)

    def _write(self, record: BatchRecord) -> None:
        self._batch.write(record)
        self.record = record

    def _now(self) -> int:
        return int(self._parts.wall())


def pause_of(error: OSError) -> BatchProblem:
    """Why a batch pauses."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BatchProblem("storage_full", "The batch pauses: the disk for its answers is full.")
    return BatchProblem("storage_unavailable", "The batch pauses: its folder cannot be read or written.")


def _next_lines(lines: Iterator[BatchLine], journal: AnswerJournal) -> list[BatchLine]:
    """The next lines without an answer; empty: there are none left. Raises OSError."""
    chunk, size = [], 0
    for line in islice((line for line in lines if not journal.has(line.id)), CHUNK_LINES):
        chunk.append(line)
        size += line.size
        if size >= CHUNK_BYTES:
            break
    return chunk
