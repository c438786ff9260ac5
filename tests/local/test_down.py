"""`baton down` stops a deployment from another terminal."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton_local.__main__ import main
from baton_local.commands.down import run_down
from baton_local.errors import LocalError
from baton_local.fleet.run_dir import RunDir, is_held

HOLD = """
import signal, sys, time
from pathlib import Path
from baton_local.fleet.run_dir import claimed
signals = int(sys.argv[2])
received = []
signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
with claimed(Path(sys.argv[1]), "default.chat"):
    print("up", flush=True)
    deadline = time.monotonic() + 60
    while len(received) < signals and time.monotonic() < deadline:
        time.sleep(0.01)
"""


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "baton").mkdir(mode=0o700)
    return tmp_path / "baton"


@contextmanager
def holding(base: Path, signals: int) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `default.chat` until it got that many signals."""
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(base), str(signals)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "up\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_the_running_deployment_is_stopped_and_waited_for(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with holding(base, signals=1) as child:
        assert main(["down", "chat"]) == 0
        assert child.wait(10) == 0
    assert not is_held(RunDir(base / "default.chat"))
    assert capsys.readouterr().out == "baton: stopped default.chat\n"


def test_one_that_does_not_stop_in_time_gets_a_second_signal(base: Path) -> None:
    with holding(base, signals=2) as child:
        assert run_down(None, 0.3) == 0
        assert child.wait(10) == 0


def test_one_that_never_stops_is_named_with_its_process(base: Path) -> None:
    with holding(base, signals=9) as child, pytest.raises(LocalError, match=rf"pid {child.pid}\) did not stop within"):
        run_down(None, 0.2)


def test_nothing_to_stop_is_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down"]) == 2
    assert "no deployment is running" in capsys.readouterr().err


def test_the_name_is_taken_with_the_flag_that_other_commands_have(base: Path) -> None:
    with holding(base, signals=1) as child:
        assert main(["down", "--name", "chat"]) == 0
        assert child.wait(10) == 0


def test_two_names_are_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "chat", "--name", "other"]) == 2
    assert "only one deployment can be stopped at a time" in capsys.readouterr().err
