"""Reading the ends of log files that another process is still writing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from baton_wire.log_format import as_text

TAIL_BYTES = 16 << 10
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


def labelled(name: str, text: str) -> Iterator[str]:
    """The lines of a log, each with the name of its process."""
    return (f"{name} | {clean(line)}" for line in text.splitlines())
