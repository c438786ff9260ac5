"""The operator's end of the gateways' links: one authenticated WebSocket per gateway process, typed frames with a MAC.

The path names the deployment, whose key both sides must prove to hold. What gateways tell goes into the deployment's
`TelemetryStore`; while this process is a standby, gateways are sent to the one that holds the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from aiohttp import WSMsgType, web

from baton_control.names import Key
from baton_control.telemetry.store import TelemetryStore
from baton_wire.errors import AuthenticationError, BadFieldsError, BadMessageError
from baton_wire.handshake import HANDSHAKE_S, KeySource, LinkRole, Party, accept_handshake
from baton_wire.keys import KeySet, derived_key
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.bad_frames import BadFrames
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.measures import WorkerCondition
from baton_wire.messages.operator_link import (
    CLOSE_S,
    MAX_UP_BYTES,
    SILENCE,
    FlipOrder,
    GatewayHello,
    Heartbeat,
    ModelConfigFile,
    Standby,
    Summary,
    ToOperator,
    Wake,
)
from baton_wire.messages.values import Address
from baton_wire.session import MAX_SIGNED_BYTES, AlteredFrames, SignedFrames
from baton_wire.silence import bounded_silence

log = logging.getLogger(__name__)

PATH = "/gateways/{namespace}/{name}"
HEARTBEAT_S = 1.0
MAX_LINKS = 1_024
"""Gateway processes of one deployment; more are refused."""


class DerivedKeys:
    """The link keys of the deployment with that uid, from the master keys as they are now."""

    def __init__(self, masters: Callable[[], Mapping[str, bytes]], uid: str) -> None:
        self._masters, self._uid = masters, uid

    def current(self) -> KeySet:
        masters = self._masters()
        return KeySet({name: bytes.fromhex(derived_key(master, self._uid)) for name, master in masters.items()})


def address(text: str | None) -> Address | None:
    """`host:port` as a message carries it; None where it is not one."""
    host, _, port = (text or "").rpartition(":")
    return Address(host.strip("[]"), int(port)) if host and port.isdigit() else None


class TelemetryServer:
    """Takes the links. `keys`: the link keys of a deployment, None when there is no such deployment. `standby`: whether
    this process does not size pools, and who does (None: not known). `on_wake`: requests wait for workers, or other
    workers are routable than before.
    """

    def __init__(
        self,
        epoch: bytes,
        keys: Callable[[Key], KeySource | None],
        clock: Callable[[], float],
        on_wake: Callable[[Key], None] = lambda key: None,
        standby: Callable[[], tuple[bool, Address | None]] = lambda: (False, None),
    ) -> None:
        self._party = Party(LinkRole.OPERATOR, epoch)
        self._keys, self._clock, self._on_wake, self._standby = keys, clock, on_wake, standby
        self.altered = AlteredFrames()
        """Frames of gateways that did not arrive as they were sent."""
        self._complaints = Complaints(log)
        self._stores: dict[Key, TelemetryStore] = {}
        self._links: dict[Key, int] = {}
        self._orders: dict[Key, tuple[FlipOrder, ...]] = {}
        self._ordered: dict[Key, asyncio.Event] = {}
        """Set and replaced when the orders change."""

    def store(self, key: Key) -> TelemetryStore:
        """What the deployment's gateways told; empty while none did."""
        return self._stores.setdefault(key, TelemetryStore())

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        """What the deployment's gateways are told at once, and with every heartbeat until it is something else."""
        if flips != self._orders.get(key, ()):
            self._orders[key] = flips
            self._ordered.pop(key, asyncio.Event()).set()

    def forget(self, key: Key) -> None:
        """The deployment is gone."""
        self._stores.pop(key, None)
        self._orders.pop(key, None)
        self._ordered.pop(key, None)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=0)
        app.router.add_get(PATH, self.accept, allow_head=False)
        return app

    async def accept(self, request: web.Request) -> web.StreamResponse:
        """aiohttp handler: handshake, hello, then frames until the link ends."""
        key = Key(request.match_info["namespace"], request.match_info["name"])
        keys = self._keys(key)
        if keys is None or self._links.get(key, 0) >= MAX_LINKS:
            return web.Response(status=404 if keys is None else 503)
        socket = web.WebSocketResponse(timeout=CLOSE_S, max_msg_size=MAX_SIGNED_BYTES, compress=False)
        try:
            await socket.prepare(request)
        except ValueError as error:  # of a key header that is no base64
            raise web.HTTPBadRequest(text="not a WebSocket handshake") from error
        self._links[key] = self._links.get(key, 0) + 1
        try:
            await self._serve(key, keys, socket)
        except (AuthenticationError, BadMessageError, ConnectionError, TimeoutError) as error:
            log.warning("link of a gateway of %s: %s", key, str(error) or "it was silent for too long")
        finally:
            self._links[key] -= 1
            await socket.close()
        return socket

    async def _serve(self, key: Key, keys: KeySource, socket: web.WebSocketResponse) -> None:
        peer, session = await accept_handshake(
            socket.send_bytes,
            lambda _: _frame(socket),
            keys,
            self._party,
            accept_roles=(LinkRole.GATEWAY,),
            altered=self.altered,
        )
        frames = SignedFrames(socket.send_bytes, lambda: _frame(socket), session, MAX_UP_BYTES)
        is_standby, holder = self._standby()
        if is_standby:
            await frames.send(encode(Standby(holder)))
            return
        async with asyncio.timeout(HANDSHAKE_S):
            hello = decode(await frames.receive(), ToOperator)
        if not isinstance(hello, GatewayHello):
            raise BadMessageError(f"{type(hello).__name__} before GatewayHello")
        store = self.store(key)
        store.linked(peer.epoch, hello, self._clock())
        log.info("gateway %s of %s is linked", hello.gateway, key)
        beating = asyncio.create_task(self._beat(key, frames))
        try:
            await self._read(key, store, peer.epoch, frames)
        finally:
            store.gone(peer.epoch, self._clock())
            self._on_wake(key)  # what was routable a moment ago is unknown now
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _read(self, key: Key, store: TelemetryStore, epoch: bytes, frames: SignedFrames) -> None:
        linked: frozenset[tuple[bytes, WorkerCondition, bool, int]] | None = None
        async with bounded_silence(SILENCE) as liveness:
            now, bad = asyncio.get_running_loop().time, BadFrames()
            while True:
                frame = await frames.receive(lambda: liveness.heard(now()))
                liveness.heard(now())
                try:
                    message = decode(frame, ToOperator)
                except BadFieldsError as refusal:  # the numbers of summaries tell that one is missing
                    bad.met(refusal, now())
                    self._complaints.say("a gateway's message is not taken", f"{key}: {refusal}")
                    continue
                match message:
                    case Summary():
                        store.told(epoch, message, self._clock())
                        before, linked = (
                            linked,
                            frozenset(
                                (each.epoch, each.condition, each.has_partner, each.flip) for each in message.workers
                            ),
                        )
                        if message.backlog.parked or linked != before:  # a rollout waits for what is routable now
                            self._on_wake(key)
                    case Wake(parked):
                        store.woken(parked)
                        self._on_wake(key)
                    case ModelConfigFile(content):
                        store.model_config = content

    async def _beat(self, key: Key, frames: SignedFrames) -> None:
        """Heartbeats, with what is ordered; a process that became a standby says so."""
        while True:
            changed = self._ordered.setdefault(key, asyncio.Event())
            is_standby, holder = self._standby()
            for order in () if is_standby else self._orders.get(key, ()):
                await frames.send(encode(order))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
                continue
            await frames.send(encode(Standby(holder) if is_standby else Heartbeat()))


async def _frame(socket: web.WebSocketResponse) -> bytes:
    message = await socket.receive()
    if message.type is WSMsgType.BINARY:
        data: bytes = message.data
        return data
    raise ConnectionResetError("the gateway closed the link")
