"""The network that a pair's links use: connections that are dialled, connections that are accepted.

`Sockets` is the one of the operating system. A simulation brings its own, on the virtual time of its loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from baton_wire import reset
from baton_wire.listening.complaints import Complaints
from baton_wire.listening.sockets import ANY, bind
from baton_wire.listening.source_address import source_of
from baton_wire.session import Session

log = logging.getLogger(__name__)

ACCEPT_AGAIN_S = 1.0


class Connection(Protocol):
    """A connected stream of bytes. Its user closes it, and has ended its own reads and sends before."""

    @property
    def source(self) -> str:
        """Source of the peer's address (`source_of`)."""
        ...

    async def send(self, data: bytes) -> None:
        """Returns once the network took all of it. Raises OSError."""
        ...

    async def receive(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises EOFError when the peer closed before, OSError when the connection broke."""
        ...

    def close(self) -> None: ...

    def reset_on_close(self) -> None:
        """`close` will drop what is unsent and let the peer know at once."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DataConnection:
    """An authenticated connection for KV bytes, and the session of what goes around them."""

    connection: Connection
    session: Session

    def close(self) -> None:
        self.connection.close()


class Listener(Protocol):
    """A port that is listened on."""

    @property
    def port(self) -> int: ...

    def close(self) -> None: ...


class Network(Protocol):
    """Used in the running loop's thread."""

    async def connect(self, host: str, port: int) -> Connection:
        """Raises OSError. The caller bounds the time."""
        ...

    async def listen(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> Listener:
        """Hand over every connection that comes; port 0 is any. Raises OSError when the port is taken."""
        ...


class SocketConnection:
    """A connected non-blocking socket with exact reads; used for handshakes and control links."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self.source = _source(sock)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = await loop.sock_recv_into(self.socket, view[done:])
            if count == 0:
                raise EOFError("the peer closed the connection")
            done += count
        return bytes(data)

    def close(self) -> None:
        self.socket.close()

    def reset_on_close(self) -> None:
        reset.reset_on_close(self.socket)


def _source(sock: socket.socket) -> str:
    try:
        peer = sock.getpeername()
    except OSError:  # it is gone already
        return ""
    return source_of(str(peer[0])) if isinstance(peer, tuple) else ""


class SocketListener:
    """A listening socket in the running loop."""

    def __init__(self, sock: socket.socket, on_connection: Callable[[Connection], None]) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_connection = on_connection
        self._loop = asyncio.get_running_loop()
        self._complaints = Complaints(log, level=logging.WARNING)
        self._again: asyncio.TimerHandle | None = None
        self._listen()
        self.port: int = sock.getsockname()[1]

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """One connection waits. A callback and not a coroutine, whose cancellation could lose an accepted socket."""
        try:
            sock, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # the peer was gone before we looked
            return
        except OSError as error:  # out of descriptors or memory: the connection waits, and would call at once again
            self._complaints.say("accepting pair links", error.strerror or str(error))
            self._loop.remove_reader(self._socket)
            self._again = self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
            return
        self._on_connection(SocketConnection(sock))


class Sockets:
    """The network of the operating system."""

    async def connect(self, host: str, port: int) -> SocketConnection:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in infos:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return SocketConnection(sock)
        raise failure

    async def listen(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> SocketListener:
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sock = bind(host if host == ANY else str(infos[0][4][0]), port)
        try:
            sock.listen(128)
        except OSError:
            sock.close()
            raise
        return SocketListener(sock, on_connection)


def require_socket(connection: Connection) -> SocketConnection:
    """For transports that drive sockets themselves. Raises TypeError when it is none."""
    if not isinstance(connection, SocketConnection):
        raise TypeError(f"connection: a socket is needed, not {type(connection).__name__}")
    return connection
