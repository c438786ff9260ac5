"""The table of LLMTenants next to key files: the newer generation wins, and nobody is let in by what is broken."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.tenancy.tenants import SHARED_SALT, Tenants
from baton_wire.messages.operator_link import MAX_LIMITS, TenantConflict
from baton_wire.tenant_table import (
    TenantKey,
    TenantLimits,
    TenantRow,
    TenantShard,
    decode_shard,
    encode_shard,
    shard_of,
)


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def row(name: str, *keys: str, expires_s: float | None = None, **fields: object) -> TenantRow:
    return TenantRow(name, tuple(TenantKey(digest(key), expires_s) for key in keys), **fields)  # type: ignore[arg-type]


def shard(generation: int, *rows: TenantRow, place: int = 0) -> TenantShard:
    return TenantShard(place, generation, rows)


def write(folder: Path, content: TenantShard) -> None:
    (folder / f"tenants-{content.place}.json").write_bytes(encode_shard(content))


def reread(tenants: Tenants) -> None:
    for _ in tenants.read_table():
        pass


def name_of(tenants: Tenants, key: str, now_s: float = 0.0) -> str | None:
    try:
        return tenants.authenticate(f"Bearer {key}", now_s).name
    except RefusedError as refusal:
        return None if refusal.problem.status == 401 else str(refusal.problem)


def test_a_table_that_is_not_there_yet_lets_nobody_in(tmp_path: Path) -> None:
    tenants = Tenants(None, tmp_path / "later")
    assert name_of(tenants, "key") is None
    assert not tenants.is_open


def test_the_newer_generation_wins_wherever_it_comes_from(tmp_path: Path) -> None:
    write(tmp_path, shard(5, row("a", "key-5")))
    tenants = Tenants(None, tmp_path)
    assert name_of(tenants, "key-5") == "a"
    assert tenants.apply(shard(7, row("a", "key-7"), row("b", "key-b")))
    assert [name_of(tenants, key) for key in ("key-5", "key-7", "key-b")] == [None, "a", "b"]
    write(tmp_path, shard(6, row("a", "key-6")))
    reread(tenants)
    assert [name_of(tenants, key) for key in ("key-6", "key-7")] == [None, "a"]
    assert tenants.generations[0] == 7
    write(tmp_path, shard(8))
    reread(tenants)
    assert [name_of(tenants, key) for key in ("key-7", "key-b")] == [None, None]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"place": 99, "generation": 1}', b"x" * (600 << 10)])
def test_a_broken_or_vanished_file_changes_nothing(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, shard(1, row("a", "key")))
    tenants = Tenants(None, tmp_path)
    (tmp_path / "tenants-0.json").write_bytes(content)
    reread(tenants)
    assert name_of(tenants, "key") == "a"
    (tmp_path / "tenants-0.json").unlink()
    reread(tenants)
    assert name_of(tenants, "key") == "a"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_key_that_moves_to_another_tenant_lets_it_in_whichever_shard_comes_first(
    order: tuple[int, int], tmp_path: Path
) -> None:
    tenants = Tenants(None, tmp_path)
    tenants.apply(shard(1, row("old", "moved", "kept"), place=0))
    renewed = [shard(2, row("old", "kept"), place=0), shard(2, row("new", "moved"), place=1)]
    for place in order:
        tenants.apply(renewed[place])
    assert [name_of(tenants, key) for key in ("moved", "kept")] == ["new", "old"]
    tenants.apply(shard(3, place=1))
    assert [name_of(tenants, key) for key in ("moved", "kept")] == [None, "old"]


def test_a_file_that_cannot_be_read_for_a_moment_is_read_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, shard(1, row("a", "key")))
    path_open = Path.open

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    tenants = Tenants(None, tmp_path)
    reread(tenants)
    assert name_of(tenants, "key") is None
    assert len(caplog.messages) == 1, "once for each file, not once a second"
    monkeypatch.setattr(Path, "open", path_open)
    reread(tenants)
    assert name_of(tenants, "key") == "a"


def test_a_key_expires_by_the_wall_clock(tmp_path: Path) -> None:
    write(tmp_path, shard(1, row("a", "key", expires_s=100.0)))
    tenants = Tenants(None, tmp_path)
    assert [name_of(tenants, "key", now_s) for now_s in (99.9, 100.0, 3_700.0)] == ["a", None, None]


def test_key_files_work_unchanged_and_keep_their_names_and_keys(tmp_path: Path) -> None:
    keys, table = tmp_path / "keys", tmp_path / "table"
    table.mkdir()
    keys.write_text("both: key-in-file\nfile: key-of-file\n")
    write(
        table, shard(1, row("both", "key-in-table"), row("third", "key-of-third", "key-of-file"), row("new", "key-n"))
    )
    tenants = Tenants(keys, table)
    names = [name_of(tenants, key) for key in ("key-in-file", "key-of-file", "key-in-table", "key-of-third", "key-n")]
    assert names == ["both", "file", None, "third", "new"]
    assert tenants.conflicts() == (
        TenantConflict("both", "metadata.name"),
        TenantConflict("third", "spec.apiKeys[1].sha256"),
    )
    assert tenants.named("both") is None
    keys.write_text("file: key-of-file\n")
    tenants.refresh()
    assert name_of(tenants, "key-in-table") == "both"


def test_an_llmtenant_that_a_key_file_keeps_out_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").write_text("both: key-of-the-file\n")
    tenants = Tenants(tmp_path / "keys", tmp_path / "table")
    for generation in (1, 2):
        tenants.apply(shard(generation, row("both", "k"), row("third", "key-of-the-file")))
    assert caplog.messages == [
        "LLMTenant both: metadata.name is not used: a key file has the same",
        "LLMTenant third: spec.apiKeys[0].sha256 is not used: a key file has the same",
    ]
    caplog.clear()
    (tmp_path / "keys").write_text("both: key-of-the-file\nlater: key-of-later\n")
    tenants.apply(shard(3, row("later", "k"), place=1))
    tenants.refresh()
    assert caplog.messages == ["LLMTenant later: metadata.name is not used: a key file has the same"]


def test_conflicts_above_the_bound_of_a_message_are_not_logged_at_every_change_of_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: each edit of a tenant logged all of them again."""
    names = [f"team-{number:04}" for number in range(MAX_LIMITS + 10)]
    (tmp_path / "keys").write_text("".join(f"{name}: key-of-{name}\n" for name in names))
    tenants = Tenants(tmp_path / "keys", tmp_path / "table")
    tenants.apply(shard(1, *(row(name) for name in names)))
    assert len(tenants.reported) == len(caplog.messages) == MAX_LIMITS
    caplog.clear()
    tenants.apply(shard(1, row("another"), place=1))
    assert caplog.messages == []
    tenants.apply(shard(2, *(row(name) for name in names[1:])))
    assert caplog.messages == [
        f"LLMTenant {names[MAX_LIMITS]}: metadata.name is not used: a key file has the same",
    ]


def test_prefixes_are_a_tenants_own_unless_it_shares_them(tmp_path: Path) -> None:
    write(tmp_path, shard(1, row("a"), row("b", shares_prefixes=True), row("c", shares_prefixes=True)))
    tenants = Tenants(None, tmp_path)
    found = [tenants.named(name) for name in "abc"]
    assert [tenant.salt if tenant else None for tenant in found] == ["a", SHARED_SALT, SHARED_SALT]


def test_concurrent_sequences_are_divided_until_the_operator_says_more(tmp_path: Path) -> None:
    write(tmp_path, shard(1, row("a", "key", limits=TenantLimits(max_concurrent=10)), row("b"), place=shard_of("a")))
    tenants = Tenants(None, tmp_path, share=0.25)
    assert tenants.authenticate("Bearer key").max_running == 2
    tenants.set_slots({"a": 7, "unknown": 3})
    assert tenants.authenticate("Bearer key").max_running == 7
    tenants.set_share(0.5)
    assert tenants.authenticate("Bearer key").max_running == 7


def test_a_table_without_classes_reads_as_all_of_them_and_is_written_as_before() -> None:
    content = b'{"place":0,"generation":1,"tenants":[{"name":"a"}]}'
    shard = decode_shard(content)
    assert (shard.tenants[0].priorities, encode_shard(shard)) == ((), content)
    with pytest.raises(ValueError, match="priorities"):
        decode_shard(content.replace(b'"a"', b'"a","priorities":["Urgent"]'))
