"""Bound sockets for listeners."""

from __future__ import annotations

import socket


def bind(host: str, port: int, *, shared: bool = False, send_buffer_bytes: int | None = None) -> socket.socket:
    """A bound TCP socket, not yet listening. Raises OSError. `shared`: other sockets may take the same port.

    `send_buffer_bytes`: size of every connection's send buffer; None: the kernel's default.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if send_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        sock.setblocking(False)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
