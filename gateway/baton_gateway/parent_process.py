"""The parent of several gateway processes on one port: it binds, starts, watches and stops them, and reports for all.

Each child serves its own SO_REUSEPORT socket, bound by the parent before anything starts, so that the kernel spreads
connections and a restarted child finds its socket again. The parent answers on the admin listener: it asks the children
over a socket pair. A child dies with the parent; a dead child is restarted. A child that hangs is killed and restarted:
its clients lose their connections, and workers notice the lost link.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from baton_gateway.errors import ProcessesDownError
from baton_gateway.parent_death import PARENT_VARIABLE
from baton_gateway.reporting.metric_files import METRICS_VARIABLE, absorb, reserve
from baton_gateway.reporting.state_page import ProcessReport
from baton_wire.listening.complaints import Complaints
from baton_wire.liveness import LOOKS, Liveness, LivenessConfig, PeerState

_log = logging.getLogger("baton.gateway.processes")
CHILD_VARIABLE = "BATON_GATEWAY_CHILD_SOCKETS"
"""File descriptors of the listening and the control socket, with a comma between."""
ANSWER_S = 2.0
RESTART_S = 1.0
START_S = 60.0
"""A child that has not answered this long after its start hangs."""
SILENCE = LivenessConfig(suspect_s=10.0, dead_s=30.0)
"""A child that served and does not answer for `dead_s` hangs. `suspect_s` only says how often it is asked."""
_STOP_MARGIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Child:
    listening: socket.socket
    process: asyncio.subprocess.Process | None = None
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    has_served: bool = False
    ailment: str = ""
    """The problem that it reported last; empty: none, or it did not answer."""
    ended_with: int | None = None
    """Exit code of the last process that ended."""
    question: asyncio.Task[ProcessReport | None] | None = None
    """The pending question; it stays pending while the child is stopped, and its answer counts whenever it arrives."""

    def hang_up(self) -> None:
        if self.question is not None:
            self.question.cancel()
        if self.writer is not None:
            self.writer.close()


class GatewayProcesses:
    """The children of this parent."""

    def __init__(
        self,
        argv: list[str],
        listening: list[socket.socket],
        drain_s: float,
        silence: LivenessConfig = SILENCE,
        start_s: float = START_S,
    ) -> None:
        """Raises OSError where the files of metrics have no room."""
        self._argv = argv
        self._drain_s = drain_s
        self._silence = silence
        self._start_s = start_s
        self._children = [_Child(listening_socket) for listening_socket in listening]
        self._metrics_folder = tempfile.TemporaryDirectory(prefix="baton-gateway-metrics-")
        reserve(self._metrics_folder.name, len(listening))
        self._watchers: list[asyncio.Task[None]] = []
        self._complaints = Complaints(_log)
        self._ready: asyncio.Queue[None] = asyncio.Queue()

    @property
    def metrics_folder(self) -> str:
        return self._metrics_folder.name

    async def start(self) -> None:
        """Returns when every child serves. One that hangs may be replaced once until then.

        Raises ProcessesDownError, with no child left, when some still do not.
        """
        self._watchers = [asyncio.create_task(self._keep(child)) for child in self._children]
        within_s = 2 * self._start_s + RESTART_S
        try:
            async with asyncio.timeout(within_s):
                for _ in self._children:
                    await self._ready.get()
        except TimeoutError:
            missing = [_missing(place, child) for place, child in enumerate(self._children) if not child.has_served]
            await self.stop()
            which = ", ".join(missing)
            raise ProcessesDownError(f"gateway processes that do not serve after {within_s:g} s: {which}") from None

    async def stop(self) -> None:
        """Drain all children, and kill those that do not end in time."""
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(self._stop_child(child) for child in self._children))
        for child in self._children:
            child.hang_up()
        self._metrics_folder.cleanup()

    async def reports(self) -> list[ProcessReport]:
        """The reports of the children; a child that does not answer is left out."""
        answers = await asyncio.gather(*(self._ask(child) for child in self._children))
        return [answer for answer in answers if answer is not None]

    async def _keep(self, child: _Child) -> None:
        while True:
            try:
                process = await self._start_child(child)
            except (OSError, RuntimeError) as error:  # no descriptors, memory, processes or threads are left
                self._complaints.say("a gateway process cannot be started", str(error))
                await asyncio.sleep(RESTART_S)
                continue
            watch = asyncio.create_task(self._kill_when_hung(child, process))
            try:
                code = await process.wait()
            finally:
                watch.cancel()
            child.ended_with = code
            _log.error("gateway process %d ended with %d; starting another", process.pid, code)
            absorb(self._metrics_folder.name, process.pid)
            await asyncio.sleep(RESTART_S)

    async def _kill_when_hung(self, child: _Child, process: asyncio.subprocess.Process) -> None:
        now = asyncio.get_running_loop().time
        start_until_s = now() + self._start_s
        if await self._ask(child, self._start_s) is None:
            await asyncio.sleep(start_until_s - now())  # one that has ended is no longer watched then
            _log.error("gateway process %d did not start within %g s; killing it", process.pid, self._start_s)
        else:
            if not child.has_served:
                child.has_served = True
                self._ready.put_nowait(None)
            await until_silent(lambda for_s: self._answers(child, for_s), self._silence)
            what = child.ailment or "silent"
            _log.error("gateway process %d is %s (%g s); killing it", process.pid, what, self._silence.dead_s)
        if process.returncode is None:
            process.kill()

    async def _answers(self, child: _Child, for_s: float) -> bool:
        """Return whether the child is healthy: an answer that reports a problem is no better than silence."""
        report = await self._ask(child, for_s)
        child.ailment = "" if report is None else report.ailment
        return report is not None and not report.ailment

    async def _start_child(self, child: _Child) -> asyncio.subprocess.Process:
        child.hang_up()
        ours, theirs = socket.socketpair()
        try:
            return await self._start_with(child, ours, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    async def _start_with(
        self, child: _Child, ours: socket.socket, theirs: socket.socket
    ) -> asyncio.subprocess.Process:
        descriptors = (child.listening.fileno(), theirs.fileno())
        environment = os.environ | {
            PARENT_VARIABLE: str(os.getpid()),
            CHILD_VARIABLE: ",".join(map(str, descriptors)),
            METRICS_VARIABLE: self._metrics_folder.name,
        }
        command = [sys.executable, "-m", "baton_gateway", *self._argv]
        process = child.process = await asyncio.create_subprocess_exec(*command, env=environment, pass_fds=descriptors)
        child.reader, child.writer = await asyncio.open_connection(sock=ours)
        return process

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
            await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_STOP_MARGIN_S)


def _missing(place: int, child: _Child) -> str:
    process = child.process
    if process is not None and process.returncode is None:
        before = "" if child.ended_with is None else f"; the one before it ended with {child.ended_with}"
        return f"the one at place {place} (pid {process.pid} does not answer{before})"
    code = child.ended_with if process is None else process.returncode
    return f"the one at place {place} ({'was never started' if code is None else f'ended with {code}'})"


async def until_silent(answers: Callable[[float], Awaitable[bool]], silence: LivenessConfig) -> None:
    """Return when a child that has just answered has not done so for `dead_s`.

    `answers`: whether it does within the given seconds, counted from a question that may be pending already. Gaps of
    the parent itself do not count against a child.
    """
    now = asyncio.get_running_loop().time
    liveness, look_s = Liveness(silence, now()), silence.suspect_s / (2 * LOOKS)
    while liveness.state(now()) is not PeerState.DEAD:
        next_s = now() + look_s
        if await answers(look_s):
            liveness.heard(now())
        await asyncio.sleep(next_s - now())


async def _put_question(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ProcessReport | None:
    """Ask a child once; None when it is gone or its answer is malformed."""
    try:
        writer.write(b"?")
        length = int.from_bytes(await reader.readexactly(4))
        return msgspec.json.decode(await reader.readexactly(length), type=ProcessReport)
    except (OSError, EOFError, msgspec.DecodeError):
        return None


@dataclass(frozen=True, slots=True)
class ChildSockets:
    """The sockets that a child gets from its parent."""

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
