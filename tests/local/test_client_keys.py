"""API keys of a local deployment: what is refused, what the gateway gets, and that no other process gets a key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from baton_gateway.tenancy.tenants import Tenants
from baton_local.errors import StartError
from baton_local.fleet.client_keys import ClientKeys, KeyOptions, client_keys, key_for
from baton_local.fleet.record import RunRecord, TargetRecord
from baton_local.fleet.run_dir import RunDir
from baton_local.shared_options import KEY_VARIABLE

KEY = "sk-0123456789"
PLAIN, OPEN = False, True
LOOPBACK, ANYWHERE = "127.0.0.1", "0.0.0.0"


@pytest.mark.parametrize(
    ("asked", "host", "open_access"),
    [
        (KeyOptions(), LOOPBACK, PLAIN),
        (KeyOptions(), "::1", PLAIN),
        (KeyOptions(), "127.8.9.1", PLAIN),
        (KeyOptions(is_open=True), ANYWHERE, PLAIN),
        (KeyOptions(), ANYWHERE, OPEN),
    ],
)
def test_nobody_needs_a_key_on_loopback_or_where_that_was_said(asked: KeyOptions, host: str, open_access: bool) -> None:
    assert client_keys(asked, {}, open_access, host) == ClientKeys()


@pytest.mark.parametrize("host", [ANYWHERE, "::", "192.168.1.7", "127.0.0.1.example"])
def test_an_address_that_others_reach_needs_keys_or_a_word(host: str) -> None:
    with pytest.raises(StartError, match=r"--host .*--api-key-file FILE, BATON_API_KEY or --api-key, or --open"):
        client_keys(KeyOptions(), {}, PLAIN, host)
    assert client_keys(KeyOptions(), {KEY_VARIABLE: KEY}, PLAIN, host) == ClientKeys(text=KEY)


def test_the_flag_wins_over_the_environment_and_two_ways_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"team-a: {KEY}\n")
    environment = {KEY_VARIABLE: "sk-of-the-environment"}
    assert client_keys(KeyOptions(key=KEY), environment, PLAIN, LOOPBACK) == ClientKeys(text=KEY)
    assert client_keys(KeyOptions(file=path), environment, PLAIN, LOOPBACK) == ClientKeys(file=path)
    with pytest.raises(StartError, match="give one of them"):
        client_keys(KeyOptions(key=KEY, file=path), {}, PLAIN, LOOPBACK)
    with pytest.raises(StartError, match="--open: not allowed together"):
        client_keys(KeyOptions(key=KEY, is_open=True), {}, PLAIN, ANYWHERE)


@pytest.mark.parametrize("key", ["short", "with a blank in it", "x" * 513, "schlüssel-schlüssel", ""])
def test_what_is_no_key_is_refused_before_anything_starts_and_not_repeated(key: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(key)
    for asked, environment in (
        (KeyOptions(key=key), {}),
        (KeyOptions(), {KEY_VARIABLE: key}),
        (KeyOptions(file=path), {}),
    ):
        with pytest.raises(StartError) as caught:
            client_keys(asked, environment, PLAIN, LOOPBACK)
        assert not key or key not in str(caught.value)


def test_a_key_given_as_text_lies_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    path = ClientKeys(text=KEY).place(run)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert Tenants(path).authenticate(f"Bearer {KEY}").name == "default"
    assert ClientKeys().place(run) is None


def record(api_keys: Path | None) -> RunRecord:
    target = TargetRecord(0.5, 95.0)
    keys = None if api_keys is None else str(api_keys)
    return RunRecord("chat", "default", 1, "http://x", "tiny", True, "", target, target, (), api_keys=keys)


def test_a_command_beside_it_finds_a_key_where_the_gateway_does(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"team-a: {KEY}\n")
    assert key_for(record(None), {}) is None
    assert key_for(record(path), {}) == KEY
    assert key_for(record(path), {KEY_VARIABLE: "sk-of-the-environment"}) == "sk-of-the-environment"
    path.write_text(json.dumps({"tenants": [{"name": "a", "key_sha256": [hashlib.sha256(b"x").hexdigest()]}]}))
    with pytest.raises(StartError, match="has digests only: set BATON_API_KEY"):
        key_for(record(path), {})
    path.unlink()
    with pytest.raises(StartError, match="cannot be read"):
        key_for(record(path), {})
