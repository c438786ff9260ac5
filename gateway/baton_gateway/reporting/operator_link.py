"""The gateway's end of its link to whoever sizes the pools: dial, prove the key, tell, dial again.

Nothing that serves a request waits for it: without a link requests go on and counts gather.
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
    ModelConfigFile,
    Standby,
    Summary,
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
    """Between two summaries, also where workers change in between: a pool that starts is told of together."""
    heartbeat_s: float = 1.0
    """Goes out after so long without another message."""
    setup_s: float = HANDSHAKE_S
    """From dialling to the proof; also for sending one frame."""
    first_retry_s: float = 0.5
    last_retry_s: float = 15.0
    wake_s: float = 1.0
    """Between two wakes while requests wait and nobody comes."""


@dataclass(frozen=True, slots=True)
class OperatorSources:
    """Where the link gets what it tells."""

    summary: Callable[[], Summary]
    parked: Callable[[], int]
    """Requests that wait for a first pair of workers."""
    model_config: Callable[[], bytes | None]
    """None: no worker is linked."""
    flip: Callable[[FlipOrder], None] = lambda order: None
    """Where an order for a worker goes."""


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
        self._is_told_now = False
        self._holder: str | None = None
        self._told_config: bytes | None = None
        self.is_linked = False

    def wake(self) -> None:
        """Requests wait and there is no worker: say so at once, or as soon as there is a link."""
        self._waking.set()

    def tell_now(self) -> None:
        """Which workers can be used has changed, or as what: the next summary goes out at once."""
        self._is_told_now = True
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
                self.is_linked, self._told_config = True, None
                _log.info("linked to %s", url)
                telling = asyncio.create_task(self._tell(frames))
                try:
                    await self._listen(frames, telling)
                finally:
                    telling.cancel()
                    await asyncio.gather(telling, return_exceptions=True)

    async def _listen(self, frames: SignedFrames, telling: asyncio.Task[None]) -> None:
        async with bounded_silence(SILENCE) as liveness:
            now, bad = asyncio.get_running_loop().time, Flood()
            while not telling.done():
                frame = await frames.receive()
                liveness.heard(now())
                try:
                    message = decode(frame, ToGateway)
                except BadFieldsError as refusal:
                    bad.met(now(), str(refusal))
                    self._complaints.say("a message of the operator is not taken", str(refusal))
                    continue
                match message:
                    case Standby():
                        self._standby(message)
                        return
                    case FlipOrder():
                        self._sources.flip(message)
        telling.result()

    def _standby(self, message: Standby) -> None:
        _log.info("that end does not size pools now; %s does", message.holder or "nobody known")
        if message.holder is not None:
            scheme, _, rest = self._url.partition("://")
            self._holder = f"{scheme}://{message.holder}/{rest.partition('/')[2]}"
        else:
            self.is_linked = False  # back off longer each time

    async def _tell(self, frames: SignedFrames) -> None:
        """A summary at once and then regularly; a wake whenever one is asked for."""
        loop = asyncio.get_running_loop()
        while True:
            await self._tell_config(frames)
            self._is_told_now = False
            told_s = loop.time()
            await self._send(frames, self._sources.summary())
            try:
                async with asyncio.timeout(self._times.summary_s):
                    await self._tell_wakes(frames)
            except TimeoutError:
                continue
            await asyncio.sleep(max(0.0, told_s + self._times.soonest_s - loop.time()))

    async def _tell_wakes(self, frames: SignedFrames) -> None:
        """Until a summary is due before its time."""
        while not self._is_told_now:
            try:
                async with asyncio.timeout(self._times.heartbeat_s):
                    await self._waking.wait()
            except TimeoutError:
                await self._send(frames, Heartbeat())
                continue
            self._waking.clear()
            if self._is_told_now:
                return
            if parked := self._sources.parked():
                await self._send(frames, Wake(parked))
                await asyncio.sleep(self._times.wake_s)

    async def _tell_config(self, frames: SignedFrames) -> None:
        config = self._sources.model_config()
        if config is not None and config != self._told_config:
            await self._send(frames, ModelConfigFile(config))
            self._told_config = config

    async def _send(self, frames: SignedFrames, message: Message | Heartbeat) -> None:
        """What the other end would refuse is left out; of a summary that is missing it knows by the numbers."""
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
