"""The decode worker's transfer: runs `DecodeHandovers` in the transfer thread's loop and carries out its actions.

The engine's thread calls `queued`, `expected`, `refused` and `cancelled`; the worker is told by a `DecodeListener`.
Owns the landing region's memory and the helper thread that scatters; what happens when is decided by the machine.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.peers import Acceptor, PrefillLink
from baton_kv_transfer.decode.records import DecodeAction, DecodeStats, HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import CutLink, DecodeListener, HandoverKey, KvSink, SendTo, TransferConfig
from baton_kv_transfer.handover_steps import mark
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.network import DataConnection, Network, Sockets
from baton_kv_transfer.transports.bandwidth import PROBE_BYTES
from baton_kv_transfer.transports.device import DeviceLanding
from baton_kv_transfer.transports.seam import PROBE_TRANSFER, LandingParts, Transport
from baton_kv_transfer.transports.table import offered
from baton_wire.errors import BadFieldsError
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.pair_link import PairHello, PairMessage, Seal
from baton_wire.messages.values import PairFingerprint, Reason, RequestKey, Role

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


def _ignore_duration(seconds: float) -> None:
    """Nobody measures."""


class DecodeTransfer:
    """Hand-overs from any number of prefill workers to this decode worker."""

    def __init__(  # noqa: PLR0913
        self,
        *,
        epoch: bytes,
        fingerprint: PairFingerprint,
        geometry: KvGeometry,
        keys: KeyDirectory,
        sink: KvSink,
        listener: DecodeListener,
        host: str,
        port: int = 0,
        landing_bytes: int,
        landing: memoryview | None = None,
        config: TransferConfig | None = None,
        tensor_parallel: int = 1,
        observe_handover_s: Callable[[float], None] = _ignore_duration,
        device: DeviceLanding | None = None,
        transports: Sequence[Transport] | None = None,
        network: Network | None = None,
        executor: Executor | None = None,
    ) -> None:
        """`landing`: memory to land in, at least `landing_bytes` (for example pinned); allocated here when None.

        `device`: where one-sided writes land instead, on a GPU; at least `landing_bytes` too.

        `transports` are what the configuration offers on this machine when None.

        `network` and `executor`, where KV is scattered, are the operating system's and a thread of its own when None.

        `observe_handover_s` is told the seconds from grant to verified of each landed hand-over, on the transfer
        thread.
        """
        self._config = config or TransferConfig()
        self._sink = sink
        self._listener = listener
        self._observe_handover_s = observe_handover_s
        self._where = (host, port)
        self._handovers = DecodeHandovers(geometry, landing_bytes, self._config)
        region = memoryview(mmap.mmap(-1, max(1, landing_bytes))) if landing is None else landing.cast("B")
        if len(region) < landing_bytes:
            raise ValueError(f"landing: {len(region)} bytes given, landing_bytes is {landing_bytes}")
        if device is not None and device.memory.length < landing_bytes:
            raise ValueError(f"device: {device.memory.length} bytes to land in, landing_bytes is {landing_bytes}")
        self._device = device
        self._region = region[: self._handovers.landing_bytes]
        rows = offered(self._config.transport) if transports is None else transports
        parts = LandingParts(epoch, self._region, device, self, self._writes_ended, self._config.handshake_s)
        self._landings = {row.name: row.land(parts) for row in rows}
        hello = PairHello(
            role=Role.DECODE,
            epoch=epoch,
            fingerprint=fingerprint,
            block_tokens=geometry.block_tokens,
            tensor_parallel=tensor_parallel,
            landing_bytes=self._handovers.landing_bytes,
            transports=tuple(self._landings),
            descriptor=b"",
        )
        self._acceptor = Acceptor(hello, keys, self._config, self, network or Sockets())
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="baton-scatter")
        self._owns_executor = executor is None
        self._scatters: set[asyncio.Task[None]] = set()
        self._port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._complaints = Complaints(log)
        self._stats = self._look()

    # Life ------------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, in the running loop, which is the transfer thread's.

        Raises OSError when the port is taken, TransferError when a transport does not come up.
        """
        self._loop = asyncio.get_running_loop()
        for landing in self._landings.values():
            await landing.start()
            if landing.descriptor:  # a hello has room for one
                self._acceptor.describe(landing.descriptor)
        self._port = await self._acceptor.start(*self._where)
        self._ticker = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End every hand-over (each `on_landed` or `on_failed` is told), then the links."""
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
        self._loop = None

    @property
    def port(self) -> int:
        """The port that was bound. Raises RuntimeError before `start`."""
        if self._port is None:
            raise RuntimeError("the decode transfer does not listen yet")
        return self._port

    # From any thread -------------------------------------------------------------------------------------------------

    def queued(self, key: RequestKey, prefill_epoch: bytes, position: int, deadline_s: float) -> None:
        """The engine has no blocks for this request yet."""
        handover = HandoverKey.of(key)
        self._post(
            lambda: self._act(self._handovers.queued(handover, prefill_epoch, position, deadline_s, self._now()))
        )

    def expected(
        self,
        key: RequestKey,
        prefill_epoch: bytes,
        total_tokens: int,
        cached_tokens: int,
        blocks: tuple[int, ...],
        choices: tuple[int, ...],
        deadline_s: float,
    ) -> None:
        """`blocks` are reserved for `total_tokens` tokens, the first `cached_tokens` (whole blocks) have their KV."""
        handover = HandoverKey.of(key)
        self._post(
            lambda: self._act(
                self._handovers.expected(
                    handover, prefill_epoch, total_tokens, cached_tokens, blocks, choices, deadline_s, self._now()
                )
            )
        )

    def refused(self, key: RequestKey, prefill_epoch: bytes, reason: Reason, detail: str = "") -> None:
        """The engine refused a request that was never `expected`."""
        handover = HandoverKey.of(key)
        self._post(lambda: self._act(self._handovers.refused(handover, prefill_epoch, reason, detail, self._now())))

    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None:
        """The request is no longer wanted, or the engine gave it up. Unknown ones are ignored."""
        handover = HandoverKey.of(key)
        self._post(lambda: self._act(self._handovers.cancelled(handover, reason, detail, self._now())))

    def stats(self) -> DecodeTransferStats:
        """As of the last tick."""
        return self._stats

    def _post(self, call: Callable[[], None]) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(call)

    # Links -----------------------------------------------------------------------------------------------------------

    def on_up(self, linked: PrefillLink) -> None:
        one_sided = self._landings[linked.transport].one_sided
        now = self._now()
        self._act(
            self._handovers.link_up(
                linked.epoch, linked.hello.block_tokens, now, one_sided=one_sided, link=linked.number
            )
        )

    def on_message(self, linked: PrefillLink, message: PairMessage) -> None:
        if isinstance(message, Seal):
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
                    self._observe_handover_s(self._now() - granted_s)
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
        return self._sink.scatter(self._region[scatter.landing.offset : scatter.landing.end], scatter.units)

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
            bytes_received=sum(each.bytes_received for each in self._landings.values()) + handovers.sealed_bytes,
            refused_connections=self._acceptor.refused,
            altered_frames=self._acceptor.altered.count,
        )
