"""Both ends of an authenticated connection, without a handshake."""

from __future__ import annotations

import secrets
import socket

from baton_kv_transfer.network import DataConnection, SocketConnection
from baton_wire.session import AlteredFrames, Session


def sessions() -> tuple[Session, Session]:
    one, other = secrets.token_bytes(32), secrets.token_bytes(32)
    return Session(one, other, AlteredFrames()), Session(other, one, AlteredFrames())


def data_connections() -> tuple[DataConnection, DataConnection]:
    here, there = (SocketConnection(end) for end in socket.socketpair())
    ours, theirs = sessions()
    return DataConnection(here, ours), DataConnection(there, theirs)
