"""The gateway's settings: flags, an optional JSON file with the same names, their defaults and bounds. Parsed once, at
the edge.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from baton_gateway.answers.formats import FormatNames
from baton_gateway.flag_types import (
    ALIASES,
    DIR,
    FILE,
    HOST_PORT,
    LOOPBACK,
    NAME,
    ORIGINS,
    OTLP,
    PATH,
    SOURCE,
    URL,
    FlagType,
    choice,
    count,
    seconds,
    share,
)
from baton_gateway.ledger.request_ledger import LedgerLines
from baton_gateway.openai_api.openai_fields import UnknownFields
from baton_wire.discovery import Source
from baton_wire.liveness import DEFAULT_LIVENESS
from baton_wire.log_format import LOG_FORMAT_VARIABLE, LogFormat
from baton_wire.rules.answer_formats import AUTO, REASONING_FORMAT_NAMES, TOOL_FORMAT_NAMES

DAY_S = 86_400


class SettingsError(ValueError):
    """One line that names the setting, what was given and what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every flag in `FLAGS`, under the flag's name."""

    listen: tuple[str, int]
    keys: Path
    prefill_discovery: Source
    decode_discovery: Source | None
    processes: int
    metrics_compat: str
    """`vllm`: metrics are served under vLLM's names too."""
    announce: Path | None
    admin_listen: tuple[str, int] | None
    config: Path | None
    """A file that is read again whenever it changes."""
    api_keys: Path | None
    tenants: Path | None
    """A folder of shards of the compiled table of LLMTenants, read again whenever they change."""
    jwt: Path | None
    """A file that says which tokens name an LLMTenant; None: no token is accepted."""
    trusted_identity: Path | None
    """A file that says who may name an LLMTenant in a header; None: nobody, and such headers mean nothing."""
    replicas: int
    """Gateways of this deployment, of which each has its part of every tenant's limits until the operator says more."""
    allowed_origins: tuple[str, ...]
    """Origins whose pages may call from a browser; none: no page may."""
    model_aliases: tuple[tuple[str, str], ...]
    """Other names of models: (alias, served name)."""
    tls: Path | None
    """A folder with tls.crt and tls.key, read again whenever they change; None: clients speak plain HTTP."""
    disaggregation: str
    prefill_unavailable: str
    tool_format: str
    reasoning_format: str
    generation_defaults: str
    """`on`: requests that leave sampling open get what the model's generation_config.json says; `off`: the API's."""
    unknown_fields: UnknownFields
    """Unknown fields of a request's body are refused or ignored."""
    oversized_max_tokens: str
    """`refuse`: a request for more tokens than fit is a 400; `clamp`: it gets those that fit."""
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
    operator: str | None
    """http://HOST:PORT/PATH of the process that sizes the pools."""
    name: str
    """This gateway's name, for the operator."""
    request_records: int
    """Records of requests that each process keeps; 0: none."""
    ledger: Path | None
    """The folder of the ledger; None: what requests use is not recorded."""
    ledger_lines: LedgerLines
    """`files` of that folder, or `stdout`."""
    ledger_full: str
    """`serve`: requests that cannot be recorded are served; `refuse`: they are refused."""
    batch_folder: Path | None
    """The folder of files and batches; None: they are not served."""
    batch_concurrency: int
    batch_file_mib: int
    batch_tenant_mib: int
    batch_tenant_files: int
    tracing_endpoint: str | None
    """Where a collector takes OTLP over HTTP; None: no traces."""
    tracing_sample_ratio: float
    """The share of requests that are traced where their clients do not say."""
    log_level: str
    log_format: str | None
    """None: as the environment says."""

    @property
    def limit_share(self) -> float:
        """One process's part of every tenant's limits."""
        return 1 / (self.processes * self.replicas)

    @property
    def formats(self) -> FormatNames:
        """How the models write calls and thoughts. A running gateway keeps it. Raises ValueError."""
        return FormatNames(self.tool_format, self.reasoning_format)


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag `--NAME`; the configuration file and `Settings` name it with underscores."""

    name: str
    type: FlagType
    default: str | int | float | None
    help: str
    in_file: bool = False
    """The configuration file may set it."""
    is_required: bool = False

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            f"--{self.name}",
            default=None if self.default is None else str(self.default),
            metavar=self.type.metavar,
            choices=self.type.choices,
            required=self.is_required,
            help=self.help,
        )

    def read(self, text: str | None) -> object:
        """The value of the flag; None without one. Raises SettingsError."""
        try:
            return None if text is None else self.type.read(text)
        except ValueError as error:
            raise SettingsError(f"--{self.name}: {error}") from error


FLAGS = (
    Flag("listen", HOST_PORT, "127.0.0.1:8000", "where clients connect (default %(default)s)"),
    Flag("keys", DIR, None, "directory of link keys, one file a key", is_required=True),
    Flag("prefill-discovery", SOURCE, None, "file:PATH or dns:NAME.:PORT", is_required=True),
    Flag("decode-discovery", SOURCE, None, "file:PATH or dns:NAME.:PORT (default: there are no decode workers)"),
    Flag("processes", count(1, 256), 1, "gateway processes on the port (default %(default)s)"),
    Flag(
        "metrics-compat", choice("none", "vllm"), "none", "vllm: metrics under vLLM's names too (default %(default)s)"
    ),
    Flag("announce", FILE, None, "written once the gateway listens: JSON with pid and ports"),
    Flag("admin-listen", LOOPBACK, None, "loopback listener for /state and /metrics"),
    Flag("config", FILE, None, "JSON object of the flags below (dashes as underscores)"),
    Flag("api-keys", PATH, None, "file or folder of API keys, see docs/api-http.md (default: open)", in_file=True),
    Flag("tenants", DIR, None, "folder with the compiled table of LLMTenants; they are let in besides --api-keys"),
    Flag("jwt", FILE, None, "JSON file that says which tokens (JWT) name an LLMTenant; needs --tenants"),
    Flag("trusted-identity", FILE, None, "JSON file that says who may name the LLMTenant in a header; needs --tenants"),
    Flag(
        "replicas", count(1, 1_024), 1, "gateways that share limits of LLMTenants (default %(default)s)", in_file=True
    ),
    Flag("allowed-origins", ORIGINS, "", "browser pages that may call: https://a.example,… or * (default: none)"),
    Flag("model-aliases", ALIASES, "", "other names of models: ALIAS=SERVED_NAME,… (default: none)", in_file=True),
    Flag("tls", DIR, None, "folder with tls.crt and tls.key: serve HTTPS (default: HTTP)"),
    Flag("disaggregation", choice("always", "never", "auto"), "always", "(default %(default)s)", in_file=True),
    Flag(
        "prefill-unavailable",
        choice("fail", "decode-locally"),
        "decode-locally",
        "while no prefill worker is routable (default %(default)s)",
        in_file=True,
    ),
    Flag(
        "tool-format",
        choice(*TOOL_FORMAT_NAMES),
        AUTO,
        "how models write calls (default: detected from their template)",
    ),
    Flag(
        "reasoning-format",
        choice(*REASONING_FORMAT_NAMES),
        AUTO,
        "how models write thoughts (default: detected from their template)",
    ),
    Flag("generation-defaults", choice("on", "off"), "on", "the model's own (default %(default)s)", in_file=True),
    Flag(
        "unknown-fields",
        choice(*map(str, UnknownFields), read=UnknownFields),
        str(UnknownFields.REFUSE),
        "of requests: refuse them, or ignore them and name them in a header (default %(default)s)",
        in_file=True,
    ),
    Flag(
        "oversized-max-tokens",
        choice("refuse", "clamp"),
        "refuse",
        "of requests for more tokens than the context holds: refuse, or clamp to what fits (default %(default)s)",
        in_file=True,
    ),
    Flag("slo-ttft-s", seconds(0.001, 3600), 0.5, "target, for waiting and auto (default %(default)s)", in_file=True),
    Flag("slo-tpot-s", seconds(0.001, 3600), 0.05, "target, for auto (default %(default)s)", in_file=True),
    Flag("max-request-duration-s", seconds(1, DAY_S), 600.0, "(default %(default)s)", in_file=True),
    Flag(
        "max-request-memory-mib",
        count(16, 1 << 20),
        512,
        "for bodies being read and requests at work, per process (default %(default)s)",
    ),
    Flag(
        "max-connections-per-address",
        count(0, 1_000_000),
        None,
        "of one client address, per process; 0: no bound (default: half of all that the process may have)",
    ),
    Flag("max-running", count(1, 1_000_000), 1024, "running sequences per process (default %(default)s)", in_file=True),
    Flag("max-queued", count(0, 1_000_000), 4096, "waiting sequences per process (default %(default)s)", in_file=True),
    Flag(
        "max-queue-s",
        seconds(0, DAY_S),
        None,
        "longest wait for a turn (default: ten times --slo-ttft-s)",
        in_file=True,
    ),
    Flag("park-s", seconds(0, DAY_S), 10.0, "how long to wait for a first pair (default %(default)s)", in_file=True),
    Flag("drain-s", seconds(0, DAY_S), 30.0, "for open requests on SIGTERM (default %(default)s)", in_file=True),
    Flag(
        "suspect-s",
        seconds(0.1, 600),
        DEFAULT_LIVENESS.suspect_s,
        "silence before no new work (default %(default)s)",
        in_file=True,
    ),
    Flag(
        "dead-s",
        seconds(0.1, 600),
        DEFAULT_LIVENESS.dead_s,
        "silence before a link is given up (default %(default)s)",
        in_file=True,
    ),
    Flag("operator", URL, None, "http://HOST:PORT/PATH of the process that sizes the pools (default: none)"),
    Flag("name", NAME, socket.gethostname(), "this gateway's name, for the operator (default: host name)"),
    Flag(
        "request-records",
        count(0, 100_000),
        10_000,
        "records of requests that each process keeps for `baton explain`; 0: none (default %(default)s)",
    ),
    Flag("ledger", DIR, None, "folder where the use of every request is recorded, see docs/usage.md (default: none)"),
    Flag(
        "ledger-lines",
        choice(*LedgerLines, read=LedgerLines),
        str(LedgerLines.FILES),
        "write the lines of --ledger to files in it, or to stdout for a log collector (default %(default)s)",
    ),
    Flag(
        "ledger-full",
        choice("serve", "refuse"),
        "serve",
        "of requests that cannot be recorded: serve them and count them, or refuse them (default %(default)s)",
    ),
    Flag("batch-folder", DIR, None, "folder of /v1/files and /v1/batches, see docs/batches.md (default: none)"),
    Flag(
        "batch-concurrency",
        count(1, 10_000),
        64,
        "lines of batches at work or waiting for it, per process (default %(default)s)",
    ),
    Flag("batch-file-mib", count(1, 1 << 20), 512, "most of an uploaded file (default %(default)s)"),
    Flag("batch-tenant-mib", count(1, 1 << 30), 10_240, "most of a tenant's files and answers (default %(default)s)"),
    Flag("batch-tenant-files", count(1, 100_000), 1_000, "most files of a tenant (default %(default)s)"),
    Flag("tracing-endpoint", OTLP, None, "OTLP over HTTP, http://HOST:4318: export traces (default: none)"),
    Flag(
        "tracing-sample-ratio",
        share(),
        0.01,
        "share of requests to trace, from 0 to 1, where clients send no traceparent (default %(default)s)",
    ),
    Flag("log-level", choice("debug", "info", "warning", "error"), "info", "(default %(default)s)", in_file=True),
    Flag("log-format", choice(*LogFormat), None, f"text or json (default: {LOG_FORMAT_VARIABLE}, else text)"),
)
"""All flags, in the order of the help text."""

IN_FILE = tuple(flag.field for flag in FLAGS if flag.in_file)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _parser() -> _Parser:
    parser = _Parser(prog="baton-gateway", description="OpenAI API in front of prefill and decode workers")
    for flag in FLAGS:
        flag.add_to(parser)
    return parser


def parse_settings(argv: list[str]) -> Settings:
    """Flags win over the file, the file over the defaults. Raises SettingsError."""
    parser = _parser()
    texts = parser.parse_args(argv)
    if texts.config is not None:
        texts = parser.parse_args(_file_flags(Path(texts.config)) + argv)
    values: dict[str, object] = {flag.field: flag.read(getattr(texts, flag.field)) for flag in FLAGS}
    settings = Settings(**values)  # type: ignore[arg-type]
    try:
        _ = settings.formats
    except ValueError as error:
        raise SettingsError(f"--tool-format, --reasoning-format: {error}") from error
    if settings.jwt is not None and settings.tenants is None:
        raise SettingsError("--jwt: needs --tenants, because tokens name tenants of that table")
    if settings.trusted_identity is not None and settings.tenants is None:
        raise SettingsError("--trusted-identity: needs --tenants, because the header names tenants of that table")
    if settings.suspect_s > settings.dead_s:
        raise SettingsError(f"--suspect-s: {settings.suspect_s} is longer than --dead-s {settings.dead_s}")
    return settings


def config_hash(settings: Settings) -> str:
    """A hash of everything that a configuration file can change, as applied."""
    values = {name: str(getattr(settings, name)) for name in sorted(IN_FILE)}
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _file_flags(path: Path) -> list[str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"--config: {path}: {error}") from error
    if not isinstance(content, dict):
        raise SettingsError(f"--config: {path}: not a JSON object")
    flags = []
    for name, value in content.items():
        if name not in IN_FILE:
            raise SettingsError(f"--config: {path}: unknown field '{name}'; allowed are {', '.join(IN_FILE)}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise SettingsError(f"--config: {path}: '{name}' must be a string or a number")
        flags.append(f"--{name.replace('_', '-')}={value}")
    return flags
