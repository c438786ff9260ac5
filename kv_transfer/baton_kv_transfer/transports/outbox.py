"""Bytes on their way into one non-blocking socket: gathered writes, driven by readiness callbacks, without copies."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice

TURN_BYTES = 4 << 20
"""Bytes moved per readiness callback, so that heartbeats get their turn."""
_GATHER = 64


class Outbox:
    """The queue of one data connection. `on_lost` is called once with the reason why no more can be sent."""

    def __init__(self, sock: socket.socket, on_lost: Callable[[str], None]) -> None:
        self._socket = sock
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._buffers: deque[memoryview] = deque()
        self._is_waiting = False
        self._is_closed = False
        self.queued_bytes = 0

    def push(self, views: Sequence[memoryview]) -> None:
        self._buffers.extend(views)
        self.queued_bytes += sum(len(view) for view in views)
        if not self._is_waiting:
            self._try_now()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_writer(self._socket)
            self._buffers.clear()

    def _try_now(self) -> None:
        """Usually the socket has room: a small write or an acknowledgement then waits for no turn of the loop. Errors
        occur again, and are reported, in a turn of their own."""
        with suppress(OSError):
            self._drop(self._socket.sendmsg(list(islice(self._buffers, _GATHER))))
        if self._buffers:
            self._wait()

    def _wait(self) -> None:
        self._is_waiting = True
        self._loop.add_writer(self._socket, self._flush)

    def _flush(self) -> None:
        turn = 0
        try:
            while self._buffers and turn < TURN_BYTES:
                turn += self._drop(self._socket.sendmsg(list(islice(self._buffers, _GATHER))))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_lost(f"sending: {error.strerror}")
            return
        if not self._buffers and not self._is_closed:
            self._is_waiting = False
            self._loop.remove_writer(self._socket)

    def _drop(self, count: int) -> int:
        self.queued_bytes -= count
        rest = count
        while rest:
            first = self._buffers[0]
            if len(first) > rest:
                self._buffers[0] = first[rest:]
                break
            rest -= len(first)
            self._buffers.popleft()
        return count
