"""Files that others read, on a disk that is full for a while."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from baton_local.fleet import bookkeeping
from baton_local.fleet.bookkeeping import RESERVE_BYTES, RETRY_S, Bookkeeping
from baton_wire import whole_file


class Disk:
    """How many bytes can still be written; the reserve counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.room, self._reserve = 1 << 30, folder / "reserve"
        whole = whole_file.write_all

        def write(path: Path, content: bytes, mode: int) -> None:
            freed = 0 if self._reserve.exists() else RESERVE_BYTES
            if len(content) > self.room + freed:
                path.write_bytes(content[:3])
                raise OSError(errno.ENOSPC, "full")
            whole(path, content, mode)

        monkeypatch.setattr(whole_file, "write_all", write)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Disk:
    return Disk(monkeypatch, tmp_path)


def test_a_full_disk_is_said_once_and_everything_is_written_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    printed: list[str] = []
    books = Bookkeeping(tmp_path / "reserve", printed.append)
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    books.keep(one, ["old"], 0.0)
    disk.room = -RESERVE_BYTES
    for now in range(5):
        books.keep(one, ["new", now], float(now))
        books.keep(two, {}, float(now))
        books.retry(float(now))
    assert printed == [f"{one}: No space left on device; going on and retrying"]
    assert json.loads(one.read_text()) == ["old"], "readers find the former content"
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"], "no draft takes room"
    disk.room = 1 << 30
    books.retry(5.0 + RETRY_S)
    assert json.loads(one.read_text()) == ["new", 4]
    assert json.loads(two.read_text()) == {}
    assert printed[1:] == ["all files are written again"]


def test_the_reserve_lets_addresses_through_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    printed: list[str] = []
    books = Bookkeeping(tmp_path / "reserve", printed.append)
    assert (tmp_path / "reserve").stat().st_size == RESERVE_BYTES
    disk.room = 0
    books.keep(tmp_path / "one.json", ["new"], 0.0)
    assert json.loads((tmp_path / "one.json").read_text()) == ["new"]
    assert printed == []
    assert not (tmp_path / "reserve").exists()
    books.retry(10.0)
    assert (tmp_path / "reserve").exists(), "it is made again"


def test_it_is_tried_again_once_a_second(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    books, tries = Bookkeeping(tmp_path / "reserve", lambda text: None), 0

    def fails(path: Path, value: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EROFS, "read only")

    monkeypatch.setattr(bookkeeping, "write_json", fails)
    books.keep(tmp_path / "one.json", [], 0.0)
    tries = 0
    for tick in range(100):
        books.retry(tick * 0.05)
    assert tries == 2 * 4, "twice a try: with and without the reserve"
