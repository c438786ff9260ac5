"""LLMTenants of `baton up`: from the file of the deployment into the folder that the gateway reads."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from baton_control.errors import ManifestError
from baton_gateway.tenancy.key_files import KeyFiles
from baton_gateway.tenancy.tenants import Tenants
from baton_local.__main__ import main
from baton_local.fleet.local_tenants import LOOK_S, LocalTenants
from baton_local.fleet.run_dir import claimed, remove_old
from baton_wire.tenant_table import shard_of
from baton_wire.tenant_usage import decode_usage, month_at, usage_file

HEAD = "apiVersion: baton.dev/v1alpha1\nkind: LLMTenant\n"


def manifest(path: Path, *tenants: str) -> Path:
    path.write_text("---\n".join(HEAD + tenant for tenant in tenants))
    return path


def tenant(name: str, key: str, namespace: str = "default") -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f"metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{apiKeys: [{{sha256: {digest}}}]}}\n"


def test_an_edited_file_changes_who_is_let_in_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    notices: list[str] = []
    file = manifest(tmp_path / "up.yaml", tenant("a", "key-a"))
    local = LocalTenants(file, tmp_path / "tenants", "default", notices.append)
    gateway = Tenants(None, tmp_path / "tenants")
    assert gateway.authenticate("Bearer key-a").name == "a"
    manifest(file, tenant("a", "new-key"), tenant("b", "key-b"))
    clock = 1e9
    local.refresh(clock)
    list(gateway.read_table())
    assert [gateway.authenticate(f"Bearer {key}").name for key in ("new-key", "key-b")] == ["a", "b"]
    manifest(file, tenant("a", "x"), tenant("b", "x"))
    local.refresh(clock + LOOK_S)
    local.refresh(clock + 2 * LOOK_S)
    problem = "tenants stay as they were: spec.apiKeys[0].sha256: not allowed: LLMTenant a has this key"
    assert (notices, local.problem) == ([problem], problem)
    file.unlink()
    local.refresh(clock + 3 * LOOK_S)
    list(gateway.read_table())
    assert gateway.authenticate("Bearer new-key").name == "a"


@pytest.mark.parametrize(
    ("second", "path"),
    [(tenant("b", "key", "other"), "metadata.namespace"), (tenant("a", "other-key"), "metadata.name")],
)
def test_what_a_cluster_would_refuse_is_refused_before_anything_starts(second: str, path: str, tmp_path: Path) -> None:
    file = manifest(tmp_path / "up.yaml", tenant("a", "key"), second)
    with pytest.raises(ManifestError, match=path):
        LocalTenants(file, tmp_path / "tenants", "default", print)


def test_the_table_is_private(tmp_path: Path) -> None:
    LocalTenants(manifest(tmp_path / "up.yaml", tenant("a", "key")), tmp_path / "tenants", "default", print)
    assert {os.stat(path).st_mode & 0o077 for path in (tmp_path / "tenants").iterdir()} == {0}


def test_what_tenants_used_is_kept_for_the_next_run_and_by_month(tmp_path: Path) -> None:
    file, month = manifest(tmp_path / "up.yaml", tenant("a", "key")), month_at(time.time())
    first = LocalTenants(file, tmp_path / "tenants", "default", print)
    assert first.counts.used == {}
    first.counts.raise_to("a", 700)
    first.save()
    place = tmp_path / "tenants" / usage_file(shard_of("a"))
    assert decode_usage(place.read_bytes()).used == {"a": 700}
    assert LocalTenants(file, tmp_path / "tenants", "default", print).counts.used == {"a": 700}
    assert place.read_text().count(month) == 1
    place.write_text(place.read_text().replace(month, "2020-01"))
    assert LocalTenants(file, tmp_path / "tenants", "default", print).counts.used == {}


def test_a_later_run_in_the_same_folder_goes_on_with_the_count_and_finds_no_table(tmp_path: Path) -> None:
    file = manifest(tmp_path / "up.yaml", tenant("a", "key"))
    with claimed(tmp_path, "default.tiny") as run:
        first = LocalTenants(file, run.tenants, "default", print)
        first.counts.raise_to("a", 700)
        first.save()
    assert list(run.tenants.glob("*.json")) == []
    with claimed(tmp_path, "default.tiny") as run:
        assert LocalTenants(file, run.tenants, "default", print).counts.used == {"a": 700}
    ended_s = run.lock.stat().st_mtime
    assert remove_old(tmp_path, ended_s + 31 * 86_400) == [], "the month is not over"
    assert remove_old(tmp_path, ended_s + 33 * 86_400) == ["default.tiny"]


def test_a_name_or_a_key_that_the_key_file_has_too_is_refused_by_field(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("both: key-of-both\nfile: key-of-file\n")
    by_digest = KeyFiles(tmp_path / "keys").by_digest
    file = manifest(tmp_path / "up.yaml", tenant("both", "other"), tenant("third", "key-of-file"))
    with pytest.raises(ManifestError) as refusal:
        LocalTenants(file, tmp_path / "tenants", "default", print, by_digest)
    assert [problem.path for problem in refusal.value.problems] == ["metadata.name", "spec.apiKeys[0].sha256"]
    assert "key-of" not in str(refusal.value)
    LocalTenants(manifest(file, tenant("own", "own-key")), tmp_path / "tenants", "default", print, by_digest)


def test_a_made_key_has_enough_random_bits_and_fits_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "--expires", "2027-01-31T00:00:00Z"]) == 0
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    key, digest = lines["key"].strip(), lines["sha256"].strip()
    assert len(key) - len("sk-") >= 32, "6 bits a character"
    assert hashlib.sha256(key.encode()).hexdigest() == digest
    assert lines["apiKeys"].strip() == f'[{{sha256: {digest}, expires: "2027-01-31T00:00:00Z"}}]'
    main(["key"])
    assert key not in capsys.readouterr().out


def test_a_key_that_expires_at_no_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["key", "--expires", "2027-02-30T00:00:00Z"])
    assert "must be a time in UTC" in capsys.readouterr().err
