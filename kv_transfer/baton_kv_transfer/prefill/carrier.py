"""Carries out the prefill machine's puts: checksums and packing on a helper thread, bytes through the peer's writer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from baton_kv_transfer.handover import HandoverKey, KvSource, TransferConfig, Verify
from baton_kv_transfer.layout import Extent, source_extents
from baton_kv_transfer.prefill.records import Put
from baton_kv_transfer.ranks.tensor_parallel import split_leg_key
from baton_kv_transfer.transports.seam import Write, WriteDone, Writer
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import Reason

T = TypeVar("T")

Staging = Callable[[int], memoryview]
"""Gives that many bytes of host memory, which nothing else uses until they are dropped."""


def ordinary_memory(length: int) -> memoryview:
    return memoryview(bytearray(length))


class PutOwner(Protocol):
    """The transfer whose puts are carried. Called in the loop's thread."""

    def writer_to(self, peer: bytes) -> Writer | None:
        """The way to the decode worker with this epoch; None when the link is gone."""
        ...

    def on_put_sent(self, put: Put, began_s: float) -> None:
        """The peer has taken in the bytes, which were under way since `began_s` of the loop's clock."""
        ...

    def on_put_done(self, put: Put, checksums: bytes) -> None: ...

    def on_put_failed(self, put: Put, reason: Reason, detail: str) -> None: ...


class PutCarrier:
    """Puts in order of arrival, a bounded number at once.

    Each ends in exactly one of `on_put_done` and `on_put_failed`.
    """

    def __init__(
        self,
        sources: Sequence[KvSource],
        geometries: Sequence[KvGeometry],
        config: TransferConfig,
        executor: Executor,
        owner: PutOwner,
        staging: Staging = ordinary_memory,
    ) -> None:
        """`sources` and `geometries`: of each rank. `staging` gives memory to pack into."""
        self._staging = staging
        self._sources = sources
        self._geometries = geometries
        self._config = config
        self._executor = executor
        self._owner = owner
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
            self._owner.on_put_failed(put, Reason.CANCELLED, "dropped before it began")

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
        writer = self._owner.writer_to(put.peer)
        if writer is None:
            self._owner.on_put_failed(put, Reason.PEER_LOST, "the link is gone")
            return
        loop = asyncio.get_running_loop()
        sent: asyncio.Future[str | None] = loop.create_future()
        began_s = loop.time()

        def end(detail: str | None) -> None:
            if detail is None:
                self._owner.on_put_sent(put, began_s)
            sent.set_result(detail)

        failure = await self._start(put, writer, end)
        if failure is not None:
            self._owner.on_put_failed(put, Reason.INTERNAL, failure)
            return
        checksums: bytes | str = b""
        if self._config.verify is Verify.FULL:
            checksums = await self._run_in_helper(lambda: self._source_of(put).checksums(put.units))
        detail = await sent
        if detail is not None:
            self._owner.on_put_failed(put, Reason.PEER_LOST, detail)
        elif isinstance(checksums, str):
            self._owner.on_put_failed(put, Reason.INTERNAL, checksums)
        else:
            self._owner.on_put_done(put, checksums)

    async def _start(self, put: Put, writer: Writer, done: WriteDone) -> str | None:
        """Write straight from the pool when a unit is a block of it, else from a packed copy. Or why that cannot be."""
        units, geometry, source = put.units, self._geometries[split_leg_key(put.key)[0]], self._source_of(put)
        if units.tokens == geometry.block_tokens:
            if units.end > len(units.blocks):
                return f"blocks: {len(units.blocks)} given, unit {units.end - 1} needs {units.end}"
            if writer.from_device is not None:
                writer.from_device(lambda: source_extents(geometry, units), put.landing, done)
                return None
            if (region := source.region()) is not None:
                extents = source_extents(geometry, units)
                writer.write(Write(put.transfer, region, tuple(extents), put.landing), done)
                return None
        packed = self._staging(put.length)
        failure = await self._run_in_helper(lambda: source.pack(units, packed))
        if isinstance(failure, str):
            return failure
        writer.write(Write(put.transfer, packed, (Extent(0, put.length),), put.landing), done)
        return None

    def _source_of(self, put: Put) -> KvSource:
        return self._sources[split_leg_key(put.key)[0]]

    async def _run_in_helper(self, call: Callable[[], T]) -> T | str:
        """Run on the helper thread; an exception comes back as text, because it is this hand-over's failure alone."""
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        await asyncio.wait([future])
        error = future.exception()
        return future.result() if error is None else f"{type(error).__name__}: {error}"
