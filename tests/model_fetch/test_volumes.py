"""Cache volumes that lack something: modes, locks, fsync, rename, room, the right to write, or two cases of a name."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton_model_fetch import __main__ as program
from baton_model_fetch import folder_lock
from baton_model_fetch.cache_volume import RECORD, ModelFolder
from baton_model_fetch.download import LEAST_BYTES, STALL_S, BodyPace
from baton_model_fetch.errors import Interrupted, VolumeRefused
from baton_model_fetch.file_system import explain
from baton_model_fetch.listing import RemoteFile

SOURCE = "hf://org/name@" + "c" * 40
FILES = (RemoteFile("config.json", 2, "https://x/config.json"), RemoteFile("sub/a.json", 2, "https://x/a.json"))
REFUSED, FAILED = 3, 1


def fetched(cache: ModelFolder, files: tuple[RemoteFile, ...] = FILES) -> None:
    """One fetch without a network."""
    with cache.alone():
        for file, path in cache.prepare(SOURCE, files).items():
            path.write_bytes(b"{}"[: file.size])
        cache.publish(SOURCE, files)


def raising(number: int, when: Callable[..., bool] = lambda *given, **named: True) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        assert when(*given, **named)
        raise OSError(number, os.strerror(number), *(str(path) for path in given[:1] if isinstance(path, str | Path)))

    return call


@pytest.fixture
def cache(tmp_path: Path) -> ModelFolder:
    return ModelFolder(tmp_path / "cache", "model")


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_a_volume_without_modes_gets_the_model_and_one_line_in_the_log(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    caplog.set_level(logging.INFO, logger="baton.fetch")
    monkeypatch.setattr(os, "chmod", raising(number))
    fetched(cache)
    assert cache.is_whole()
    assert len([record for record in caplog.records if "modes" in record.getMessage()]) == 1


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL])
def test_a_volume_without_flock_is_held_by_a_file_instead(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    caplog.set_level(logging.INFO, logger="baton.fetch")
    monkeypatch.setattr(fcntl, "flock", raising(number))
    monkeypatch.setattr(folder_lock, "STALE_S", 0.3)
    monkeypatch.setattr(folder_lock, "RENEW_S", 0.05)
    with cache.alone(), pytest.raises(Interrupted, match="another process"), cache.alone():
        pass
    fetched(cache)
    assert cache.is_whole()
    assert [path.name for path in cache.folder.iterdir() if "held" in path.name] == []
    assert any("flock" in record.getMessage() for record in caplog.records)


def test_the_lock_file_of_a_process_that_is_gone_is_taken_over(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(errno.ENOLCK))
    monkeypatch.setattr(folder_lock, "STALE_S", 0.1)
    cache.folder.mkdir()
    (cache.folder / ".fetching-model.held").write_text("gone 7")
    fetched(cache)
    assert cache.is_whole()


def test_a_lock_file_that_another_process_took_over_stops_the_fetch(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", raising(errno.ENOLCK))
    with cache.alone() as lock:
        (cache.folder / ".fetching-model.held").write_text("other 1")
        with pytest.raises(Interrupted, match="another process"):
            lock.check()
    assert (cache.folder / ".fetching-model.held").read_text() == "other 1", "the new holder's file stays"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_volume_without_fsync_gets_the_model(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", raising(number))
    fetched(cache)
    assert cache.is_whole()


def test_a_failing_disk_is_no_volume_without_fsync(cache: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", raising(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        fetched(cache)
    assert not cache.is_whole()


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EINVAL])
def test_a_volume_that_cannot_rename_folders_gets_the_files_and_the_record_last(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    rename, moved = os.rename, []

    def files_only(source: Any, target: Any, **named: Any) -> None:
        if Path(source).is_dir():
            raise OSError(number, os.strerror(number), str(source))
        moved.append(Path(target).name)
        rename(source, target, **named)

    monkeypatch.setattr(os, "rename", files_only)
    fetched(cache)
    assert cache.is_whole()
    assert moved[-1] == RECORD
    assert sorted(moved[:-1]) == ["a.json", "config.json"]


def test_a_model_that_is_there_needs_no_right_to_write(cache: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched(cache)
    monkeypatch.setattr(Path, "open", raising(errno.EROFS))
    monkeypatch.setattr(os, "open", raising(errno.EROFS))
    monkeypatch.setattr(ModelFolder, "is_whole", lambda folder: True)
    assert run(cache) == 0


def run(cache: ModelFolder) -> int:
    return program.main([f"--source={SOURCE}", f"--cache={cache.folder}", f"--key={cache.key}"])


@pytest.mark.parametrize(
    ("number", "status", "says"),
    [
        (errno.EACCES, REFUSED, f"the claim is not writable by user {os.geteuid()}: fsGroup is not honoured there"),
        (errno.EPERM, REFUSED, "fsGroup is not honoured there"),
        (errno.EROFS, REFUSED, "the volume is read-only"),
        (errno.ENOSPC, REFUSED, "the volume is full: raise spec.model.cache.size"),
        (errno.EDQUOT, REFUSED, "the volume's quota is used up"),
        (errno.EFBIG, REFUSED, "the volume does not take files of this size"),
        (errno.EINVAL, REFUSED, "the volume does not take this file name or operation"),
        (errno.ENAMETOOLONG, REFUSED, "the volume does not take this file name or operation"),
        (errno.EIO, FAILED, "Input/output error"),
        (errno.ESTALE, FAILED, "Stale file handle"),
        (errno.ETIMEDOUT, FAILED, "timed out"),
        (errno.EBUSY, FAILED, "busy"),
    ],
)
def test_what_the_volume_refuses_is_said_and_not_tried_again(
    cache: ModelFolder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    status: int,
    says: str,
) -> None:
    monkeypatch.setattr(Path, "mkdir", raising(number))
    assert run(cache) == status
    last = caplog.records[-1].getMessage()
    assert last.startswith("refused: " if status == REFUSED else "failed: ")
    assert says in last
    assert str(cache.folder) in last


def test_an_error_without_a_path_names_the_draft(cache: ModelFolder) -> None:
    refused, text = explain(OSError(errno.ENOSPC, "No space left on device"), cache.draft)
    assert refused
    assert str(cache.draft) in text
    assert explain(OSError("torn"), cache.draft) == (False, f"{cache.draft}: torn")


def test_no_room_is_refused_with_the_field_to_raise(cache: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(cache.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))
    with pytest.raises(VolumeRefused, match=r"GiB more than the cache has: raise spec\.model\.cache\.size"):
        fetched(cache, (RemoteFile("config.json", 1 << 20, "https://x/config.json"),))


def test_a_volume_that_reports_no_size_is_not_full(cache: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(cache.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(total=0, used=0, free=0))
    fetched(cache)
    assert cache.is_whole()


def test_names_that_differ_in_case_alone_need_a_volume_that_tells_them_apart(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = (*FILES, RemoteFile("Config.json", 2, "https://x/Config.json"))
    fetched(cache, twins)
    assert cache.is_whole(), "this one does"
    other, exists = ModelFolder(cache.folder, "other"), Path.exists
    monkeypatch.setattr(Path, "exists", lambda path, **named: path.name == "LISTING" or exists(path, **named))
    with pytest.raises(VolumeRefused, match=r"does not tell 'Config\.json' from 'config\.json'"):
        fetched(other, twins)
    fetched(ModelFolder(cache.folder, "third"))


def unshared(script: str, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    """A shell script in namespaces of its own, where it may mount; None: this machine does not let it."""
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *arguments]
    if shutil.which("unshare") is None:
        return None
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    if subprocess.run(probe, capture_output=True, check=False, timeout=20).returncode != 0:
        return None
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


MOUNTS = {
    "a read-only bind": (
        'mkdir -p "$1" && mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1"',
        "the volume is read-only",
    ),
    "a full tmpfs": (
        'mkdir -p "$1" && mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"',
        "raise spec.model.cache.size",
    ),
}
PROGRAM = """
import asyncio, sys
from pathlib import Path
from baton_model_fetch import __main__ as program
from baton_model_fetch.listing import RemoteFile
async def fetch(source, cache, *more):
    with cache.alone():
        files = (RemoteFile("config.json", 1 << 20, "x"),)
        for file, path in cache.prepare(source, files).items():
            path.write_bytes(bytes(file.size))
program.fetch = fetch
sys.exit(program.main(["--source=hf://a/b@" + "c" * 40, f"--cache={sys.argv[1]}", "--key=model"]))
"""


@pytest.mark.parametrize("kind", MOUNTS)
def test_a_real_mount_is_refused_with_the_same_words(kind: str, tmp_path: Path) -> None:
    script, says = MOUNTS[kind]
    run = unshared(script, str(tmp_path / "volume"), sys.executable, PROGRAM)
    if run is None:
        pytest.skip("no user namespaces with mounts here")
    assert run.returncode == REFUSED, run.stderr
    assert says in run.stderr.splitlines()[-1]


def test_published_files_are_read_only_where_modes_exist(cache: ModelFolder) -> None:
    fetched(cache)
    assert stat.S_IMODE((cache.model / "config.json").stat().st_mode) == 0o444


async def test_a_second_deployment_of_a_model_waits_for_the_first_and_fails_no_try(
    cache: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "LOOK_S", 0.02)
    with cache.alone():
        second = asyncio.create_task(asyncio.to_thread(run, cache))
        await asyncio.sleep(0.2)
        assert not second.done()
        for file, path in cache.prepare(SOURCE, FILES).items():
            path.write_bytes(b"{}"[: file.size])
        cache.publish(SOURCE, FILES)
    assert await asyncio.wait_for(second, 20) == 0


def test_a_wait_for_another_process_ends(cache: ModelFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "TURN_S", 0.0)
    with cache.alone():
        assert run(cache) == FAILED


def test_a_body_that_only_trickles_is_stalled() -> None:
    pace = BodyPace(0.0)
    assert not any(pace.is_stalled(100, now) for now in (1.0, 60.0, STALL_S - 1))
    assert pace.is_stalled(100, STALL_S)
    assert not pace.is_stalled(LEAST_BYTES, 2 * STALL_S), "counted anew"
    assert not pace.is_stalled(100, 2 * STALL_S + 1)
