"""Both ends of an authenticated connection, without a handshake."""

from __future__ import annotations

import secrets
import socket

from baton_kv_transfer.network import DataConnection, SocketConnection
from baton_wire.session import AlteredFrames, Session


def sessions(altered: AlteredFrames | None = None) -> tuple[Session, Session]:
    """`altered` counts what either end meets; by default each counts for itself."""
    one, other = secrets.token_bytes(32), secrets.token_bytes(32)
    return Session(one, other, altered or AlteredFrames()), Session(other, one, altered or AlteredFrames())


def data_connections() -> tuple[DataConnection, DataConnection]:
    here, there = (SocketConnection(end) for end in socket.socketpair())
    ours, theirs = sessions()
    return DataConnection(here, ours), DataConnection(there, theirs)
