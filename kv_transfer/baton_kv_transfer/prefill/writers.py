"""The prefill worker's transports: opens a writer for each linked decode worker over what the pair agreed on.

Owns the UCX agent of this process when UCX is offered. Where UCX does not come up with a peer and TCP is allowed too,
the next dials to it offer TCP alone for a while.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable

from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import Connection, SocketConnection, of_socket
from baton_kv_transfer.transports import tcp
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES, Probe, first_bytes
from baton_kv_transfer.transports.seam import PROBE_TRANSFER, Write, WriteDone, Writer
from baton_kv_transfer.transports.ucx import binding as ucx
from baton_kv_transfer.transports.ucx.binding import Memory, UcxAgent, host_memory
from baton_kv_transfer.transports.ucx.descriptor import unpack
from baton_kv_transfer.transports.ucx.device_memory import DeviceMemory
from baton_kv_transfer.transports.ucx.thread import UcxThread
from baton_kv_transfer.transports.ucx.writer import UcxWriter, connect
from baton_wire.errors import LinkLostError, TransferError
from baton_wire.messages.pair_link import PairHello
from baton_wire.messages.values import Address

WITHOUT_UCX_S = 60.0


class Writers:
    """Makes writers in the transfer thread's loop."""

    def __init__(
        self,
        epoch: bytes,
        transports: tuple[str, ...],
        tcp_lanes: int,
        region: memoryview | None,
        device: DeviceMemory | None = None,
    ) -> None:
        """`region`: the pool, registered once so that writes go straight from it; None when it is not host memory.

        `device`: the pool where it is a GPU's memory, registered too, with bytes to measure with.
        """
        self.transports = transports
        self._device = device
        self.probe_source = memoryview(mmap.mmap(-1, PROBE_BYTES))
        self._tcp_lanes = tcp_lanes
        self._region = region
        self._pool = None if region is None else host_memory(region)
        self._thread: UcxThread | None = None
        self._ucx_writers: list[UcxWriter] = []
        self._without_ucx: dict[Address, float] = {}
        if ucx.NAME in transports:
            self._thread = UcxThread(lambda: self._make(epoch))

    async def start(self) -> None:
        """Bring UCX up, if it is offered. Raises UcxError."""
        if self._thread is not None:
            await self._thread.start()
            memories = [host_memory(self.probe_source), *([self._pool] if self._pool and self._pool.length else [])]
            await self._thread.run(lambda agent: agent.register(*memories))
            if (device := self._device) is not None:
                await self._thread.run(lambda agent: agent.register(device.memory, device.probe))

    def _make(self, epoch: bytes) -> UcxAgent:
        if self._device is not None:
            self._device.enter()
        return UcxAgent(f"baton-{epoch.hex()}", progress=False, batched=self._device is not None)

    async def stop(self) -> None:
        """After the writers were closed."""
        if self._thread is not None and await self._thread.stop():
            for writer in self._ucx_writers:
                writer.end_life_line()

    def offered_to(self, address: Address) -> tuple[str, ...]:
        """What a dial to this address names in its hello."""
        if asyncio.get_running_loop().time() < self._without_ucx.get(address, 0.0):
            return tuple(name for name in self.transports if name != ucx.NAME)
        self._without_ucx.pop(address, None)
        return self.transports

    def connections(self, transport: str) -> int:
        """How many data connections a writer needs."""
        return 1 if transport == ucx.NAME else self._tcp_lanes

    async def open(
        self,
        transport: str,
        address: Address,
        hello: PairHello,
        connections: list[Connection],
        on_lost: Callable[[str], None],
        timeout_s: float,
    ) -> Writer:
        """A writer to the worker that said `hello`. Raises TransferError; the connections are the caller's then.

        UCX calls a peer connected before a byte has reached it, so its writer is proven with a first write.
        """
        if transport == tcp.NAME:
            return tcp.TcpWriter(
                [of_socket(each) for each in connections], lambda detail: on_lost(f"data connection: {detail}")
            )
        if self._thread is None:
            raise LinkLostError("ucx was not offered")
        try:
            return await self._open_ucx(self._thread, hello, of_socket(connections[0]), on_lost, timeout_s)
        except TransferError:
            if tcp.NAME in self.transports:
                self._without_ucx[address] = asyncio.get_running_loop().time() + WITHOUT_UCX_S
            raise

    async def _open_ucx(
        self,
        thread: UcxThread,
        hello: PairHello,
        life_line: SocketConnection,
        on_lost: Callable[[str], None],
        timeout_s: float,
    ) -> UcxWriter:
        target = unpack(hello.descriptor, hello.epoch, hello.landing_bytes)
        lane = await thread.run(connect(target), timeout_s)
        writer = UcxWriter(
            thread, target, life_line, self._is_registered, lambda detail: on_lost(f"ucx: {detail}"), lane
        )
        self._ucx_writers = [each for each in self._ucx_writers if not each.has_ended] + [writer]
        try:
            failure = await first_bytes(self.probe(writer), timeout_s)
        except asyncio.CancelledError:
            writer.close("the dial was given up")
            raise
        if failure is not None:
            writer.close(failure)
            raise LinkLostError(f"ucx: {failure}")
        return writer

    def probe(self, writer: Writer) -> Probe:
        """How to measure the way of this writer."""
        if isinstance(writer, UcxWriter):
            source = host_memory(self.probe_source) if self._device is None else self._device.probe
            return lambda length, done: writer.probe(source, length, done)

        def swallowed(length: int, done: WriteDone) -> None:
            extent = (Extent(0, length),)
            writer.write(Write(PROBE_TRANSFER, self.probe_source, extent, extent), done)

        return swallowed

    def _is_registered(self, memory: Memory) -> bool:
        return self._pool is not None and self._pool.holds(memory)
