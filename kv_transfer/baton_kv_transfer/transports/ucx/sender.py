"""The prefill worker's end of UCX, and its row of the table: owns the UCX agent of this process and makes writers."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path

from baton_kv_transfer.network import DataConnection, require_socket
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES, first_bytes
from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.seam import LandingParts, SenderParts, Transport
from baton_kv_transfer.transports.ucx.binding import UcxAgent, host_memory, is_installed, load
from baton_kv_transfer.transports.ucx.descriptor import unpack
from baton_kv_transfer.transports.ucx.landing import UcxLanding
from baton_kv_transfer.transports.ucx.thread import UcxThread
from baton_kv_transfer.transports.ucx.writer import UcxWriter, connect
from baton_wire.errors import LinkLostError
from baton_wire.messages.pair_link import PairHello

INFINIBAND = Path("/sys/class/infiniband")
_ACTIVE = "4: ACTIVE"


class UcxSender:
    """Registers the pools once, so that writes go straight from it."""

    connections = 1
    """The life line."""

    def __init__(self, parts: SenderParts) -> None:
        self._epoch = parts.epoch
        self._device = parts.device
        self._pools = [host_memory(region) for region in parts.regions]
        self._probe_bytes = memoryview(mmap.mmap(-1, PROBE_BYTES))
        self._probe = host_memory(self._probe_bytes) if parts.device is None else parts.device.probe
        self._thread = UcxThread(self._make)
        self._writers: list[UcxWriter] = []

    async def start(self) -> None:
        await self._thread.start()
        memories = [host_memory(self._probe_bytes), *(pool for pool in self._pools if pool.length)]
        await self._thread.run(lambda agent: agent.register(*memories))
        if (device := self._device) is not None:
            await self._thread.run(lambda agent: agent.register(device.memory, device.probe))

    async def stop(self) -> None:
        if await self._thread.stop():
            for writer in self._writers:
                writer.end_life_line()

    async def open(
        self, hello: PairHello, connections: Sequence[DataConnection], on_lost: Callable[[str], None], timeout_s: float
    ) -> UcxWriter:
        """UCX calls a peer connected before a byte has reached it, so a writer is proven with a first write."""
        target = unpack(hello.descriptor, hello.epoch, hello.landing_bytes)
        lane = await self._thread.run(connect(target), timeout_s)
        writer = UcxWriter(
            self._thread,
            target,
            require_socket(connections[0].connection),
            self._is_registered,
            lambda detail: on_lost(f"ucx: {detail}"),
            lane,
            probe=self._probe,
            device=None if self._device is None else self._device.memory,
        )
        self._writers = [earlier for earlier in self._writers if not earlier.has_ended] + [writer]
        try:
            failure = await first_bytes(writer.probe, timeout_s)
        except asyncio.CancelledError:
            writer.close("the dial was given up")
            raise
        if failure is not None:
            writer.close(failure)
            raise LinkLostError(f"ucx: {failure}")
        return writer

    def _make(self) -> UcxAgent:
        if self._device is not None:
            self._device.enter()
        return UcxAgent(f"baton-{self._epoch.hex()}", progress=False, batched=self._device is not None)

    def _is_registered(self, memory: MemoryRange) -> bool:
        return any(pool.holds(memory) for pool in self._pools)


def _landing(parts: LandingParts) -> UcxLanding:
    return UcxLanding(
        parts.region, parts.epoch, parts.on_writes_ended, device=parts.device, handshake_s=parts.handshake_s
    )


def has_rdma(root: Path = INFINIBAND) -> bool:
    """True if a port of an InfiniBand or RoCE card is active."""
    for state in root.glob("*/ports/*/state"):
        try:
            if state.read_text(encoding="ascii").startswith(_ACTIVE):
                return True
        except (OSError, UnicodeDecodeError):
            continue
    return False


UCX = Transport(
    "ucx",
    UcxSender,
    _landing,
    reaches_devices=True,
    is_installed=is_installed,
    needs="the extra `ucx` (NIXL)",
    suits=has_rdma,
    load=load,
)
