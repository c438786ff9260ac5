"""Which addresses may be dialled for a source: public ones, unless the credentials name the host.

A source chooses redirects and names. Without this it could have the fetching Pod ask services inside the cluster, or a
cloud's metadata server, and hand it what they say. The address is judged as it is dialled: no name can change between.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any, Final

_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PrivateAddressError(OSError):
    """An address was about to be dialled that is not public."""


def is_public(text: str) -> bool:
    """Whether an IP address is one of the open internet's; addresses that stand for others are judged as those."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return all(each.is_global and not each.is_multicast for each in _meant(address))


def _meant(address: _Address) -> tuple[_Address, ...]:
    if not isinstance(address, ipaddress.IPv6Address):
        return (address,)
    within: list[ipaddress.IPv4Address | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        within.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    found = tuple(each for each in within if each is not None)
    return found if address.ipv4_mapped or address in _NAT64 else (address, *found)


def public_socket(info: tuple[Any, ...]) -> socket.socket:
    """A socket for an entry of `getaddrinfo`; aiohttp's `socket_factory`. Raises PrivateAddressError."""
    family, kind, protocol, _, address = info
    if not is_public(str(address[0])):
        raise PrivateAddressError(errno.EACCES, f"{address[0]} is not a public address")
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    return made
