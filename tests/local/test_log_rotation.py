"""Logs of processes that never open them again stay bounded, and can still be read while they are rotated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from baton_local.fleet.log_rotation import rotate_logs
from baton_local.fleet.log_tail import last_line, read_from


def test_a_flood_takes_two_files_of_the_bound_at_most(tmp_path: Path) -> None:
    log = tmp_path / "gateway-0.log"
    with log.open("ab", buffering=0) as process:
        for number in range(1_000):
            process.write(b"%d %s\n" % (number, b"x" * 90))
            rotate_logs(tmp_path, 10_000)
            sizes = sum(path.stat().st_size for path in tmp_path.iterdir())
            assert sizes <= 2 * 10_100
    assert last_line(log, start=50_000).startswith("999 ")
    former = (tmp_path / "gateway-0.log.former").read_bytes()
    assert former.endswith(b"\n")
    text, _ = read_from(log, 1 << 20)
    assert text.splitlines()[-1].startswith("999 ")


def test_small_logs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"x" * 100)
    assert rotate_logs(tmp_path, 100) == []
    assert rotate_logs(tmp_path, 99) == [tmp_path / "a.log"]
    assert (tmp_path / "a.log").stat().st_size == 0


def test_on_a_full_disk_the_log_is_emptied_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(shutil, "copyfile", no_space)
    (tmp_path / "a.log").write_bytes(b"x" * 100)
    assert rotate_logs(tmp_path, 50) == [tmp_path / "a.log"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
