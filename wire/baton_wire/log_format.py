"""Logging of every process, as text for people or as one JSON object a line for collectors."""

from __future__ import annotations

import enum
import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Final

LOG_FORMAT_VARIABLE: Final = "BATON_LOG_FORMAT"
"""Environment variable with the format, for processes that get no flag."""
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
    """Log to standard error from this level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else logging.Formatter(TEXT_FORMAT))
    logging.basicConfig(level=level, handlers=[handler])


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
