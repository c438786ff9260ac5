"""The worker's ends of its gateway links: one authenticated WebSocket per gateway, typed frames with a MAC both ways.

Owns connections, their bounded send queues and their liveness. The service (`Service`) acts on messages: it gets them
typed, and is notified when a link is lost, after which it must hold nothing for that gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from baton_wire.errors import AlteredFrameError, AuthenticationError, BadFieldsError, BadMessageError, LinkLostError
from baton_wire.handshake import LinkIdentity, LinkRole, Party, accept_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.listening.complaints import Complaints
from baton_wire.listening.handshake_pool import HandshakePool
from baton_wire.listening.source_address import source_of
from baton_wire.liveness import DEFAULT_LIVENESS, REPORT_S, Liveness, PeerState
from baton_wire.messages import codec
from baton_wire.messages.encoding import Encode
from baton_wire.messages.flood import Flood
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    BundleChunk,
    Heartbeat,
    HeldTurn,
    Hello,
    Holding,
    LegFailed,
    Prefill,
    Reserve,
    Retarget,
    ToWorker,
    WorkerState,
)
from baton_wire.messages.values import MAX_FRAME_BYTES, Attempt, Message, Reason, Role, num_packed
from baton_wire.reset import reset
from baton_wire.rules.gateway_rounds import GatewayRounds, HeldRank, Urgency
from baton_wire.session import MAX_SIGNED_BYTES, AlteredFrames, FrameParts, Session, parts
from baton_worker.reporting.cached_places import PlaceQueue, PlacesReport

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.5
PLACES_S = 0.05
"""Time between two looks at what changed in the prefix cache."""
REPEAT_PLACES_S = 1.0
"""Least time between two whole announcements of cached places to a gateway."""
HURRIED_S = 0.003
"""Least time between two states, even when one is urgent."""
HELD_REPORT_S = 0.02
"""Time between two states while one of several gateways holds prompts until this worker has room."""
MAX_QUEUED_BYTES = 64 << 20
"""A gateway that leaves more than this unread is treated as lost."""
CHUNK_BYTES = 512 << 10
MAX_CLOSE_BYTES = 100
"""Longest reason in a WebSocket's last frame, which can take 123 bytes."""
WATCH_S = 0.25
_ANSWERED = tuple(kind.__name__ for kind in (Prefill, Reserve, Encode, Retarget))
"""Messages that a gateway expects an answer to."""
_NEXT_ATTEMPT = 1 + Retarget.__struct_fields__.index("next_attempt")
LINK_ROLES = {Role.PREFILL: LinkRole.PREFILL, Role.DECODE: LinkRole.DECODE}


class GatewayLink:
    """One connected gateway. Compared by identity; used in the io thread only."""

    def __init__(self, epoch: bytes, session: Session) -> None:
        self.epoch, self.session = epoch, session
        self._frames: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self.overflowed = False
        self.refusal: str | None = None
        """Reason why the gateway's frames end the link, if they do."""
        self.wants_places = False
        """The gateway asked for all cached places, and was not answered yet."""
        self.places_s = 0.0
        """When all cached places were sent to it."""

    def send(self, message: Message) -> None:
        """Queue a message. A link whose queue overflows is closed by its writer.

        Raises BadFieldsError, and queues nothing, for a message that the gateway would refuse.
        """
        frame = codec.encode(message)
        self._queued_bytes += len(frame)
        if self._queued_bytes > MAX_QUEUED_BYTES:
            self.overflowed = True
        else:
            self._frames.append(frame)
        self._wake.set()

    async def write_all(self, socket: web.WebSocketResponse) -> None:
        """Write queued frames, and a heartbeat whenever nothing was sent for a while, until cancelled or broken."""
        while not self.overflowed:
            if not self._frames:
                self._wake.clear()
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
                except TimeoutError:
                    self.send(Heartbeat())
                continue
            frame = self._frames.popleft()
            self._queued_bytes -= len(frame)
            for part in parts(frame):
                await socket.send_bytes(self.session.sign(part))
        raise LinkLostError(f"gateway does not read: more than {MAX_QUEUED_BYTES} bytes are queued for it")


class Service(Protocol):
    """Acts on gateways' messages. Called in the io thread."""

    def handle(self, link: GatewayLink, message: Message) -> None: ...

    def link_lost(self, link: GatewayLink) -> None: ...

    def state(self) -> WorkerState: ...


class GatewayLinks:
    """The links to all gateways of this worker."""

    def __init__(
        self,
        hello: Callable[[], Hello],
        bundle: bytes,
        keys: KeyDirectory,
        service: Service,
        altered: AlteredFrames,
        measured: Callable[[WorkerState], WorkerState] = lambda state: state,
        places: PlaceQueue | None = None,
    ) -> None:
        """`hello` gives the worker's present introduction.

        `altered` counts frames of gateways that did not arrive as they were sent.

        `measured` adds measures, such as step timings, to a state that is about to be sent.

        `places` brings changes of the prefix cache; None: they are not announced."""
        self._place_queue = places
        self._places = PlacesReport()
        self._measured = measured
        self._hello = hello
        self._bundle = bundle
        self._keys = keys
        self._service = service
        self._altered = altered
        self._links: set[GatewayLink] = set()
        self._holders: GatewayRounds[GatewayLink] = GatewayRounds()
        self._handshakes: HandshakePool[asyncio.BaseTransport] = HandshakePool()
        self._complaints = Complaints(log, level=logging.WARNING)
        self._came = CameSince()
        self._hurry = asyncio.Event()
        """Set when gateways should get a state before the next one is due."""

    def __len__(self) -> int:
        return len(self._links)

    async def accept(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handle `/link`: handshake, hello, then frames until the link is lost."""
        socket = web.WebSocketResponse(max_msg_size=MAX_SIGNED_BYTES, compress=False)
        proven = await self._handshake(request, socket)
        if proven is None:
            return socket
        peer, session = proven
        link = GatewayLink(peer.epoch, session)
        self._links.add(link)
        self._hurry.set()
        try:
            self._greet(link)
            if not await self._serve(link, socket):
                reset(request.transport)
        finally:
            self._links.discard(link)
            self._holders.update(link, None)
            self._hurry.set()
            self._service.link_lost(link)
            code = WSCloseCode.OK if link.refusal is None else WSCloseCode.POLICY_VIOLATION
            await socket.close(code=code, message=(link.refusal or "").encode()[:MAX_CLOSE_BYTES])
        return socket

    async def _handshake(
        self, request: web.BaseRequest, socket: web.WebSocketResponse
    ) -> tuple[LinkIdentity, Session] | None:
        """Prepare the socket and shake hands. None: refused, and the socket is closed.

        A stranger's connection keeps its place among the handshakes until it is closed.
        """
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client left")
        evicted = self._handshakes.enter(source_of(request.remote or ""), transport)
        if evicted is not None:
            reset(evicted)  # its own handler sees a peer that hung up
        try:
            await socket.prepare(request)
            hello = self._hello()
            return await accept_handshake(
                socket.send_bytes,
                lambda _: _receive_bytes(socket),
                self._keys,
                Party(LINK_ROLES[hello.role], hello.epoch),
                accept_roles=(LinkRole.GATEWAY,),
                altered=self._altered,
            )
        except ValueError as error:  # of a key header that is no base64
            raise web.HTTPBadRequest(text="not a WebSocket handshake") from error
        except (AuthenticationError, BadMessageError, LinkLostError) as error:
            self._complaints.say("gateway link refused", str(error))
            await socket.close(code=1008)
            return None
        finally:
            self._handshakes.leave(transport)

    async def report_state(self) -> None:
        """Send the worker's state to every gateway whenever it changed; runs until cancelled."""
        last: WorkerState | None = None
        while True:
            state, is_hurried = self._service.state(), self._hurry.is_set()
            self._hurry.clear()
            if state != last or is_hurried:
                self._report(state)
                last = state
            await asyncio.sleep(HURRIED_S)
            with contextlib.suppress(TimeoutError):
                report_s = HELD_REPORT_S if self._holders and len(self._links) > 1 else REPORT_S
                async with asyncio.timeout(report_s - HURRIED_S):
                    await self._hurry.wait()

    async def report_places(self) -> None:
        """Announce what changed in the prefix cache to every gateway; runs until cancelled."""
        while self._place_queue is not None:
            self._announce_places(time.monotonic())
            await asyncio.sleep(PLACES_S)

    def _announce_places(self, now: float) -> None:
        assert self._place_queue is not None
        for changes in self._place_queue.take():
            self._places.record(changes)
        messages = self._places.announce(now)
        for link in self._links:
            if link.wants_places and now - link.places_s >= REPEAT_PLACES_S:
                self._announce_all_places(link, now)
                continue
            for message in messages:
                link.send(message)
        if self._places.left_out:
            self._complaints.say("cached places are not announced", f"{self._places.left_out}, there are too many")

    def _announce_all_places(self, link: GatewayLink, now: float) -> None:
        if self._place_queue is not None:
            link.wants_places, link.places_s = False, now
            for message in self._places.announce_all():
                link.send(message)

    def _report(self, state: WorkerState) -> None:
        self._came.reported(state.waiting_tokens + state.computing_tokens)
        message, links = self._measured(state) if self._links else state, list(self._links)
        turns = self._holders.turns(links)
        for link in links:
            turn = HeldTurn(*turns[link]) if link in turns else None
            try:
                link.send(msgspec.structs.replace(message, turn=turn, gateways=len(links)))
            except BadFieldsError as refusal:
                self._complaints.say("the state is not sent to gateways", str(refusal))

    def _note_holding(self, link: GatewayLink, urgency: Urgency | None) -> None:
        if self._holders.update(link, urgency):
            self._hurry.set()

    def _greet(self, link: GatewayLink) -> None:
        link.send(self._hello())
        for offset in range(0, len(self._bundle), CHUNK_BYTES):
            link.send(BundleChunk(offset, self._bundle[offset : offset + CHUNK_BYTES]))
        link.send(msgspec.structs.replace(self._service.state(), gateways=len(self._links)))
        self._announce_all_places(link, time.monotonic())

    async def _serve(self, link: GatewayLink, socket: web.WebSocketResponse) -> bool:
        """Serve the link until it is lost. False: the gateway may not know that, and may not get a message either."""
        is_sound = True
        alive = Liveness(DEFAULT_LIVENESS, time.monotonic())
        tasks = [
            asyncio.create_task(link.write_all(socket)),
            asyncio.create_task(self._read(link, socket, on_frame=lambda: alive.heard(time.monotonic()))),
            asyncio.create_task(_watch(alive)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except AlteredFrameError:
            is_sound = False
        except BadMessageError as error:
            link.refusal = str(error)
            self._complaints.say("gateway link closed", f"{link.epoch.hex()[:8]}: {error}")
        except (LinkLostError, ConnectionError) as error:
            log.warning("gateway link %s closed: %s", link.epoch.hex()[:8], error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return is_sound and not link.overflowed and alive.state(time.monotonic()) is not PeerState.DEAD

    async def _read(self, link: GatewayLink, socket: web.WebSocketResponse, on_frame: Callable[[], None]) -> None:
        received, bad = FrameParts(MAX_FRAME_BYTES), Flood()
        while True:
            frame = received.add(link.session.verify(await _receive_bytes(socket)))
            on_frame()
            if frame is None:
                continue
            try:
                message = codec.decode(frame, ToWorker)
            except BadFieldsError as refusal:
                bad.met(time.monotonic(), str(refusal))
                self._refuse(link, refusal)
                continue
            if isinstance(message, Holding):
                self._note_holding(link, urgency_of(message, time.monotonic()))
            elif isinstance(message, AskCachedPlaces):
                link.wants_places = True
            elif not isinstance(message, Heartbeat):
                self._service.handle(link, message)
                if len(self._links) > 1 and self._came.is_much(prompt_tokens_of(message)):
                    self._hurry.set()

    def _refuse(self, link: GatewayLink, refusal: BadFieldsError) -> None:
        """End the request of a message with bad fields; the link and its other requests go on."""
        self._complaints.say("a gateway's message is refused", f"gateway {link.epoch.hex()[:8]}: {refusal}")
        if refusal.message not in _ANSWERED or refusal.request is None:
            return
        attempt = refusal.attempt
        if refusal.message == Retarget.__name__:
            attempt = (
                codec.part_of(refusal.fields[_NEXT_ATTEMPT], Attempt) if len(refusal.fields) > _NEXT_ATTEMPT else None
            )
        if attempt is not None:
            link.send(LegFailed(refusal.request, attempt, Reason.BAD_REQUEST, str(refusal)[:256]))


class CameSince:
    """Counts prompt tokens that arrived since the last state, and compares them with all there are to compute."""

    PART: Final = 0.125

    def __init__(self) -> None:
        self._reported = self._came = 0

    def reported(self, tokens: int) -> None:
        """A state with this many tokens to compute was sent."""
        self._reported, self._came = tokens, 0

    def is_much(self, tokens: int) -> bool:
        """Count `tokens` more. True when the arrivals since the last state are a large part of the whole."""
        self._came += tokens
        return tokens > 0 and self._came >= self.PART * (self._reported + self._came)


def urgency_of(message: Holding, now: float) -> Urgency | None:
    """The urgency of the prompts that the gateway holds, by this worker's clock; None: it holds none."""
    if message.rank is None:
        return None
    return Urgency(HeldRank(message.rank), None if message.left_s is None else now + message.left_s)


def prompt_tokens_of(message: Message) -> int:
    """Number of tokens that this worker probably has to compute for the message."""
    if isinstance(message, Prefill | Encode) or (isinstance(message, Reserve) and message.prefill_epoch is None):
        tokens = num_packed(message.tokens)
        return tokens if message.missing_tokens is None else min(tokens, message.missing_tokens)
    return 0


async def _watch(alive: Liveness) -> None:
    while alive.state(time.monotonic()) is not PeerState.DEAD:  # noqa: ASYNC110 - silence is no event
        await asyncio.sleep(min(WATCH_S, alive.due_in(time.monotonic())))
    raise LinkLostError(f"gateway was silent for {DEFAULT_LIVENESS.dead_s} s")


async def _receive_bytes(socket: web.WebSocketResponse) -> bytes:
    message = await socket.receive()
    if message.type is WSMsgType.BINARY:
        data: bytes = message.data
        return data
    if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED):
        raise LinkLostError("gateway closed the link")
    if message.type is WSMsgType.ERROR:
        raise LinkLostError(f"gateway link broke: {socket.exception()}")
    raise BadMessageError(f"frame: {message.type.name} is not a binary message")
