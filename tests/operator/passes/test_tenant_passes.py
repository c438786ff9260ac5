"""LLMTenants on a server: compiled once for a burst, refused in their status, and none let in that is gone."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, cast

import pytest

from baton_control.errors import FieldProblem
from baton_control.telemetry.month_counts import MonthCounts
from baton_operator.kube.kinds import CONFIG_MAPS, TENANTS
from baton_operator.kube.kube_api import Change, KubeApi, Listing, NotFound, Resource, Unavailable, WatchEvent
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.tenant_shards import read_shard, read_usage, shard_map, shard_name, tenants_volume
from baton_operator.passes import tenant_passes
from baton_operator.passes.tenant_passes import TenantGateways, TenantPasses
from baton_testing.gateway.gateway_process import until
from baton_wire.tenant_table import NUM_SHARDS, TenantRow, TenantShard, shard_of
from baton_wire.tenant_usage import UsageShard

NOW = datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC)
Json = dict[str, Any]


class FakeServer:
    """ConfigMaps and the statuses of LLMTenants, in memory."""

    def __init__(self) -> None:
        self.maps: dict[str, Manifest] = {}
        self.statuses: dict[str, Json] = {}
        self.writes: list[str] = []
        self.specs: dict[str, Json] = {}
        """The specs of the LLMTenants, which an answer to a write of a status repeats."""
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
        name = metadata["name"]
        return tenant(name) | {"spec": self.specs.get(name, {}), "status": status}

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
    server: FakeServer,
    monkeypatch: pytest.MonkeyPatch,
    is_ours: bool = True,
    conflicts: Mapping[str, FieldProblem] = MappingProxyType({}),
    is_used: Callable[[str], bool] = lambda namespace: True,
    counts: list[MonthCounts] | None = None,
) -> AsyncIterator[tuple[TenantPasses, list[Mapping[int, TenantShard]]]]:
    monkeypatch.setattr(tenant_passes, "GAP_S", 0.01)
    monkeypatch.setattr(tenant_passes, "RETRY_S", 0.01)
    monkeypatch.setattr(tenant_passes, "ROLL_S", 0.01)
    monkeypatch.setattr(tenant_passes, "SAVE_S", 0.05)
    pushed: list[Mapping[int, TenantShard]] = []

    async def may_work(namespace: str) -> bool:
        return is_ours

    gateways = TenantGateways(
        lambda namespace, shards: pushed.append(dict(shards)),
        lambda namespace, given: None if counts is None else counts.append(given),
        lambda namespace: conflicts,
    )
    passes = TenantPasses(cast(KubeApi, server), gateways, lambda: NOW, may_work, is_used)
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


async def test_a_tenant_that_a_gateways_own_keys_keep_out_says_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    problem = FieldProblem("metadata.name", "not allowed: the API keys of LLMDeployment chat have the same")
    async with working(server, monkeypatch, conflicts={"both": problem}) as (passes, _):
        passes.store.apply_list(listed(tenant("both"), tenant("other")), None)
        await until(lambda: len(server.statuses) == 2)
        assert server.ready("both") == ("False", "Conflict", str(problem))
        assert server.ready("other")[:2] == ("True", "Compiled")


async def test_a_tenant_where_no_gateway_lets_any_in_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    server, used = FakeServer(), set[str]()
    async with working(server, monkeypatch, is_used=used.__contains__) as (passes, _):
        passes.store.apply_list(listed(tenant("a"), tenant("bad", weight=-1)), None)
        await until(lambda: len(server.statuses) == 2)
        assert server.ready("a")[:2] == ("False", "NoGateways")
        assert server.ready("a")[2].startswith("metadata.namespace: no LLMDeployment of llm lets tenants in")
        assert server.ready("bad")[1] == "Refused"
        used.add("llm")
        passes.offer("llm")
        await until(lambda: server.ready("a")[:2] == ("True", "Compiled"))


LIMITED: Json = {"limits": {"tokensPerMonth": 1_000}}


async def test_what_was_used_is_saved_and_shown_and_read_back_by_the_next_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, counts = FakeServer(), list[MonthCounts]()
    server.specs["a"] = LIMITED
    async with working(server, monkeypatch, counts=counts) as (passes, _):
        passes.store.apply_list(listed(tenant("a", **LIMITED), tenant("free")), None)
        await until(lambda: len(server.statuses) == 2)
        assert "usage" not in server.statuses["free"]
        saved = server.maps[shard_name(shard_of("a"))]
        assert read_usage(saved) == UsageShard(shard_of("a"), "2026-11", {}), "zero is known, and written"
        counts[0].raise_to("a", 400)
        await until(lambda: server.statuses["a"].get("usage") == {"month": "2026-11", "tokens": 400})
        counts[0].raise_to("a", 405)
        await until(lambda: read_usage(server.maps[shard_name(shard_of("a"))]) == UsageShard(
            shard_of("a"), "2026-11", {"a": 405}))  # fmt: skip
        assert server.statuses["a"]["usage"]["tokens"] == 400, "a status is not written for half a percent"
        server.writes.clear()
        await asyncio.sleep(0.2)
        assert server.writes == []
    later = list[MonthCounts]()
    async with working(server, monkeypatch, counts=later) as (passes, _):
        passes.store.apply_list(listed(tenant("a", **LIMITED)), None)
        await until(lambda: bool(later))
        assert later[0].used == {"a": 405}


async def test_a_deleted_table_takes_the_count_from_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    server, counts = FakeServer(), list[MonthCounts]()
    shown = {"status": {"usage": {"month": "2026-11", "tokens": 400}}}
    former = {"status": {"usage": {"month": "2026-10", "tokens": 999}}}
    async with working(server, monkeypatch, counts=counts) as (passes, _):
        tenants = (
            tenant("a", **LIMITED) | shown,
            tenant("b", **LIMITED) | former,
            tenant("c") | {"status": {"usage": 5}},
        )
        passes.store.apply_list(listed(*tenants), None)
        await until(lambda: len(server.statuses) == 3)
        assert counts[0].used == {"a": 400}


async def test_a_new_month_begins_by_the_clock_with_the_count_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    server, counts = FakeServer(), list[MonthCounts]()
    server.specs["a"] = LIMITED
    async with working(server, monkeypatch, counts=counts) as (passes, _):
        passes.store.apply_list(listed(tenant("a", **LIMITED)), None)
        await until(lambda: bool(counts))
        counts[0].raise_to("a", 900)
        await until(lambda: server.statuses["a"].get("usage", {}).get("tokens") == 900)
        monkeypatch.setattr(passes, "_now", lambda: NOW + datetime.timedelta(days=3))
        await until(lambda: server.statuses["a"]["usage"] == {"month": "2026-12", "tokens": 0})
        assert counts[0].used == {}
