"""A deterministic transport in memory: bytes travel inside one process on the test's clock.

Nothing happens by itself: every delivery is a call given to `schedule`, every delay comes from `delay_s`. The receiving
side either asks its guard like `tcp`, or is one-sided like UCX: then a posted write lands even after its link was cut.
Source bytes are read when they are delivered, so that a source freed too early shows as wrong bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import DataConnection
from baton_kv_transfer.transports.seam import FromDevice, LandingGuard, Write, WriteDone, slices

Schedule = Callable[[float, Callable[[], None]], None]
"""Call the function after these seconds of virtual time; calls of the same moment in the order they were given."""

PARTS = 2
"""A PUT arrives in this many parts, so that it can be seen, and cut, half-way."""


class MemoryLanding:
    """A landing region in this process."""

    def __init__(self, region: memoryview, guard: LandingGuard, *, one_sided: bool = False) -> None:
        self.region = region
        self.guard = guard
        self.one_sided = one_sided
        self.bytes_received = 0
        self.on_one_sided_write: Callable[[bytes, Extent], None] | None = None
        """Called for every one-sided write at the moment it lands; for checks that no real transport could make."""
        self.is_gone = False
        """The process is dead: nothing lands, nothing is acknowledged."""
        self._writers: dict[bytes, list[MemoryWriter]] = {}

    @property
    def descriptor(self) -> bytes:
        return b""

    @property
    def lanes(self) -> int:
        return sum(len(writers) for writers in self._writers.values())

    async def start(self) -> None:
        """Nothing to bring up."""

    async def stop(self) -> None:
        for peer in list(self._writers):
            self.drop(peer)

    def attach(self, connection: DataConnection, peer: bytes, link: int) -> None:
        """Bytes need no connection here; it represents the path."""

    def link_down(self, peer: bytes, link: int, is_stranger: Callable[[], bool]) -> None:
        self.drop(peer)

    def join(self, writer: MemoryWriter) -> None:
        self._writers.setdefault(writer.peer, []).append(writer)

    def drop(self, peer: bytes) -> None:
        for writer in self._writers.pop(peer, []):
            writer.disconnect("the landing side closed the connection")


class _Delivery:
    """One PUT on its way: a landing extent and the source views that fill it."""

    __slots__ = ("done", "extent", "position", "transfer", "views", "window")

    def __init__(self, transfer: int, extent: Extent, views: list[memoryview], done: Callable[[], None]) -> None:
        self.transfer = transfer
        self.extent = extent
        self.views = views
        self.done = done
        self.position = 0
        self.window: LandingWindow | None = None

    def next_part(self) -> bytes:
        data = b"".join(self.views)
        return data[self.position : self.position + max(1, -(-len(data) // PARTS))]


class MemoryWriter:
    """The way from one prefill worker (`peer` is its epoch) into one landing region; PUTs arrive in order."""

    from_device: FromDevice | None = None

    def __init__(
        self,
        peer: bytes,
        landing: MemoryLanding,
        schedule: Schedule,
        delay_s: Callable[[], float],
        on_lost: Callable[[str], None],
    ) -> None:
        self.peer = peer
        self._landing = landing
        self._schedule = schedule
        self._delay_s = delay_s
        self._on_lost = on_lost
        self._queue: list[_Delivery] = []
        self._open: dict[int, WriteDone] = {}
        self._next_write = 1
        self._is_moving = False
        self._is_closed = False
        self.bytes_sent = 0
        landing.join(self)

    @property
    def lane(self) -> str:
        return "memory, one-sided" if self._landing.one_sided else "memory"

    def probe(self, length: int, done: WriteDone) -> None:
        """No bytes are spent on it: there is no bandwidth to measure."""
        self._schedule(self._delay_s(), lambda: done(None))

    def write(self, write: Write, done: WriteDone) -> None:
        parts = slices(write)
        if self._is_closed or not parts:
            detail = "the link is closed" if self._is_closed else None
            self._schedule(0.0, lambda: done(detail))
            return
        number, self._next_write = self._next_write, self._next_write + 1
        self._open[number] = done
        missing = [len(parts)]

        def frame_done() -> None:
            missing[0] -= 1
            if missing[0] == 0:
                self._schedule(self._delay_s(), lambda: self._finish(number))

        self._queue += [_Delivery(write.transfer, extent, views, frame_done) for extent, views in parts]
        self._move()

    def close(self, detail: str) -> None:
        """Open writes are given up. What was posted one-sidedly lands all the same, some time."""
        if self._is_closed:
            return
        self._is_closed = True
        for done in self._open.values():
            self._schedule(0.0, lambda done=done: done(detail))  # type: ignore[misc]
        self._open.clear()
        if not self._landing.one_sided:
            self._queue.clear()

    def disconnect(self, detail: str) -> None:
        """The other side closed the connection."""
        if not self._is_closed:
            self.close(detail)
            self._schedule(self._delay_s(), lambda: self._on_lost(detail))

    def _finish(self, number: int) -> None:
        done = self._open.pop(number, None)
        if done is not None:
            done(None)

    def _move(self) -> None:
        if self._queue and not self._is_moving:
            self._is_moving = True
            self._schedule(self._delay_s(), self._arrive)

    def _arrive(self) -> None:
        self._is_moving = False
        if not self._queue or self._landing.is_gone:
            return
        delivery = self._queue[0]
        if self._landing.one_sided:
            self._land(delivery)
        elif not self._land_if_allowed(delivery):
            return
        if delivery.position == delivery.extent.length:
            self._queue.remove(delivery)
            self._landing.bytes_received += delivery.extent.length
            self.bytes_sent += delivery.extent.length
            delivery.done()
            if delivery.window is not None:
                self._landing.guard.arrived(self.peer, delivery.window)
        self._move()

    def _land_if_allowed(self, delivery: _Delivery) -> bool:
        if delivery.window is None:
            extent = delivery.extent
            claim = self._landing.guard.claim(self.peer, delivery.transfer, extent.offset, extent.length)
            if isinstance(claim, ClaimRefusal):
                detail = f"refused PUT: {claim}"
                self._landing.guard.breached(self.peer, detail)
                self.disconnect(detail)
                return False
            delivery.window = claim
        self._land(delivery)
        return True

    def _land(self, delivery: _Delivery) -> None:
        part = delivery.next_part()
        start = delivery.extent.offset + delivery.position
        if delivery.window is None or delivery.window.is_open:
            self._landing.region[start : start + len(part)] = part
            if delivery.window is None and self._landing.on_one_sided_write is not None:
                self._landing.on_one_sided_write(self.peer, Extent(start, len(part)))
        delivery.position += len(part)
