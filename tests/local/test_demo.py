"""`baton demo` with the real gateway, workers and model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

TINY = Path(__file__).parents[2] / "examples" / "tiny.yaml"
START_S = 400.0


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
    assert "stopped; no process is left\n\nnext: `baton up -f " in done.stdout
    assert not list(tmp_path.glob("baton*"))
