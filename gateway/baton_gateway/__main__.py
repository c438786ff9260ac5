"""`python -m baton_gateway`: settings, ports, one process or several.

Exit codes: 0 stopped and drained, 2 bad configuration (one line on stderr), 1 crash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry

from baton_gateway.errors import ProcessesDownError
from baton_gateway.garbage_collection import settle
from baton_gateway.http_api.certificate import Certificate, CertificateError
from baton_gateway.http_api.page_lookup import admin_page
from baton_gateway.ledger.line_files import check_folder
from baton_gateway.page.page_desk import PageDesk
from baton_gateway.page.viewer import sits_here
from baton_gateway.parent_death import die_with_parent
from baton_gateway.parent_process import ChildSockets, GatewayProcesses, answer_parent, child_sockets
from baton_gateway.records.record_desk import RecordDesk, encode_page
from baton_gateway.records.record_query import parse_query
from baton_gateway.reporting.admin_server import AdminServer
from baton_gateway.reporting.metric_files import METRICS_VARIABLE, claim
from baton_gateway.reporting.metrics_page import metrics_page
from baton_gateway.reporting.state_page import ProcessReport
from baton_gateway.server import SEND_BUFFER_BYTES, GatewayServer
from baton_gateway.settings import Settings, SettingsError, parse_settings
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.tenancy.token_verifier import read_verifier
from baton_gateway.tenancy.trusted_identity import TrustedIdentity
from baton_gateway.text.returned_memory import limit_malloc
from baton_wire.announcement import Announcement, announce
from baton_wire.errors import AuthenticationError
from baton_wire.fair_loop.fair_event_loop import FairEventLoop
from baton_wire.keys import KeyDirectory
from baton_wire.listening.complaints import log_loop_errors
from baton_wire.listening.descriptors import raise_descriptor_limit
from baton_wire.listening.sockets import bind
from baton_wire.log_format import LogFormat, chosen_format, configure_logging
from baton_wire.stop_signals import handle_stop_signals

BACKLOG = 1_024
SWITCH_INTERVAL_S = 0.001
"""How long a thread that tokenises or parses may keep the interpreter while the event loop waits for it. The loop waits
after each system call, so the default of 5 ms would show in every write to a client."""


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM, SIGINT or SIGHUP."""
    argv = sys.argv[1:] if argv is None else argv
    die_with_parent()
    raise_descriptor_limit()
    limit_malloc()
    try:
        settings = parse_settings(argv)
        configure_logging(settings.log_level.upper(), _log_format(settings))
        KeyDirectory(settings.keys).current()
        _check_files(settings)
        _check_tracing(settings)
        with asyncio.Runner(loop_factory=FairEventLoop) as runner:
            return runner.run(_run(settings, argv))
    except (SettingsError, AuthenticationError) as error:
        print(f"baton-gateway: {error}", file=sys.stderr)
        return 2
    except ProcessesDownError as error:
        print(f"baton-gateway: {error}", file=sys.stderr)
        return 1


def _log_format(settings: Settings) -> LogFormat:
    """The format of log lines. Raises SettingsError."""
    try:
        return chosen_format(settings.log_format, os.environ)
    except ValueError as error:
        raise SettingsError(str(error)) from error


async def _run(settings: Settings, argv: list[str]) -> int:
    stopping = _stop_signal()
    log_loop_errors(asyncio.get_running_loop(), logging.getLogger("baton.gateway"))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    sockets = child_sockets()
    if sockets is not None:
        await _serve_as_child(settings, argv, sockets, stopping)
    elif settings.processes == 1:
        await _serve_alone(settings, argv, stopping)
    else:
        await _serve_with_children(settings, argv, stopping)
    return 0


async def _serve_alone(settings: Settings, argv: list[str], stopping: asyncio.Event) -> None:
    server = GatewayServer(settings, _reread(settings, argv))

    async def reports() -> list[ProcessReport]:
        return [server.report()]

    [listening], admin_socket = _bind_all(settings)
    admin = AdminServer(reports, server.metrics.page, _records(server.desk), admin_page(server.page), _sits_here)
    await server.start(listening)
    settle()
    await _announce(settings, listening, admin, admin_socket)
    await stopping.wait()
    await server.stop()
    await admin.stop()


def _sits_here(request: web.BaseRequest) -> bool:
    return sits_here(request.remote, request.headers)


def _records(desk: RecordDesk) -> Callable[[str], Awaitable[bytes]]:
    async def answer(query: str) -> bytes:
        return encode_page(await desk.ask(parse_query(query)))

    return answer


async def _serve_with_children(settings: Settings, argv: list[str], stopping: asyncio.Event) -> None:
    listening, admin_socket = _bind_all(settings)
    try:
        processes = GatewayProcesses(argv, listening, settings.drain_s)
    except OSError as error:
        raise _no_metrics(error) from error
    folder = Path(processes.metrics_folder)
    desk = RecordDesk(None, folder, settings.processes)
    admin = AdminServer(
        processes.reports,
        lambda accept: metrics_page(CollectorRegistry(), processes.metrics_folder, accept),
        _records(desk),
        admin_page(PageDesk(None, desk, folder, settings.processes)),
        _sits_here,
    )
    if await _is_started(processes, stopping):
        await _announce(settings, listening[0], admin, admin_socket)
        await stopping.wait()
    await processes.stop()
    await admin.stop()


async def _is_started(processes: GatewayProcesses, stopping: asyncio.Event) -> bool:
    """Start the processes; False: the gateway was asked to stop meanwhile. Raises ProcessesDownError."""
    starting, asked = asyncio.create_task(processes.start()), asyncio.create_task(stopping.wait())
    await asyncio.wait((starting, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


async def _serve_as_child(settings: Settings, argv: list[str], sockets: ChildSockets, stopping: asyncio.Event) -> None:
    try:
        claim(os.environ[METRICS_VARIABLE], os.getpid())
    except OSError as error:
        raise _no_metrics(error) from error
    server = GatewayServer(settings, _reread(settings, argv))
    await server.start(sockets.listening)
    settle()
    answering = asyncio.create_task(answer_parent(sockets.control, server.report))
    waiting = asyncio.create_task(stopping.wait())
    await asyncio.wait([answering, waiting], return_when=asyncio.FIRST_COMPLETED)
    await server.stop()
    for task in (answering, waiting):
        task.cancel()
    await asyncio.gather(answering, waiting, return_exceptions=True)


def _no_metrics(error: OSError) -> SettingsError:
    return SettingsError(
        f"--processes: no room for metrics: {error.filename or tempfile.gettempdir()}: {error.strerror}"
    )


def _reread(settings: Settings, argv: list[str]) -> Callable[[], Settings] | None:
    return None if settings.config is None else lambda: parse_settings(argv)


def _check_files(settings: Settings) -> None:
    try:
        Tenants(settings.api_keys)
    except ValueError as error:
        raise SettingsError(f"--api-keys: {error}") from error
    if settings.jwt is not None:
        try:
            read_verifier(settings.jwt)
        except ValueError as error:
            raise SettingsError(f"--jwt: {error}") from error
    if settings.trusted_identity is not None:
        try:
            trusted = TrustedIdentity(settings.trusted_identity)
        except ValueError as error:
            raise SettingsError(f"--trusted-identity: {error}") from error
        if trusted.client_ca is not None and settings.tls is None:
            raise SettingsError("--trusted-identity: client_ca: needs --tls, because certificates are shown with it")
    if settings.ledger is not None and settings.ledger_full == "refuse":
        try:
            check_folder(settings.ledger)
        except OSError as error:
            raise SettingsError(f"--ledger: {settings.ledger}: {error.strerror or error}") from error
    if settings.tls is not None:
        try:
            Certificate(settings.tls)
        except CertificateError as error:
            raise SettingsError(f"--tls: {error}") from error


def _check_tracing(settings: Settings) -> None:
    """Check that OpenTelemetry is installed where traces are wanted, without importing it. Raises SettingsError."""
    if settings.tracing_endpoint is None:
        return
    for module in ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"):
        try:
            is_installed = find_spec(module) is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            package = "baton-serving[gateway,otel]"
            raise SettingsError(f"--tracing-endpoint: the extra 'otel' is not installed: pip install '{package}'")


def _stop_signal() -> asyncio.Event:
    stopping = asyncio.Event()
    handle_stop_signals(asyncio.get_running_loop(), stopping.set, stopping.is_set)
    return stopping


def _bind_all(settings: Settings) -> tuple[list[socket.socket], socket.socket | None]:
    """One listening socket for every process, and the admin's."""
    host, asked_port = settings.listen
    first = _listen("--listen", host, asked_port)
    if settings.processes == 1:
        listening = [first]
    else:
        # Bound exclusively first: a port that another program serves must not be shared by mistake.
        port = first.getsockname()[1]
        first.close()
        listening = [_listen("--listen", host, port, shared=True) for _ in range(settings.processes)]
    if settings.admin_listen is None:
        return listening, None
    return listening, _listen("--admin-listen", *settings.admin_listen)


def _listen(flag: str, host: str, port: int, shared: bool = False) -> socket.socket:
    try:
        sock = bind(host, port, shared=shared, send_buffer_bytes=SEND_BUFFER_BYTES)
        sock.listen(BACKLOG)
    except OSError as error:
        raise SettingsError(f"{flag}: {host}:{port}: {error.strerror or error}") from error
    return sock


async def _announce(
    settings: Settings, listening: socket.socket, admin: AdminServer, admin_socket: socket.socket | None
) -> None:
    """Start the admin listener, then write atomically where this gateway listens."""
    admin_port = None
    if admin_socket is not None:
        await admin.start(admin_socket)
        admin_port = admin_socket.getsockname()[1]
    if settings.announce is None:
        return
    host, port = settings.listen[0], listening.getsockname()[1]
    announcement = Announcement(os.getpid(), host, port, admin_port=admin_port, role="gateway")
    try:
        announce(settings.announce, announcement)
    except OSError as error:
        raise SettingsError(f"--announce: {settings.announce}: {error.strerror or error}") from error


if __name__ == "__main__":
    sys.exit(main())
