"""A TCP proxy whose connections can be cut, held still or slowed down at any time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

CHUNK_BYTES = 1 << 16


class FaultyProxy:
    """Listens in a server's place."""

    def __init__(self) -> None:
        self._delays_s: list[float] = []
        """Longest pause before each piece that passes, in either direction."""
        self._holds = 0
        self._moves = asyncio.Event()
        self._moves.set()
        self._writers: set[asyncio.StreamWriter] = set()
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

    def cut(self) -> None:
        """Every connection is reset; new ones are taken."""
        for writer in list(self._writers):
            writer.transport.abort()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing passes any more, without notice: a network that drops packets."""
        self._holds += 1
        self._moves.clear()
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._moves.set()

    @contextlib.contextmanager
    def slowed(self, delay_s: float) -> Iterator[None]:
        """Each piece that passes waits so long before."""
        self._delays_s.append(delay_s)
        try:
            yield
        finally:
            self._delays_s.remove(delay_s)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            await self._carry((reader, writer), (far_reader, far_writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _carry(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        writers = {near[1], far[1]}
        self._writers |= writers
        pumps = [asyncio.create_task(self._pump(*ends)) for ends in ((near[0], far[1]), (far[0], near[1]))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= writers
            far[1].transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._delays_s:
                    await asyncio.sleep(max(self._delays_s))
                await self._moves.wait()
                writer.write(data)
                await writer.drain()
