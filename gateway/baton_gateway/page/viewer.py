"""A viewer of the page: who it is, and whether it sits at this machine. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant

FORWARDING_HEADERS = (
    "Forwarded",
    "Via",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Forwarded-Proto",
    "X-Real-IP",
    "X-Envoy-External-Address",
)
"""Headers of proxies. A request with one does not come from where its connection comes from."""
_OWN_SITE = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Viewer:
    """A viewer. `tenant`: the one whose requests it sees."""

    sees_all: bool
    tenant: Tenant = DEFAULT_TENANT
    may_generate: bool = False
    """True if requests for answers may come from it too."""


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone: `localhost`, or a loopback address.

    >>> is_loopback("[::1]"), is_loopback("127.8.0.1"), is_loopback("localhost.evil.example")
    (True, True, False)
    """
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def is_loopback_host_header(header: str) -> bool:
    """Return whether a `Host` header names this machine. A page of a foreign site whose name resolves to loopback
    sends its own name.

    >>> is_loopback_host_header("127.0.0.1:8000"), is_loopback_host_header("rebound.example:8000")
    (True, False)
    """
    name, colon, port = header.rpartition(":")
    if not colon or header.endswith("]"):
        return is_loopback(header)
    return port.isdigit() and is_loopback(name)


def sits_here(peer: str | None, headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a program on this machine, as far as its connection and headers say.

    `headers` finds names in any case. Refused are proxies that name themselves, names of foreign sites, and requests
    that a page of another site has a browser send.
    """
    if peer is None or not is_loopback(peer.partition("%")[0]):
        return False
    host = headers.get("Host", "")
    if not is_loopback_host_header(host) or any(name in headers for name in FORWARDING_HEADERS):
        return False
    if headers.get("Sec-Fetch-Site", "none") not in _OWN_SITE:
        return False
    origin = headers.get("Origin")
    return origin is None or origin.partition("://")[2] == host
