"""Where workers are, without any orchestrator's API: a file or a DNS name, polled.

An answer that failed or is empty is *unknown* (None): it never says that a worker is gone. The links
know which workers are alive.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

MAX_FILE_BYTES = 1 << 20
MAX_ENDPOINTS = 4_096


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One worker as discovery names it."""

    host: str
    port: int
    pair_port: int | None = None
    """Where a decode worker listens for prefill workers, when the source says so."""


@dataclass(frozen=True, slots=True)
class FileSource:
    path: Path

    def __str__(self) -> str:
        return f"file:{self.path}"


@dataclass(frozen=True, slots=True)
class DnsSource:
    name: str
    port: int

    def __str__(self) -> str:
        return f"dns:{self.name}:{self.port}"


Source = FileSource | DnsSource


def parse_source(spec: str) -> Source:
    """`file:PATH` or `dns:NAME.:PORT`. Raises ValueError naming what is wrong and what is allowed."""
    kind, _, rest = spec.partition(":")
    if kind == "file" and rest:
        return FileSource(Path(rest))
    name, _, port = rest.rpartition(":")
    if kind == "dns" and name and port.isascii() and port.isdigit() and 1 <= int(port) <= 65_535:
        return DnsSource(name, int(port))
    raise ValueError(f"discovery: {spec!r} is neither file:PATH nor dns:NAME.:PORT")


async def look_up(source: Source) -> tuple[Endpoint, ...] | None:
    """The endpoints as of now, sorted; None when unknown."""
    match source:
        case FileSource(path):
            return await asyncio.to_thread(_read_file, path)
        case DnsSource(name, port):
            return await _resolve(name, port)


async def watch(
    spec: str | Source,
    on_change: Callable[[tuple[Endpoint, ...]], None],
    *,
    interval_s: float = 1.0,
    timeout_s: float = 5.0,
) -> None:
    """Poll until cancelled; report every known answer that differs from the one before. Unknown answers are skipped."""
    source = parse_source(spec) if isinstance(spec, str) else spec
    last: tuple[Endpoint, ...] | None = None
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                endpoints = await look_up(source)
        except TimeoutError:
            endpoints = None
        if endpoints is not None and endpoints != last:
            last = endpoints
            on_change(endpoints)
        await asyncio.sleep(interval_s)


def parse_endpoints(text: str) -> tuple[Endpoint, ...] | None:
    """A JSON list of {"host", "port"[, "pair_port"]}, other keys ignored. None when it is anything else, or empty."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_ENDPOINTS:
        return None
    endpoints = [_endpoint(entry) for entry in entries]
    known = {endpoint for endpoint in endpoints if endpoint is not None}
    return tuple(sorted(known, key=_order)) if len(known) and None not in endpoints else None


def _endpoint(entry: object) -> Endpoint | None:
    if not isinstance(entry, dict):
        return None
    host, port, pair_port = entry.get("host"), entry.get("port"), entry.get("pair_port")
    if not isinstance(host, str) or not 0 < len(host) <= 253 or not _is_port(port):
        return None
    return Endpoint(host, port, pair_port) if pair_port is None or _is_port(pair_port) else None


def _is_port(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65_535


def _order(endpoint: Endpoint) -> tuple[str, int, int]:
    return endpoint.host, endpoint.port, endpoint.pair_port or 0


def _read_file(path: Path) -> tuple[Endpoint, ...] | None:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except (OSError, UnicodeDecodeError):
        return None
    return parse_endpoints(text) if len(text) <= MAX_FILE_BYTES else None


async def _resolve(name: str, port: int) -> tuple[Endpoint, ...] | None:
    loop = asyncio.get_running_loop()
    try:
        answers = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None
    hosts = {str(address[0]) for *_, address in answers}
    return tuple(sorted((Endpoint(host, port) for host in hosts), key=_order)[:MAX_ENDPOINTS]) or None
