"""The network of pair links, byte by byte: streams over the same paths as all else, which the production links frame.

Bytes keep their order. A cut path holds them until it heals, as TCP sends again, or until the connection is given up.
A paused process gets them when it is woken. Two faults know of frames: a flipped bit and a trickle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton_kv_transfer.network import Connection
from baton_testing.simulation.network import Path
from baton_testing.simulation.process import SimProcess, Surroundings
from baton_testing.simulation.scenario import Fault
from baton_testing.virtual_time.loop import VirtualLoop

PORT = 1
DIAL_AGAIN_S = 0.5
LENGTH_BYTES = 4
GREETINGS = {True: 1, False: 2}
"""Bytes that the dialler and the acceptor send before the first frame."""
Accept = Callable[[Connection], None]


class StreamWorld(Surroundings, Protocol):
    streams: list[Stream]
    message_s: float

    def process_at(self, address: str) -> SimProcess | None: ...

    def path(self, one: str, other: str) -> Path: ...


class Stream:
    """One end of a connection, as `Connection` of the production network. Used in its process's transfer loop."""

    other: Stream

    def __init__(
        self, world: StreamWorld, process: SimProcess, loop: VirtualLoop, path: Path, is_dialler: bool
    ) -> None:
        self.process, self.path, self.is_dialler = process, path, is_dialler
        self.is_up = True
        self.on_end: Callable[[str], None] | None = None
        """Called at the end of the stream where it is not read."""
        self.on_bytes: Callable[[], None] | None = None
        """Called with every frame."""
        self._world, self._loop = world, loop
        self._got = bytearray()
        self._end: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._arrival_s = 0.0
        self._sends = 0
        self._resets = False
        self._trickling: deque[bytes | Exception] = deque()

    @property
    def source(self) -> str:
        return self.other.process.address

    # For its owner ----------------------------------------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        if not self.is_up:
            raise ConnectionResetError("the connection is broken")
        self._sends += 1
        is_frame = self._sends > GREETINGS[self.is_dialler]
        if is_frame and self.path.flip_next is not None:
            data = self.path.flipped(data, LENGTH_BYTES)
            self._world.count(Fault.FLIP)
            self.process.note(f"{self.path.name} a bit of a frame is flipped")
        self._carry(data)

    @property
    def has_bytes(self) -> bool:
        """A frame is under way."""
        return bool(self._got)

    async def receive(self, size: int) -> bytes:
        while len(self._got) < size:
            if self._end is not None:
                raise self._end
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = bytes(self._got[:size])
        del self._got[:size]
        return data

    def close(self) -> None:
        if self.is_up:
            self.is_up = False
            self._carry(ConnectionResetError("reset by peer") if self._resets else EOFError("closed by peer"))

    def reset_on_close(self) -> None:
        self._resets = True

    # For the world ----------------------------------------------------------------------------------------------------

    def broke(self) -> None:
        """The connection is reset in the middle of whatever it does."""
        self._resets = True
        self.close()
        self._arrived(ConnectionResetError("reset"), is_own=True)

    def _carry(self, what: bytes | Exception) -> None:
        world, path = self._world, self.path
        extra, path.delay_next_s = path.delay_next_s, 0.0
        if extra:
            world.count(Fault.DELAY)
        now = world.heap.now
        self._arrival_s = max(self._arrival_s + 1e-6, now + world.delay(world.message_s) + path.slow_s + extra)
        world.heap.after(self._arrival_s - now, lambda: self._arrive(what))

    def _arrive(self, what: bytes | Exception) -> None:
        if self.path.cut_of(self.is_dialler):
            self.path.held.append((self.is_dialler, lambda: self._arrive(what)))
        elif self.path.trickle_s or self._trickling:
            self._trickling.append(what)
            if len(self._trickling) == 1:
                self._trickle()
        else:
            self.other._arrived(what)

    def _trickle(self) -> None:
        """One byte, then the next; all the rest at once when it is over."""
        queue, pause_s = self._trickling, self.path.trickle_s
        while queue:
            what = queue.popleft()
            if isinstance(what, bytes) and pause_s:
                self._world.count(Fault.TRICKLE)
                self.other._arrived(what[:1])
                if len(what) > 1:
                    queue.appendleft(what[1:])
                if queue:
                    self._world.heap.after(pause_s, self._trickle)
                return
            self.other._arrived(what)

    def _arrived(self, what: bytes | Exception, is_own: bool = False) -> None:
        if not self.process.is_alive or (not self.is_up and not is_own):
            if isinstance(what, bytes):
                self._world.count(Fault.LOSS)
            return
        if isinstance(what, bytes):
            self._got += what
            if self.on_bytes is not None:
                self.on_bytes()
        else:
            self._end = what
            if self.on_end is not None:
                self._loop.call_soon(self.on_end, str(what))
        if self._reader is not None:
            self._loop.call_soon(self._wake, self._reader)

    def _wake(self, reader: asyncio.Future[None]) -> None:
        if not reader.done():
            reader.set_result(None)


@dataclass(slots=True)
class Port:
    """A listening process."""

    accept: Accept | None
    loop: VirtualLoop
    port: int = PORT

    def close(self) -> None:
        self.accept = None


class StreamNetwork:
    """The `Network` of one process."""

    def __init__(self, world: StreamWorld, process: SimProcess, loop: VirtualLoop) -> None:
        self._world, self._process, self._loop = world, process, loop
        self.listening: Port | None = None

    async def listen(self, host: str, port: int, on_connection: Accept) -> Port:
        self.listening = Port(on_connection, self._loop)
        return self.listening

    async def connect(self, host: str, port: int) -> Stream:
        """While the path is cut there is no answer, and the dialler keeps trying. Raises ConnectionRefusedError."""
        world, path = self._world, self._world.path(self._process.address, host)
        while True:
            await asyncio.sleep(world.delay(world.message_s) + path.slow_s)
            if not path.is_cut:
                break
            await asyncio.sleep(DIAL_AGAIN_S)
        peer = world.process_at(host)
        listening = None if peer is None else peer.pair_network.listening  # type: ignore[attr-defined]
        if peer is None or listening is None or listening.accept is None:
            raise ConnectionRefusedError(f"no process listens at {host}")
        near = Stream(world, self._process, self._loop, path, True)
        far = Stream(world, peer, listening.loop, path, False)
        near.other, far.other = far, near
        world.streams += (near, far)
        listening.loop.call_soon(listening.accept, far)
        return near
