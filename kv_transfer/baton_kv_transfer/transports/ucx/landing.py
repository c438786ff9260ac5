"""The decode worker's side of UCX: landing memory that peers write without asking, and proofs that they stopped.

Only the landing region, and a few unused bytes, are registered. Arrivals are known from the peer's messages.
Spans of failed hand-overs stay quarantined until their link's life line ended (see `writer`): then the process is
gone, or has said that all it posted is done.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable

from baton_kv_transfer.landing import REMEMBERED_LINKS
from baton_kv_transfer.network import DataConnection, SocketConnection, require_socket
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES
from baton_kv_transfer.transports.device import DeviceMemory, MemoryRange
from baton_kv_transfer.transports.ucx.binding import UcxAgent, host_memory
from baton_kv_transfer.transports.ucx.descriptor import VERSION, UcxDescriptor, digest, pack
from baton_kv_transfer.transports.ucx.thread import UcxThread

SETTLE_S = 2.0
"""From the end of a life line until it counts: bytes of a dead process may still be in socket buffers, and its other
descriptors (a GPU's, a network card's) may be closed after this one."""


class UcxLanding:
    """The landing region of this process as the target of one-sided writes."""

    one_sided = True

    def __init__(
        self,
        region: memoryview,
        epoch: bytes,
        on_writes_ended: Callable[[int], None],
        *,
        device: DeviceMemory | None = None,
        settle_s: float | None = None,
        handshake_s: float = 0.0,
    ) -> None:
        """`on_writes_ended` is called with links whose writes are proven to have ended.

        `device`: where the landing region really is, and the bytes to measure with; `region` is not written to then.
        `handshake_s`: how long a handshake of a data connection may take.
        """
        self.region = region
        self._device = device
        self._epoch = epoch
        self._on_writes_ended = on_writes_ended
        self._settle_s = SETTLE_S if settle_s is None else settle_s
        self._handshake_s = handshake_s
        self._agent_name = f"baton-{epoch.hex()}"
        self._probe = mmap.mmap(-1, PROBE_BYTES)
        self._thread = UcxThread(self._make)
        self._life_lines: dict[int, SocketConnection] = {}
        self._had_one: set[int] = set()
        self._settling: dict[int, asyncio.TimerHandle] = {}
        self._descriptor = b""

    async def start(self) -> None:
        """Register the memory. Raises UcxError."""
        await self._thread.start()
        self._descriptor = await self._thread.run(self._register)

    async def stop(self) -> None:
        for timer in self._settling.values():
            timer.cancel()
        for link in list(self._life_lines):
            self._close(link)
        await self._thread.stop()

    @property
    def descriptor(self) -> bytes:
        """Empty before `start`."""
        return self._descriptor

    @property
    def bytes_received(self) -> int:
        """Always 0: arrivals are not seen here. They are counted when sealed (`DecodeStats.sealed_bytes`)."""
        return 0

    @property
    def lanes(self) -> int:
        return len(self._life_lines)

    def attach(self, connection: DataConnection, peer: bytes, link: int) -> None:
        """Watch the life line of this link. A second one is closed at once."""
        if link in self._life_lines:
            connection.close()
            return
        self._had_one = {known for known in self._had_one if link - known < REMEMBERED_LINKS} | {link}
        self._life_lines[link] = require_socket(connection.connection)
        asyncio.get_running_loop().add_reader(self._life_lines[link].socket, self._on_readable, link)

    def link_down(self, peer: bytes, link: int, is_stranger: Callable[[], bool]) -> None:
        """Nothing can be stopped from here; a life line stays until it ends by itself.

        If the link never had one, its peer never could write: it opens one first. That counts once no handshake of one
        can be under way any more, if `is_stranger` says so then.
        """
        if link not in self._had_one:
            loop = asyncio.get_running_loop()
            self._settling[link] = loop.call_later(self._handshake_s + self._settle_s, self._settled, link, is_stranger)

    def _make(self) -> UcxAgent:
        if self._device is not None:
            self._device.enter()
        return UcxAgent(self._agent_name, progress=True)

    def _register(self, agent: UcxAgent) -> bytes:
        region, probe = host_memory(self.region), host_memory(memoryview(self._probe))
        if self._device is not None:
            region, probe = self._device.memory, self._device.probe
        agent.register(*[memory for memory in (region, probe) if memory.length])
        return describe(self._agent_name, self._epoch, region, probe, agent.metadata())

    def _on_readable(self, link: int) -> None:
        try:
            data = self._life_lines[link].socket.recv(64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:  # against the protocol: this connection proves nothing any more, and nothing is freed on its word
            self._close(link)
            return
        self._close(link)
        loop = asyncio.get_running_loop()
        self._settling[link] = loop.call_later(self._settle_s, self._settled, link, lambda: True)

    def _settled(self, link: int, is_proof: Callable[[], bool]) -> None:
        del self._settling[link]
        if is_proof():
            self._on_writes_ended(link)

    def _close(self, link: int) -> None:
        connection = self._life_lines.pop(link)
        asyncio.get_running_loop().remove_reader(connection.socket)
        connection.close()


def describe(agent: str, epoch: bytes, region: MemoryRange, probe: MemoryRange, metadata: bytes) -> bytes:
    """The descriptor of registered memory."""
    return pack(
        UcxDescriptor(
            version=VERSION,
            epoch=epoch,
            agent=agent,
            address=region.address,
            length=region.length,
            device=-1 if region.device is None else region.device,
            probe_address=probe.address,
            probe_length=probe.length,
            metadata=metadata,
            digest=digest(metadata),
        )
    )
