"""Child processes, each in a session of its own, and the processes below one. The only file that starts or signals.

The kernel kills a child when this process dies; the orphan guard then kills what the child had started.

Nothing here waits: `poll` asks the kernel. A process that ended is reaped only after its whole group was killed, so
that no grandchild survives and no group id is used after the kernel could have given it to another process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).parent
PARENT_VARIABLE = "BATON_PARENT_PID"
GUARD_END_S = 5.0
PROC = Path("/proc")
ZOMBIE = "Z"
ISOLATED = ("-I", "-S")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    name: str
    status: int
    """Exit status, or the negative number of the signal that killed it."""
    pid: int


class ChildProcesses:
    """The running children of this process, by name. A context: leaving it kills whatever is left."""

    def __init__(self) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._guard = _start_guard()

    def __enter__(self) -> ChildProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self._children):
            self.signal(name, signal.SIGKILL)
            self._children[name].wait()
            self._forget(name)
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._guard.wait(GUARD_END_S)

    def start(self, name: str, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """Start a program with its output appended to `log`; returns its process id. Raises OSError."""
        parent = str(os.getpid())
        tied = [sys.executable, *ISOLATED, str(HERE / "parent_death_signal.py"), parent, *argv]
        with log.open("ab") as output:
            child = subprocess.Popen(
                tied,
                env={**environment, PARENT_VARIABLE: parent},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[name] = child
        self._notify_guard(f"+{child.pid}")
        return child.pid

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a child, SIGKILL to its whole group. A child that already ended is left alone."""
        child = self._children.get(name)
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(child.pid, number)
            else:
                os.kill(child.pid, number)

    def poll(self) -> list[Ended]:
        """The children that ended since the last call. The processes that they had started are killed."""
        self._watch_guard()
        return [self._reap(name, child) for name, child in list(self._children.items()) if _has_ended(child.pid)]

    def _reap(self, name: str, child: subprocess.Popen[bytes]) -> Ended:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        status = child.wait()
        self._forget(name)
        return Ended(name, status, child.pid)

    def _forget(self, name: str) -> None:
        child = self._children.pop(name)
        self._notify_guard(f"-{child.pid}")

    def _notify_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        try:
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()
        except BrokenPipeError:
            self._watch_guard()

    def _watch_guard(self) -> None:
        """Replace a guard that was killed, by one that knows all running groups; on failure the next call retries."""
        if self._guard.poll() is None:
            return
        with contextlib.suppress(OSError):
            self._guard = _start_guard(*(child.pid for child in self._children.values()))


def _start_guard(*groups: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *ISOLATED, str(HERE / "orphan_guard.py"), *map(str, groups)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _has_ended(pid: int) -> bool:
    """True when a child ended. The child stays unreaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a process that survives the reuse of process ids: no two have the same id and start. Linux only."""

    pid: int
    started: int
    """Clock ticks since boot."""


@dataclass(frozen=True, slots=True)
class _Stat:
    identity: Identity
    parent: int
    state: str


def descendants(pid: int) -> frozenset[Identity]:
    """All living processes below `pid`, without itself, from /proc."""
    children: defaultdict[int, list[_Stat]] = defaultdict(list)
    for path in PROC.glob("[0-9]*"):
        stat = _stat(int(path.name))
        if stat is not None:
            children[stat.parent].append(stat)
    identities: set[Identity] = set()
    queue = [pid]
    while queue:
        below = children[queue.pop()]
        identities.update(stat.identity for stat in below)
        queue += [stat.identity.pid for stat in below]
    return frozenset(identities)


def is_alive(process: Identity) -> bool:
    """True while this very process runs; a zombie does not run."""
    stat = _stat(process.pid)
    return stat is not None and stat.identity == process and stat.state != ZOMBIE


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rfind(")") + 2 :].split()  # the name before may hold spaces and brackets
    return _Stat(Identity(pid, int(fields[19])), int(fields[1]), fields[0])
