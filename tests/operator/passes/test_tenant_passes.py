"""LLMTenants on a server: compiled once for a burst, refused in their status, and none let in that is gone."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from baton_operator.kube.kinds import CONFIG_MAPS, TENANTS
from baton_operator.kube.kube_api import Change, KubeApi, Listing, NotFound, Resource, Unavailable, WatchEvent
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.tenant_shards import read_shard, shard_map, shard_name, tenants_volume
from baton_operator.passes import tenant_passes
from baton_operator.passes.tenant_passes import TenantPasses
from baton_testing.gateway.gateway_process import until
from baton_wire.tenant_table import NUM_SHARDS, TenantRow, TenantShard, shard_of

NOW = datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)
Json = dict[str, Any]


class FakeServer:
    """ConfigMaps and the statuses of LLMTenants, in memory."""

    def __init__(self) -> None:
        self.maps: dict[str, Manifest] = {}
        self.statuses: dict[str, Json] = {}
        self.writes: list[str] = []
        self.failures = 0
        self.is_there = True
        self.refused = 0
        """Writes of ConfigMaps while the namespace was gone."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        if name not in self.maps:
            raise NotFound(name)
        return self.maps[name]

    async def apply(self, resource: Resource, manifest: Manifest, **_: Any) -> Manifest:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the server is away")
        if not self.is_there:
            self.refused += 1
            raise NotFound("namespace llm")
        metadata: Any = manifest["metadata"]
        self.writes.append(f"{resource.kind} {metadata['name']}")
        if resource == CONFIG_MAPS:
            self.maps[metadata["name"]] = manifest
            return manifest
        assert resource == TENANTS
        status: Any = manifest["status"]
        self.statuses[metadata["name"]] = status
        return tenant(metadata["name"]) | {"status": status}

    def rows(self) -> dict[str, TenantRow]:
        shards = filter(None, map(read_shard, self.maps.values()))
        return {row.name: row for shard in shards for row in shard.tenants}

    def ready(self, name: str) -> tuple[str, str, str]:
        [condition] = self.statuses[name]["conditions"]
        return condition["status"], condition["reason"], condition["message"]


def tenant(name: str, version: int = 1, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Json:
    metadata = {
        "name": name, "namespace": "llm", "uid": f"uid-{name}", "generation": version, "resourceVersion": str(version),
        "creationTimestamp": created,
    }  # fmt: skip
    return {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMTenant", "metadata": metadata, "spec": spec}


@asynccontextmanager
async def working(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, is_ours: bool = True
) -> AsyncIterator[tuple[TenantPasses, list[Mapping[int, TenantShard]]]]:
    monkeypatch.setattr(tenant_passes, "GAP_S", 0.01)
    monkeypatch.setattr(tenant_passes, "RETRY_S", 0.01)
    pushed: list[Mapping[int, TenantShard]] = []

    async def may_work(namespace: str) -> bool:
        return is_ours

    passes = TenantPasses(
        cast(KubeApi, server), lambda namespace, shards: pushed.append(dict(shards)), lambda: NOW, may_work
    )
    task = asyncio.create_task(passes.run())
    try:
        yield passes, pushed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def listed(*manifests: Json) -> Listing:
    return Listing(manifests, "9")


async def test_tenants_are_compiled_pushed_and_written_and_those_that_clash_say_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    async with working(server, monkeypatch) as (passes, pushed):
        key = [{"sha256": "a" * 64}]
        young = tenant("young", created="2026-02-01T00:00:00Z", apiKeys=key)
        passes.store.apply_list(listed(tenant("old", apiKeys=key, weight=3), young, tenant("bad", weight=-1)), None)
        await until(lambda: len(server.statuses) == 3)
        assert {name: row.weight for name, row in server.rows().items()} == {"old": 3}
        assert server.ready("old")[:2] == ("True", "Compiled")
        assert server.ready("young") == (
            "False", "Refused", "spec.apiKeys[0].sha256: not allowed: LLMTenant old has this key",
        )  # fmt: skip
        assert server.ready("bad")[2].startswith("spec.weight: -1 is not allowed")
        assert [row.name for shard in pushed[-1].values() for row in shard.tenants] == ["old"]


async def test_a_burst_of_edits_is_one_write_a_shard_and_what_did_not_change_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    async with working(server, monkeypatch) as (passes, _):
        tenants = [tenant(f"t{number}") for number in range(200)]
        passes.store.apply_list(listed(*tenants), None)
        await until(lambda: len(server.statuses) == 200)
        assert sum(write.startswith("ConfigMap") for write in server.writes) == NUM_SHARDS
        server.writes.clear()
        passes.store.apply_event(WatchEvent(Change.MODIFIED, tenant("t7", 2, weight=9)))
        await until(lambda: server.rows()["t7"].weight == 9 and len(server.writes) == 2)
        assert server.writes == [f"ConfigMap {shard_name(shard_of('t7'))}", "LLMTenant t7"]


async def test_a_tenant_that_went_while_no_operator_ran_is_not_let_in_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    server, place = FakeServer(), shard_of("gone")
    former = TenantShard(place, 1 << 40, (TenantRow("gone"),))
    server.maps[shard_name(place)] = shard_map("llm", former)
    async with working(server, monkeypatch) as (passes, pushed):
        passes.offer_user("llm")
        await until(lambda: bool(pushed))
        await until(lambda: server.rows() == {})
        assert pushed[-1][place].generation == former.generation + 1, "newer than what gateways have"
        passes.offer_user("llm")
        await asyncio.sleep(0.05)
        assert len(pushed) == 1


async def test_a_deleted_tenant_goes_and_a_server_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    async with working(server, monkeypatch) as (passes, _):
        passes.store.apply_list(listed(tenant("a"), tenant("b")), None)
        await until(lambda: len(server.statuses) == 2)
        server.failures = 3
        passes.store.apply_event(WatchEvent(Change.DELETED, tenant("a", 2)))
        await until(lambda: set(server.rows()) == {"b"})


async def test_a_deleted_namespace_is_not_asked_for_ever_and_gets_its_table_when_it_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    async with working(server, monkeypatch) as (passes, pushed):
        passes.store.apply_list(listed(tenant("a")), None)
        await until(lambda: len(server.statuses) == 1)
        server.is_there, server.maps = False, {}
        passes.store.apply_list(listed(), None)
        await until(lambda: server.refused > 0)
        assert pushed[-1][shard_of("a")].tenants == (), "gateways that still run let it in no longer"
        await asyncio.sleep(0.1)
        assert server.refused == 1
        server.is_there = True
        passes.store.apply_list(listed(tenant("a")), None)
        await until(lambda: set(server.rows()) == {"a"})


async def test_a_namespace_of_another_operator_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server = FakeServer()
    async with working(server, monkeypatch, is_ours=False) as (passes, pushed):
        passes.store.apply_list(listed(tenant("a")), None)
        await asyncio.sleep(0.1)
        assert (server.writes, pushed) == ([], [])


def test_every_shard_is_mounted_by_a_name_that_no_tenant_changes() -> None:
    sources: Any = tenants_volume()["projected"]
    assert sources["sources"] == [
        {"configMap": {"name": f"baton-tenants-{place}", "optional": True}} for place in range(NUM_SHARDS)
    ]
