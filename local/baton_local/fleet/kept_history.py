"""The history of a deployment on this machine, kept in the run folder from one run to the next.

It is written when something has changed, at most once in five seconds: a file of less than 80 kB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from baton_control.history_facts import HistoryFacts, StoredHistory, find_changes
from baton_local.fleet.supervision import signal_name
from baton_wire.deployment_history import ChangeKind, make_change

WRITE_S = 5.0
LOOK_S = 1.0
MAX_FILE_BYTES = 1 << 20


class KeptHistory:
    """The history of the deployment that runs. `keep`: writes plain data to a file, now or as soon as possible."""

    def __init__(self, file: Path, keep: Callable[[Path, object, float], None], at: float) -> None:
        """`at`: the wall clock."""
        former = read_history(file)
        self._file, self._keep = file, keep
        self._facts = msgspec.structs.replace(former.facts, starts={})  # every process begins anew
        self.history = former.history.with_changes([make_change(at, ChangeKind.RESTART, "baton up", "began")])
        self._ends: dict[str, str] = {}
        self._is_written, self._write_at_s = False, 0.0
        self._look_at_s = 0.0

    def note_end(self, process: str, status: int, kill_reason: str = "") -> None:
        """Remember how a process ended, for the change that its next start is. `kill_reason`: why Baton killed it."""
        self._ends[process] = exit_words(status, kill_reason)

    def is_due(self, now: float) -> bool:
        """Return whether it is time for another look. `now`: the monotonic clock."""
        return now >= self._look_at_s

    def look(self, facts: HistoryFacts, reasons: Mapping[str, str], at: float, now: float) -> None:
        """Compare the facts with those of the last look, and write what has changed when that is due."""
        self._look_at_s = now + LOOK_S
        changes = find_changes(self._facts, facts, at, reasons, self._ends)
        for change in changes:
            self._ends.pop(change.subject, None)
        if changes or facts != self._facts:
            self.history, self._facts, self._is_written = self.history.with_changes(changes), facts, False
        if not self._is_written and now >= self._write_at_s:
            self.write(now)

    def write(self, now: float) -> None:
        """Write the file."""
        self._keep(self._file, msgspec.to_builtins(StoredHistory(self.history, self._facts)), now)
        self._is_written, self._write_at_s = True, now + WRITE_S


def read_history(file: Path) -> StoredHistory:
    """Read a history; an empty one where there is none that can be read."""
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(MAX_FILE_BYTES), type=StoredHistory)
    except (OSError, msgspec.DecodeError):
        return StoredHistory()


def exit_words(status: int, kill_reason: str = "") -> str:
    """Return how a process ended, in words. `kill_reason`: why Baton killed it; empty: it did not.

    >>> exit_words(-9), exit_words(3)
    ('the one before was killed by SIGKILL, not by Baton', 'the one before ended with status 3')
    >>> exit_words(-9, "did not answer for 30 s")
    'the one before was killed by Baton: it did not answer for 30 s'
    """
    if status >= 0:
        return f"the one before ended with status {status}"
    if kill_reason:
        return f"the one before was killed by Baton: it {kill_reason}"
    return f"the one before was killed by {signal_name(-status)}, not by Baton"
