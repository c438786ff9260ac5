"""`baton demo` and `baton up` with the real gateway, workers and model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_local.fleet.process_tree import descendants, is_alive

pytestmark = pytest.mark.processes

TINY = Path(__file__).parents[2] / "examples" / "tiny.yaml"
START_S = 120.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}


def test_the_demo_answers_shows_that_kv_moved_and_leaves_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "baton_local", "demo", "-f", str(TINY), "--max-tokens", "24"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^prefill +\d+ +127\.0\.0\.1:\d+ +[1-9]\d* +[\d,]+  sent$", done.stdout, re.MULTILINE)
    assert re.search(r"^decode +\d+ +127\.0\.0\.1:\d+ +[1-9]\d* +[\d,]+  received$", done.stdout, re.MULTILINE)
    assert re.search(r"^transport tcp   TTFT [\d.]+ ms   TPOT [\d.]+ ms   \d+ tokens$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("stopped; no process is left\n")
    assert not list(tmp_path.glob("baton*"))


@pytest.fixture
def up(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "baton_local", "up", "-f", str(TINY), "--port", "0", "--processes", "2"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        yield process
        process.kill()


def test_a_real_deployment_is_asked_shown_and_leaves_nothing_when_killed(
    environment: dict[str, str], up: subprocess.Popen[str]
) -> None:
    def baton(*arguments: str) -> str:
        command = [sys.executable, "-m", "baton_local", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout

    streamed = baton("ask", "What is Baton?", "--max-tokens", "12", "--temperature", "0")
    assert streamed == baton("ask", "What is Baton?", "--max-tokens", "12", "--temperature", "0", "--no-stream")
    status = json.loads(baton("status", "--json"))
    assert {worker["role"]: worker["link"] for worker in status["workers"]} == {"prefill": "live", "decode": "live"}
    assert all(0 < worker["blocks_free"] == worker["blocks_total"] for worker in status["workers"])
    assert status["slo"]["ttft"]["count"] == 2
    assert 0 < status["slo"]["tpot"]["p95_ms"] < 10_000
    started = descendants(up.pid)
    assert len(started) >= 6  # the guard, two workers, the gateway and its two processes
    up.send_signal(signal.SIGKILL)
    up.wait()
    for _ in range(100):
        if not any(is_alive(process) for process in started):
            return
        time.sleep(0.05)
    raise AssertionError("processes were left behind")
