"""The decode worker's transfer: runs the hand-overs of all its ranks in the transfer thread's loop.

The engine's thread calls `queued`, `expected`, `refused` and `cancelled`; a `DecodeListener` reports to the worker.
Owns the landing region's memory and the helper thread that scatters; the machine decides what happens when.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from baton_kv_transfer.decode.peers import Acceptor, PrefillLink
from baton_kv_transfer.decode.ranks import DecodeRanks, decode_machines
from baton_kv_transfer.decode.records import DecodeAction, DecodeStats, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import (
    CutLink,
    DecodeListener,
    HandoverKey,
    KvSink,
    Reservation,
    SendTo,
    ignore_duration,
)
from baton_kv_transfer.handover_steps import mark
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.loop_mailbox import Mailbox, posted
from baton_kv_transfer.network import DataConnection
from baton_kv_transfer.ranks.tensor_parallel import rank_geometries, split_leg_key
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES
from baton_kv_transfer.transports.device import DeviceLanding
from baton_kv_transfer.transports.seam import PROBE_TRANSFER, LandingParts
from baton_wire.errors import BadFieldsError
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.pair_link import AtRanks, PairMessage, Seal
from baton_wire.messages.values import Reason, RequestKey, Role

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecodeTransferStats:
    handovers: DecodeStats
    links: int
    lanes: int
    """Open data connections."""
    transports: dict[str, int]
    """Linked prefill workers by transport."""
    bytes_received: int
    refused_connections: int
    altered_frames: int
    """Frames of prefill workers that did not arrive as they were sent."""


@dataclass(frozen=True, slots=True)
class LandingMemory:
    """Memory that prefill workers write to. Raises ValueError for memory shorter than `length`."""

    length: int
    """Bytes that are used."""
    host: memoryview | None = None
    """Host memory to land in (for example pinned); None: allocated by the transfer."""
    device: DeviceLanding | None = None
    """A GPU's memory where one-sided writes land instead."""

    def __post_init__(self) -> None:
        if self.host is not None and self.host.nbytes < self.length:
            raise ValueError(f"host: {self.host.nbytes} bytes given, length is {self.length}")
        if self.device is not None and self.device.memory.length < self.length:
            raise ValueError(f"device: {self.device.memory.length} bytes to land in, length is {self.length}")

    def region(self) -> memoryview:
        """The host memory as bytes."""
        return memoryview(mmap.mmap(-1, max(1, self.length))) if self.host is None else self.host.cast("B")


class DecodeTransfer:
    """Hand-overs from any number of prefill workers to this decode worker."""

    def __init__(
        self,
        parts: TransferParts,
        sinks: Sequence[KvSink],
        listener: DecodeListener,
        landing: LandingMemory,
        *,
        host: str,
        port: int = 0,
        observe_handover: Callable[[RequestKey, float], None] = ignore_duration,
    ) -> None:
        """`sinks`: the KV pool of each rank; they share the landing bytes equally. `host` and `port`: where to listen;
        port 0 is any. `observe_handover` gets the seconds from grant to verified of each landed hand-over, on the
        transfer thread.

        Raises UnfitPairError where the ranks do not fit the model's heads, ValueError for several pools and a
        device to land in.
        """
        if landing.device is not None and len(sinks) > 1:
            raise ValueError(f"landing.device: given with {len(sinks)} pools; allowed with 1")
        self.mailbox = Mailbox()
        self._config = parts.config
        self._sinks = sinks
        self._listener = listener
        self._observe_handover = observe_handover
        self._where = (host, port)
        machines = decode_machines(rank_geometries(parts.geometry, len(sinks)), landing.length, self._config)
        self._handovers = DecodeRanks(parts.geometry, machines, self._config)
        self._device = landing.device
        self._region = landing.region()[: self._handovers.landing_bytes]
        rows = parts.rows()
        landing_parts = LandingParts(
            parts.epoch, self._region, landing.device, self, self._writes_ended, self._config.handshake_s
        )
        self._landings = {row.name: row.land(landing_parts) for row in rows}
        hello = parts.hello(Role.DECODE, rows, len(sinks), self._handovers.landing_bytes)
        self._acceptor = Acceptor(hello, parts.keys, self._config, self, parts.network)
        self._executor = parts.executor or ThreadPoolExecutor(1, thread_name_prefix="baton-scatter")
        self._owns_executor = parts.executor is None
        self._scatters: set[asyncio.Task[None]] = set()
        self._port: int | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._complaints = Complaints(log)
        self._stats = self._look()

    # Life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, in the running loop, which is the transfer thread's.

        Raises OSError when the port is taken, TransferError when a transport does not come up.
        """
        self.mailbox.open()
        for landing in self._landings.values():
            await landing.start()
            if landing.descriptor:  # a hello has room for one
                self._acceptor.describe(landing.descriptor)
        self._port = await self._acceptor.start(*self._where)
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End every hand-over (each gets its `on_landed` or `on_failed`), then the links."""
        for key in self._handovers.open_keys():
            self._act(self._handovers.cancelled(key, Reason.DRAINING, "the decode worker stops", self._now()))
        while self._scatters:
            await asyncio.wait(self._scatters)
        await self._acceptor.stop()
        for landing in self._landings.values():
            await landing.stop()
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        if self._owns_executor:
            self._executor.shutdown(wait=False)
        self._stats = self._look()
        self.mailbox.close()

    @property
    def port(self) -> int:
        """The port that was bound. Raises RuntimeError before `start`."""
        if self._port is None:
            raise RuntimeError("the decode transfer does not listen yet")
        return self._port

    # From any thread -------------------------------------------------------------------------------------------------

    @posted
    def queued(self, key: RequestKey, prefill_epoch: bytes, position: int, deadline_s: float) -> None:
        """The engine has no blocks for this request yet."""
        self._act(self._handovers.queued(HandoverKey.of(key), prefill_epoch, position, deadline_s, self._now()))

    @posted
    def expected(self, key: RequestKey, prefill_epoch: bytes, reservation: Reservation) -> None:
        """The engine reserved blocks for this request, and waits for its KV."""
        self._act(self._handovers.expected(HandoverKey.of(key), prefill_epoch, reservation, self._now()))

    @posted
    def refused(self, key: RequestKey, prefill_epoch: bytes, reason: Reason, detail: str = "") -> None:
        """The engine refused a request that was never `expected`."""
        self._act(self._handovers.refused(HandoverKey.of(key), prefill_epoch, reason, detail, self._now()))

    @posted
    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None:
        """The request is no longer wanted, or the engine gave it up. Unknown ones are ignored."""
        self._act(self._handovers.cancelled(HandoverKey.of(key), reason, detail, self._now()))

    def stats(self) -> DecodeTransferStats:
        """As of the last tick."""
        return self._stats

    # Links -----------------------------------------------------------------------------------------------------------

    def on_up(self, linked: PrefillLink) -> None:
        one_sided, hello, now = self._landings[linked.transport].one_sided, linked.hello, self._now()
        self._act(
            self._handovers.link_up(
                linked.epoch,
                hello.block_tokens,
                now,
                one_sided=one_sided,
                link=linked.number,
                ranks=hello.tensor_parallel,
            )
        )

    def on_message(self, linked: PrefillLink, message: PairMessage) -> None:
        if isinstance(message, Seal) or (isinstance(message, AtRanks) and isinstance(message.message, Seal)):
            mark(message, "seal received")
        self._act(self._handovers.message(linked.epoch, message, self._now()))

    def on_data(self, linked: PrefillLink, connection: DataConnection) -> None:
        self._landings[linked.transport].attach(connection, linked.epoch, linked.number)

    def on_refused(self, linked: PrefillLink, refusal: BadFieldsError) -> None:
        self._complaints.say("a message of a prefill worker is refused", f"{linked.epoch.hex()[:8]}: {refusal}")
        self._spoilt(linked.epoch, refusal)

    def _spoilt(self, peer: bytes, refusal: BadFieldsError) -> None:
        if refusal.request is not None and refusal.attempt is not None:
            detail = str(refusal)
            self._act(self._handovers.spoilt(peer, refusal.request, refusal.attempt, detail, self._now()))

    def on_down(self, linked: PrefillLink, detail: str) -> None:
        orphaned, epoch = self._acceptor.orphaned, linked.epoch
        self._landings[linked.transport].link_down(epoch, linked.number, lambda: epoch not in orphaned)
        self._act(self._handovers.link_down(linked.epoch, detail, self._now()))

    def _writes_ended(self, link: int) -> None:
        self._act(self._handovers.writes_ended(link, self._now()))

    # Bytes -----------------------------------------------------------------------------------------------------------

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        if transfer == PROBE_TRANSFER and 0 < length <= PROBE_BYTES:
            return LandingWindow(transfer, offset, length, is_open=False)
        return self._handovers.claim(peer, transfer, offset, length)

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        if window.transfer == PROBE_TRANSFER:
            return
        self._act(self._handovers.arrived(window, self._now()))

    def breached(self, peer: bytes, detail: str) -> None:
        self._acceptor.cut(peer, detail)

    # Inside ----------------------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _send(self, linked: PrefillLink, message: PairMessage) -> None:
        try:
            linked.link.send(message)
        except BadFieldsError as refusal:
            self._complaints.say("a message to a prefill worker is not sent", str(refusal))
            self._spoilt(linked.epoch, refusal)

    def _act(self, actions: list[DecodeAction]) -> None:
        for action in actions:
            match action:
                case SendTo(peer, message):
                    linked = self._acceptor.links.get(peer)
                    if linked is not None:
                        self._send(linked, message)
                case CutLink(peer, detail):
                    self._acceptor.cut(peer, detail)
                case Scatter():
                    task = asyncio.create_task(self._scatter(action))
                    self._scatters.add(task)
                    task.add_done_callback(self._scatter_ended)
                case Landed(key, first_tokens, granted_s):
                    mark(key, "landed")
                    self._observe_handover(key.request_key, self._now() - granted_s)
                    self._listener.on_landed(key.request_key, first_tokens)
                case HandoverFailed(key, reason, detail):
                    self._listener.on_failed(key.request_key, reason, detail)

    async def _scatter(self, scatter: Scatter) -> None:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._executor, self._scatter_now, scatter)
        await asyncio.wait([future])
        error = future.exception()
        now = self._now()
        if error is None:
            self._act(self._handovers.scattered(scatter.key, scatter.units.first, future.result(), now))
        else:
            detail = f"{type(error).__name__}: {error}"
            self._act(self._handovers.scatter_failed(scatter.key, scatter.units.first, detail, now))

    def _scatter_now(self, scatter: Scatter) -> bytes:
        if scatter.one_sided and self._device is not None:
            return self._device.scatter(scatter.landing, scatter.units)
        sink = self._sinks[split_leg_key(scatter.key)[0]]
        return sink.scatter(self._region[scatter.landing.offset : scatter.landing.end], scatter.units)

    def _scatter_ended(self, task: asyncio.Task[None]) -> None:
        self._scatters.discard(task)
        if not task.cancelled():
            task.result()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._config.tick_s)
            self._act(self._handovers.tick(self._now()))
            self._stats = self._look()

    def _look(self) -> DecodeTransferStats:
        handovers = self._handovers.stats()
        return DecodeTransferStats(
            handovers=handovers,
            links=len(self._acceptor.links),
            lanes=sum(landing.lanes for landing in self._landings.values()),
            transports=dict(Counter(linked.transport for linked in self._acceptor.links.values())),
            bytes_received=sum(landing.bytes_received for landing in self._landings.values()) + handovers.sealed_bytes,
            refused_connections=self._acceptor.refused,
            altered_frames=self._acceptor.altered.count,
        )
