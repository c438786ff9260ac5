"""The gateway's settings: flags, an optional JSON file with the same names, their defaults and bounds. Parsed once, at
the edge.
"""

from __future__ import annotations

import argparse
import hashlib
import ipaddress
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

from baton_gateway.answers.formats import AUTO, CALL_NAMES, THOUGHT_NAMES, FormatNames
from baton_gateway.http_api.cors import is_origin
from baton_gateway.http_api.openai_fields import UnknownFields
from baton_wire.discovery import Source, parse_source
from baton_wire.liveness import DEFAULT_LIVENESS

N = TypeVar("N", int, float)


class SettingsError(ValueError):
    """One line that names the setting, what was given and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a gateway is told."""

    host: str
    port: int
    keys: Path
    prefill_discovery: Source
    decode_discovery: Source
    processes: int
    announce: Path | None
    config: Path | None
    """A file that is read again whenever it changes."""
    admin_host: str | None
    admin_port: int
    api_keys: Path | None
    allowed_origins: tuple[str, ...]
    """Whose pages in browsers may call; none: nobody's."""
    model_aliases: tuple[tuple[str, str], ...]
    """Other names of models: (alias, served name)."""
    tls: Path | None
    """A folder with tls.crt and tls.key, read again whenever they change; None: clients speak plain HTTP."""
    disaggregation: str
    prefill_unavailable: str
    generation_defaults: str
    """`on`: requests that leave sampling open get what the model's generation_config.json says; `off`: the API's."""
    unknown_fields: UnknownFields
    """What becomes of fields of a request's body that nobody knows."""
    formats: FormatNames
    """How the models write calls and thoughts. A running gateway keeps it."""
    slo_ttft_s: float
    slo_tpot_s: float
    max_request_duration_s: float
    max_request_memory_mib: int
    """For bodies being read and requests that wait or run, per process."""
    max_connections_per_address: int | None
    """None: half of all; 0: no bound."""
    max_running: int
    max_queued: int
    max_queue_s: float | None
    park_s: float
    drain_s: float
    suspect_s: float
    dead_s: float
    log_level: str
    operator: str | None
    """http://HOST:PORT/PATH of whoever sizes the pools."""
    name: str
    """Of this gateway, for the operator."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _parser() -> _Parser:
    parser = _Parser(prog="baton-gateway", description="OpenAI API in front of prefill and decode workers")
    add = parser.add_argument
    add("--listen", default="127.0.0.1:8000", metavar="HOST:PORT", help="where clients connect (default %(default)s)")
    add("--keys", required=True, type=Path, metavar="DIR", help="directory of link keys, one file a key")
    add("--prefill-discovery", required=True, metavar="SPEC", help="file:PATH or dns:NAME.:PORT")
    add("--decode-discovery", required=True, metavar="SPEC", help="file:PATH or dns:NAME.:PORT")
    add("--processes", type=int, default=1, metavar="N", help="gateway processes on the port (default %(default)s)")
    add("--announce", type=Path, metavar="FILE", help="written once the gateway listens: JSON with pid and ports")
    add("--admin-listen", metavar="HOST:PORT", help="loopback listener for /state and /metrics")
    add("--config", type=Path, metavar="FILE", help="JSON object of the flags below (dashes as underscores)")
    add(
        "--api-keys", type=Path, metavar="PATH", help="file or folder of API keys, see docs/api-http.md (default: open)"
    )
    add(
        "--allowed-origins",
        default="",
        metavar="LIST",
        help="whose pages in browsers may call: https://a.example,… or * (default: nobody's)",
    )
    add(
        "--model-aliases", default="", metavar="LIST", help="other names of models: ALIAS=SERVED_NAME,… (default: none)"
    )
    add("--tls", type=Path, metavar="DIR", help="folder with tls.crt and tls.key: serve HTTPS (default: HTTP)")
    add("--disaggregation", choices=("always", "never", "auto"), default="always", help="(default %(default)s)")
    add(
        "--prefill-unavailable",
        choices=("fail", "decode-locally"),
        default="decode-locally",
        help="while no prefill worker is routable (default %(default)s)",
    )
    add(
        "--tool-format", choices=CALL_NAMES, default=AUTO, help="how models write calls (default: their template tells)"
    )
    add(
        "--reasoning-format",
        choices=THOUGHT_NAMES,
        default=AUTO,
        help="how models write thoughts (default: their template tells)",
    )
    add("--generation-defaults", choices=("on", "off"), default="on", help="the model's own (default %(default)s)")
    add(
        "--unknown-fields",
        choices=tuple(map(str, UnknownFields)),
        default=str(UnknownFields.REFUSE),
        help="of requests: refuse them, or ignore them and name them in a header (default %(default)s)",
    )
    add("--slo-ttft-s", type=float, default=0.5, metavar="S", help="target, for waiting and auto (default %(default)s)")
    add("--slo-tpot-s", type=float, default=0.05, metavar="S", help="target, for auto (default %(default)s)")
    add("--max-request-duration-s", type=float, default=600.0, metavar="S", help="(default %(default)s)")
    add(
        "--max-request-memory-mib",
        type=int,
        default=512,
        metavar="N",
        help="for bodies being read and requests at work, per process (default %(default)s)",
    )
    add(
        "--max-connections-per-address",
        type=int,
        metavar="N",
        help="of one client address, per process; 0: no bound (default: half of all that the process may have)",
    )
    add("--max-running", type=int, default=1024, metavar="N", help="sequences at work a process (default %(default)s)")
    add("--max-queued", type=int, default=4096, metavar="N", help="sequences waiting a process (default %(default)s)")
    add("--max-queue-s", type=float, metavar="S", help="longest wait for a turn (default: ten times --slo-ttft-s)")
    add("--park-s", type=float, default=10.0, metavar="S", help="wait so long for a first pair (default %(default)s)")
    add(
        "--drain-s",
        type=float,
        default=30.0,
        metavar="S",
        help="for open requests on SIGTERM (default %(default)s)",
    )
    add(
        "--suspect-s",
        type=float,
        default=DEFAULT_LIVENESS.suspect_s,
        metavar="S",
        help="silence before no new work (default %(default)s)",
    )
    add(
        "--dead-s",
        type=float,
        default=DEFAULT_LIVENESS.dead_s,
        metavar="S",
        help="silence before it is given up (default %(default)s)",
    )
    add("--operator", metavar="URL", help="http://HOST:PORT/PATH of whoever sizes the pools (default: nobody is told)")
    add("--name", default=socket.gethostname(), help="of this gateway, as the operator knows it (default: host name)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(default %(default)s)")
    return parser


def config_hash(settings: Settings) -> str:
    """Of everything that a configuration file can change, as applied."""
    values = {name: str(getattr(settings, name)) for name in sorted(_IN_FILE)}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


_IN_FILE = (
    "api_keys",
    "disaggregation",
    "prefill_unavailable",
    "generation_defaults",
    "unknown_fields",
    "model_aliases",
    "slo_ttft_s",
    "slo_tpot_s",
    "max_request_duration_s",
    "max_running",
    "max_queued",
    "max_queue_s",
    "park_s",
    "drain_s",
    "suspect_s",
    "dead_s",
    "log_level",
)


def parse_settings(argv: list[str]) -> Settings:
    """Flags win over the file, the file over the defaults. Raises SettingsError."""
    parser = _parser()
    first = parser.parse_args(argv)
    if first.config is not None:
        first = parser.parse_args(_file_flags(first.config) + argv)
    host, port = _host_port("--listen", first.listen)
    admin_host, admin_port = _admin(first.admin_listen)
    settings = Settings(
        host=host,
        port=port,
        keys=first.keys,
        prefill_discovery=_source("--prefill-discovery", first.prefill_discovery),
        decode_discovery=_source("--decode-discovery", first.decode_discovery),
        announce=first.announce,
        config=first.config,
        admin_host=admin_host,
        admin_port=admin_port,
        api_keys=first.api_keys,
        allowed_origins=_origins(first.allowed_origins),
        model_aliases=_aliases(first.model_aliases),
        tls=first.tls,
        disaggregation=first.disaggregation,
        prefill_unavailable=first.prefill_unavailable,
        generation_defaults=first.generation_defaults,
        unknown_fields=UnknownFields(first.unknown_fields),
        formats=_formats(first),
        slo_ttft_s=_within("--slo-ttft-s", first.slo_ttft_s, 0.001, 3600),
        slo_tpot_s=_within("--slo-tpot-s", first.slo_tpot_s, 0.001, 3600),
        processes=_within("--processes", first.processes, 1, 256),
        max_request_duration_s=_within("--max-request-duration-s", first.max_request_duration_s, 1, 86_400),
        max_request_memory_mib=_within("--max-request-memory-mib", first.max_request_memory_mib, 16, 1 << 20),
        max_connections_per_address=None
        if first.max_connections_per_address is None
        else _within("--max-connections-per-address", first.max_connections_per_address, 0, 1_000_000),
        max_running=_within("--max-running", first.max_running, 1, 1_000_000),
        max_queued=_within("--max-queued", first.max_queued, 0, 1_000_000),
        max_queue_s=None if first.max_queue_s is None else _within("--max-queue-s", first.max_queue_s, 0, 86_400),
        park_s=_within("--park-s", first.park_s, 0, 86_400),
        drain_s=_within("--drain-s", first.drain_s, 0, 86_400),
        suspect_s=_within("--suspect-s", first.suspect_s, 0.1, 600),
        dead_s=_within("--dead-s", first.dead_s, 0.1, 600),
        log_level=first.log_level,
        operator=_operator(first.operator),
        name=first.name[:253] or socket.gethostname()[:253],
    )
    if settings.suspect_s > settings.dead_s:
        raise SettingsError(f"--suspect-s: {settings.suspect_s} is longer than --dead-s {settings.dead_s}")
    return settings


def _file_flags(path: Path) -> list[str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--config: {path}: {error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"--config: {path}: not a JSON object")
    flags = []
    for name, value in content.items():
        if name not in _IN_FILE:
            raise SettingsError(f"--config: {path}: unknown field '{name}'; allowed are {', '.join(_IN_FILE)}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise SettingsError(f"--config: {path}: '{name}' must be a string or a number")
        flags.append(f"--{name.replace('_', '-')}={value}")
    return flags


def _host_port(flag: str, value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise SettingsError(f"{flag}: {value!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _origins(value: str) -> tuple[str, ...]:
    origins = tuple(part.strip() for part in value.split(",") if part.strip())
    for origin in origins:
        if not is_origin(origin):
            raise SettingsError(f"--allowed-origins: {origin[:64]!r} is neither * nor http(s)://HOST[:PORT]")
    return origins


def _aliases(value: str) -> tuple[tuple[str, str], ...]:
    """Raises SettingsError for what is no list of different names with what they stand for."""
    pairs = []
    for part in value.split(",") if value else ():
        alias, _, served = part.partition("=")
        if not alias or not served or alias == served:
            raise SettingsError(f"--model-aliases: {part[:300]!r} is not ALIAS=SERVED_NAME")
        pairs.append((alias, served))
    if len(dict(pairs)) < len(pairs):
        raise SettingsError("--model-aliases: an alias is given twice")
    return tuple(pairs)


def _formats(said: argparse.Namespace) -> FormatNames:
    try:
        return FormatNames(said.tool_format, said.reasoning_format)
    except ValueError as error:
        raise SettingsError(f"--tool-format, --reasoning-format: {error}") from error


def _operator(value: str | None) -> str | None:
    if value is None:
        return None
    parts = urlsplit(value)
    if parts.scheme != "http" or not parts.hostname or not parts.path.startswith("/"):
        raise SettingsError(f"--operator: {value!r} is not http://HOST:PORT/PATH")
    return value


def _admin(value: str | None) -> tuple[str | None, int]:
    if value is None:
        return None, 0
    host, port = _host_port("--admin-listen", value)
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise SettingsError(f"--admin-listen: {host!r} is not a loopback address")
    return host, port


def _source(flag: str, spec: str) -> Source:
    try:
        return parse_source(spec)
    except ValueError as error:
        raise SettingsError(f"{flag}: {error}") from error


def _within(flag: str, value: N, low: float, high: float) -> N:
    if not low <= value <= high:
        raise SettingsError(f"{flag}: {value} is not between {low:g} and {high:g}")
    return value
