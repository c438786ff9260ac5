"""Bound sockets for listeners."""

from __future__ import annotations

import errno
import socket

ANY = "::"
"""The host that means every address of the machine, of both families."""
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


def bind(host: str, port: int, *, shared: bool = False, send_buffer_bytes: int | None = None) -> socket.socket:
    """A bound TCP socket, not yet listening. Raises OSError. `shared`: other sockets may take the same port.

    The host `::` accepts IPv4 and IPv6, and IPv4 alone where the machine has no IPv6. `send_buffer_bytes`: size of
    every connection's send buffer; None: the kernel's default.
    """
    try:
        return _bind(host, port, shared, send_buffer_bytes)
    except OSError as error:
        if host != ANY or error.errno not in _NO_IPV6:
            raise
        return _bind("0.0.0.0", port, shared, send_buffer_bytes)


def _bind(host: str, port: int, shared: bool, send_buffer_bytes: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == ANY:  # whatever net.ipv6.bindv6only says
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
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
