"""A server's connections on a virtual clock: its system calls and callbacks take modelled times, its clients' none.

The event loop, its transports and the server are the real ones. Sockets, the selector and the clock are not: clients
are as fast as they like, and whatever the server does moves the clock. So a latency is the server's own, the same on
every machine.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Generator
from selectors import EVENT_READ, SelectorKey, SelectSelector
from typing import Any, TypeAlias, cast

from baton_testing.virtual_time.event_heap import EventHeap
from baton_testing.virtual_time.loop import DeadlockError
from baton_wire.fair_loop.fair_event_loop import FairEventLoop
from baton_wire.fair_loop.paced_selector import POLL_S as POLL_EVERY_S
from baton_wire.fair_loop.paced_selector import PacedSelector

CALL_S = 3e-6
"""A system call."""
ACCEPT_S = 30e-6
"""An accept, with what Python does for it."""
CLOSE_S = 10e-6
CALLBACK_S = 12e-6
"""A callback of the loop, besides what it calls here."""
POLL_S, REPORT_S = 5e-6, 1e-6
"""A poll, and each descriptor that it reports."""
BACKLOG = 1_024
FIRST_FD = 1_000_000
"""No descriptor of the real kernel's."""

Script: TypeAlias = Generator["float | VirtualSocket", None, None]
"""A client: it yields how long it waits, or the connection on which it waits for an answer or the end."""


class VirtualSocket:
    """The server's end of a connection, and what its client does at the other one."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, network: VirtualNetwork, address: str) -> None:
        self._network = network
        self._fd = network.new_fd()
        self._peer = (address, self._fd - FIRST_FD)
        self._sent = bytearray()
        self._has_left = self._is_closed = False
        self.answer = bytearray()
        """What the client has received."""
        self.has_ended = False
        """The server has closed the connection."""
        self.wake: Callable[[], None] | None = None

    # The client's end -------------------------------------------------------------------------------------------------

    def client_sends(self, data: bytes) -> None:
        if not self._is_closed:
            self._sent += data
            self._network.readable[self._fd] = None

    def client_leaves(self) -> None:
        self._has_left = True
        if not self._is_closed:
            self._network.readable[self._fd] = None

    def _tell_client(self) -> None:
        if self.wake is not None:
            wake, self.wake = self.wake, None
            self._network.heap.after(0.0, wake)

    # The server's end -------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._is_closed else self._fd

    def setblocking(self, flag: bool) -> None: ...

    def gettimeout(self) -> float:
        return 0.0

    def setsockopt(self, *_: Any) -> None: ...

    def getsockopt(self, *_: Any) -> int:
        self._network.work(CALL_S)
        return 0

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 80)

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def recv(self, count: int, flags: int = 0) -> bytes:
        self._network.work(CALL_S)
        data = bytes(self._sent[:count])
        if not data and not self._has_left:
            raise BlockingIOError
        if not flags & socket.MSG_PEEK:
            del self._sent[:count]
            if not self._sent and not self._has_left:
                self._network.readable.pop(self._fd, None)
        return data

    def send(self, data: bytes) -> int:
        self._network.work(CALL_S)
        if self._has_left:
            raise BrokenPipeError(errno.EPIPE, "the client has left")
        self.answer += data
        self._tell_client()
        return len(data)

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None:
        if not self._is_closed:
            self._network.work(CLOSE_S)
            self._network.readable.pop(self._fd, None)
            self._is_closed = self.has_ended = True
            self._tell_client()


class VirtualListener(VirtualSocket):
    """The listening socket, with the kernel's queue."""

    def __init__(self, network: VirtualNetwork) -> None:
        super().__init__(network, "")
        self.queue: deque[VirtualSocket] = deque()

    def accept(self) -> tuple[VirtualSocket, tuple[str, int]]:
        if not self.queue:
            self._network.work(CALL_S)
            raise BlockingIOError
        self._network.work(ACCEPT_S)
        connection = self.queue.popleft()
        if not self.queue:
            self._network.readable.pop(self._fd, None)
        return connection, connection.getpeername()


class VirtualNetwork:
    """The clock, the server's descriptors, and its clients."""

    def __init__(self) -> None:
        self.heap = EventHeap(seed=0)
        self.readable: dict[int, None] = {}
        """Descriptors that a poll reports, the longest ready first."""
        self._last_fd = FIRST_FD
        self.listener = VirtualListener(self)

    @property
    def now(self) -> float:
        return self.heap.now

    def new_fd(self) -> int:
        self._last_fd += 1
        return self._last_fd

    def work(self, seconds: float) -> None:
        """Advance the clock by work of the server."""
        self.heap.now += seconds

    def measure(self) -> float:
        """The loop's clock of callbacks: it is read after each."""
        self.heap.now += CALLBACK_S
        return self.heap.now

    def connect(self, address: str) -> VirtualSocket | None:
        """None: the kernel's queue is full."""
        queue = self.listener.queue
        if len(queue) >= BACKLOG:
            return None
        connection = VirtualSocket(self, address)
        queue.append(connection)
        self.readable[self.listener.fileno()] = None
        return connection

    def play(self, script: Script) -> None:
        """Let a client act."""
        waits_for = next(script, None)
        if isinstance(waits_for, float):
            self.heap.after(waits_for, lambda: self.play(script))
        elif waits_for is not None:
            waits_for.wake = lambda: self.play(script)
            if waits_for.has_ended:
                waits_for.wake = None
                self.heap.after(0.0, lambda: self.play(script))


class VirtualSelector(SelectSelector):
    """A `PacedSelector` of a virtual network."""

    def __init__(self, network: VirtualNetwork) -> None:
        super().__init__()
        self._network = network
        self._polled_s = float("-inf")
        self._paused: set[int] = set()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        heap = self._network.heap
        if timeout is not None and timeout <= 0 and heap.now - self._polled_s < POLL_EVERY_S:
            return []
        heap.now += POLL_S
        heap.run(until_s=heap.now)
        until_s = float("inf") if timeout is None else heap.now + timeout
        while not (ready := self._ready()) and heap.now < until_s:
            if heap.next_s <= until_s and heap.next_s < float("inf"):
                heap.step()
            elif until_s < float("inf"):
                heap.now = until_s
            else:
                raise DeadlockError("nothing is ready and no client does anything")
        heap.now += REPORT_S * len(ready)
        self._polled_s = heap.now
        return ready

    def pause(self, fd: int) -> None:
        if fd not in self._paused:
            self._network.work(CALL_S)
            self._paused.add(fd)

    def resume(self, fd: int) -> None:
        if fd in self._paused:
            self._network.work(CALL_S)
            self._paused.remove(fd)

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        self._network.work(CALL_S)
        return super().register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        self._network.work(CALL_S)
        key = super().unregister(fileobj)
        self._paused.discard(key.fd)
        return key

    def _ready(self) -> list[tuple[SelectorKey, int]]:
        ready = []
        keys: dict[int, SelectorKey] = self._fd_to_key  # type: ignore[attr-defined]
        for fd in self._network.readable:
            key = keys.get(fd)
            if key is not None and key.events & EVENT_READ and fd not in self._paused:
                ready.append((key, EVENT_READ))
        return ready


class VirtualServerLoop(FairEventLoop):
    """The gateway's event loop on a virtual network."""

    def __init__(self, network: VirtualNetwork) -> None:
        super().__init__(cast(PacedSelector, VirtualSelector(network)), network.measure)
        self._network = network

    def time(self) -> float:
        return self._network.now


def serve_virtual(network: VirtualNetwork, main: Callable[[], Any]) -> None:
    """Run a server until its coroutine ends."""
    with asyncio.Runner(loop_factory=lambda: VirtualServerLoop(network)) as runner:
        runner.run(main())
