"""Connections that end with an RST: the peer notices at once, unsent bytes are dropped.

Used for a peer that was given up for its silence. When only the way from it is cut, a FIN would reach it, but waits in
the kernel after bytes that will never be acknowledged.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

_LINGER = struct.Struct("ii").pack(1, 0)


def reset_on_close(sock: socket.socket) -> None:
    """Closing `sock` sends an RST from now on."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)


def reset(transport: asyncio.BaseTransport | None) -> None:
    """End an asyncio connection with an RST."""
    if isinstance(transport, asyncio.WriteTransport):
        if (sock := transport.get_extra_info("socket")) is not None:
            reset_on_close(sock)
        transport.abort()
