"""The record of a deployment that can answer: commands that ask it something wait while it starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baton_local.errors import NotRunningError
from baton_local.fleet.record import NotUpYetError, RunRecord, read_record
from baton_local.fleet.run_dir import StartingError, base_directory, find_run

POLL_S = 0.2
STARTS_WITHIN_S = 600.0
"""Seconds that a command waits for a deployment that starts: as long as `baton up` itself does by default."""


def _to_stderr(text: str) -> None:
    print(f"baton: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A wait: its length, and where it is announced."""

    within_s: float = STARTS_WITHIN_S
    say: Callable[[str], None] = _to_stderr
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def ready_record(name: str | None, base: Path | None = None, waiting: Waiting = Waiting()) -> RunRecord:
    """The record of a running deployment, once it has been ready for the first time. A deployment that was ready once
    is asked at once, whatever its state. Raises NotRunningError."""
    base = base_directory() if base is None else base
    until_s = waiting.now() + waiting.within_s
    has_said = False
    while True:
        try:
            record = read_record(find_run(base, name))
            if record.was_ready:
                return record
            state = start_in_words(record)
        except (StartingError, NotUpYetError) as error:
            state = str(error)
        except NotRunningError as error:
            if not has_said:
                raise
            raise NotRunningError(f"it stopped while it started; `baton logs` may say why: {error}") from error
        if waiting.now() >= until_s:
            raise NotRunningError(f"{state}: not ready within {waiting.within_s:g} s")
        if not has_said:
            waiting.say(f"{state}: waiting for it, at most {waiting.within_s:g} s (Ctrl-C ends the wait)")
            has_said = True
        waiting.sleep(POLL_S)


def start_in_words(record: RunRecord) -> str:
    """The progress of a deployment's start."""
    workers = [process for process in record.processes if process.role != "gateway"]
    ready = sum(process.phase == "ready" for process in workers)
    return f"{record.namespace}.{record.name} is starting ({ready} of {len(workers)} workers ready)"
