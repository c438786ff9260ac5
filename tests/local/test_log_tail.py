"""Reading logs that grow."""

from __future__ import annotations

from pathlib import Path

from baton_local.fleet.log_tail import last_line, merge_logs, read_from


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


def test_logs_are_merged_by_time_and_a_traceback_stays_with_its_line() -> None:
    """Found: `baton logs` showed one process after the other, so that a cause stood pages away from its effect."""
    stamp = "2026-11-29 10:00:0"
    logs = {
        "gateway": f"a warning\n{stamp}2,000 INFO g lost a worker\n{stamp}4,000 INFO g linked\n",
        "decode": f"{stamp}1,500 ERROR d failed\nTraceback\n  File\n{stamp}3,000 INFO d ready\n",
        "silent": "",
    }
    assert [(name, line.rpartition(" ")[2]) for name, line in merge_logs(logs)] == [
        *(("decode", "failed"), ("decode", "Traceback"), ("decode", "File")),
        *(("gateway", "warning"), ("gateway", "worker"), ("decode", "ready"), ("gateway", "linked")),
    ]


def test_json_logs_are_merged_by_time() -> None:
    first, second = (f'{{"time": "2026-11-29T10:00:0{number}.000Z", "level": "INFO"}}' for number in (1, 2))
    assert merge_logs({"a": f"{second}\n", "b": f"{first}\n"}) == [("b", first), ("a", second)]
