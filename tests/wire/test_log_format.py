"""Log lines as JSON: one object a line, whatever a message has in it."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from baton_wire.log_format import JsonFormatter, LogFormat, as_text, chosen_format


def line_of(message: str, *arguments: object, **options: object) -> dict[str, object]:
    record = logging.LogRecord("baton.x", logging.WARNING, "f.py", 1, message, arguments, None)
    for name, value in options.items():
        setattr(record, name, value)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert isinstance(line, dict)
    return line


def test_a_line_has_time_level_logger_and_message() -> None:
    line = line_of("two\nlines of %s", "text", created=1.0, msecs=250.0)
    assert line == {
        "time": "1970-01-01T00:00:01.250Z",
        "level": "WARNING",
        "logger": "baton.x",
        "message": "two\nlines of text",
    }


def test_a_message_that_is_an_object_stays_one() -> None:
    assert line_of('{"id": "req-1", "s": 2.5}')["fields"] == {"id": "req-1", "s": 2.5}
    assert line_of("{not JSON")["message"] == "{not JSON"


def test_a_traceback_is_in_the_same_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        line = line_of("failed", exc_info=sys.exc_info())
    assert "ValueError: broken" in str(line["traceback"])


def test_a_flag_goes_before_the_environment_and_other_words_are_refused() -> None:
    assert chosen_format(None, {}) is LogFormat.TEXT
    assert chosen_format(None, {"BATON_LOG_FORMAT": "json"}) is LogFormat.JSON
    assert chosen_format("text", {"BATON_LOG_FORMAT": "json"}) is LogFormat.TEXT
    with pytest.raises(ValueError, match="BATON_LOG_FORMAT: 'xml' is not allowed: must be text or json"):
        chosen_format(None, {"BATON_LOG_FORMAT": "xml"})


def test_a_process_writes_what_it_was_told_to() -> None:
    code = (
        "import logging; from baton_wire.log_format import *; "
        "configure_logging('INFO', LogFormat.JSON); logging.getLogger('a').info('hello'); "
        "logging.getLogger('a').debug('no')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [line] = ended.stderr.splitlines()
    assert json.loads(line)["message"] == "hello"


@pytest.mark.parametrize("log_format", list(LogFormat))
def test_a_line_looks_for_no_thread_no_process_and_no_place_in_the_code(log_format: LogFormat) -> None:
    """The access log writes a line for each request, and to find them took half of its time."""
    code = (
        "import logging; from baton_wire.log_format import *; "
        f"configure_logging('INFO', LogFormat.{log_format.name}); records = []; "
        "logging.getLogger().handlers[0].addFilter(records.append); logging.getLogger('a').info('hello'); "
        "[record] = records; print(record.thread, record.process, record.processName, record.lineno)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["None", "None", "None", "0"]


def test_an_uncaught_exception_and_a_warning_are_lines_in_json() -> None:
    code = (
        "import warnings; from baton_wire.log_format import *; configure_logging('INFO', LogFormat.JSON); "
        "warnings.warn('old'); raise OSError('no room')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    warning, crash = map(json.loads, ended.stderr.splitlines())
    assert ended.returncode == 1
    assert (warning["level"], "old" in warning["message"]) == ("WARNING", True)
    assert (crash["level"], crash["traceback"].splitlines()[-1]) == ("CRITICAL", "OSError: no room")


def test_the_end_of_a_json_log_reads_like_a_text_log() -> None:
    def written(message: str, **more: object) -> str:
        entry = {"time": "2026-01-01T00:00:00.000Z", "level": "ERROR", "logger": "baton.fetch", "message": message}
        return json.dumps(entry | more)

    assert as_text(written("refused: HTTP 404")) == "2026-01-01T00:00:00.000Z ERROR baton.fetch refused: HTTP 404"
    crash = written("failed", traceback='Traceback\n  File "x"\nValueError: a "quoted" word')
    assert as_text(crash).splitlines()[-1] == 'ValueError: a "quoted" word'
    for start in range(1, len(crash) - 10):
        assert as_text(crash[start:]).endswith(" word"), crash[start:]
    assert as_text('{"fields": 1}\nplain {text}\n{"broken": }') == '{"fields": 1}\nplain {text}\n{"broken": }'
    access = '{"time": "t", "level": "INFO", "logger": "baton.access", "fields": {"id": "r"}}'
    assert as_text(access) == 't INFO baton.access {"id": "r"}'
    assert as_text("") == ""
