"""Rules for addresses that a source makes us dial: public ones only, unless the credentials name the host.

A source chooses redirects and names. Without this it could have the fetching Pod ask services inside the cluster, or a
cloud's metadata server, and pass their answers on. The address is checked when it is dialled: no name can change
between.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any, Final

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_INSIDE: Final = ("local", "localhost", "internal", "svc", "cluster", "lan", "home.arpa", "in-addr.arpa", "ip6.arpa")
"""Ends of names that only networks of clusters, clouds and offices know."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrivateAddressError(OSError):
    """An address was about to be dialled that is not public."""


def is_public(text: str) -> bool:
    """True for an IP address of the public internet; an address that embeds others is judged by these."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return all(embedded.is_global and not embedded.is_multicast for embedded in _embedded(address))


def _embedded(address: _Address) -> tuple[_Address, ...]:
    if not isinstance(address, ipaddress.IPv6Address):
        return (address,)
    within: list[ipaddress.IPv4Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        within.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    embedded = tuple(inner for inner in within if inner is not None)
    return embedded if address.ipv4_mapped or address in _NAT64 else (address, *embedded)


def is_inside(host: str) -> bool:
    """True for a host that by its name is not on the public internet: an address that is not public in any spelling,
    a name without a dot, or one with an end such as `.svc` or `.internal`. A proxy that resolves names gets no other
    judgement."""
    name = host.rstrip(".").lower()
    try:
        return not is_public(name)
    except ValueError:
        pass
    try:
        return not is_public(socket.inet_ntoa(socket.inet_aton(name)))  # 0x7f.1 and such
    except OSError:
        return "." not in name or name.endswith(tuple(f".{end}" for end in _INSIDE))


def public_socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket for an entry of `getaddrinfo`; aiohttp's `socket_factory`. Raises PrivateAddressError."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise PrivateAddressError(errno.EACCES, f"{address[0]} is not a public address")
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    return sock
