"""TCP proxies that flip single bits of what passes, by direction, and watch how long a link outlives it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field

from baton_wire.handshake import CONFIRM_BYTES, OFFER_BYTES, PROOF_BYTES
from baton_wire.session import FRAME_MAC_BYTES

CHUNK_BYTES = 1 << 16
_CHANNEL_AT = 15
"""In the first frame of who dialled a pair port."""
HANDSHAKE_BYTES = {False: PROOF_BYTES, True: OFFER_BYTES + CONFIRM_BYTES}
"""Direction of the bytes: from the dialler, or from the dialled process."""
HEAD_END = b"\r\n\r\n"
ANYWHERE = 0.05
"""Share of the flips that may also meet a handshake."""


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of one link."""

    link: str
    is_back: bool = False
    """From who was dialled."""

    def __str__(self) -> str:
        return f"{self.link} {'←' if self.is_back else '→'}"


@dataclass(slots=True)
class Flip:
    """One flipped bit, and how long its connection lasted afterwards; None: it is still open."""

    way: Way
    at_s: float
    in_head: bool = False
    """The byte is in the head of an HTTP upgrade, most of whose lines are not read."""
    closed_after_s: float | None = None
    had_no_effect: bool = False
    """The bit was in the head and was never read: a handshake and signed frames followed both ways."""
    judged: asyncio.Event = field(default_factory=asyncio.Event)
    """The flip closed its connection, or had no effect."""


class _Passage:
    """One proxied connection."""

    def __init__(self) -> None:
        self.link = ""
        """Known with the first bytes of who dialled."""
        self.flips: list[Flip] = []
        self.passed = {False: 0, True: 0}
        """Bytes so far."""
        self.after_head = {False: 0, True: 0}
        """Offset of the byte after the head of the HTTP upgrade, where there is one."""
        self._is_after_head = {False: False, True: False}

    def over(self) -> None:
        for flip in self.flips:
            if flip.closed_after_s is None:
                flip.closed_after_s = time.monotonic() - flip.at_s
            flip.judged.set()
        self.flips.clear()

    def is_in_head(self, is_back: bool, data: bytes, at: int) -> bool:
        """True if this byte belongs to the head."""
        return not self._is_after_head[is_back] and (end := data.find(HEAD_END)) != -1 and at < end

    def count(self, is_back: bool, data: bytes) -> None:
        """These bytes pass. A head comes in one piece, or its flip is judged by its end alone."""
        self.passed[is_back] += len(data)
        if self._is_after_head[is_back]:
            self.after_head[is_back] += len(data)
        elif (end := data.find(HEAD_END)) != -1:
            self._is_after_head[is_back] = True
            self.after_head[is_back] += len(data) - end - len(HEAD_END)
        if all(self.after_head[way] > HANDSHAKE_BYTES[way] + FRAME_MAC_BYTES for way in (False, True)):
            for flip in [candidate for candidate in self.flips if candidate.in_head]:
                self.flips.remove(flip)
                flip.had_no_effect = True
                flip.judged.set()


class TamperingProxy:
    """Listens in a server's place. `links`: what its connections are called; two names for control and data of a pair
    port. A context.
    """

    def __init__(self, links: tuple[str, ...], draw: random.Random) -> None:
        self._links, self._draw = links, draw
        self._armed: dict[Way, asyncio.Future[Flip]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._target = ("", 0)

    async def start(self, host: str, port: int, target: tuple[str, int]) -> int:
        """The port; 0 is any."""
        self._target = target
        self._server = await asyncio.start_server(self._serve, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def flip(self, way: Way) -> asyncio.Future[Flip]:
        """Flip a bit of the next bytes that go this way."""
        self._armed[way] = asyncio.get_running_loop().create_future()
        return self._armed[way]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        passage = _Passage()
        pumps = [
            asyncio.create_task(self._pump(passage, reader, far_writer, False)),
            asyncio.create_task(self._pump(passage, far_reader, writer, True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            passage.over()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            far_writer.transport.abort()

    async def _pump(
        self, passage: _Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_back: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if not passage.link and not is_back:
                    is_data = len(self._links) > 1 and len(data) > _CHANNEL_AT and data[_CHANNEL_AT] == 1
                    passage.link = self._links[is_data]
                writer.write(self._passed(passage, Way(passage.link, is_back), data))
                await writer.drain()

    def _passed(self, passage: _Passage, way: Way, data: bytes) -> bytes:
        altered = self._altered(passage, way, data)
        passage.count(way.is_back, data)
        return altered

    def _altered(self, passage: _Passage, way: Way, data: bytes) -> bytes:
        is_upgraded = len(self._links) == 1
        so_far = passage.after_head if is_upgraded else passage.passed
        is_set_up = so_far[way.is_back] >= HANDSHAKE_BYTES[way.is_back]
        if way not in self._armed or not (is_set_up or self._draw.random() < ANYWHERE):
            return data
        armed = self._armed.pop(way)
        if armed.done():
            return data
        altered = bytearray(data)
        at = self._draw.randrange(len(data))
        altered[at] ^= 1 << self._draw.randrange(8)
        flip = Flip(way, time.monotonic(), is_upgraded and passage.is_in_head(way.is_back, data, at))
        passage.flips.append(flip)
        armed.set_result(flip)
        return bytes(altered)
