"""The gateway's end of its link to the process that sizes the pools: dial, prove the key, report, redial.

No request waits for it: without a link requests go on and counts accumulate.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from baton_gateway.link_session import link_session
from baton_wire.errors import AuthenticationError, BadFieldsError, TransferError
from baton_wire.handshake import HANDSHAKE_S, LinkRole, Party, dial_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.flood import Flood
from baton_wire.messages.operator_link import (
    CLOSE_S,
    MAX_DOWN_BYTES,
    MAX_UP_BYTES,
    SILENCE,
    FlipOrder,
    GatewayHello,
    Heartbeat,
    HistoryDocument,
    LimitOrder,
    LimitReport,
    LimitUse,
    ModelConfigFile,
    MonthReport,
    MonthTotals,
    Standby,
    Summary,
    TenantConflict,
    TenantConflicts,
    TenantTable,
    ToGateway,
    Wake,
)
from baton_wire.messages.values import Message
from baton_wire.session import FRAME_MAC_BYTES, AlteredFrames, SignedFrames
from baton_wire.silence import bounded_silence

_log = logging.getLogger("baton.gateway.operator")

SUMMARY_S = 5.0


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Seconds."""

    summary_s: float = SUMMARY_S
    soonest_s: float = 0.5
    """The least time between two summaries, so that the workers of a pool that starts are reported together."""
    heartbeat_s: float = 1.0
    """A heartbeat goes out after this long without another message."""
    setup_s: float = HANDSHAKE_S
    """From dialling to the proof; also for sending one frame."""
    first_retry_s: float = 0.5
    last_retry_s: float = 15.0
    wake_s: float = 1.0
    """The time between two wakes while requests wait and no worker appears."""


@dataclass(frozen=True, slots=True)
class OperatorSources:
    """The sources of the link's messages, and the receiver of its orders."""

    summary: Callable[[], Summary]
    parked: Callable[[], int]
    """Requests that wait for a first pair of workers."""
    model_config: Callable[[], bytes | None]
    """None: no worker is linked."""
    flip: Callable[[FlipOrder], None] = lambda order: None
    """Called with an order for a worker."""
    take_shard: Callable[[bytes], None] = lambda content: None
    """Called with a shard of the table of tenants."""
    limit_uses: Callable[[], tuple[LimitUse, ...]] = tuple
    """Use of tenants' limits since the last call."""
    take_shares: Callable[[LimitOrder], None] = lambda order: None
    """Called with this process's parts of limits."""
    take_history: Callable[[bytes], None] = lambda content: None
    """Called with the deployment's history."""
    link_changed: Callable[[bool], None] = lambda is_linked: None
    """Called when a link begins (True) and when it has ended."""
    month_report: Callable[[], MonthReport | None] = lambda: None
    """Use of tenants' tokens of the month; None: there is nothing to report."""
    take_totals: Callable[[MonthTotals], None] = lambda totals: None
    """Called with what all processes used this month."""
    conflicts: Callable[[], tuple[TenantConflict, ...]] = tuple
    """The LLMTenants that this process does not let in."""


class OperatorLink:
    """One gateway process's link. `url`: http://HOST:PORT/PATH."""

    def __init__(
        self,
        url: str,
        keys: KeyDirectory,
        epoch: bytes,
        hello: GatewayHello,
        sources: OperatorSources,
        altered: AlteredFrames,
        times: OperatorTimes = OperatorTimes(),
    ) -> None:
        self._altered = altered
        self._complaints = Complaints(_log)
        self._url, self._keys, self._hello, self._sources, self._times = url, keys, hello, sources, times
        self._party = Party(LinkRole.GATEWAY, epoch)
        self._waking = asyncio.Event()
        self._is_due_now = False
        self._holder: str | None = None
        self._sent_config: bytes | None = None
        self._sent_conflicts: tuple[TenantConflict, ...] = ()
        self._unsent: MonthReport | None = None
        """A report whose sending was interrupted; a repeated one is ignored."""
        self._order = 0
        """The last LimitOrder of the present link that was carried out."""
        self.is_linked = False

    def wake(self) -> None:
        """Report at once, or as soon as there is a link, that requests wait and no worker serves them."""
        self._waking.set()

    def report_now(self) -> None:
        """Send the next summary at once, because the usable workers or their roles have changed."""
        self._is_due_now = True
        self._waking.set()

    async def run(self) -> None:
        """Keep the link until cancelled."""
        delay_s = self._times.first_retry_s
        async with link_session() as session:
            while True:
                url, self._holder = self._holder or self._url, None
                try:
                    await self._link_once(session, url)
                except (aiohttp.ClientError, TransferError, OSError, TimeoutError) as error:
                    _log.info("link to %s: %s", url, str(error) or type(error).__name__)
                delay_s = self._times.first_retry_s if self.is_linked else min(self._times.last_retry_s, delay_s * 2)
                self.is_linked = False
                if self._holder is None:
                    await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))

    async def _link_once(self, session: aiohttp.ClientSession, url: str) -> None:
        async with asyncio.timeout(self._times.setup_s) as setup:
            closing = aiohttp.ClientWSTimeout(ws_close=CLOSE_S)
            most = MAX_DOWN_BYTES + FRAME_MAC_BYTES
            async with session.ws_connect(url, timeout=closing, max_msg_size=most, compress=0) as socket:
                _, proven = await dial_handshake(
                    socket.send_bytes,
                    lambda length: _exactly(socket, length),
                    self._keys,
                    self._party,
                    accept_roles=(LinkRole.OPERATOR,),
                    altered=self._altered,
                )
                setup.reschedule(None)
                frames = SignedFrames(socket.send_bytes, lambda: _frame(socket), proven, MAX_DOWN_BYTES)
                await self._send(frames, self._hello)
                self.is_linked, self._sent_config, self._sent_conflicts, self._order = True, None, (), 0
                self._unsent = None
                self._sources.link_changed(True)
                _log.info("linked to %s", url)
                reporting = asyncio.create_task(self._report(frames))
                try:
                    await self._listen(frames, reporting)
                finally:
                    self._sources.link_changed(False)
                    reporting.cancel()
                    await asyncio.gather(reporting, return_exceptions=True)

    async def _listen(self, frames: SignedFrames, reporting: asyncio.Task[None]) -> None:
        async with bounded_silence(SILENCE) as liveness:
            now, bad = asyncio.get_running_loop().time, Flood()
            while not reporting.done():
                frame = await frames.receive()
                liveness.heard(now())
                try:
                    message = decode(frame, ToGateway)
                except BadFieldsError as refusal:
                    bad.met(now(), str(refusal))
                    self._complaints.say("a message of the operator is refused", str(refusal))
                    continue
                match message:
                    case Standby():
                        self._take_standby(message)
                        return
                    case FlipOrder():
                        self._sources.flip(message)
                    case TenantTable(content):
                        self._sources.take_shard(content)
                    case HistoryDocument(content):
                        self._sources.take_history(content)
                    case MonthTotals():
                        self._sources.take_totals(message)
                    case LimitOrder(number):
                        self._sources.take_shares(message)
                        self._order = number
        reporting.result()

    def _take_standby(self, message: Standby) -> None:
        _log.info("the peer does not size pools now; %s does", message.holder or "an unknown process")
        if message.holder is not None:
            scheme, _, rest = self._url.partition("://")
            self._holder = f"{scheme}://{message.holder}/{rest.partition('/')[2]}"
        else:
            self.is_linked = False  # back off longer each time

    async def _report(self, frames: SignedFrames) -> None:
        """Send a summary at once and then regularly, and wakes in between."""
        loop = asyncio.get_running_loop()
        while True:
            await self._send_config(frames)
            self._is_due_now = False
            sent_s = loop.time()
            await self._send(frames, self._sources.summary())
            await self._send_tenants(frames)
            try:
                async with asyncio.timeout(self._times.summary_s):
                    await self._send_wakes(frames)
            except TimeoutError:
                continue
            await asyncio.sleep(max(0.0, sent_s + self._times.soonest_s - loop.time()))

    async def _send_wakes(self, frames: SignedFrames) -> None:
        """Send wakes and heartbeats until a summary is due early."""
        while not self._is_due_now:
            try:
                async with asyncio.timeout(self._times.heartbeat_s):
                    await self._waking.wait()
            except TimeoutError:
                uses = self._sources.limit_uses()
                await self._send(frames, LimitReport(self._order, uses) if uses else Heartbeat())
                await self._send_tenants(frames)
                continue
            self._waking.clear()
            if self._is_due_now:
                return
            if parked := self._sources.parked():
                await self._send(frames, Wake(parked))
                await asyncio.sleep(self._times.wake_s)

    async def _send_tenants(self, frames: SignedFrames) -> None:
        """Send the use of tokens of the month, and conflicts of tenants where they changed."""
        if self._unsent is None:
            self._unsent = self._sources.month_report()
        if self._unsent is not None:
            await self._send(frames, self._unsent)
            self._unsent = None
        conflicts = self._sources.conflicts()
        if conflicts != self._sent_conflicts:
            await self._send(frames, TenantConflicts(conflicts))
            self._sent_conflicts = conflicts

    async def _send_config(self, frames: SignedFrames) -> None:
        config = self._sources.model_config()
        if config is not None and config != self._sent_config:
            await self._send(frames, ModelConfigFile(config))
            self._sent_config = config

    async def _send(self, frames: SignedFrames, message: Message | Heartbeat) -> None:
        """Send a message unless the peer would refuse it. The peer notices a missing summary by the numbers."""
        try:
            frame = encode(message)
            if len(frame) > MAX_UP_BYTES:
                raise BadFieldsError(f"{len(frame)} bytes exceed {MAX_UP_BYTES}", type(message).__name__)
        except BadFieldsError as refusal:
            self._complaints.say("a message to the operator is not sent", str(refusal))
            return
        async with asyncio.timeout(self._times.setup_s):
            await frames.send(frame)


async def _exactly(socket: aiohttp.ClientWebSocketResponse, length: int) -> bytes:
    frame = await _frame(socket)
    if len(frame) != length:
        raise AuthenticationError(f"handshake: a frame of {len(frame)} bytes, expected {length}")
    return frame


async def _frame(socket: aiohttp.ClientWebSocketResponse) -> bytes:
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise ConnectionResetError(f"the link ended ({message.type.name})")
    data: bytes = message.data
    return data
