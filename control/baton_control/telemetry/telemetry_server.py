"""The operator's end of the gateways' links: one authenticated WebSocket per gateway process, typed frames with a MAC.

The path names the deployment, whose key both sides must prove to hold. Summaries go into the deployment's
`TelemetryStore`; while this process is a standby, gateways are sent to the holder of the Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping

from aiohttp import WSMsgType, web

from baton_control.names import Key
from baton_control.telemetry.limit_shares import LimitShares
from baton_control.telemetry.store import TelemetryStore
from baton_control.telemetry.tenant_links import TenantLink, TenantLinks
from baton_wire.deployment_history import DeploymentHistory, encode_history
from baton_wire.errors import AuthenticationError, BadFieldsError, BadMessageError, VersionError
from baton_wire.handshake import HANDSHAKE_S, KeySource, LinkRole, Party, accept_handshake
from baton_wire.keys import KeySet, derived_key
from baton_wire.listening.bounded_server import BoundedServer, Handle
from baton_wire.listening.complaints import Complaints
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.descriptors import connection_cap
from baton_wire.listening.handshake_pool import HandshakePool
from baton_wire.listening.source_address import source_of
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.flood import Flood
from baton_wire.messages.measures import WorkerCondition
from baton_wire.messages.operator_link import (
    CLOSE_S,
    MAX_LIMITS,
    MAX_UP_BYTES,
    SILENCE,
    FlipOrder,
    GatewayHello,
    Heartbeat,
    HistoryDocument,
    LimitOrder,
    LimitReport,
    LimitShare,
    ModelConfigFile,
    MonthReport,
    Standby,
    Summary,
    TenantConflicts,
    ToOperator,
    Wake,
)
from baton_wire.messages.values import Address
from baton_wire.reset import reset
from baton_wire.session import MAX_SIGNED_BYTES, AlteredFrames, SignedFrames
from baton_wire.silence import bounded_silence
from baton_wire.tenant_table import TenantShard

log = logging.getLogger(__name__)

PATH = "/gateways/{namespace}/{name}"
_PATH = re.compile("/gateways/(?P<namespace>[^/]+)/(?P<name>[^/]+)")
HEARTBEAT_S = 1.0
SEND_S = HANDSHAKE_S
"""Deadline for sending one frame. A gateway that reports and does not read in this time loses its link."""
DIVIDE_S = 0.9
"""Least time between two divisions of a deployment's limits; processes report once a second."""
MAX_HOST_CHARS = 253
MAX_LINKS = 1_024
"""Gateway processes of one deployment that have proven its key; more are refused."""
MAX_CONNECTIONS = 16_384
"""Connections of all deployments together; at most half of them from one address."""
SHUTDOWN_S = 0.5


class DerivedKeys:
    """The link keys of the deployment with a uid, derived from the current master keys."""

    def __init__(self, masters: Callable[[], Mapping[str, bytes]], uid: str) -> None:
        self._masters, self._uid = masters, uid

    def current(self) -> KeySet:
        masters = self._masters()
        return KeySet({name: bytes.fromhex(derived_key(master, self._uid)) for name, master in masters.items()})


def address(text: str | None) -> Address | None:
    """`host:port` as an Address; None: the text is none.

    >>> address("10.0.0.1:8080")
    Address(host='10.0.0.1', port=8080)
    """
    host, _, port = (text or "").rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535
    return Address(host.strip("[]"), int(port)) if 0 < len(host) <= MAX_HOST_CHARS and is_port else None


class TelemetryServer:
    """The server for the gateways' links. `keys`: the link keys of a deployment, None: there is no such deployment.
    `standby`: True while this process does not size pools, and the address of the one that does (None: unknown).
    `on_wake` is called when requests wait for workers, and when the routable workers change.
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
        self._stores: dict[Key, TelemetryStore] = {}
        self._limits = ConnectionLimits(connection_cap(MAX_CONNECTIONS), connection_cap(MAX_CONNECTIONS) // 2)
        self._handshakes: HandshakePool[asyncio.BaseTransport] = HandshakePool()
        self._complaints = Complaints(log, level=logging.WARNING)
        self._links: dict[Key, dict[bytes, asyncio.BaseTransport]] = {}
        """The current link of each gateway process that has proven its key, by its epoch."""
        self._orders: dict[Key, tuple[FlipOrder, ...]] = {}
        self._ordered: dict[Key, asyncio.Event] = {}
        """Set and replaced when the orders change."""
        self.tenants = TenantLinks()
        self._histories: dict[Key, DeploymentHistory] = {}
        self._shares: dict[Key, LimitShares] = {}
        self._divided_s: dict[Key, float] = {}
        self._limit_orders: dict[Key, dict[bytes, list[LimitShare]]] = {}
        """Orders that are still to be sent, by process."""

    def store(self, key: Key) -> TelemetryStore:
        """The telemetry of a deployment; empty until a gateway reports."""
        return self._stores.setdefault(key, TelemetryStore())

    def limit_shares(self) -> Mapping[Key, LimitShares]:
        """The divided limits of each deployment whose gateways have linked."""
        return self._shares

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        """Send flip orders to the deployment's gateways, now and with every heartbeat until the next call."""
        if flips != self._orders.get(key, ()):
            self._orders[key] = flips
            self._ordered.pop(key, asyncio.Event()).set()

    def set_tenants(self, namespace: str, shards: Mapping[int, TenantShard]) -> None:
        """Send the shards that are new to all gateways of a namespace, now and when one links."""
        if not self.tenants.set_table(namespace, shards):
            return
        for key in [key for key in self._links if key.namespace == namespace]:
            self._ordered.pop(key, asyncio.Event()).set()

    def set_history(self, key: Key, history: DeploymentHistory) -> None:
        """Send a deployment's history to all of its gateways, now and when one links."""
        if self._histories.get(key) != history:
            self._histories[key] = history

    def forget(self, key: Key) -> None:
        """Forget a deployment that is gone."""
        self._stores.pop(key, None)
        self._orders.pop(key, None)
        self._histories.pop(key, None)
        self._ordered.pop(key, None)
        self._shares.pop(key, None)
        self._divided_s.pop(key, None)
        self._limit_orders.pop(key, None)
        self.tenants.forget(key)

    @contextlib.asynccontextmanager
    async def serving(self, listening: socket.socket, pages: Mapping[str, Handle] | None = None) -> AsyncIterator[None]:
        """Accept links on a listening socket while the context lasts. `pages`: handlers of other paths."""

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await (pages or {}).get(request.path, self.accept)(request)

        server = BoundedServer(handle, self._limits, log)
        server.begin(listening)
        try:
            yield
        finally:
            await server.end(SHUTDOWN_S)

    async def accept(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle a link: handshake, hello, then frames until it ends."""
        match = _PATH.fullmatch(request.path)
        key = None if match is None else Key(match["namespace"], match["name"])
        keys = None if key is None else self._keys(key)
        if key is None or keys is None:
            return web.Response(status=404)
        if request.method != "GET":
            return web.Response(status=405, headers={"Allow": "GET"})
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left")
        evicted = self._handshakes.enter(source_of(request.remote or ""), transport)
        if evicted is not None:
            reset(evicted)  # its handler sees a closed connection
        websocket = web.WebSocketResponse(timeout=CLOSE_S, max_msg_size=MAX_SIGNED_BYTES, compress=False)
        try:
            try:
                await websocket.prepare(request)
            except ValueError as error:  # the key header is no base64
                raise web.HTTPBadRequest(text="not a WebSocket handshake") from error
            try:
                await self._shake_hands(key, keys, transport, websocket)
            finally:
                await websocket.close()
        finally:
            self._handshakes.leave(transport)  # an unauthenticated connection counts until it is closed
        return websocket

    async def _shake_hands(
        self, key: Key, keys: KeySource, transport: asyncio.BaseTransport, websocket: web.WebSocketResponse
    ) -> None:
        try:
            peer, session = await accept_handshake(
                websocket.send_bytes,
                lambda _: _frame(websocket),
                keys,
                self._party,
                accept_roles=(LinkRole.GATEWAY,),
                altered=self.altered,
            )
        except (AuthenticationError, BadMessageError, ConnectionError) as error:
            self._complaints.say("a link of a gateway was refused", f"{key}: {error}")
            if isinstance(error, VersionError):  # it has proven its key
                self._refuse_version(key, str(error))
            return
        self._handshakes.leave(transport)
        try:
            frames = SignedFrames(websocket.send_bytes, lambda: _frame(websocket), session, MAX_UP_BYTES)
            await self._serve(key, peer.epoch, frames, transport)
        except (AuthenticationError, BadMessageError, ConnectionError, TimeoutError) as error:
            log.warning("link of a gateway of %s: %s", key, str(error) or "it was silent for too long")

    def _refuse_version(self, key: Key, versions: str) -> None:
        store, now = self.store(key), self._clock()
        is_new = store.other_version(now) is None
        store.refused_version(versions, now)
        if is_new:
            self._on_wake(key)

    async def _serve(self, key: Key, epoch: bytes, frames: SignedFrames, transport: asyncio.BaseTransport) -> None:
        is_standby, holder = self._standby()
        if is_standby:
            await _send(frames, encode(Standby(holder)))
            return
        async with asyncio.timeout(HANDSHAKE_S):
            hello = decode(await frames.receive(), ToOperator)
        if not isinstance(hello, GatewayHello):
            raise BadMessageError(f"{type(hello).__name__} before GatewayHello")
        self._take(key, epoch, transport)
        store = self.store(key)
        store.linked(epoch, hello, self._clock())
        log.info("gateway %s of %s is linked", hello.gateway, key)
        self._shares.setdefault(key, LimitShares()).join(epoch)
        self._ordered.pop(key, asyncio.Event()).set()  # each process has a smaller part now
        tenant_link = self.tenants.join(key, epoch)
        beating = asyncio.create_task(self._beat(key, tenant_link, frames))
        beating.add_done_callback(lambda task: None if task.cancelled() else reset(transport))
        try:
            await self._read(key, store, tenant_link, frames)
        finally:
            log.info("a link of gateway %s of %s has ended", hello.gateway, key)
            if self._leave(key, epoch, transport):
                store.gone(epoch, self._clock())
                if (shares := self._shares.get(key)) is not None:
                    shares.leave(epoch)
                self._limit_orders.get(key, {}).pop(epoch, None)
                self.tenants.leave(key, tenant_link)
                self._on_wake(key)  # the routable workers are unknown now
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    def _take(self, key: Key, epoch: bytes, transport: asyncio.BaseTransport) -> None:
        """Count a link. An earlier link of the same process is reset: it has broken on the other side.

        Raises ConnectionError when there are too many links.
        """
        links = self._links.setdefault(key, {})
        if epoch not in links and len(links) >= MAX_LINKS:
            raise ConnectionRefusedError(f"there are {MAX_LINKS} already")
        former = links.pop(epoch, None)
        links[epoch] = transport
        if former is not None:
            reset(former)

    def _leave(self, key: Key, epoch: bytes, transport: asyncio.BaseTransport) -> bool:
        """Stop counting a link; True: it was the current one of its process."""
        links = self._links.get(key, {})
        if links.get(epoch) is not transport:
            return False
        del links[epoch]
        if not links:
            del self._links[key]
            self._ordered.pop(key, None)
        return True

    async def _read(self, key: Key, store: TelemetryStore, link: TenantLink, frames: SignedFrames) -> None:
        epoch = link.epoch
        linked: frozenset[tuple[bytes, WorkerCondition, bool, int]] | None = None
        async with bounded_silence(SILENCE) as liveness:
            now, bad = asyncio.get_running_loop().time, Flood()
            while True:
                frame = await frames.receive(lambda: liveness.heard(now()))
                liveness.heard(now())
                try:
                    message = decode(frame, ToOperator)
                except BadFieldsError as refusal:  # the numbers of later summaries show that one is missing
                    bad.met(now(), str(refusal))
                    self._complaints.say("a gateway's message was refused", f"{key}: {refusal}")
                    continue
                match message:
                    case Summary():
                        store.add_summary(epoch, message, self._clock())
                        before = linked
                        linked = frozenset((w.epoch, w.condition, w.has_partner, w.flip) for w in message.workers)
                        if message.backlog.parked or linked != before:  # a rollout may wait for routable workers
                            self._on_wake(key)
                    case Wake(parked):
                        store.woken(parked)
                        self._on_wake(key)
                    case ModelConfigFile(content):
                        store.model_config = content
                    case LimitReport():
                        self._divide_limits(key, epoch, message)
                    case MonthReport() | TenantConflicts():
                        self.tenants.take(key, link, message)

    def _divide_limits(self, key: Key, epoch: bytes, report: LimitReport) -> None:
        """Take a report, and divide the deployment's limits anew once a second."""
        shares, now = self._shares.get(key), self._clock()
        if shares is None:
            return
        shares.report(epoch, report.uses, report.order, now)
        if now - self._divided_s.get(key, -DIVIDE_S) < DIVIDE_S:
            return
        self._divided_s[key] = now
        if orders := shares.divide(now):
            waiting = self._limit_orders.setdefault(key, {})
            for process, changes in orders.items():
                waiting.setdefault(process, []).extend(changes)
            self._ordered.pop(key, asyncio.Event()).set()

    async def _send_limits(self, key: Key, epoch: bytes, frames: SignedFrames, known: int) -> int:
        """Send the changes of a process's parts, and the number of processes unless the process knows it (`known`);
        returns the number that was sent last."""
        shares = self._shares.get(key)
        changes = self._limit_orders.get(key, {}).pop(epoch, [])
        if shares is None or (not changes and shares.num_processes == known):
            return known
        number, processes = shares.number(epoch), shares.num_processes
        while len(changes) > MAX_LIMITS:
            await _send(frames, encode(LimitOrder(max(0, number - 1), processes, tuple(changes[:MAX_LIMITS]))))
            changes = changes[MAX_LIMITS:]
        await _send(frames, encode(LimitOrder(number, processes, tuple(changes))))
        return processes

    async def _beat(self, key: Key, link: TenantLink, frames: SignedFrames) -> None:
        """Send heartbeats with the current orders, or the holder of the Lease while this process is a standby."""
        num_sent = 0
        sent_history: DeploymentHistory | None = None
        while True:
            changed = self._ordered.setdefault(key, asyncio.Event())
            is_standby, holder = self._standby()
            for message in self.tenants.messages(key, link):
                await _send(frames, encode(message))
            num_sent = await self._send_limits(key, link.epoch, frames, num_sent)
            sent_history = await self._send_history(key, frames, sent_history)
            for order in () if is_standby else self._orders.get(key, ()):
                await self._order(key, frames, order)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await changed.wait()
                continue
            await _send(frames, encode(Standby(holder) if is_standby else Heartbeat()))

    async def _send_history(
        self, key: Key, frames: SignedFrames, sent: DeploymentHistory | None
    ) -> DeploymentHistory | None:
        """Send the history unless this link has it (`sent`); returns the one that was sent last."""
        history = self._histories.get(key)
        if history is None or history is sent:
            return sent
        await _send(frames, encode(HistoryDocument(encode_history(history))))
        return history

    async def _order(self, key: Key, frames: SignedFrames, order: FlipOrder) -> None:
        try:
            frame = encode(order)
        except BadFieldsError as refusal:  # a worker reported a flip number that has no successor
            self._complaints.say("a flip order cannot be sent", f"{key}: {refusal}")
            return
        await _send(frames, frame)


async def _send(frames: SignedFrames, frame: bytes) -> None:
    """Send a frame. Raises ConnectionError, TimeoutError."""
    async with asyncio.timeout(SEND_S):
        await frames.send(frame)


async def _frame(websocket: web.WebSocketResponse) -> bytes:
    message = await websocket.receive()
    if message.type is WSMsgType.BINARY:
        data: bytes = message.data
        return data
    raise ConnectionResetError("the gateway closed the link")
