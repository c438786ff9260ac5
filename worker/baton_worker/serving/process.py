"""The frame of a worker process: parse flags, set up logging and signals, listen, announce, return an exit status.

`lifecycle` runs the worker inside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NoReturn

from baton_engine.collectives.collective import RankLostError
from baton_wire.announcement import Announcement, announce
from baton_wire.errors import TransferError
from baton_wire.listening.bounded_server import BoundedServer, Handle
from baton_wire.listening.complaints import log_loop_errors
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.descriptors import connection_cap, raise_descriptor_limit
from baton_wire.listening.sockets import bind
from baton_wire.log_format import chosen_format, configure_logging
from baton_wire.messages.values import Role
from baton_wire.stop_signals import handle_stop_signals
from baton_worker.config import ListenAddress, WorkerConfig, parse, program
from baton_worker.errors import ConfigError

log = logging.getLogger(__name__)

BACKLOG = 128
MAX_CONNECTIONS = 1_024
"""One for each gateway process, and some for probes and scrapes; at most half of them from one address."""
SHUTDOWN_S = 1.0
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
SWITCH_INTERVAL_S = 0.001
"""Longest time that a thread keeps the interpreter while another waits: the default 5 ms would slow every hand-over."""
DRAIN_POLL_S = 0.05
LEAVE_S = 2.0
"""Time in which a draining worker still accepts requests. Gateways learn of the drain by a message, and may be slow to
read it. A worker that refused at once could be the last of its revision for a request whose client has the first
token."""

RANK_LOST_S = 0.5
"""Time to take the process down in good order after a rank was lost. Peers learn of its end by their sockets anyway."""

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

Serve = Callable[[WorkerConfig, "Stop"], Awaitable[None]]


class Stop:
    """Why and when a worker process ends. The first signal asks for a drain, the second for an end at once."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.now = asyncio.Event()
        self.crash: BaseException | None = None
        self._last_resort: threading.Timer | None = None
        """Ends a process that has lost a rank, whatever its loops wait for."""

    def on_signal(self) -> None:
        if self.draining.is_set():
            self.now.set()
        self.draining.set()

    def on_crash(self, error: BaseException) -> None:
        """The engine or transfer thread died, or a rank was lost: end at once, with a failing status."""
        if isinstance(error, RankLostError) and self._last_resort is None:
            self._last_resort = threading.Timer(RANK_LOST_S, _end_lost, (error,))
            self._last_resort.daemon = True
            self._last_resort.start()
        self.crash = error
        self.draining.set()
        self.now.set()

    def end_lost(self, error: RankLostError) -> NoReturn:
        """End the process, taken down in good order, because a rank was lost."""
        if self._last_resort is not None:
            self._last_resort.cancel()
        _end_lost(error)

    async def until(self, holds: Callable[[], bool], limit_s: float) -> bool:
        """Wait for `holds`, at most `limit_s` and until an immediate end is asked for. Returns whether it came true."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while not holds() and not self.now.is_set():  # noqa: ASYNC110 - three threads, no event
                    await asyncio.sleep(DRAIN_POLL_S)
        return holds()


def _end_lost(error: RankLostError) -> NoReturn:
    """End the process at once. Its last line names the rank and the cause: supervisors show that line."""
    log.error("stopped because a rank was lost: %s", error)
    os._exit(1)


def run(role: Role | None, argv: Sequence[str], serve: Serve) -> int:
    """Run a worker process to its end and return its exit status: 0 stopped, 1 crashed, 2 bad configuration.

    `role` None: a flexible worker.
    """
    raise_descriptor_limit()
    name = program(role)
    level = os.environ.get("BATON_LOG_LEVEL", "INFO")
    if level not in LOG_LEVELS:
        print(f"{name}: BATON_LOG_LEVEL: {level!r} is none of {', '.join(LOG_LEVELS)}", file=sys.stderr)
        return 2
    try:
        configure_logging(level, chosen_format(None, os.environ))
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    try:
        config = parse(role, argv)
        return asyncio.run(_run(config, serve))
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2


async def _run(config: WorkerConfig, serve: Serve) -> int:
    stop = Stop()
    loop = asyncio.get_running_loop()
    log_loop_errors(loop, log)
    handle_stop_signals(loop, stop.on_signal, stop.draining.is_set)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    await serve(config, stop)
    if stop.crash is not None:
        if isinstance(stop.crash, RankLostError):
            stop.end_lost(stop.crash)
        log.error("stopped because a thread failed: %s", stop.crash)
        return 1
    return 0


def age_s() -> float | None:
    """Seconds since this process was started; None where /proc does not say."""
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)


def new_epoch() -> bytes:
    """A fresh random identity for this process."""
    return secrets.token_bytes(16)


@contextlib.asynccontextmanager
async def listening(handle: Handle, endpoint: ListenAddress) -> AsyncIterator[int]:
    """Serve requests while the context lasts; yields the port.

    Raises ConfigError when the address is not free.
    """
    try:
        sock = bind(endpoint.host, endpoint.port)
        sock.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(f"argument --listen: {endpoint.host}:{endpoint.port}: {error.strerror}") from error
    most = connection_cap(MAX_CONNECTIONS)
    server = BoundedServer(handle, ConnectionLimits(most, (most + 1) // 2), log)
    try:
        server.begin(sock)
        yield int(sock.getsockname()[1])
    finally:
        await server.end(SHUTDOWN_S)


async def await_transfer(config: WorkerConfig, starting: Awaitable[None]) -> None:
    """Await the start of the KV transfer. Raises ConfigError when its address is not free, or UCX does not come up."""
    try:
        await starting
    except OSError as error:
        where = config.pair_listen
        raise ConfigError(f"argument --pair-listen: {where and where.host}:{where and where.port}: {error}") from error
    except TransferError as error:
        raise ConfigError(f"argument --transport: {config.transport}: {error}") from error


def report_ready(config: WorkerConfig, epoch: bytes, port: int, pair_port: int | None) -> None:
    """Everything is up: freeze the garbage collector's view of the start, and announce the addresses.

    Raises ConfigError, and OSError on a full disk.
    """
    gc.collect()
    gc.freeze()
    if config.announce is not None:
        host, role = config.listen.host, config.role.value
        announcement = Announcement(os.getpid(), host, port, pair_port, role=role, epoch=epoch.hex())
        try:
            announce(config.announce, announcement)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise  # another try may find some
            raise ConfigError(f"argument --announce: {config.announce}: {error.strerror}") from error
    log.info("ready on %s:%s, epoch %s", config.listen.host, port, epoch.hex()[:8])
