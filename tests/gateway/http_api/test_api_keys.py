"""Key files on a disk or in a mounted Secret: the owner of a key, refusals, and that no secret is reported."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.tenancy.key_files import first_key
from baton_gateway.tenancy.tenants import Tenants

KEY_A, KEY_B, KEY_C = "sk-aaaaaaaa", "sk-bbbbbbbb==", "sk-cccccccc"


def tenant_of(tenants: Tenants, key: str) -> str | None:
    try:
        return tenants.authenticate(f"Bearer {key}").name
    except RefusedError:
        return None


def mounted(folder: Path, version: str, **files: str) -> None:
    """Files as the kubelet mounts a Secret: links through `..data` into a hidden folder, swapped by one rename."""
    content = folder / f"..{version}"
    content.mkdir()
    for name, text in files.items():
        (content / name).write_text(text)
    link = folder / "..data_tmp"
    link.symlink_to(content.name)
    link.rename(folder / "..data")
    for name in files:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)


def test_a_text_file_has_a_key_a_line_with_or_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n\n{KEY_A}\nteam-b: {KEY_B}\n  team-b:\t{KEY_C}\r\n")
    tenants = Tenants(path)
    assert [tenant_of(tenants, key) for key in (KEY_A, KEY_B, KEY_C, "# ours", "", "team-b:")] == [
        "default", "team-b", "team-b", None, None, None,
    ]  # fmt: skip
    assert first_key(path) == KEY_A


def test_the_files_of_a_secret_name_the_tenants_and_change_without_a_restart(tmp_path: Path) -> None:
    hashed = {"tenants": [{"name": "hashed", "key_sha256": [hashlib.sha256(KEY_C.encode()).hexdigest()], "weight": 2}]}
    mounted(tmp_path, "1", alice=KEY_A + "\n", bob=KEY_B, tenants=json.dumps(hashed))
    tenants = Tenants(tmp_path)
    assert [tenant_of(tenants, key) for key in (KEY_A, KEY_B, KEY_C)] == ["alice", "bob", "hashed"]
    assert tenants.authenticate(f"Bearer {KEY_C}").weight == 2
    mounted(tmp_path, "2", alice="sk-rotated-1\n" + KEY_A, bob="sk-rotated-2", tenants=json.dumps(hashed))
    tenants.refresh()
    names = [tenant_of(tenants, key) for key in (KEY_A, "sk-rotated-1", "sk-rotated-2", KEY_B)]
    assert names == ["alice", "alice", "bob", None]
    mounted(tmp_path, "3", alice="", bob=KEY_B, tenants=json.dumps(hashed))
    with pytest.raises(ValueError, match="alice: has no key"):
        tenants.refresh()
    assert tenant_of(tenants, KEY_A) == "alice", "what is broken changes nothing"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("sk-short", None),
        ("short7!", "line 1"),
        (f"{KEY_A}\nwith a blank inside it", "line 2"),
        (f"na/me: {KEY_A}", "line 1"),
        ("x" * 513, "line 1"),
        ("schlüssel-schlüssel", "line 1"),
        (f"a: {KEY_A}\nb: {KEY_A}", "given already"),
        ("# nothing\n", "has no key"),
        ("\xff".encode("latin-1"), "is not text"),
    ],
)
def test_what_is_no_key_is_refused_by_line_and_never_repeated(
    content: str | bytes, named: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if named is None:
        Tenants(path)
        return
    with pytest.raises(ValueError, match=named) as caught:
        Tenants(path)
    assert str(path) in str(caught.value)
    text = content.decode(errors="replace") if isinstance(content, bytes) else content
    assert not any(word in str(caught.value) for line in text.splitlines() for word in line.split() if len(word) > 4)


@pytest.mark.parametrize("name", ["a b", "-x", "a=b"])
def test_a_folder_with_what_is_no_key_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no files"):
        Tenants(tmp_path)
    (tmp_path / name).write_text(KEY_A)
    with pytest.raises(ValueError, match="not allowed"):
        Tenants(tmp_path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing: No such file"):
        Tenants(tmp_path / "missing")
