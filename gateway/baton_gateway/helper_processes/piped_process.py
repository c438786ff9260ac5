"""A process with pipes to its stdin and from its stdout and stderr, reaped without waiting for its pipes.

`asyncio.subprocess` is not used: its `wait()` returns only when all pipes are closed, and an unread pipe never is
(Python 3.11). It also needs a thread for each process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from typing import Protocol

from baton_gateway.parent_death import PARENT_VARIABLE
from baton_wire.listening.complaints import Complaints

BUFFER_BYTES = 1 << 20
"""Bytes of an answer that are buffered before reading pauses."""
REAP_S = (0.001, 1.0)
"""The first and the longest interval between checks whether a killed process has ended."""
QUOTED_CHARS = 2_000
QUOTE_AFTER_S = 0.2
"""Everything that a process writes to stderr within this time becomes one log message."""


class StartedProcess(Protocol):
    """The part of `subprocess.Popen` that is used here."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...


def run_module(module: str, stdin: int, stdout: int, stderr: int) -> StartedProcess:
    """Start `python -m module` with these descriptors; it is killed when this process dies. Raises OSError."""
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid()), "RUST_BACKTRACE": "0"}
    command = [sys.executable, "-m", module]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=environment)


class PipedProcess:
    """One started process. Its owner must call `kill` in the end."""

    def __init__(self, started: StartedProcess, pipes: tuple[int, int, int], name: str, complaints: Complaints) -> None:
        """`pipes`: our ends of its stdin, stdout and stderr."""
        self._started = started
        self._pipes = [os.fdopen(pipe, mode, buffering=0) for pipe, mode in zip(pipes, ("wb", "rb", "rb"), strict=True)]
        self._name = name
        self._complaints = complaints
        self._loop = asyncio.get_running_loop()
        self.stdout = asyncio.StreamReader(limit=BUFFER_BYTES)
        self._stdin: asyncio.StreamWriter | None = None
        self._transports: list[asyncio.WriteTransport | asyncio.ReadTransport] = []
        self._connecting: asyncio.Task[None] | None = None
        self._is_killed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def pid(self) -> int:
        return self._started.pid

    @property
    def is_running(self) -> bool:
        """True if its pipes are open; the process may have ended a moment ago."""
        return not self._is_killed

    @property
    def returncode(self) -> int | None:
        """The exit status; None: the process is not reaped yet."""
        return self._started.poll()

    async def write(self, data: bytes) -> None:
        """Write to stdin. Raises OSError when the process does not read it."""
        assert self._stdin is not None
        self._stdin.write(data)
        await self._stdin.drain()

    def kill(self) -> None:
        """Kill the process and close its pipes. The event loop reaps it; no caller has to wait."""
        if self._is_killed:
            return
        self._is_killed = True
        self._started.kill()
        if self._connecting is None or self._connecting.done():
            self._close_pipes()
        else:  # the loop still has callbacks that watch them
            self._connecting.add_done_callback(lambda _: self._close_pipes())
        self._reap(REAP_S[0])

    def _close_pipes(self) -> None:
        for transport in self._transports:
            if transport.is_closing():
                continue  # it closed when the process ended; closing it again would be an error
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                transport.close()
        for pipe in self._pipes[len(self._transports) :]:
            pipe.close()
        self._loop.call_soon(self._closed.set_result, None)  # transports close their pipes in the same round

    async def wait(self, within_s: float) -> None:
        """Wait until the killed process is reaped and its pipes are closed, at most `within_s`."""
        await asyncio.wait([self._ended, self._closed], timeout=within_s)

    def _reap(self, retry_s: float) -> None:
        if self._started.poll() is None:
            self._loop.call_later(retry_s, self._reap, min(2 * retry_s, REAP_S[1]))
        elif not self._ended.done():
            self._ended.set_result(None)

    async def connect(self) -> None:
        """Connect the pipes to the event loop. Called once. A caller that is cancelled does not stop it: connecting
        takes a few rounds of the loop and waits for nothing."""
        self._connecting = self._loop.create_task(self._connect())
        await asyncio.shield(self._connecting)

    async def _connect(self) -> None:
        stdin, stdout, stderr = self._pipes
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        writing, _ = await self._loop.connect_write_pipe(lambda: flow, stdin)
        self._transports.append(writing)
        self._stdin = asyncio.StreamWriter(writing, flow, None, self._loop)
        for pipe, protocol in ((stdout, _Answers(self)), (stderr, _StderrLog(self._name, self._complaints))):
            reading, _ = await self._loop.connect_read_pipe(lambda protocol=protocol: protocol, pipe)  # type: ignore[misc]
            self._transports.append(reading)


class _Answers(asyncio.StreamReaderProtocol):
    """Reads answers. A process that closed its stdout is killed, so that it is reaped although no question waits."""

    def __init__(self, process: PipedProcess) -> None:
        super().__init__(process.stdout)
        self._process = process

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._process.kill()


class _StderrLog(asyncio.Protocol):
    """Logs the tail of what a process writes to stderr, at most once a second."""

    def __init__(self, name: str, complaints: Complaints) -> None:
        self._name = name
        self._complaints = complaints
        self._tail = b""
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-QUOTED_CHARS:]
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(QUOTE_AFTER_S, self._log)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._log()

    def _log(self) -> None:
        self._timer, tail, self._tail = None, self._tail, b""
        self._complaints.say(f"{self._name} writes", tail.decode(errors="replace").strip())


def start(module: str, complaints: Complaints) -> PipedProcess:
    """Start `python -m module`; the caller connects it. Raises OSError, and then leaves nothing open."""
    pipes: list[int] = []
    with contextlib.ExitStack() as open_pipes:
        for _ in range(3):
            pipe = os.pipe()
            pipes += pipe
            for end in pipe:
                open_pipes.callback(os.close, end)
        their_stdin, our_stdin, our_stdout, their_stdout, our_stderr, their_stderr = pipes
        started = run_module(module, their_stdin, their_stdout, their_stderr)
        open_pipes.pop_all()
    for end in (their_stdin, their_stdout, their_stderr):
        os.close(end)
    return PipedProcess(started, (our_stdin, our_stdout, our_stderr), module, complaints)
