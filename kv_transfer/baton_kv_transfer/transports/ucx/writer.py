"""The prefill worker's side of UCX: one-sided writes into a decode worker's landing region, and what proves their end.

A posted write cannot be taken back, so closing gives the hand-overs up at once but goes on watching the writes. Next to
the control link is a *life line*, a connection that carries nothing: it is closed when every write that was posted
is known to be done, and otherwise lives until this process ends. Its end is what the decode worker takes as proof.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from baton_kv_transfer.layout import Extent, paired
from baton_kv_transfer.network import SocketConnection
from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.seam import FromDevice, Write, WriteDone
from baton_kv_transfer.transports.ucx.binding import Piece, UcxAgent, UcxError, WriteState, host_memory
from baton_kv_transfer.transports.ucx.descriptor import UcxDescriptor
from baton_kv_transfer.transports.ucx.lanes import UNKNOWN
from baton_kv_transfer.transports.ucx.thread import UcxThread, WriteOrder

log = logging.getLogger(__name__)

STALL_S = 10.0
"""A write that has not ended by then loses the link: UCX was seen to say nothing of a cut network for minutes."""


class UcxWriter:
    """The way into one landing region."""

    def __init__(  # noqa: PLR0913 - one call site; what may be left out is keyword only
        self,
        thread: UcxThread,
        target: UcxDescriptor,
        life_line: SocketConnection,
        registered: Callable[[MemoryRange], bool],
        on_lost: Callable[[str], None],
        lane: Callable[[], str],
        *,
        probe: MemoryRange | None = None,
        device: MemoryRange | None = None,
        stall_s: float = STALL_S,
    ) -> None:
        """`registered` says whether source bytes are registered with the thread's agent; others are for each write.

        `on_lost` is called once when the peer or the way to it is gone; every open write has then been given up. `lane`
        names the lane that UCX writes over. `probe` and `device` are registered: bytes to measure with, and the pool
        where it is a GPU's.
        """
        self._loop = asyncio.get_running_loop()
        self._thread = thread
        self._target = target
        self._device = None if target.device < 0 else target.device
        self._life_line = life_line
        self._registered = registered
        self._on_lost = on_lost
        self._lane = lane
        self._stall_s = stall_s
        self._probe = probe or MemoryRange(0, 0)
        self.from_device: FromDevice | None = None if device is None else partial(self.copy, device)
        self._open: dict[int, tuple[WriteDone, float, int]] = {}
        self._posted: dict[int, memoryview] = {}
        """Writes that UCX has not ended, given up ones among them, and the source bytes that they need alive."""
        self._ends: deque[tuple[int, WriteState | UcxError]] = deque()
        """Filled by the UCX thread, emptied by the loop's."""
        self._is_woken = False
        self._next = 1
        self._seen_lane, self._looked_s = UNKNOWN, 0.0
        self._is_closed = False
        self._is_broken = False
        self._has_ended = False
        self.bytes_sent = 0
        self._loop.add_reader(life_line.socket, self._on_life_line)
        self._timer = self._loop.call_later(stall_s / 4, self._watch)

    @property
    def lane(self) -> str:
        return f"ucx {self._seen_lane}"

    @property
    def has_ended(self) -> bool:
        """True once the life line ended."""
        return self._has_ended

    @property
    def in_flight(self) -> int:
        """Writes that UCX has not ended, given up ones among them."""
        return len(self._posted)

    def write(self, write: Write, done: WriteDone) -> None:
        region = host_memory(write.region)
        pieces = self._pieces(region, write.source, write.landing)
        unregistered = None if self._registered(region) else region
        self._start(lambda: pieces, write.length, None, unregistered, write.region, done)

    def copy(
        self, memory: MemoryRange, source: Callable[[], Sequence[Extent]], landing: Sequence[Extent], done: WriteDone
    ) -> None:
        """As `write`, from `source` of registered memory of any kind (a GPU's), which the caller keeps.

        `source` is asked on the UCX thread; what it gives must be as long as `landing`, or the link is lost.
        """
        length = sum(extent.length for extent in landing)
        self._start(lambda: self._pieces(memory, source(), landing), length, memory.device, None, memoryview(b""), done)

    def probe(self, length: int, done: WriteDone) -> None:
        source = self._probe
        if self._is_closed or length > min(source.length, self._target.probe_length):
            self._loop.call_soon(done, "no place to probe")
            return
        pieces = ((source.address, self._target.probe_address, length),)
        self._post(lambda: pieces, source.device, None, memoryview(b""), 0, done)

    def _pieces(self, memory: MemoryRange, source: Sequence[Extent], landing: Sequence[Extent]) -> tuple[Piece, ...]:
        base = self._target.address
        return tuple([(memory.address + at, base + there, length) for at, there, length in paired(source, landing)])

    def _start(
        self,
        pieces: Callable[[], Sequence[Piece]],
        length: int,
        source_device: int | None,
        unregistered: MemoryRange | None,
        source: memoryview,
        done: WriteDone,
    ) -> None:
        if self._is_closed or not length:
            self._loop.call_soon(done, "the link is closed" if self._is_closed else None)
            return
        self._post(pieces, source_device, unregistered, source, length, done)

    def close(self, detail: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._timer.cancel()
        for done, _, _ in self._open.values():
            self._loop.call_soon(done, detail)
        self._open.clear()
        self._settle()

    def _post(
        self,
        pieces: Callable[[], Sequence[Piece]],
        source_device: int | None,
        unregistered: MemoryRange | None,
        source: memoryview,
        length: int,
        done: WriteDone,
    ) -> None:
        number, self._next = self._next, self._next + 1
        self._open[number] = (done, self._loop.time(), length)
        self._posted[number] = source

        def on_end(state: WriteState | UcxError) -> None:
            self._ends.append((number, state))
            if not self._is_woken:  # one wake-up for all that end until the loop looks
                self._is_woken = True
                try:
                    self._loop.call_soon_threadsafe(self._take_ends)
                except RuntimeError:  # the loop is closed: this process is ending, the write is not awaited
                    log.debug("a write ended after its loop")

        self._thread.write(WriteOrder(self._target.agent, pieces, source_device, self._device, unregistered, on_end))

    def _take_ends(self) -> None:
        self._is_woken = False  # first: what ends from here on wakes the loop again
        while self._ends:
            self._ended(*self._ends.popleft())

    def _ended(self, number: int, state: WriteState | UcxError) -> None:
        del self._posted[number]
        self._is_broken |= state is WriteState.BROKEN
        known = self._open.pop(number, None)
        if known is not None and state is WriteState.DONE:
            self.bytes_sent += known[2]
            known[0](None)
            self._look_at_lane()
        elif known is not None:
            detail = str(state) if isinstance(state, UcxError) else "UCX lost the connection"
            self._loop.call_soon(known[0], detail)
            self._lost(detail)
        if self._is_closed:
            self._settle()

    def _look_at_lane(self) -> None:
        if self._seen_lane == UNKNOWN and self._loop.time() - self._looked_s > 1.0:
            self._looked_s, self._seen_lane = self._loop.time(), self._lane()

    def _settle(self) -> None:
        """Closed: end the life line when all writes are known to be done, keep it for good when one broke."""
        if self._posted:
            return
        name = self._target.agent
        self._thread.later(lambda agent: agent.disconnect(name))
        if not self._is_broken:
            self.end_life_line()

    def end_life_line(self) -> None:
        """Nothing can be written any more: all writes are done, the agent is no more, or the decode worker is gone."""
        if not self._has_ended:
            self._has_ended = True
            self._loop.remove_reader(self._life_line.socket)
            self._life_line.close()

    def _on_life_line(self) -> None:
        try:
            data = self._life_line.socket.recv(64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(f"life line: {error.strerror}")
            self.end_life_line()
            return
        self._lost("bytes on a life line" if data else "the decode worker closed the life line")
        self.end_life_line()

    def _watch(self) -> None:
        since = min((posted for _, posted, _ in self._open.values()), default=None)
        if since is not None and self._loop.time() - since > self._stall_s:
            self._lost(f"a write did not end within {self._stall_s:g} s")
            return
        self._timer = self._loop.call_later(self._stall_s / 4, self._watch)

    def _lost(self, detail: str) -> None:
        if not self._is_closed:
            self.close(detail)
            self._on_lost(detail)


def connect(target: UcxDescriptor) -> Callable[[UcxAgent], Callable[[], str]]:
    """Make `target` a peer of the agent; the result is the lane as far as UCX has reported it by then."""

    def call(agent: UcxAgent) -> Callable[[], str]:
        agent.connect(target.agent, target.metadata)
        return agent.lanes.lane

    return call
