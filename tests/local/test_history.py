"""The history of a deployment on this machine: kept from one run to the next, written seldom, shown by the CLI."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from baton_control.history_facts import HistoryFacts
from baton_local.commands import history as command
from baton_local.commands.history import HistoryOptions, run_history
from baton_local.commands.history_options import KINDS
from baton_local.fleet.kept_history import WRITE_S, KeptHistory, exit_words, read_history
from baton_local.fleet.run_dir import write_json
from baton_local.options import parse_options
from baton_wire.deployment_history import ChangeKind

FACTS = HistoryFacts(version="0.2.0", sizes={"decode": 1}, most={"decode": 4}, starts={"chat-decode-0": 1})


def test_the_options_know_every_kind() -> None:
    assert tuple(ChangeKind) == KINDS


def keep(path: Path, value: object, now: float) -> None:
    write_json(path, value)


def kinds(file: Path) -> list[str]:
    return [f"{change.kind} {change.subject}" for change in read_history(file).history.entries]


def test_changes_outlive_the_run_and_a_new_run_is_one(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    first = KeptHistory(file, keep, 100.0)
    first.look(FACTS, {}, 101.0, 0.0)
    second = KeptHistory(file, keep, 200.0)
    larger = HistoryFacts("0.2.0", {}, {"decode": 2}, {"decode": 4}, {"chat-decode-0": 1, "chat-decode-1": 1})
    second.look(larger, {"decode": "more load"}, 201.0, 0.0)
    assert kinds(file) == ["restart baton up", "version baton", "restart baton up", "decision decode"]


def test_the_file_is_written_seldom_and_only_after_a_change(tmp_path: Path) -> None:
    writes: list[float] = []
    kept = KeptHistory(tmp_path / "history.json", lambda path, value, now: writes.append(now), 0.0)
    for tick in range(100):
        facts = HistoryFacts(sizes={"decode": tick % 2}, most={"decode": 9})
        kept.look(facts if tick < 50 else HistoryFacts(), {}, float(tick), tick * 1.0)
    assert all(later - former >= WRITE_S for former, later in itertools.pairwise(writes))
    assert max(writes) < 50 + WRITE_S + 1
    assert not kept.is_due(99.5)
    assert kept.is_due(100.0)


def test_a_restart_tells_how_the_process_ended(tmp_path: Path) -> None:
    kept = KeptHistory(tmp_path / "history.json", keep, 0.0)
    kept.look(FACTS, {}, 1.0, 0.0)
    kept.note_end("chat-decode-0", -9)
    kept.look(HistoryFacts("0.2.0", {}, {"decode": 1}, {"decode": 4}, {"chat-decode-0": 2}), {}, 2.0, 2.0)
    assert kept.history.entries[-1].text == "start 2: the one before was killed by SIGKILL, not by Baton"
    assert exit_words(-250) == "the one before was killed by signal 250, not by Baton"


def test_a_restart_says_why_baton_killed_the_process(tmp_path: Path) -> None:
    """Found: only the terminal of `baton up` showed it, and the history blamed an unknown SIGKILL."""
    kept = KeptHistory(tmp_path / "history.json", keep, 0.0)
    kept.look(FACTS, {}, 1.0, 0.0)
    kept.note_end("chat-decode-0", -9, "did not answer for 30 s")
    kept.look(HistoryFacts("0.2.0", {}, {"decode": 1}, {"decode": 4}, {"chat-decode-0": 2}), {}, 2.0, 2.0)
    text = kept.history.entries[-1].text
    assert text == "start 2: the one before was killed by Baton: it did not answer for 30 s"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"history": {"entries": [{"at": "x"}]}}'])
def test_a_file_that_cannot_be_read_is_an_empty_history(tmp_path: Path, content: str) -> None:
    file = tmp_path / "history.json"
    file.write_text(content)
    assert read_history(file).history.entries == ()


def test_the_command_shows_what_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = KeptHistory(tmp_path / "history.json", keep, 100.0)
    kept.look(FACTS, {}, 200.0, 0.0)
    monkeypatch.setattr(command, "base_directory", lambda: tmp_path)
    monkeypatch.setattr(
        command, "find_run", lambda base, name, must_run: SimpleNamespace(history=base / "history.json")
    )
    assert run_history(HistoryOptions()) == 0
    assert "baton up  began" in capsys.readouterr().out
    run_history(HistoryOptions(since_s=150.0, format="json"), wall_s=300.0)
    assert [entry["kind"] for entry in json.loads(capsys.readouterr().out)["entries"]] == ["version"]
    run_history(HistoryOptions(kind="decision"))
    assert capsys.readouterr().out == "no change is kept\n"


def test_times_back_are_written_alike_in_every_command() -> None:
    """Found: `history --since` took 24h and no day, `usage --since` a day and no 24h."""
    for text in ("30m", "24h", "7d", "2w", "2026-11-30", "2026-11", "today", "yesterday"):
        assert parse_options(["history", "--since", text]).since >= 0.0, text
        assert len(parse_options(["usage", "--since", text]).since) == len("2026-11-30"), text
    assert parse_options(["history", "--since", "7d"]).since == pytest.approx(7 * 86_400.0, abs=60.0)
    assert parse_options(["usage", "--since", "2026-11"]).since == "2026-11-01"
    today, yesterday = (parse_options(["usage", "--since", text]).since for text in ("today", "yesterday"))
    assert yesterday < today


@pytest.mark.parametrize("text", ["0d", "-3h", "2026-13-01", "2026-02-30", "tomorrow", "", "d", "9" * 400 + "d"])
@pytest.mark.parametrize("command_name", ["history", "usage"])
def test_what_is_no_time_back_is_refused_with_what_is(
    command_name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options([command_name, f"--since={text}"])
    assert "must be a time ago such as 30m, 24h or 7d, a day or a month in UTC" in capsys.readouterr().err
