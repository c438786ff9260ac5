"""Logging of every process, as text for people or as one JSON object a line for collectors."""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final

LOG_FORMAT_VARIABLE: Final = "BATON_LOG_FORMAT"
"""Environment variable with the format, for processes that get no flag."""
MAX_ESCAPE: Final = 6
"""Characters of the longest escape in a JSON string."""
_LAST_STRING: Final = re.compile(r'(?<!\\)"((?:[^"\\]|\\.)*)"\}+$')
TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LogFormat(enum.StrEnum):
    """The form of a log line."""

    TEXT = "text"
    JSON = "json"


def chosen_format(flag: str | None, environment: Mapping[str, str]) -> LogFormat:
    """The format of a flag, else of the environment, else text. Raises ValueError for another word."""
    text = flag or environment.get(LOG_FORMAT_VARIABLE) or LogFormat.TEXT
    try:
        return LogFormat(text)
    except ValueError:
        raise ValueError(f"{LOG_FORMAT_VARIABLE}: {text!r} is not allowed: must be {' or '.join(LogFormat)}") from None


def configure_logging(level: str | int, log_format: LogFormat) -> None:
    """Log to standard error from this level on. In JSON, warnings and an uncaught exception are log lines too."""
    # No line names a thread, a process or a place in the code: to look for them takes half of the time of a line.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])
    if log_format is LogFormat.JSON:
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    logging.getLogger("baton").critical("uncaught %s", kind.__name__, exc_info=(kind, error, traceback))


def as_text(log: str) -> str:
    """The end of a log with its JSON lines in the text format, and all other lines as they are. The first line may
    lack its beginning: what is left of its last string is kept."""
    return "\n".join(_line_as_text(line) for line in log.splitlines())


def _line_as_text(line: str) -> str:
    line = line.strip()
    if not line.endswith("}"):
        return line
    entry = _object(line)
    if entry is None:
        return line if line.startswith("{") else _unescape(line)
    if not {"time", "level", "logger"} <= entry.keys():
        return line
    message = entry["message"] if "message" in entry else json.dumps(entry.get("fields"), ensure_ascii=False)
    words = " ".join(str(entry[name]) for name in ("time", "level", "logger"))
    return "\n".join([f"{words} {message}", *([str(entry["traceback"])] if "traceback" in entry else [])])


def _unescape(rest: str) -> str:
    """The text of a JSON line's last string whose beginning is missing; `rest` itself where it is none."""
    inside = _LAST_STRING.search(rest)
    text = rest.removesuffix("}").rstrip() if inside is None else f'{inside.group(1)}"'
    for start in range(min(MAX_ESCAPE, len(text))):  # the cut may be inside an escape
        with contextlib.suppress(ValueError):
            value = json.loads(f'"{text[start:]}')
            return value if isinstance(value, str) else rest
    return rest


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback of an error. A message that is a JSON
    object itself, as in the access log, stays an object, in `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        fields = _object(message)
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        line |= {"message": message} if fields is None else {"fields": fields}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _object(message: str) -> dict[str, object] | None:
    if not message.startswith("{"):
        return None
    try:
        value = json.loads(message)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
