"""A peer under a test's control: speaks the internal links frame by frame, rightly or wrongly."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from baton_kv_transfer.network import SocketConnection, Sockets
from baton_wire.handshake import LinkRole, Party, dial_handshake
from baton_wire.keys import KeyDirectory
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.gateway_link import BundleChunk, CachedPlaces, Heartbeat, Hello, ToGateway, WorkerState
from baton_wire.messages.values import MAX_FRAME_BYTES
from baton_wire.session import AlteredFrames, FrameParts, Session, parts

WAIT_S = 60.0

WORKER_ROLES = (LinkRole.PREFILL, LinkRole.DECODE)


class GatewayPeer:
    """The gateway's end of a worker link."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._session: Session | None = None
        self._received = FrameParts(MAX_FRAME_BYTES)

    async def send(self, frame: bytes) -> None:
        """As a frame of the session, once hands were shaken."""
        await self._socket.send_bytes(frame if self._session is None else self._session.sign(frame))

    async def send_unsigned(self, frame: bytes) -> None:
        await self._socket.send_bytes(frame)

    async def send_text(self, text: str) -> None:
        await self._socket.send_str(text)

    async def tell(self, message: Any) -> None:
        for part in parts(encode(message)):
            await self.send(part)

    async def shake_hands(self, keys: Path, role: LinkRole = LinkRole.GATEWAY) -> None:
        """Raises AuthenticationError when the worker refuses."""

        async def receive(size: int) -> bytes:
            frame = await self._bytes()
            if len(frame) != size:
                raise EOFError(f"expected {size} bytes, got {len(frame)}")
            return frame

        party = Party(role, secrets.token_bytes(16))
        _, self._session = await dial_handshake(
            self._socket.send_bytes,
            receive,
            KeyDirectory(keys),
            party,
            accept_roles=WORKER_ROLES,
            altered=AlteredFrames(),
            timeout_s=WAIT_S,
        )

    async def hello(self) -> Hello:
        """The worker's Hello; what follows it up to the first state is read too."""
        hello = await self.hear(Hello)
        await self.hear(WorkerState)
        assert isinstance(hello, Hello)
        return hello

    async def hear(self, kind: type[Any]) -> Any:
        """The next message of this kind; others are skipped. Raises EOFError when the link closes first."""
        async with asyncio.timeout(WAIT_S):
            while True:
                frame = self._received.add(await self._bytes())
                if frame is None:
                    continue
                message = decode(frame, ToGateway)
                if isinstance(message, kind):
                    return message
                assert isinstance(message, BundleChunk | WorkerState | CachedPlaces | Heartbeat | Hello), message

    async def is_closed(self) -> bool:
        """True if the worker closes the link soon; frames before that are skipped."""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    await self._bytes()
        except EOFError:
            return True
        except TimeoutError:
            return False

    async def _bytes(self) -> bytes:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise EOFError(f"the link closed: {message.type.name}")
        data: bytes = message.data
        return data if self._session is None else self._session.verify(data)


@asynccontextmanager
async def gateway_peer(base_url: str, keys: Path | None = None) -> AsyncIterator[GatewayPeer]:
    """A WebSocket to a worker's `/link`; with `keys` the handshake is done."""
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{base_url}/link", max_msg_size=0) as socket:
        peer = GatewayPeer(socket)
        if keys is not None:
            await peer.shake_hands(keys)
        yield peer


@asynccontextmanager
async def pair_connection(port: int) -> AsyncIterator[SocketConnection]:
    """A plain connection to a decode worker's port for prefill workers."""
    connection = await Sockets().connect("127.0.0.1", port)
    try:
        yield connection
    finally:
        connection.close()


async def shake_pair_hands(connection: SocketConnection, keys: Path, role: LinkRole = LinkRole.PREFILL) -> Session:
    """Raises AuthenticationError when the worker refuses."""
    _, session = await dial_handshake(
        connection.send,
        connection.receive,
        KeyDirectory(keys),
        Party(role, secrets.token_bytes(16)),
        accept_roles=(LinkRole.DECODE,),
        altered=AlteredFrames(),
        timeout_s=WAIT_S,
    )
    return session


async def hangs_up(connection: SocketConnection) -> bool:
    """True if the other side closes the connection soon; frames before that are skipped."""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                await connection.receive(1)
    except (EOFError, ConnectionError):
        return True
    except TimeoutError:
        return False
