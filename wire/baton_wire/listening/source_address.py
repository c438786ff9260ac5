"""The source of an address, where connections or bytes are counted by source. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

HOST_PREFIX = 64
"""Bits of an IPv6 address that its owner did not choose: one host may use any address of its /64."""
KEPT = 4_096


@lru_cache(KEPT)
def source_of(address: str) -> str:
    """One text for all addresses that one host can dial from.

    An IPv4 address inside IPv6 is that IPv4 address. IPv6 addresses count by their /64. Loopback and link-local
    addresses count one by one, since a link's hosts share them. Text that is no address is returned unchanged.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if parsed.is_loopback or parsed.is_link_local:
        return str(parsed)
    return str(ipaddress.IPv6Network((int(parsed) >> HOST_PREFIX << HOST_PREFIX, HOST_PREFIX)))
