"""The key directory: what counts as a key, and that changes are seen without a restart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from baton_wire.errors import AuthenticationError
from baton_wire.keys import KeyDirectory, KeySet, derived_key, write_new_key


def put(directory: Path, name: str, content: bytes, mode: int = 0o600) -> Path:
    path = directory / name
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"ab" * 32, bytes.fromhex("ab" * 32)),
        (b"  " + b"AB" * 40 + b"\n", bytes.fromhex("ab" * 40)),
        (bytes(range(32)), bytes(range(32))),
        (b"a passphrase that is long enough to be a raw key", b"a passphrase that is long enough to be a raw key"),
    ],
)
def test_keys_are_raw_bytes_or_hexadecimal(tmp_path: Path, content: bytes, key: bytes) -> None:
    put(tmp_path, "k1", content)
    assert KeyDirectory(tmp_path).current().by_id == {"k1": key}


@pytest.mark.parametrize(
    ("name", "content", "mode", "named"),
    [
        ("k1", b"short", 0o600, "5 bytes, at least 32 are needed"),
        ("k1", b"ab" * 31, 0o600, "31 bytes, at least 32 are needed"),
        ("k1", b"", 0o600, "0 bytes, at least 32"),
        ("k1", b"x" * 5_000, 0o600, "5000 bytes, at most 4096"),
        ("k1", b"x" * 32, 0o644, "-rw-r--r-- lets others read it"),
        ("k1", b"x" * 32, 0o660, "the group write it"),
        ("k 1", b"x" * 32, 0o600, "a key id is 1 to 32 letters"),
        ("k" * 33, b"x" * 32, 0o600, "a key id is 1 to 32 letters"),
    ],
)
def test_a_bad_key_is_refused_by_name_and_never_shown(
    tmp_path: Path, name: str, content: bytes, mode: int, named: str
) -> None:
    put(tmp_path, name, content, mode)
    with pytest.raises(AuthenticationError, match=named) as refused:
        KeyDirectory(tmp_path).current()
    assert name in str(refused.value)
    assert len(content) < 3 or content.decode() not in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_modes_of_mounted_secrets_are_fine(tmp_path: Path, mode: int) -> None:
    put(tmp_path, "k1", b"x" * 32, mode)
    assert KeyDirectory(tmp_path).current().ids == ("k1",)


def test_a_missing_and_an_empty_directory_are_errors(tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match="No such file"):
        KeyDirectory(tmp_path / "none").current()
    with pytest.raises(AuthenticationError, match="holds no key"):
        KeyDirectory(tmp_path).current()
    (tmp_path / "folder").mkdir()
    with pytest.raises(AuthenticationError, match="is not a file"):
        KeyDirectory(tmp_path).current()


def test_too_many_keys_are_an_error(tmp_path: Path) -> None:
    for number in range(17):
        write_new_key(tmp_path, f"k{number}")
    with pytest.raises(AuthenticationError, match="17 keys, at most 16"):
        KeyDirectory(tmp_path).current()


def test_added_changed_and_removed_keys_are_seen(tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path)
    write_new_key(tmp_path, "a")
    first = keys.current()
    assert keys.current() is first
    write_new_key(tmp_path, "b")
    assert keys.current().ids == ("a", "b")
    (tmp_path / "a").unlink()
    assert keys.current().ids == ("b",)
    draft = put(tmp_path, ".draft", b"y" * 32)
    draft.rename(tmp_path / "b")
    assert keys.current().by_id["b"] == b"y" * 32


def test_a_mounted_secret_is_read_through_its_links_and_its_swap_is_seen(tmp_path: Path) -> None:
    for version, content in (("..v1", b"x" * 32), ("..v2", b"y" * 32)):
        (tmp_path / version).mkdir()
        put(tmp_path / version, "k1", content, 0o440)
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "k1").symlink_to("..data/k1")
    keys = KeyDirectory(tmp_path)
    assert keys.current().by_id == {"k1": b"x" * 32}
    (tmp_path / "..new").symlink_to("..v2")
    os.replace(tmp_path / "..new", tmp_path / "..data")
    assert keys.current().by_id == {"k1": b"y" * 32}


def test_a_key_that_turns_bad_is_an_error_until_it_is_good_again(tmp_path: Path) -> None:
    keys = KeyDirectory(tmp_path)
    path = write_new_key(tmp_path, "a")
    keys.current()
    path.chmod(0o644)
    for _ in range(2):
        with pytest.raises(AuthenticationError):
            keys.current()
    path.chmod(0o600)
    assert keys.current().ids == ("a",)


def test_a_written_key_is_random_private_and_never_overwritten(tmp_path: Path) -> None:
    one, two = write_new_key(tmp_path, "one"), write_new_key(tmp_path, "two")
    assert one.stat().st_mode & 0o777 == 0o600
    assert one.read_bytes() != two.read_bytes()
    with pytest.raises(FileExistsError):
        write_new_key(tmp_path, "one")
    with pytest.raises(ValueError, match="key_id"):
        write_new_key(tmp_path, "../one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_the_last_shared_key_is_chosen() -> None:
    keys = KeySet({"a": b"", "b": b"", "c": b""})
    assert keys.choose(("a", "b", "x")) == "b"
    with pytest.raises(AuthenticationError, match="no shared key"):
        keys.choose(("x",))


def test_keys_are_never_printed() -> None:
    assert "secret" not in repr(KeySet({"a": b"secret"}))


def test_a_master_key_of_fewer_than_32_bytes_makes_no_link_key() -> None:
    assert len(derived_key(b"m" * 32, "uid")) == 64
    with pytest.raises(ValueError, match="a master key has 31 bytes: must be at least 32"):
        derived_key(b"m" * 31, "uid")
