"""The control link of a pair: typed messages over one authenticated TCP connection, with heartbeats.

Owns framing, the bounded send queue, heartbeats and the verdict on silence. A frame is a 4-byte big-endian length with
its MAC, then one msgpack message with its MAC: a length is believed before its bytes are waited for. A sign of life is
a whole valid frame. What the messages mean is the machines' business.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable

from baton_kv_transfer.network import Connection
from baton_wire.errors import BadFieldsError, BadMessageError, LinkLostError
from baton_wire.handshake import LinkIdentity
from baton_wire.liveness import Liveness, LivenessConfig, PeerState
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.flood import Flood
from baton_wire.messages.pair_link import Heartbeat, PairMessage
from baton_wire.messages.values import MAX_FRAME_BYTES
from baton_wire.session import FRAME_MAC_BYTES, Session

_LENGTH = struct.Struct("!I")
MAX_QUEUED_BYTES = 64 << 20
"""A peer that lets this much pile up is treated as lost."""
SLOWEST_BYTES_PER_S = 1e6
"""A frame that was begun may take as long as its bytes at this rate, and a silence more."""


class PairLink:
    """One authenticated control link. Used in its loop's thread only; closed for good once `run` returned."""

    def __init__(
        self,
        connection: Connection,
        identity: LinkIdentity,
        session: Session,
        *,
        heartbeat_s: float = 0.5,
        liveness: LivenessConfig | None = None,
    ) -> None:
        self.identity = identity
        self.session = session
        self._connection = connection
        self._heartbeat_s = heartbeat_s
        liveness = liveness or LivenessConfig()
        self._look_s = liveness.suspect_s / 6
        self._loop = asyncio.get_running_loop()
        self._alive = Liveness(liveness, self._loop.time())
        self._begun_until_s = 0.0
        """How long the bytes of the frame that is under way may take."""
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._close_reason: str | None = None

    @property
    def state(self) -> PeerState:
        if self.is_closed:
            return PeerState.DEAD
        now = self._loop.time()
        self._alive.heard(min(now, self._begun_until_s))
        return self._alive.state(now)

    @property
    def is_closed(self) -> bool:
        return self._close_reason is not None

    def send(self, message: PairMessage) -> None:
        """Queue a message; dropped when the link is closed. A link whose queue overflows closes.

        Raises BadFieldsError, and queues nothing, for a message that the peer would refuse.
        """
        if self.is_closed:
            return
        frame = encode(message)
        self._queued_bytes += len(frame)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self.close(f"the peer does not read: more than {MAX_QUEUED_BYTES} bytes are queued for it")
            return
        self._frames.append(frame)
        self._wake.set()

    async def receive(self) -> PairMessage:
        """The next message. Raises LinkLostError or BadMessageError; for use before `run` only."""
        try:
            (length,) = _LENGTH.unpack(await self._verified(_LENGTH.size))
            if not 0 < length <= MAX_FRAME_BYTES:
                raise BadMessageError(f"frame: length {length} is not between 1 and {MAX_FRAME_BYTES}")
            self._begun_until_s = self._loop.time() + length / SLOWEST_BYTES_PER_S
            frame = await self._verified(length)
        except (EOFError, OSError) as error:
            raise LinkLostError(str(error) or type(error).__name__) from error
        self._begun_until_s = 0.0
        self._alive.heard(self._loop.time())
        message: PairMessage = decode(frame, PairMessage)
        return message

    async def send_now(self, message: PairMessage) -> None:
        """Send and wait until the kernel took it; for use before `run` only."""
        try:
            await self._put(encode(message))
        except OSError as error:
            raise LinkLostError(str(error)) from error

    def close(self, reason: str) -> None:
        """Make `run` return `reason`. The first reason counts."""
        if self._close_reason is None:
            self._close_reason = reason
            self._closing.set()

    async def run(
        self,
        on_message: Callable[[PairMessage], None],
        on_refused: Callable[[BadFieldsError], None] = lambda refusal: None,
    ) -> str:
        """Carry messages until the link is closed, breaks, or falls silent; returns why. The connection is closed then.

        `on_message` may raise BadMessageError; the link is closed with that. `on_refused` gets what does not fit its
        type; too much of it closes the link.
        """
        tasks = [
            asyncio.create_task(self._read(on_message, on_refused)),
            asyncio.create_task(self._write()),
            asyncio.create_task(self._watch()),
            asyncio.create_task(self._closing.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in (task for task in tasks if task in done):
                error = task.exception()
                if isinstance(error, LinkLostError | BadMessageError | OSError):
                    self.close(f"{type(error).__name__}: {error}")
                elif error is not None:
                    raise error
        finally:
            self.close("the link's task was cancelled")
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                self._connection.close()
        return self._close_reason or ""

    async def _read(
        self, on_message: Callable[[PairMessage], None], on_refused: Callable[[BadFieldsError], None]
    ) -> None:
        bad = Flood()
        while True:
            try:
                on_message(await self.receive())
            except BadFieldsError as refusal:
                bad.met(self._loop.time(), str(refusal))
                on_refused(refusal)
            await asyncio.sleep(0)  # a socket that always has data would otherwise never let the loop go

    async def _write(self) -> None:
        while True:
            if not self._frames:
                self._wake.clear()
                try:
                    async with asyncio.timeout(self._heartbeat_s):
                        await self._wake.wait()
                except TimeoutError:
                    self.send(Heartbeat())
                continue
            frame = self._frames.popleft()
            self._queued_bytes -= len(frame)
            await self._put(frame)

    async def _put(self, frame: bytes) -> None:
        sign = self.session.sign
        await self._connection.send(sign(_LENGTH.pack(len(frame))) + sign(frame))

    async def _verified(self, size: int) -> bytes:
        return self.session.verify(await self._connection.receive(size + FRAME_MAC_BYTES))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(min(self._look_s, self._alive.due_in(self._loop.time())))
            if self.state is PeerState.DEAD:
                self._connection.reset_on_close()
                raise LinkLostError("the peer was silent for too long")
