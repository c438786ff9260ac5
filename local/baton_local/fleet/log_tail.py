"""Reading the ends of log files that another process is still writing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from baton_wire.log_format import as_text

TAIL_BYTES = 16 << 10
_TIME = re.compile(r'(?:\{"time": ")?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,](\d{3})')
MAX_LINE = 500


def last_line(path: Path, start: int = 0) -> str:
    """The last line with text at or after byte `start`, without control characters; empty when there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = start if start <= size else 0  # the log was rotated
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [clean(line) for line in as_text(text).splitlines()]
    return next((line for line in reversed(lines) if line), "")[:MAX_LINE]


def age_s(path: Path, wall_s: float) -> float | None:
    """How long ago a file was written last; None: it cannot be read."""
    try:
        return max(0.0, wall_s - path.stat().st_mtime)
    except OSError:
        return None


def clean(line: str) -> str:
    """A line that cannot move a terminal's cursor or start another line."""
    return "".join(letter if letter.isprintable() else " " for letter in line).strip()


def read_from(path: Path, position: int) -> tuple[str, int]:
    """The whole lines that were appended to a file after `position`, and the new position. A missing file is empty."""
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < position:
                position = 0  # the log was rotated
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return "", 0
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), position + len(whole)


def merge_logs(logs: Mapping[str, str]) -> list[tuple[str, str]]:
    """The lines of several logs by time, each with the name of its log. A line without a time, such as one of a
    traceback, stays after the line before it; the first ones stay before the first line that has one."""
    stamped = []
    for name, text in logs.items():
        lines = [clean(line) for line in text.splitlines()]
        stamps = [_stamp(line) for line in lines]
        at = next((stamp for stamp in stamps if stamp), "")
        for line, stamp in zip(lines, stamps, strict=True):
            at = stamp or at
            stamped.append((at, name, line))
    return [(name, line) for _, name, line in sorted(stamped, key=lambda entry: entry[0])]


def _stamp(line: str) -> str:
    """The time with which a log line begins, which sorts as text; empty: it has none.

    >>> _stamp("2026-11-29 10:00:00,123 INFO baton ready"), _stamp("ready")
    ('2026-11-29 10:00:00.123', '')
    >>> _stamp('{"time": "2026-11-29T10:00:00.123Z", "level": "INFO"}')
    '2026-11-29 10:00:00.123'
    """
    match = _TIME.match(line)
    return "" if match is None else f"{match[1]} {match[2]}.{match[3]}"
