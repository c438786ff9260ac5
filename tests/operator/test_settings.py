"""The flags of the operator's process and its master keys: what is allowed, what is refused, and no key is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_operator.master_keys import MAX_KEYS, MasterKeys, MasterKeysError
from baton_operator.settings import RoutableFrom, Settings, parse

IMAGE = "registry.example.com/baton@sha256:" + "a" * 64
FLAGS = [f"--worker-image={IMAGE}", f"--gateway-image={IMAGE}", "--master-keys=/keys"]


def parsed(*flags: str) -> Settings:
    return parse([*FLAGS, *flags])


def test_by_default_it_watches_its_own_namespace_and_listens_to_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "mine")
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    settings = parsed()
    assert (settings.namespaces, settings.own_namespace, settings.lease) == (("mine",), "mine", "baton-operator")
    assert (settings.gateway_listen, settings.advertise) == (("0.0.0.0", 8443), "10.0.0.7:8443")
    assert settings.routable_from is RoutableFrom.GATEWAY
    assert settings.platform.operator_service == "baton-operator"


def test_namespaces_can_be_named_or_be_all() -> None:
    assert parsed("--namespaces=a, b,").namespaces == ("a", "b")
    assert parsed("--all-namespaces").namespaces is None


def test_a_class_has_a_lease_of_its_own() -> None:
    assert parsed().operator_class is None
    assert (parsed("--class=gold").operator_class, parsed("--class=gold").lease) == ("gold", "baton-operator-gold")
    assert parsed("--class=gold", "--lease=mine").lease == "mine"


def test_without_links_workers_are_judged_by_readiness() -> None:
    settings = parsed("--gateway-listen=none")
    assert settings.routable_from is RoutableFrom.READINESS
    assert settings.platform.operator_service is None
    assert parsed("--lease=none").lease is None


@pytest.mark.parametrize(
    "flags",
    [
        ["--worker-image=registry.example.com/baton:latest"],
        ["--listen=8080"],
        ["--listen=0.0.0.0:99999"],
        ["--workers=0"],
        ["--class=Gold"],
        ["--calls-per-s=0"],
        ["--all-namespaces", "--namespaces=a"],
        ["--routable-from=hope"],
        ["--fetch-pod={"],
    ],
)
def test_what_makes_no_sense_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*flags)
    assert caught.value.code == 2
    assert flags[-1].partition("=")[0].removeprefix("--").split("-")[0] in capsys.readouterr().err


def folder(at: Path, **files: str) -> Path:
    for name, content in files.items():
        (at / name).write_text(content)
    return at


def test_rotated_keys_are_found_and_a_bad_set_leaves_the_old_one_standing(tmp_path: Path) -> None:
    keys = MasterKeys(folder(tmp_path, first="a" * 32))
    assert not keys.reload()
    folder(tmp_path, second="b" * 40)
    assert keys.reload()
    assert sorted(keys()) == ["first", "second"]
    folder(tmp_path, third="short")
    with pytest.raises(MasterKeysError, match="third has 5 bytes"):
        keys.reload()
    assert sorted(keys()) == ["first", "second"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no file"),
        ({"Upper": "a" * 32}, "'Upper' is not allowed"),
        ({"x" * 33: "a" * 32}, "not allowed"),
        ({"short": "secret-but-short"}, "short has 16 bytes"),
        ({f"k{number}": "a" * 32 for number in range(MAX_KEYS + 1)}, "at most 16"),
    ],
)
def test_unusable_keys_are_named_and_never_shown(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(MasterKeysError, match=message) as caught:
        MasterKeys(folder(tmp_path, **files))
    assert "secret" not in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MasterKeysError, match="absent"):
        MasterKeys(tmp_path / "absent")


def test_what_kubernetes_keeps_beside_the_keys_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    assert list(MasterKeys(folder(tmp_path, first="a" * 32, **{".hidden": "x"}))()) == ["first"]
