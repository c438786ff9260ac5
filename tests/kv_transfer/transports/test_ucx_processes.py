"""UCX between real processes, of which one is killed or stopped in the middle of a write."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton_testing.kv_transfer.nixl import NEEDS_UCX

pytestmark = [pytest.mark.processes, NEEDS_UCX]
START_S = 60.0


class Side:
    """One process and the lines it says."""

    def __init__(self, role: str, life_line: socket.socket, lanes: str) -> None:
        command = [sys.executable, "-m", "baton_testing.kv_transfer.ucx_child", role, str(life_line.fileno())]
        environment = {**os.environ, "UCX_TLS": lanes, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=[life_line.fileno()],
            env=environment,
        )
        life_line.close()
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def hears(self, timeout_s: float = START_S) -> str:
        """The next line; fails the test when it does not come."""
        try:
            return self._lines.get(timeout=timeout_s)
        except queue.Empty:
            pytest.fail(f"nothing said within {timeout_s} s, exit status {self.process.poll()}")

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def finish(self) -> int:
        """Let it end by itself; its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(START_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(START_S)
        self._reader.join(START_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def writing(lanes: str) -> Iterator[tuple[Side, Side, str]]:
    """A writer that writes 64 MiB again and again into a landing side, and what it says of its lane."""
    here, there = socket.socketpair()
    landing, writer = Side("landing", here, lanes), Side("writer", there, lanes)
    try:
        writer.tell(landing.hears())
        yield landing, writer, writer.hears()
    finally:
        writer.close()
        landing.close()


@pytest.mark.parametrize(("lanes", "lane"), [("tcp", "tcp/"), ("all", "cma")])
def test_a_landing_side_killed_mid_write_is_lost_and_the_writer_lives(lanes: str, lane: str) -> None:
    with writing(lanes) as (landing, writer, report):
        assert report.startswith("writing over ucx ")
        assert lane in report or report.endswith("unknown")
        landing.process.kill()
        assert writer.hears().startswith("lost: ")
        assert writer.hears().endswith("over True")
        assert writer.process.wait(START_S) == 0


def test_a_writer_killed_mid_write_frees_the_quarantine_once_it_is_gone() -> None:
    with writing("tcp") as (landing, writer, _):
        writer.process.kill()
        assert landing.hears() == "ended 1"
        assert landing.process.poll() is None
        assert landing.finish() == 0
        assert landing.hears(1.0) == "bytes True"


def test_a_landing_side_that_stands_still_is_lost_by_the_writer_s_own_clock() -> None:
    with writing("tcp") as (landing, writer, _):
        os.kill(landing.process.pid, signal.SIGSTOP)
        assert writer.hears() == "lost: a write did not end within 1 s"
        assert not writer.hears().startswith("in flight 0")
        os.kill(landing.process.pid, signal.SIGCONT)
