"""Run directories: private, claimed by one process, cleared of keys, found by name."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path

import pytest

from baton_local.errors import NotRunningError, StartError
from baton_local.fleet.run_dir import (
    KEPT_S,
    RunDir,
    StartingError,
    base_directory,
    claimed,
    find_run,
    is_held,
    refuse_running,
    remove_old,
    write_json,
    write_key,
)
from baton_local.fleet.starts import FOLDER, announced_start, living_starts


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return base_directory({"XDG_RUNTIME_DIR": str(tmp_path)})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_in_it_is_for_the_owner_alone(base: Path) -> None:
    with claimed(base, "default.chat") as run:
        write_key(run)
        write_json(run.record, {"a": 1})
        assert [mode(path) for path in (base, run.root, run.keys, run.logs, run.announcements)] == [0o700] * 5
        (key,) = run.keys.iterdir()
        assert (mode(key), mode(run.record)) == (0o600, 0o600)
        assert len(bytes.fromhex(key.read_text())) == 32


def test_keys_and_addresses_do_not_outlive_the_run_but_logs_do(base: Path) -> None:
    with claimed(base, "default.chat") as run:
        write_key(run)
        run.log("gw").write_text("hello\n")
    assert {path.name for path in run.root.iterdir()} == {"lock", "logs"}
    assert find_run(base, "chat", must_run=False).log("gw").read_text() == "hello\n"
    with claimed(base, "default.chat") as run:
        assert not run.log("gw").exists()


def test_a_deployment_runs_once(base: Path) -> None:
    with (
        claimed(base, "default.chat"),
        pytest.raises(
            StartError,
            match=rf"default\.chat is already running \(pid {os.getpid()}\): stop it with `baton down --name chat`",
        ),
        claimed(base, "default.chat"),
    ):
        pass


def test_one_that_is_refused_leaves_the_first_one_as_it_is(base: Path) -> None:
    with claimed(base, "default.chat") as run:
        write_key(run)
        write_json(run.record, {"a": 1})
        before = {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()}
        for _ in range(2):
            with pytest.raises(StartError, match="already running"), claimed(base, "default.chat"):
                pass
        assert {path: path.read_bytes() for path in run.root.rglob("*") if path.is_file()} == before
        assert is_held(run)


def test_what_a_killed_one_left_is_taken_over(base: Path) -> None:
    run = RunDir(base / "default.chat")
    run.root.mkdir(mode=0o700)
    run.lock.write_text("4194304\n")  # no lock outlives its process
    (run.root / ".run.json.4194304").write_text("{")
    run.keys.mkdir()
    (run.keys / "run-old").write_text("f" * 64)
    with claimed(base, "default.chat"):
        assert {path.name for path in run.root.iterdir()} == {"lock", "keys", "announce", "logs"}
        assert list(run.keys.iterdir()) == []
        assert run.lock.read_text() == f"{os.getpid()}\n"


def test_a_file_system_without_locks_is_refused_by_name(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(StartError, match="lock: cannot be locked: No locks available; set XDG_RUNTIME_DIR"),
        claimed(base, "default.chat"),
    ):
        pass


def test_several_deployments_run_side_by_side_and_are_told_apart(base: Path) -> None:
    with claimed(base, "default.chat") as chat, claimed(base, "team.code") as code:
        assert is_held(chat)
        assert find_run(base, "code") == code
        assert find_run(base, "default.chat") == chat
        with pytest.raises(NotRunningError, match=r"several .*default\.chat, team\.code.*--name"):
            find_run(base, None)
        with pytest.raises(NotRunningError, match=r"no deployment named other is running; there are default\.chat, "):
            find_run(base, "other")
        with pytest.raises(NotRunningError, match=r"no deployment named caht is running: did you mean chat\?"):
            find_run(base, "caht")
    with pytest.raises(NotRunningError, match=rf"no deployment is running in {base}: start one with `baton up MODEL`"):
        find_run(base, None)


def ended(base: Path, name: str, age_s: float = 0.0) -> RunDir:
    """A run that has ended that long ago."""
    with claimed(base, name) as run:
        pass
    at = time.time() - age_s
    os.utime(run.lock, (at, at))
    return run


def test_the_one_that_runs_is_meant_though_others_have_ended(base: Path) -> None:
    ended(base, "default.old")
    ended(base, "default.older")
    with claimed(base, "default.chat") as chat:
        assert find_run(base, None, must_run=False) == chat
        assert find_run(base, "old", must_run=False).root.name == "default.old", "by its name an ended one is found"
        with pytest.raises(NotRunningError, match=r"no deployment named nope; there are default\.chat, default\.old"):
            find_run(base, "nope", must_run=False)


def test_without_a_running_one_the_logs_of_the_last_run_are_meant(base: Path) -> None:
    ended(base, "default.older", age_s=100.0)
    last = ended(base, "default.last", age_s=10.0)
    ended(base, "default.aged", age_s=200.0)
    assert find_run(base, None, must_run=False) == last


def test_the_run_that_ended_last_is_meant_though_another_started_later(base: Path) -> None:
    """Found: `baton logs` after the end showed another deployment than the one that had just stopped."""
    with claimed(base, "default.first"):
        os.utime(RunDir(base / "default.first").lock, (1e9, 1e9))
        with claimed(base, "default.second"):
            pass
        os.utime(RunDir(base / "default.second").lock, (1e9 + 5, 1e9 + 5))
    assert find_run(base, None, must_run=False).root.name == "default.first"
    log = RunDir(base / "default.second").log("gw")
    log.write_text("the last line of a killed run\n")
    os.utime(log, (4e9, 4e9))
    assert find_run(base, None, must_run=False).root.name == "default.second"


def test_old_run_folders_are_removed_and_running_or_young_ones_stay(base: Path) -> None:
    ended(base, "default.ancient", age_s=KEPT_S + 100.0)
    ended(base, "default.young", age_s=100.0)
    with claimed(base, "default.chat") as chat:
        os.utime(chat.lock, (0.0, 0.0))
        assert remove_old(base, time.time()) == ["default.ancient"]
        assert {path.name for path in base.iterdir()} == {"default.chat", "default.young"}
        assert is_held(chat)
    assert remove_old(base, time.time() + 2 * KEPT_S) == ["default.chat", "default.young"]
    with claimed(base, "default.young") as run:
        assert run.keys.is_dir(), "a removed folder is made anew"


def test_a_file_system_that_removes_nothing_stops_no_start(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(base, "default.ancient", age_s=KEPT_S + 100.0)

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    assert remove_old(base, time.time()) == []


def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "baton").mkdir(mode=0o755)
    with pytest.raises(StartError, match="its mode must be 0700"):
        base_directory({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "baton").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StartError, match="is not a directory"):
        base_directory({"XDG_RUNTIME_DIR": str(tmp_path)})


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "baton").mkdir(mode=0o700)
    os.chown(tmp_path / "baton", 12345, 12345)
    with pytest.raises(StartError, match="belongs to another user"):
        base_directory({"XDG_RUNTIME_DIR": str(tmp_path)})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_is_full_hinders_no_lock(base: Path) -> None:
    """The text of the lock file was written again when it was closed, and that error named no file."""
    run = RunDir(base / "default.chat")
    run.root.mkdir(mode=0o700)
    run.lock.symlink_to("/dev/full")
    with claimed(base, "default.chat") as claimed_run:
        assert claimed_run.keys.is_dir()


def test_a_start_is_known_before_there_is_a_run_directory(base: Path) -> None:
    """Found: for the first seconds of `baton up`, `baton ask` failed as if no deployment were running."""
    with announced_start(base):
        assert living_starts(base) == [os.getpid()]
        for name in (None, "chat"):
            with pytest.raises(StartingError, match=rf"`baton up` \(pid {os.getpid()}\) is still checking its model"):
                find_run(base, name)
        with claimed(base, "default.chat"):
            assert find_run(base, None).root.name == "default.chat"
            with pytest.raises(NotRunningError, match="no deployment named other is running; there are default"):
                find_run(base, "other")
    assert living_starts(base) == []


def test_the_mark_of_a_killed_start_is_nothing(base: Path) -> None:
    (base / FOLDER).mkdir()
    (base / FOLDER / "4711").touch()
    assert living_starts(base) == []
    assert list((base / FOLDER).iterdir()) == []
    with pytest.raises(NotRunningError) as refused:
        find_run(base, None)
    assert not isinstance(refused.value, StartingError)


def test_the_refusal_of_a_second_deployment_names_what_gives_it_another_name(base: Path) -> None:
    with claimed(base, "default.chat"):
        with pytest.raises(StartError, match="or use another --served-name"):
            refuse_running(base, "default.chat", "--served-name")
        with pytest.raises(StartError, match="or use another metadata"), claimed(base, "default.chat"):
            pass
        refuse_running(base, "default.other", "--served-name")
