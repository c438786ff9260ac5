"""KV bytes over plain TCP: the source region's bytes go to the socket as they are, the receiver reads them into place.

Data connections are apart from the control link and authenticated by the same handshake. A PUT frame is a fixed header
with its MAC, and raw bytes, whose checksums are the hand-over's business. The receiver asks the guard before it reads a
single payload byte, looks at its permission before every read, and answers with an acknowledgement and its MAC once the
bytes are written. A refused PUT ends the connection. Sockets are driven by readiness callbacks and gathered writes: no
copy in user space, no future that could hold on to a buffer.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import DataConnection, require_socket
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES
from baton_kv_transfer.transports.outbox import TURN_BYTES, Outbox
from baton_kv_transfer.transports.seam import (
    PROBE_TRANSFER,
    FromDevice,
    LandingGuard,
    LandingParts,
    SenderParts,
    Transport,
    Write,
    WriteDone,
    slices,
)
from baton_wire.errors import AlteredFrameError
from baton_wire.messages.pair_link import PairHello
from baton_wire.session import FRAME_MAC_BYTES

PUT = struct.Struct("!4sQQQQ")
"""Magic, put id, transfer, landing offset, length."""
ACK = struct.Struct("!4sQ")
PUT_BYTES, ACK_BYTES = PUT.size + FRAME_MAC_BYTES, ACK.size + FRAME_MAC_BYTES
PUT_MAGIC, ACK_MAGIC = b"BPUT", b"BACK"
MAX_LANES = 8
SOCKET_BUFFER_BYTES = 4 << 20
SCRATCH_BYTES = 256 << 10


def _tune(sock: socket.socket) -> None:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


class _SendLane:
    """One data connection of a prefill worker."""

    def __init__(
        self, connection: DataConnection, on_ack: Callable[[int], None], on_lost: Callable[[str], None]
    ) -> None:
        self._socket = require_socket(connection.connection).socket
        self._connection = connection
        self._on_ack = on_ack
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        _tune(self._socket)
        self.outbox = Outbox(self._socket, on_lost)
        self._pending = bytearray()
        self._loop.add_reader(self._socket, self._on_readable)

    def put(self, header: bytes, views: Sequence[memoryview]) -> None:
        self.outbox.push([memoryview(self._connection.session.sign(header)), *views])

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(4_096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_lost(f"acknowledgements: {error.strerror}")
            return
        if not data:
            self._on_lost("the decode worker closed a data connection")
            return
        self._pending += data
        whole = len(self._pending) - len(self._pending) % ACK_BYTES
        signed = bytes(self._pending[:whole])
        del self._pending[:whole]
        try:
            for start in range(0, whole, ACK_BYTES):
                magic, put = ACK.unpack(self._connection.session.verify(signed[start : start + ACK_BYTES]))
                if magic != ACK_MAGIC:
                    self._on_lost("a frame that is no acknowledgement")
                    return
                self._on_ack(put)
        except AlteredFrameError as error:
            self._on_lost(f"acknowledgements: {error}")

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self.outbox.close()
        self._connection.close()


class TcpWriter:
    """All data connections from here to one decode worker."""

    from_device: FromDevice | None = None

    def __init__(
        self, connections: Sequence[DataConnection], on_lost: Callable[[str], None], probe: memoryview | None = None
    ) -> None:
        """`on_lost` is called once when a connection breaks; every open write has then been given up.

        `probe`: bytes to measure with.
        """
        self._probe = memoryview(b"") if probe is None else probe
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._lanes = [_SendLane(connection, self._acked, self._lost) for connection in connections]
        self._next_put = 1
        self._put_of: dict[int, tuple[_OpenWrite, int]] = {}
        self._is_closed = False
        self.bytes_sent = 0

    @property
    def lane(self) -> str:
        return f"tcp x{len(self._lanes)}"

    def probe(self, length: int, done: WriteDone) -> None:
        extent = (Extent(0, length),)
        self.write(Write(PROBE_TRANSFER, self._probe, extent, extent), done)

    def write(self, write: Write, done: WriteDone) -> None:
        parts = slices(write)
        if self._is_closed or not parts:
            detail = "the link is closed" if self._is_closed else None
            self._loop.call_soon(done, detail)
            return
        entry = _OpenWrite(len(parts), done)
        for extent, views in parts:
            put, self._next_put = self._next_put, self._next_put + 1
            self._put_of[put] = (entry, 0 if write.transfer == PROBE_TRANSFER else extent.length)
            header = PUT.pack(PUT_MAGIC, put, write.transfer, extent.offset, extent.length)
            lane = min(self._lanes, key=lambda candidate: candidate.outbox.queued_bytes)
            lane.put(header, views)

    def close(self, detail: str) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for lane in self._lanes:
            lane.close()
        self._lanes.clear()
        for entry in dict.fromkeys(entry for entry, _ in self._put_of.values()):
            self._loop.call_soon(entry.done, detail)
        self._put_of.clear()

    def _acked(self, put: int) -> None:
        known = self._put_of.pop(put, None)
        if known is None:
            self._lost("an acknowledgement of an unknown put")
            return
        entry, length = known
        self.bytes_sent += length
        entry.open_frames -= 1
        if entry.open_frames == 0:
            entry.done(None)

    def _lost(self, detail: str) -> None:
        if not self._is_closed:
            self.close(detail)
            self._on_lost(detail)


class TcpSender:
    """Writers over plain connections; nothing of it is shared but the bytes to measure with."""

    def __init__(self, lanes: int) -> None:
        self.connections = lanes
        self._probe = memoryview(mmap.mmap(-1, PROBE_BYTES))

    async def start(self) -> None:
        """Nothing to bring up."""

    async def stop(self) -> None:
        """Nothing is left."""

    async def open(
        self, hello: PairHello, connections: Sequence[DataConnection], on_lost: Callable[[str], None], timeout_s: float
    ) -> TcpWriter:
        return TcpWriter(connections, lambda detail: on_lost(f"data connection: {detail}"), self._probe)


class _OpenWrite:
    """A write some of whose frames are not acknowledged yet."""

    __slots__ = ("done", "open_frames")

    def __init__(self, open_frames: int, done: WriteDone) -> None:
        self.open_frames = open_frames
        self.done = done


class _ReceiveLane:
    """One data connection at a decode worker: PUT frames in, acknowledgements out."""

    def __init__(self, landing: TcpLanding, connection: DataConnection, peer: bytes) -> None:
        self._landing = landing
        self._socket = require_socket(connection.connection).socket
        self._connection = connection
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        _tune(self._socket)
        self._acks = Outbox(self._socket, self._broke)
        self._header = memoryview(bytearray(PUT_BYTES))
        self._got = 0
        self._put = 0
        self._window: LandingWindow | None = None
        self._is_closed = False
        self._loop.add_reader(self._socket, self._on_readable)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._socket)
            self._acks.close()
            self._connection.close()

    def _broke(self, detail: str) -> None:
        if not self._is_closed:
            self._landing.lost(self._peer, self, detail)

    def _on_readable(self) -> None:
        turn = 0
        try:
            while turn < TURN_BYTES and not self._is_closed:
                count = self._socket.recv_into(self._target())
                if count == 0:
                    self._broke("the prefill worker closed a data connection")
                    return
                turn += count
                self._got += count
                self._progress()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broke(f"receiving: {error.strerror}")

    def _target(self) -> memoryview:
        """Where the next bytes go: the rest of the header, of the granted bytes, or nowhere."""
        window = self._window
        if window is None:
            return self._header[self._got :]
        rest = window.length - self._got
        if not window.is_open:
            return self._landing.scratch[:rest]
        start = window.offset + self._got
        return self._landing.region[start : start + min(rest, TURN_BYTES)]

    def _progress(self) -> None:
        window = self._window
        if window is None:
            if self._got == PUT_BYTES:
                self._begin()
        elif self._got == window.length:
            self._window, self._got = None, 0
            self._landing.bytes_received += 0 if window.transfer == PROBE_TRANSFER else window.length
            self._acks.push([memoryview(self._connection.session.sign(ACK.pack(ACK_MAGIC, self._put)))])
            self._landing.guard.arrived(self._peer, window)

    def _begin(self) -> None:
        try:
            header = self._connection.session.verify(bytes(self._header))
        except AlteredFrameError as error:
            self._broke(str(error))
            return
        magic, self._put, transfer, offset, length = PUT.unpack(header)
        if magic != PUT_MAGIC:
            self._broke("a frame that is no PUT")
            return
        window = self._landing.guard.claim(self._peer, transfer, offset, length)
        if isinstance(window, ClaimRefusal):
            self._broke(f"refused PUT of [{offset}, {offset + length}) for transfer {transfer}: {window}")
            return
        self._window, self._got = window, 0


class TcpLanding:
    """The landing region of this process as the target of data connections."""

    one_sided = False

    def __init__(self, region: memoryview, guard: LandingGuard) -> None:
        self.region = region
        self.guard = guard
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.bytes_received = 0
        self._lanes: dict[bytes, list[_ReceiveLane]] = {}

    @property
    def descriptor(self) -> bytes:
        return b""

    @property
    def lanes(self) -> int:
        return sum(len(lanes) for lanes in self._lanes.values())

    async def start(self) -> None:
        """Nothing to bring up."""

    async def stop(self) -> None:
        for peer in list(self._lanes):
            self.drop(peer)

    def attach(self, connection: DataConnection, peer: bytes, link: int = 0) -> None:
        """Receive from an authenticated data connection. One too many is closed at once."""
        lanes = self._lanes.setdefault(peer, [])
        if len(lanes) >= MAX_LANES:
            connection.close()
            return
        lanes.append(_ReceiveLane(self, connection, peer))

    def lost(self, peer: bytes, lane: _ReceiveLane, detail: str) -> None:
        """A data connection ended or must end: all of this peer end with it."""
        if lane in self._lanes.get(peer, []):
            self.drop(peer)
            self.guard.breached(peer, detail)

    def link_down(self, peer: bytes, link: int, is_stranger: Callable[[], bool]) -> None:
        self.drop(peer)

    def drop(self, peer: bytes) -> None:
        """Close every data connection of this peer."""
        for lane in self._lanes.pop(peer, []):
            lane.close()


def _sender(parts: SenderParts) -> TcpSender:
    return TcpSender(parts.lanes)


def _landing(parts: LandingParts) -> TcpLanding:
    return TcpLanding(parts.region, parts.guard)


TCP = Transport("tcp", _sender, _landing)
