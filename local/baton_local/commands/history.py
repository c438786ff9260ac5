"""`baton history`: what changed in a deployment: sizes with their reasons, limits met, restarts, spec, versions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import msgspec

from baton_local.fleet.kept_history import read_history
from baton_local.fleet.run_dir import base_directory, find_run
from baton_local.text_table import table
from baton_wire.deployment_history import HistoryChange


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """The options of `baton history`."""

    name: str | None = None
    since_s: float | None = None
    """How far to look back; None: to the first change that is kept."""
    kind: str | None = None
    format: str = "text"


def run_history(options: HistoryOptions, wall_s: float | None = None) -> int:
    """Print the changes, the oldest first. Raises LocalError."""
    entries = read_history(find_run(base_directory(), options.name, must_run=False).history).history.entries
    return print_history(entries, options, time.time() if wall_s is None else wall_s)


def print_history(entries: Iterable[HistoryChange], options: HistoryOptions, now: float) -> int:
    """Print the changes that are asked for. `now`: the wall clock."""
    shown = [change for change in entries if _is_wanted(change, options, now)]
    print(as_json(shown) if options.format == "json" else as_text(shown))
    return 0


def as_text(changes: list[HistoryChange]) -> str:
    """The changes as a table."""
    if not changes:
        return "no change is kept"
    rows = [(_moment(change.at), change.kind.value, change.subject, change.text) for change in changes]
    return table(("WHEN", "KIND", "OF", "WHAT"), rows)


def as_json(changes: list[HistoryChange]) -> str:
    """The changes as JSON."""
    return json.dumps({"entries": msgspec.to_builtins(changes)}, indent=2)


def _is_wanted(change: HistoryChange, options: HistoryOptions, now: float) -> bool:
    is_recent = options.since_s is None or change.at >= now - options.since_s
    return is_recent and options.kind in (None, change.kind.value)


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")
