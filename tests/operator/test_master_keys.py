"""The operator's master keys: made once, adopted where they exist, never rewritten, never shown."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from baton_operator.kube.kinds import SECRETS
from baton_operator.kube.kube_api import Forbidden
from baton_operator.master_keys import KeyFolder, KeySecret, MasterKeys, MasterKeysError, make_key
from baton_testing.kube.clock import stamp
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import UNREADABLE, MemoryKube
from baton_testing.kube.store import Json, Store
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.keys import MAX_KEYS

SPACE, NAME = "baton-system", "baton-operator-master-keys"


def folder(at: Path, **files: str) -> Path:
    for name, content in files.items():
        (at / name).write_text(content)
    return at


def loaded(at: Path) -> MasterKeys:
    keys = MasterKeys(KeyFolder(at))
    asyncio.run(keys.load())
    return keys


def test_rotated_keys_are_found_and_a_bad_set_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    keys = loaded(folder(tmp_path, first="a" * 32))
    assert not asyncio.run(keys.load())
    folder(tmp_path, second="b" * 40)
    assert asyncio.run(keys.load())
    assert sorted(keys()) == ["first", "second"]
    folder(tmp_path, third="short")
    with pytest.raises(MasterKeysError, match="third has 5 bytes"):
        asyncio.run(keys.load())
    assert sorted(keys()) == ["first", "second"]


UNUSABLE: list[tuple[dict[str, str], str]] = [
    ({}, "has no "),
    ({"Upper": "a" * 32}, "'Upper' is not allowed"),
    ({"x" * 33: "a" * 32}, "not allowed"),
    ({"short": "secret-but-short"}, "short has 16 bytes"),
    ({f"k{number}": "a" * 32 for number in range(MAX_KEYS + 1)}, "at most 16"),
]


@pytest.mark.parametrize(("files", "message"), UNUSABLE)
def test_unusable_keys_are_named_and_never_shown(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(MasterKeysError, match=message) as caught:
        loaded(folder(tmp_path, **files))
    assert "secret-but" not in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MasterKeysError, match="absent"):
        loaded(tmp_path / "absent")


def test_what_kubernetes_keeps_in_the_same_folder_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    assert list(loaded(folder(tmp_path, first="a" * 32, **{".hidden": "x"}))()) == ["first"]


class Cluster:
    """An API server in memory with the operator's client, which may read Secrets."""

    def __init__(self) -> None:
        self.store = Store(Kinds(), lambda: stamp(0.0))
        self.api = MemoryKube(self.store, frozenset())

    def source(self, make: Callable[[], bytes] = make_key) -> KeySecret:
        return KeySecret(self.api, SPACE, NAME, make)

    def put(self, files: dict[str, str]) -> None:
        data = {name: base64.b64encode(content.encode()).decode() for name, content in files.items()}
        self.store.create(SECRETS, secret(data), "helm")


def secret(data: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME, "namespace": SPACE}, "data": data}


def test_an_absent_secret_is_made_once_and_every_later_start_reads_it() -> None:
    cluster = Cluster()

    async def run() -> None:
        first, second = MasterKeys(cluster.source()), MasterKeys(cluster.source())
        assert await first.load()
        assert await second.load()
        assert first() == second()
        assert [len(key) for key in first().values()] == [64]
        assert not await first.load()

    run_virtual(run())
    assert cluster.api.calls["create", "secrets"] == 1


def test_two_processes_that_start_at_once_end_with_one_key() -> None:
    cluster = Cluster()

    async def run() -> None:
        both = [MasterKeys(cluster.source()) for _ in range(2)]
        await asyncio.gather(*(keys.load() for keys in both))
        assert both[0]() == both[1]()

    run_virtual(run())
    assert cluster.api.calls["create", "secrets"] == 2, "both looked before either had made it"


def test_the_secret_of_an_older_chart_is_adopted_and_never_written() -> None:
    cluster = Cluster()
    cluster.put({"first": "a" * 64, "second": "b" * 64})
    version = cluster.store.version

    async def run() -> None:
        keys = MasterKeys(cluster.source())
        await keys.load()
        assert keys() == {"first": b"a" * 64, "second": b"b" * 64}

    run_virtual(run())
    assert cluster.store.version == version
    assert {verb for verb, _ in cluster.api.calls} == {"get"}


def test_a_secret_that_was_deleted_is_made_again_with_the_keys_in_use() -> None:
    """A pruning GitOps tool that no longer renders the Secret of an older chart must cut no link."""
    cluster = Cluster()
    cluster.put({"first": "a" * 64, "second": "b" * 64})

    async def run() -> None:
        keys = MasterKeys(cluster.source())
        await keys.load()
        before = keys()
        cluster.store.remove(SECRETS, SPACE, NAME)
        assert not await keys.load()
        other = MasterKeys(cluster.source())
        await other.load()
        assert other() == before

    run_virtual(run())


@pytest.mark.parametrize(("files", "message"), UNUSABLE)
def test_an_unusable_secret_is_named_never_shown_and_never_replaced(files: dict[str, str], message: str) -> None:
    cluster = Cluster()
    cluster.put(files)

    async def run() -> None:
        with pytest.raises(MasterKeysError, match=message) as caught:
            await MasterKeys(cluster.source()).load()
        assert "secret-but" not in str(caught.value)

    run_virtual(run())
    assert {verb for verb, _ in cluster.api.calls} == {"get"}


def test_content_that_is_not_base64_is_an_error_of_the_secret() -> None:
    cluster = Cluster()
    cluster.store.create(SECRETS, secret({"first": "*" * 64}), "kubectl")
    with pytest.raises(MasterKeysError, match=f"Secret {SPACE}/{NAME} is not base64"):
        run_virtual(MasterKeys(cluster.source()).load())


def test_without_the_right_to_read_it_nothing_is_made() -> None:
    cluster = Cluster()
    source = KeySecret(MemoryKube(cluster.store, UNREADABLE), SPACE, NAME)
    with pytest.raises(Forbidden):
        run_virtual(MasterKeys(source).load())
    assert cluster.store.peek(SECRETS, SPACE, NAME) is None


def test_made_keys_differ() -> None:
    assert make_key() != make_key()
