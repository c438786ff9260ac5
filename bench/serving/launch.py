"""Child processes of a benchmark: started, awaited by their announce file or ready line, stopped with the context."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

START_S = 120.0


@contextlib.contextmanager
def child(argv: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python argv…` with its output in `log`, until the context ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BATON_PARENT_PID": str(os.getpid())}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *argv], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


def await_json(path: Path, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Content of the announce file. Raises RuntimeError when the process ends first or takes longer than `START_S`."""
    _await(path.exists, process, f"{path.name} to be written")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def await_ok(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a GET of `url` answers 200."""

    def answers() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return int(response.status) == 200
        except OSError:
            return False

    _await(answers, process, f"{url} to answer 200")


def _await(is_true: Callable[[], bool], process: subprocess.Popen[bytes], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not is_true():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode} while waiting for {what}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {START_S} s for {what}")
        time.sleep(0.05)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and its children so far, by the scheduler's own nanoseconds."""
    own = psutil.Process(pid)
    tasks = [task for process in (own, *own.children(recursive=True)) for task in _tasks(process.pid)]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())
