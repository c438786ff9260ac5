"""Several gateway processes on one port: a parent that binds, starts, watches and stops them, and speaks for all of
them.

Each child serves its own SO_REUSEPORT socket, bound by the parent before anything starts, so that the kernel spreads
connections and a restarted child finds its socket again. The parent answers on the admin listener: it asks the children
over a socket pair. A child dies with the parent; a dead child is started again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from baton_gateway.parent_death import PARENT_VARIABLE
from baton_gateway.reporting.state_page import ProcessReport

_log = logging.getLogger("baton.gateway.processes")
CHILD_VARIABLE = "BATON_GATEWAY_CHILD_SOCKETS"
"""File descriptors of the listening and the control socket, with a comma between."""
METRICS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
ANSWER_S = 2.0
RESTART_S = 1.0
_STOP_MARGIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Child:
    listening: socket.socket
    process: asyncio.subprocess.Process | None = None
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    question: asyncio.Task[ProcessReport | None] | None = None
    """The one that is out; it stays out while the child is stopped, and its answer is good whenever it comes."""


class GatewayProcesses:
    """The children of this parent."""

    def __init__(self, argv: list[str], listening: list[socket.socket], drain_s: float) -> None:
        self._argv = argv
        self._drain_s = drain_s
        self._children = [_Child(each) for each in listening]
        self._metrics_folder = tempfile.TemporaryDirectory(prefix="baton-gateway-metrics-")
        self._watchers: list[asyncio.Task[None]] = []
        self._ready: asyncio.Queue[None] = asyncio.Queue()

    @property
    def metrics_folder(self) -> str:
        return self._metrics_folder.name

    async def start(self) -> None:
        """Returns when every child serves."""
        self._watchers = [asyncio.create_task(self._keep(child)) for child in self._children]
        for _ in self._children:
            await self._ready.get()

    async def stop(self) -> None:
        """Drain all children; whoever does not end in time is killed."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(self._stop_child(child) for child in self._children))
        self._metrics_folder.cleanup()

    async def reports(self) -> list[ProcessReport]:
        """What the children say; one that does not answer is left out."""
        answers = await asyncio.gather(*(self._ask(child) for child in self._children))
        return [answer for answer in answers if answer is not None]

    async def _keep(self, child: _Child) -> None:
        while True:
            await self._start_child(child)
            assert child.process is not None
            code = await child.process.wait()
            _log.error("gateway process %d ended with %d; starting another", child.process.pid, code)
            self._forget_metrics(child.process.pid)
            await asyncio.sleep(RESTART_S)

    async def _start_child(self, child: _Child) -> None:
        ours, theirs = socket.socketpair()
        if child.question is not None:
            child.question.cancel()
        if child.writer is not None:
            child.writer.close()
        descriptors = (child.listening.fileno(), theirs.fileno())
        environment = os.environ | {
            PARENT_VARIABLE: str(os.getpid()),
            CHILD_VARIABLE: ",".join(map(str, descriptors)),
            METRICS_VARIABLE: self._metrics_folder.name,
        }
        command = [sys.executable, "-m", "baton_gateway", *self._argv]
        child.process = await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=descriptors)
        theirs.close()
        child.reader, child.writer = await asyncio.open_connection(sock=ours)
        if await self._ask(child, timeout_s=60.0) is not None:
            self._ready.put_nowait(None)

    async def _ask(self, child: _Child, timeout_s: float = ANSWER_S) -> ProcessReport | None:
        if child.question is None or child.question.done():
            if child.reader is None or child.writer is None:
                return None
            child.question = asyncio.create_task(_put_question(child.reader, child.writer))
        question = child.question
        await asyncio.wait([question], timeout=timeout_s)
        return question.result() if question.done() and not question.cancelled() else None

    async def _stop_child(self, child: _Child) -> None:
        process = child.process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self._drain_s + _STOP_MARGIN_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def _forget_metrics(self, pid: int) -> None:
        """Gauges of a dead process go; its counters stay."""
        for name in os.listdir(self._metrics_folder.name):
            if name.startswith("gauge_live") and name.endswith(f"_{pid}.db"):
                os.unlink(os.path.join(self._metrics_folder.name, name))


async def _put_question(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ProcessReport | None:
    """Ask a child once; None when it is gone or talks nonsense."""
    try:
        writer.write(b"?")
        length = int.from_bytes(await reader.readexactly(4))
        return msgspec.json.decode(await reader.readexactly(length), type=ProcessReport)
    except (OSError, EOFError, msgspec.DecodeError):
        return None


@dataclass(frozen=True, slots=True)
class ChildSockets:
    """What a child gets from its parent."""

    listening: socket.socket
    control: socket.socket


def child_sockets() -> ChildSockets | None:
    """This process's sockets when it is a child of `GatewayProcesses`, else None."""
    value = os.environ.pop(CHILD_VARIABLE, "")
    if not value:
        return None
    listening, control = (socket.socket(fileno=int(number)) for number in value.split(","))
    return ChildSockets(listening, control)


async def answer_parent(control: socket.socket, report: Callable[[], ProcessReport]) -> None:
    """Answer the parent's questions; returns when it is gone."""
    reader, writer = await asyncio.open_connection(sock=control)
    while await reader.read(1):
        body = msgspec.json.encode(report())
        writer.write(len(body).to_bytes(4) + body)
        await writer.drain()
