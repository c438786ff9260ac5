"""Commands that ask a deployment something wait while it starts, and say so once."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec
import pytest

from baton_local.errors import NotRunningError
from baton_local.fleet.ready_record import Waiting, ready_record
from baton_local.fleet.record import ProcessRecord, RunRecord, TargetRecord
from baton_local.fleet.run_dir import RunDir, base_directory, claimed, write_json
from baton_local.fleet.starts import announced_start

WORKERS = [("chat-gateway", "gateway"), ("chat-prefill-0", "prefill"), ("chat-decode-0", "decode")]


def write(run: RunDir, *, was_ready: bool, ready_workers: int = 0, ready: bool = False) -> None:
    phases = ["ready", *["ready"] * ready_workers, *["starting"] * (2 - ready_workers)]
    processes = [
        ProcessRecord(name, role, phase, "r", 1, None, None, None)
        for (name, role), phase in zip(WORKERS, phases, strict=True)
    ]
    target = TargetRecord(0.5, 95)
    record = RunRecord(
        "chat", "default", 1, "http://h:1", "chat", ready, "", target, target, tuple(processes), was_ready=was_ready
    )
    write_json(run.record, msgspec.to_builtins(record))


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return base_directory({"XDG_RUNTIME_DIR": str(tmp_path)})


class Rig:
    """A wait on a virtual clock, in which each nap is the next step of what happens meanwhile."""

    def __init__(self, steps: Iterator[object]) -> None:
        self.lines: list[str] = []
        self.now_s = 0.0
        self._steps = steps

    def waiting(self, within_s: float = 600.0) -> Waiting:
        return Waiting(within_s, self.lines.append, lambda: self.now_s, self._nap)

    def _nap(self, seconds: float) -> None:
        self.now_s += 10.0
        next(self._steps, None)


def test_a_command_waits_from_the_first_second_until_the_deployment_is_ready(base: Path) -> None:
    def steps() -> Generator[None, None, None]:
        yield  # still checking its model
        with claimed(base, "default.chat") as run:
            yield  # no record yet
            for ready in (0, 1):
                write(run, was_ready=False, ready_workers=ready)
                yield
            write(run, was_ready=True, ready_workers=2, ready=True)
            yield

    events = steps()
    rig = Rig(events)
    with announced_start(base):
        assert ready_record(None, base, rig.waiting()).was_ready
    [line] = rig.lines
    assert "is still checking its model: waiting for it, at most 600 s" in line
    events.close()


def test_the_line_says_how_many_workers_are_ready(base: Path) -> None:
    with claimed(base, "default.chat") as run:
        write(run, was_ready=False, ready_workers=1)
        rig = Rig(iter(()))
        with pytest.raises(NotRunningError, match=r"starting \(1 of 2 workers ready\): not ready within 30 s"):
            ready_record("chat", base, rig.waiting(30.0))
        assert rig.lines == [
            "default.chat is starting (1 of 2 workers ready): waiting for it, at most 30 s (Ctrl-C ends the wait)"
        ]


def test_one_that_was_ready_is_asked_at_once_even_if_its_workers_sleep(base: Path) -> None:
    with claimed(base, "default.chat") as run:
        write(run, was_ready=True)
        rig = Rig(iter(()))
        assert not ready_record(None, base, rig.waiting()).ready
        assert rig.lines == []


def test_a_start_that_fails_ends_the_wait(base: Path) -> None:
    def steps() -> Generator[None, None, None]:
        with claimed(base, "default.chat") as run:
            write(run, was_ready=False)
            yield

    events = steps()
    next(events)
    rig = Rig(events)
    with pytest.raises(NotRunningError, match="it stopped while it started; `baton logs` may say why"):
        ready_record(None, base, rig.waiting())


def test_where_nothing_starts_nothing_is_waited_for(base: Path) -> None:
    rig = Rig(iter(()))
    with pytest.raises(NotRunningError, match="no deployment is running in"):
        ready_record(None, base, rig.waiting())
    assert rig.now_s == 0.0
