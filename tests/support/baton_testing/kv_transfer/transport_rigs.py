"""A writer and a landing side of each transport, ready to be driven by the conformance suite."""

from __future__ import annotations

import asyncio
import mmap
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingWindow
from baton_kv_transfer.network import require_socket
from baton_kv_transfer.transports import tcp
from baton_kv_transfer.transports.seam import Landing, Writer
from baton_kv_transfer.transports.ucx.binding import UcxAgent
from baton_kv_transfer.transports.ucx.descriptor import unpack
from baton_kv_transfer.transports.ucx.landing import UcxLanding
from baton_kv_transfer.transports.ucx.thread import UcxThread
from baton_kv_transfer.transports.ucx.writer import UcxWriter, connect
from baton_testing.kv_transfer.builders import eventually
from baton_testing.kv_transfer.memory_transport import MemoryLanding, MemoryWriter
from baton_testing.virtual_time.event_heap import EventHeap
from baton_testing.wire.sessions import data_connections

REGION = 1 << 16
CANARY = 0xA5
P1, P2 = b"p" * 16, b"q" * 16


class Guard:
    """The real landing region as guard, and the calls that it got."""

    def __init__(self) -> None:
        self.landing = LandingRegion(REGION)
        self.arrivals: list[tuple[bytes, int, int]] = []
        self.breaches: list[tuple[bytes, str]] = []

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        return self.landing.claim(peer, transfer, offset, length)

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        self.landing.arrived(window)
        self.arrivals.append((peer, window.offset, window.length))

    def breached(self, peer: bytes, detail: str) -> None:
        self.breaches.append((peer, detail))


class Rig(Protocol):
    guard: Guard
    region: bytearray
    landing: Landing
    lost: list[str]

    def writer(self, peer: bytes = P1) -> Writer: ...

    async def settle(self) -> None:
        """Let everything that is under way end."""
        ...


class TcpRig:
    def __init__(self, lanes: int) -> None:
        self.guard = Guard()
        self.region = bytearray([CANARY]) * REGION
        self.tcp_landing = tcp.TcpLanding(memoryview(self.region), self.guard)
        self.landing: Landing = self.tcp_landing
        self.lost: list[str] = []
        self._lanes = lanes
        self.writers: list[tcp.TcpWriter] = []

    def writer(self, peer: bytes = P1) -> Writer:
        ours = []
        for _ in range(self._lanes):
            here, there = data_connections()
            ours.append(here)
            self.tcp_landing.attach(there, peer)
        self.writers.append(tcp.TcpWriter(ours, self.lost.append))
        return self.writers[-1]

    async def settle(self) -> None:
        last = None
        while last != (now := (self.landing.bytes_received, len(self.guard.breaches), len(self.lost))):
            last = now
            await asyncio.sleep(0.03)

    def close(self) -> None:
        for writer in self.writers:
            writer.close("the test ended")
        for peer in (P1, P2):
            self.tcp_landing.drop(peer)


class MemoryRig:
    def __init__(self, one_sided: bool = False) -> None:
        self.guard = Guard()
        self.region = bytearray([CANARY]) * REGION
        self.landing: Landing = MemoryLanding(memoryview(self.region), self.guard, one_sided=one_sided)
        self.lost: list[str] = []
        self.heap = EventHeap(seed=1)

    def writer(self, peer: bytes = P1) -> Writer:
        assert isinstance(self.landing, MemoryLanding)
        return MemoryWriter(peer, self.landing, self.heap.after, self.heap.random.random, self.lost.append)

    async def settle(self) -> None:
        await asyncio.sleep(0)
        self.heap.run()

    def close(self) -> None:
        self.heap.run()


class UcxRig:
    """The real library: two agents, as a prefill and a decode worker have them, in this process."""

    def __init__(self) -> None:
        self.guard = Guard()
        self.shared = mmap.mmap(-1, REGION)
        self.shared[:] = bytes([CANARY]) * REGION
        self.region = bytearray()
        self.epoch = secrets.token_bytes(16)
        self.ended: list[int] = []
        self.ucx_landing = UcxLanding(memoryview(self.shared), self.epoch, self.ended.append, settle_s=0.05)
        self.landing: Landing = self.ucx_landing
        self.lost: list[str] = []
        self.thread = UcxThread(lambda: UcxAgent(f"p-{secrets.token_hex(16)}", progress=False))
        self.writers: list[UcxWriter] = []

    async def start(self) -> None:
        await self.ucx_landing.start()
        await self.thread.start()
        self.target = unpack(self.landing.descriptor, self.epoch, REGION)
        await self.thread.run(connect(self.target))

    def writer(self, peer: bytes = P1) -> Writer:
        here, there = data_connections()
        self.ucx_landing.attach(there, peer, len(self.writers) + 1)
        self.thread.later(connect(self.target))
        self.writers.append(
            UcxWriter(
                self.thread,
                self.target,
                require_socket(here.connection),
                lambda _: False,
                self.lost.append,
                lambda: "test",
            )
        )
        return self.writers[-1]

    async def settle(self) -> None:
        await eventually(lambda: not any(writer.in_flight for writer in self.writers))
        await asyncio.sleep(0.01)
        self.region[:] = self.shared[:]

    async def close(self) -> None:
        for writer in self.writers:
            writer.close("the test ended")
        await eventually(lambda: all(writer.has_ended for writer in self.writers))
        await self.ucx_landing.stop()
        await self.thread.stop()


@asynccontextmanager
async def running(name: str) -> AsyncIterator[Rig]:
    if name == "ucx":
        ucx_rig = UcxRig()
        await ucx_rig.start()
        try:
            yield ucx_rig
        finally:
            await ucx_rig.close()
        return
    rig: TcpRig | MemoryRig
    if name in ("tcp", "tcp, 3 lanes"):
        rig = TcpRig(3 if name.endswith("lanes") else 1)
    else:
        rig = MemoryRig(one_sided=name == "one-sided")
    try:
        yield rig
    finally:
        rig.close()
        await asyncio.sleep(0)
