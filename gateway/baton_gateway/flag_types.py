"""The types of the gateway's flags: how each value is written, read and refused."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from baton_gateway.http_api.cors import is_origin
from baton_wire.discovery import parse_source

N = TypeVar("N", int, float)
OTLP_PATH = "/v1/traces"
OTLP_HEADERS_VARIABLE = "OTEL_EXPORTER_OTLP_HEADERS"
"""The environment variable with headers for the collector."""


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _loopback_port(text: str) -> tuple[str, int]:
    host, port = _host_port(text)
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise ValueError(f"{host!r} is not a loopback address")
    return host, port


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in text.split(",") if part.strip())
    for origin in origins:
        if not is_origin(origin):
            raise ValueError(f"{origin[:64]!r} is neither * nor http(s)://HOST[:PORT]")
    return origins


def _aliases(text: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for part in text.split(",") if text else ():
        alias, _, served = part.partition("=")
        if not alias or not served or alias == served:
            raise ValueError(f"{part[:300]!r} is not ALIAS=SERVED_NAME")
        pairs.append((alias, served))
    if len(dict(pairs)) < len(pairs):
        raise ValueError("an alias is given twice")
    return tuple(pairs)


def _operator_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or not parts.path.startswith("/"):
        raise ValueError(f"{text!r} is not http://HOST:PORT/PATH")
    return text


def _otlp_url(text: str) -> str:
    """Return the URL of a collector. One without a path gets that of the protocol."""
    if "@" in text or "?" in text:
        raise ValueError(f"a URL with credentials is not allowed: give them in {OTLP_HEADERS_VARIABLE}")
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.fragment or not text.isprintable():
        raise ValueError(f"{text[:256]!r} is not http(s)://HOST[:PORT][/PATH]")
    return parts._replace(path=OTLP_PATH).geturl() if parts.path in ("", "/") else text


def _gateway_name(text: str) -> str:
    return text[:253] or socket.gethostname()[:253]


def _between(kind: type[N], low: float, high: float) -> Callable[[str], N]:
    """A reader of numbers in these bounds, both allowed."""

    def read(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {'an integer' if kind is int else 'a number'}") from None
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low:g} and {high:g}")
        return value

    return read


@dataclass(frozen=True, slots=True)
class FlagType:
    """How a flag's value is written and read."""

    read: Callable[[str], object]
    """Raises ValueError that says what is allowed."""
    metavar: str | None = None
    choices: tuple[str, ...] | None = None


HOST_PORT, LOOPBACK = FlagType(_host_port, "HOST:PORT"), FlagType(_loopback_port, "HOST:PORT")
SOURCE = FlagType(parse_source, "SPEC")
DIR, FILE, PATH = (FlagType(Path, metavar) for metavar in ("DIR", "FILE", "PATH"))
ORIGINS, ALIASES = FlagType(_origins, "LIST"), FlagType(_aliases, "LIST")
URL, OTLP, NAME = FlagType(_operator_url, "URL"), FlagType(_otlp_url, "URL"), FlagType(_gateway_name)


def count(low: int, high: int) -> FlagType:
    """Return the type of integers in these bounds."""
    return FlagType(_between(int, low, high), "N")


def share() -> FlagType:
    """Return the type of shares of a whole."""
    return FlagType(_between(float, 0, 1), "SHARE")


def seconds(low: float, high: float) -> FlagType:
    """Return the type of durations in these bounds."""
    return FlagType(_between(float, low, high), "S")


def choice(*choices: str, read: Callable[[str], object] = str) -> FlagType:
    """Return the type of one of these texts."""
    return FlagType(read, choices=choices)
