"""The thread that writes lines: it alone waits for a disk. What it has not written stays in slots.

The slots bound what waits here. While the disk is full, gone or slow, lines wait in their slots, and the newest
requests find none. Every failure is tried again each second.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

from baton_gateway.ledger.open_table import OpenTable
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.ledger")
RETRY_S = 1.0
SYNC_S = 1.0
RECOVER_S = 60.0
MOST_LINES = 512
"""Lines that are written at once."""


class LineSink(Protocol):
    """The place where lines go. All calls may block, and raise OSError."""

    def write(self, content: bytes, now_s: float) -> None: ...

    def rotate_if_due(self, now_s: float) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class StreamSink:
    """The standard output, whose lines a log collector takes. Each line is one write, which processes that share the
    stream do not interleave."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._rest: list[bytes] = []

    def write(self, content: bytes, now_s: float) -> None:
        if not self._rest:
            self._rest = content.splitlines(keepends=True)
        while self._rest:
            written = os.write(self._descriptor, self._rest[0])
            self._rest[0] = self._rest[0][written:]
            if not self._rest[0]:
                del self._rest[0]

    def rotate_if_due(self, now_s: float) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class LedgerWriter:
    """The thread of one process."""

    def __init__(
        self,
        table: OpenTable,
        sink: LineSink,
        on_written: Callable[[int], None] = lambda lines: None,
        recover: Callable[[float], object] = lambda now_s: None,
        wall: Callable[[], float] = time.time,
        retry_s: float = RETRY_S,
    ) -> None:
        """`on_written`: counts closing lines; `recover`: closes what killed processes left, once a minute. Both are
        called in this thread."""
        self._table, self._sink, self._on_written, self._recover = table, sink, on_written, recover
        self._wall, self._retry_s = wall, retry_s
        self._lines: queue.SimpleQueue[tuple[bytes, int | None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._complaints = Complaints(_log)
        self._is_dirty = False
        self._synced_s = self._recovered_s = 0.0
        self.problem = ""
        """Why lines are not written at present; empty: they are."""
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, line: bytes, slot: int | None) -> None:
        """Have a line written, and then the slot released. There are at most two lines for each slot."""
        self._lines.put((line, slot))

    def stop(self, within_s: float) -> bool:
        """Write what is left, as long as this takes at most; returns whether everything is written."""
        self._stopping.set()
        self._lines.put(None)
        if self._thread.ident is not None:
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch is None:
                break
            if batch and not self._write(batch):
                break
            self._keep_up()
        if self._sync():
            self._sink.close()

    def _take(self) -> list[tuple[bytes, int | None]] | None:
        """The next lines, perhaps none after a while; None: there will be no more."""
        batch: list[tuple[bytes, int | None]] = []
        try:
            item = self._lines.get(timeout=SYNC_S)
            while item is not None:
                batch.append(item)
                if len(batch) == MOST_LINES:
                    return batch
                item = self._lines.get_nowait()
        except queue.Empty:
            return batch
        if batch:
            self._lines.put(None)
            return batch
        return None

    def _write(self, batch: list[tuple[bytes, int | None]]) -> bool:
        """Write lines, however long it takes; False: not before the end of the process."""
        content = b"".join(line for line, _ in batch)
        while True:
            try:
                self._sink.write(content, self._wall())
                break
            except OSError as error:
                self._report(error)
                if self._stopping.wait(self._retry_s):
                    return False
        self.problem, self._is_dirty = "", True
        closed = [slot for _, slot in batch if slot is not None]
        for slot in closed:
            self._table.release(slot)
        self._on_written(len(closed))
        return True

    def _keep_up(self) -> None:
        """Do what is due from time to time; a failure is only reported."""
        try:
            self._sink.rotate_if_due(self._wall())
        except OSError as error:
            self._report(error)
        now = time.monotonic()
        if now - self._synced_s >= SYNC_S:
            self._synced_s = now
            self._sync()
        if now - self._recovered_s >= RECOVER_S:
            self._recovered_s = now
            try:
                self._table.touch()
                self._recover(self._wall())
            except OSError as error:
                self._report(error)

    def _sync(self) -> bool:
        if self._is_dirty:
            try:
                self._sink.sync()
                self._is_dirty = False
            except OSError as error:
                self._report(error)
        return not self._is_dirty

    def _report(self, error: OSError) -> None:
        self.problem = f"{error.filename or 'the ledger'}: {error.strerror or error}"
        self._complaints.say("the ledger is not written", self.problem)
