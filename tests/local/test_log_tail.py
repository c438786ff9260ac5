"""Reading logs that grow."""

from __future__ import annotations

from pathlib import Path

from baton_local.fleet.log_tail import last_line, read_from


def test_the_last_line_with_text_counts_from_a_start_and_cannot_steer_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old\n\x1b[2Jnew\xff\n\n")
    assert last_line(log) == "[2Jnew�"
    assert last_line(log, start=len(b"old\n\x1b[2Jnew\xff\n\n")) == ""
    assert last_line(tmp_path / "missing.log") == ""


def test_a_long_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x" * 100_000 + "\nend\n")
    assert last_line(log) == "end"


def test_the_last_line_of_a_json_log_is_its_text(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    line = (
        '{"time": "t", "level": "ERROR", "logger": "baton", "message": "failed", "traceback": "Traceback\\nOSError: a"}'
    )
    log.write_text(f"{line}\n")
    assert last_line(log) == "OSError: a"


def test_following_gives_whole_lines_once(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    assert read_from(log, 0) == ("", 0)
    log.write_text("one\ntw")
    assert read_from(log, 0) == ("one\n", 4)
    with log.open("a") as file:
        file.write("o\n")
    assert read_from(log, 4) == ("two\n", 8)
    log.write_text("new\n")
    assert read_from(log, 8) == ("new\n", 4)
