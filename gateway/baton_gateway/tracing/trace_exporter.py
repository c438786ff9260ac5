"""Hands the trails of sampled requests to a thread that exports them. No request ever waits for it: a trail that finds
the queue full is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from baton_gateway.records.trail import KeptTrail
from baton_gateway.reporting.outcome import TraceResult
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.tracing")
MAX_WAITING = 1_024
BATCH = 32
"""Trails of one export. It bounds how long the thread encodes at a time."""
LINGER_S = 0.5
"""How long the thread lets trails gather."""
STOP_S = 3.0
"""For the last exports while the gateway stops."""


class TraceSender(Protocol):
    """The way to a collector. Both methods are called from threads."""

    def send(self, trails: Sequence[KeptTrail], /) -> str:
        """Export the traces of requests; returns the problem, empty: none."""

    def close(self) -> None:
        """End an export that is being retried, and the connection."""


class TraceExporter:
    """The queue and the thread of one process."""

    def __init__(
        self,
        sender: TraceSender,
        count: Callable[[TraceResult, int], None],
        max_waiting: int = MAX_WAITING,
        linger_s: float = LINGER_S,
    ) -> None:
        """`count`: counts traces by their result, from any thread."""
        self._sender, self._count = sender, count
        self._max_waiting, self._linger_s = max_waiting, linger_s
        self._waiting: deque[KeptTrail] = deque()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._complaints = Complaints(_log, level=logging.WARNING)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Export until `stop`."""
        self._thread.start()

    def offer(self, trail: KeptTrail) -> None:
        """Queue a trail, or drop it where the queue is full."""
        if len(self._waiting) >= self._max_waiting:
            self._count(TraceResult.DROPPED, 1)
            return
        self._waiting.append(trail)
        if not self._wake.is_set():
            self._wake.set()

    async def stop(self, within_s: float = STOP_S) -> None:
        """Export what waits, as far as it can be done in time; the rest is dropped."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, within_s)
        await asyncio.to_thread(self._sender.close)
        if left := self._take(self._max_waiting):
            self._count(TraceResult.DROPPED, len(left))

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._stopping.wait(self._linger_s)
            is_last = self._stopping.is_set()
            self._wake.clear()
            while batch := self._take(BATCH):
                self._export(batch)
            if is_last:
                return

    def _take(self, most: int) -> list[KeptTrail]:
        """Take trails off the queue. The thread and `stop` may do so at the same time; each trail is taken once."""
        taken: list[KeptTrail] = []
        while len(taken) < most:
            try:
                taken.append(self._waiting.popleft())
            except IndexError:
                break
        return taken

    def _export(self, trails: list[KeptTrail]) -> None:
        try:
            problem = self._sender.send(trails)
        except Exception as error:  # noqa: BLE001 (the thread's outermost loop: later traces go on)
            self._complaints.say("traces cannot be exported", type(error).__name__, error)
            self._count(TraceResult.FAILED, len(trails))
            return
        if problem:
            self._complaints.say("traces are not exported", problem)
        self._count(TraceResult.FAILED if problem else TraceResult.EXPORTED, len(trails))
