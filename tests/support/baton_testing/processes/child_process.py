"""One child process: started with its output in a file, awaited by deadline, and always ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import psutil

T = TypeVar("T")

POLL_S = 0.05


class NotReadyError(AssertionError):
    """A process did not reach the awaited state in time; the message ends with the tail of its output."""


def wait_for(probe: Callable[[], T | None], what: str, timeout_s: float) -> T:
    """First result of `probe` that is not None. Raises NotReadyError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = probe()
        if value is not None:
            return value
        if time.monotonic() > deadline:
            raise NotReadyError(f"waited {timeout_s} s for {what}")
        time.sleep(POLL_S)


def get_json(url: str, timeout_s: float = 20.0) -> Any:
    """Body of a GET as JSON; None without an answer, or when it is not 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None


def get_status(url: str, timeout_s: float = 20.0) -> int | None:
    """HTTP status of a GET; None without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


def get_text(url: str, timeout_s: float = 60.0) -> str:
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        return str(response.read().decode())


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a child: one torch thread, and it dies with the test process."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "BATON_PARENT_PID": str(os.getpid()), **(extra or {})}


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ran to its end."""

    code: int
    stdout: str
    stderr: str


def run_to_end(argv: Sequence[str], timeout_s: float, extra: Mapping[str, str] | None = None) -> Ended:
    """Run `python argv…` until it exits by itself; kills it and fails when it does not within `timeout_s`."""
    done = subprocess.run(
        [sys.executable, *argv], env=environment(extra), capture_output=True, text=True, timeout=timeout_s, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


class Running(Protocol):
    """The part of `subprocess.Popen` that a `Child` uses."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class Starts(Protocol):
    """Another way to start `python argv…`: see `prepared`."""

    def can_start(self, argv: Sequence[str]) -> bool: ...

    def start(
        self, argv: Sequence[str], output: int, errors: int, extra: Mapping[str, str] | None = None
    ) -> Running: ...


class Child:
    """A running `python argv…`, its output in `folder/name.log`; `under` is the command that runs it, if any. `starts`
    starts it where it can.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        folder: Path,
        extra: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        starts: Starts | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._kin: dict[int, psutil.Process] = {}
        self._popen: Running
        with self.log.open("wb") as log:
            if starts is not None and starts.can_start(argv) and not under:
                self._popen = starts.start(argv, log.fileno(), log.fileno(), extra)
            else:
                self._popen = _popen([*under, sys.executable, *argv], log, extra)

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def await_file(self, path: Path, timeout_s: float) -> Any:
        """JSON content of a file that the child writes when it is ready. Fails at once when the child exits first."""

        def probe() -> Any:
            if not self.is_running():
                tail = self.output()[-1500:]
                raise NotReadyError(f"{self.name} exited with {self._popen.returncode} before it was ready:\n{tail}")
            return json.loads(path.read_text()) if path.exists() else None

        try:
            return wait_for(probe, f"{self.name} to write {path.name}", timeout_s)
        except NotReadyError as error:
            raise NotReadyError(f"{error}\n{self.output()[-1500:]}") from None

    def cpu_s(self) -> float:
        """Processor seconds of the process and its descendants so far, by the scheduler's own nanoseconds."""
        own = psutil.Process(self.pid)
        tasks = [
            task
            for process in (own, *own.children(recursive=True))
            for task in Path(f"/proc/{process.pid}/task").iterdir()
        ]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants, those seen earlier included."""
        try:
            own = psutil.Process(self.pid)
            for process in (own, *own.children(recursive=True)):
                self._kin.setdefault(process.pid, process)
        except psutil.NoSuchProcess:
            pass
        return list(self._kin.values())

    def send(self, signum: signal.Signals) -> None:
        if self.is_running():
            self._popen.send_signal(signum)

    def wait(self, timeout_s: float) -> int:
        """Exit code. Raises subprocess.TimeoutExpired."""
        return self._popen.wait(timeout_s)

    def stop(self, timeout_s: float = 15.0) -> int:
        """SIGTERM, then SIGKILL after `timeout_s`; the exit code. Descendants that are left are killed too."""
        kin = self.family()
        self.send(signal.SIGTERM)
        try:
            code = self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            code = self._popen.wait(60)
        for process in still_alive(kin):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile
                process.kill()
        return code


def _popen(command: Sequence[str], log: IO[bytes], extra: Mapping[str, str] | None) -> Running:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment(extra)
    )


def still_alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """The processes that run (a zombie counts as ended)."""
    alive = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def orphans_of(processes: Sequence[psutil.Process], timeout_s: float = 60.0) -> list[psutil.Process]:
    """The `processes` that still run after waiting up to `timeout_s` for them to end."""
    deadline = time.monotonic() + timeout_s
    while (alive := still_alive(processes)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return alive
