"""Files that others read, on disks that are full, read-only or broken. The system's calls fail as they do there."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from baton_wire.announcement import Announcement, announce
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.whole_file import write_whole

TROUBLES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


def give_out_after(monkeypatch: pytest.MonkeyPatch, room: int, number: int) -> None:
    """Writes take as much as there is room for, and then fail."""
    whole, left = os.write, room

    def write(descriptor: int, content: bytes) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(number, os.strerror(number))
        taken = whole(descriptor, bytes(content)[: min(left, 7)])
        left -= taken
        return taken

    monkeypatch.setattr(os, "write", write)


@pytest.mark.parametrize("number", TROUBLES)
@pytest.mark.parametrize("room", [0, 10])
def test_the_former_content_stays_and_the_file_is_named(
    number: int, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_whole(path, b"former")
    give_out_after(monkeypatch, room, number)
    with pytest.raises(OSError, match=re.escape(f"{os.strerror(number)}: '{path}'")) as raised:
        write_whole(path, b"x" * 100)
    assert raised.value.errno == number
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path], "no draft takes room"


def test_what_the_system_takes_in_pieces_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_out_after(monkeypatch, 1_000, errno.ENOSPC)
    write_whole(tmp_path / "a", bytes(range(100)), mode=0o600)
    assert (tmp_path / "a").read_bytes() == bytes(range(100))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"safe")
    (tmp_path / "link").symlink_to("elsewhere")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "elsewhere").read_bytes() == b"safe"


def test_a_key_that_has_no_room_is_no_shorter_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        give_out_after(full, 40, errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            write_new_key(tmp_path, "k1")
    assert list(tmp_path.iterdir()) == []
    write_new_key(tmp_path, "k1")
    assert KeyDirectory(tmp_path).current().ids == ("k1",)


def test_an_address_that_cannot_be_announced_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_out_after(monkeypatch, 10, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        announce(tmp_path / "d0.json", Announcement(1, "127.0.0.1", 1))
    assert list(tmp_path.iterdir()) == []
