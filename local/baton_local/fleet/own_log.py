"""The log of `baton up` itself, next to those of its processes: starts, kills and ends with their causes, sizes."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path

from baton_wire.log_format import TEXT_FORMAT, JsonFormatter, LogFormat

PROCESS = "up"
"""The name by which `baton logs` knows it."""
LOGGER = "baton.up"


class OwnLog:
    """Lines for the user: on standard error, and in a file that `baton logs` shows after the terminal is gone."""

    def __init__(self, path: Path, log_format: LogFormat) -> None:
        self._path = path
        self._formatter = JsonFormatter() if log_format is LogFormat.JSON else logging.Formatter(TEXT_FORMAT)

    def say(self, text: str) -> None:
        """Write a line. A closed terminal or a full disk is no reason to stop."""
        with contextlib.suppress(OSError):
            print(f"baton: {text}", file=sys.stderr, flush=True)
        line = self._formatter.format(logging.LogRecord(LOGGER, logging.INFO, "", 0, text, None, None))
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{line}\n")
