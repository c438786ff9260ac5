"""Carries out the prefill machine's puts: checksums and packing on a helper thread, bytes through the peer's writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from baton_kv_transfer.handover import HandoverKey, KvSource, TransferConfig, Verify
from baton_kv_transfer.layout import Extent, source_extents
from baton_kv_transfer.prefill.records import Put
from baton_kv_transfer.transports.seam import Write, WriteDone, Writer
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import Reason

T = TypeVar("T")

PutDone = Callable[[Put, bytes], None]
PutFailed = Callable[[Put, Reason, str], None]
Staging = Callable[[int], memoryview]
"""So many bytes of the host, of which nobody else knows until they are dropped."""


def ordinary_memory(length: int) -> memoryview:
    return memoryview(bytearray(length))


class PutCarrier:
    """Puts in order of arrival, a bounded number at once. Each ends in exactly one of `on_done` and `on_failed`."""

    def __init__(  # noqa: PLR0913
        self,
        source: KvSource,
        geometry: KvGeometry,
        config: TransferConfig,
        executor: Executor,
        writer_to: Callable[[bytes], Writer | None],
        on_done: PutDone,
        on_failed: PutFailed,
        staging: Staging = ordinary_memory,
    ) -> None:
        """`staging` gives memory to pack into."""
        self._staging = staging
        self._source = source
        self._geometry = geometry
        self._config = config
        self._executor = executor
        self._writer_to = writer_to
        self._on_done = on_done
        self._on_failed = on_failed
        self._waiting: deque[Put] = deque()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, put: Put) -> None:
        self._waiting.append(put)
        self._start_more()

    def drop(self, key: HandoverKey) -> None:
        """Fail the puts of `key` that have not begun."""
        dropped = [put for put in self._waiting if put.key == key]
        self._waiting = deque(put for put in self._waiting if put.key != key)
        for put in dropped:
            self._on_failed(put, Reason.CANCELLED, "dropped before it began")

    async def drained(self) -> None:
        """Wait until nothing is under way; the writers must have been closed or be working."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start_more(self) -> None:
        while self._waiting and len(self._tasks) < self._config.puts_in_flight:
            task = asyncio.create_task(self._carry(self._waiting.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.result()
        self._start_more()

    async def _carry(self, put: Put) -> None:
        writer = self._writer_to(put.peer)
        if writer is None:
            self._on_failed(put, Reason.PEER_LOST, "the link is gone")
            return
        sent: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        failure = await self._start(put, writer, sent.set_result)
        if failure is not None:
            self._on_failed(put, Reason.INTERNAL, failure)
            return
        checksums: bytes | str = b""
        if self._config.verify is Verify.FULL:
            checksums = await self._aside(lambda: self._source.checksums(put.units))
        detail = await sent
        if detail is not None:
            self._on_failed(put, Reason.PEER_LOST, detail)
        elif isinstance(checksums, str):
            self._on_failed(put, Reason.INTERNAL, checksums)
        else:
            self._on_done(put, checksums)

    async def _start(self, put: Put, writer: Writer, done: WriteDone) -> str | None:
        """Write straight from the pool when a unit is a block of it, else from a packed copy. Or why that cannot be."""
        units = put.units
        if units.tokens == self._geometry.block_tokens:
            if units.end > len(units.blocks):
                return f"blocks: {len(units.blocks)} given, unit {units.end - 1} needs {units.end}"
            if writer.from_device is not None:
                writer.from_device(lambda: source_extents(self._geometry, units), put.landing, done)
                return None
            if (region := self._source.region()) is not None:
                source = source_extents(self._geometry, units)
                writer.write(Write(put.transfer, region, tuple(source), put.landing), done)
                return None
        packed = self._staging(put.length)
        failure = await self._aside(lambda: self._source.pack(units, packed))
        if isinstance(failure, str):
            return failure
        writer.write(Write(put.transfer, packed, (Extent(0, put.length),), put.landing), done)
        return None

    async def _aside(self, call: Callable[[], T]) -> T | str:
        """Run on the helper thread; an exception comes back as text, because it is this hand-over's failure alone."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        await asyncio.wait([future])
        error = future.exception()
        return future.result() if error is None else f"{type(error).__name__}: {error}"
