"""`/requests`: the operator sees all records, a tenant its own, and nobody a key, a prompt or an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.records.record_query import RecordQuery
from baton_gateway.records.record_ring import MAX_REFUSED, RecordRing
from baton_gateway.requests.record_keeping import refused_trail
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, running_gateway, until
from baton_wire.keys import operator_token, read_keys
from baton_wire.messages.values import Reason

KEYS = {"alice": "alices-secret-key-1", "bob": "bobs-secret-key-22"}
MARKED = "Marked-prompt-secret"


@pytest.fixture
async def shared(pool: FakePool, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway of two tenants."""
    file = tmp_path / "api-keys"
    file.write_text("".join(f"{name}: {key}\n" for name, key in KEYS.items()))
    async with running_gateway(pool, f"--api-keys={file}") as gateway:
        yield gateway


async def get(
    gateway: RunningGateway, http: aiohttp.ClientSession, key: str | None, query: str = ""
) -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with http.get(gateway.url(f"/requests{query}"), headers=headers) as got:
        return got.status, await got.json()


async def chat(gateway: RunningGateway, http: aiohttp.ClientSession, tenant: str, id: str, **fields: Any) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": MARKED}], **fields}
    headers = {"Authorization": f"Bearer {KEYS[tenant]}", "X-Request-Id": id}
    async with http.post(gateway.url("/v1/chat/completions"), json=body, headers=headers) as got:
        await got.read()


def operator_key(pool: FakePool) -> str:
    [flag] = [flag for flag in pool.flags if flag.startswith("--keys=")]
    return operator_token(next(iter(read_keys(Path(flag.partition("=")[2])).by_id.values())))


async def test_a_tenant_sees_its_own_requests_and_the_operator_sees_all(
    shared: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    await chat(shared, http, "alice", "first")
    await chat(shared, http, "bob", "second", stream=True)
    await until(lambda: len(shared.server.relay.records) == 2)
    status, own = await get(shared, http, KEYS["alice"])
    assert (status, [record["id"] for record in own["records"]]) == (200, ["first"])
    assert own["records"][0]["workers"] == {}
    assert own["processes"] == []
    assert (await get(shared, http, KEYS["alice"], "?tenant=bob"))[1]["records"] == own["records"]
    assert (await get(shared, http, KEYS["alice"], "?id=second"))[1]["records"] == []
    status, all_records = await get(shared, http, operator_key(pool), "?slowest=5")
    assert status == 200
    assert {record["id"] for record in all_records["records"]} == {"first", "second"}
    assert all(record["workers"] for record in all_records["records"])


async def test_a_record_is_found_by_the_id_of_its_answer_in_every_api(
    shared: RunningGateway, http: aiohttp.ClientSession
) -> None:
    """Found: the body of an answer has only that id, and it was as unknown as nonsense."""
    headers = {"Authorization": f"Bearer {KEYS['alice']}"}
    messages = [{"role": "user", "content": "x"}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": messages},
        "/v1/completions": {"prompt": "x"},
        "/v1/messages": {"messages": messages, "max_tokens": 9},
        "/v1/responses": {"input": "x"},
    }
    for number, (path, body) in enumerate(bodies.items()):
        own = headers | {"X-Request-Id": f"request-{number}"}
        async with http.post(shared.url(path), json={"model": "tiny", **body}, headers=own) as got:
            assert got.status == 200, await got.text()
            answer_id = (await got.json())["id"]
        await until(lambda count=number + 1: len(shared.server.relay.records) == count)  # type: ignore[misc]
        for tenant, found in (("alice", [f"request-{number}"]), ("bob", [])):
            _, page = await get(shared, http, KEYS[tenant], f"?id={answer_id}")
            assert [record["id"] for record in page["records"]] == found, (path, answer_id)
    assert (await get(shared, http, KEYS["alice"], "?id=chatcmpl-" + "0" * 24))[1]["records"] == []


@pytest.mark.parametrize("key", [None, "nobodys-key-3333", "0" * 64])
async def test_without_a_known_key_nothing_is_shown(
    shared: RunningGateway, http: aiohttp.ClientSession, key: str | None
) -> None:
    assert (await get(shared, http, key))[0] == 401


async def test_where_clients_have_no_keys_only_the_operator_sees_records(
    gateway: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    status, refusal = await get(gateway, http, None)
    assert (status, refusal["error"]["code"]) == (403, "operator_only")
    assert (await get(gateway, http, operator_key(pool)))[0] == 200


@pytest.mark.parametrize("query", ["?slowest=0", "?slowest=x", "?other=1", "?missed=perhaps", "?slowest=9999999999999"])
async def test_a_malformed_query_is_refused(
    gateway: RunningGateway, pool: FakePool, http: aiohttp.ClientSession, query: str
) -> None:
    status, refusal = await get(gateway, http, operator_key(pool), query)
    assert (status, refusal["error"]["code"]) == (400, "invalid_query")


async def test_the_operators_key_generates_nothing(
    shared: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    headers = {"Authorization": f"Bearer {operator_key(pool)}"}
    body = {"model": "tiny", "prompt": "x"}
    async with http.post(shared.url("/v1/completions"), json=body, headers=headers) as got:
        assert got.status == 401


async def test_no_key_prompt_or_answer_is_in_any_record_or_log(
    shared: RunningGateway, pool: FakePool, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    schema = {"type": "object", "properties": {MARKED: {"type": "string"}}}
    pool.decode[0].fail_next = [Reason.INTERNAL]
    await chat(shared, http, "alice", "a", stop=[f"stop {MARKED}"], user=MARKED)
    await chat(
        shared,
        http,
        "bob",
        "b",
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    await chat(
        shared, http, "bob", "c", tools=[{"type": "function", "function": {"name": MARKED, "parameters": schema}}]
    )
    await until(lambda: len(shared.server.relay.records) >= 2)
    _, page = await get(shared, http, operator_key(pool))
    kept = b"".join(kept.trail for kept in shared.server.relay.records.latest())
    seen = str(page) + kept.decode("latin-1") + caplog.text
    for secret in (MARKED, *KEYS.values(), ANSWER, operator_key(pool)):
        assert secret not in seen


async def test_a_client_that_left_after_the_target_without_a_token_was_missed(
    pool: FakePool, http: aiohttp.ClientSession
) -> None:
    for worker in pool.prefill:
        worker.hold = True
    async with running_gateway(pool, "--slo-ttft-s=0.001") as gateway:
        body = {"model": "tiny", "prompt": "x"}
        asking = asyncio.ensure_future(http.post(gateway.url("/v1/completions"), json=body))
        await until(lambda: gateway.server.relay.num_live == 1)
        await asyncio.sleep(0.002)  # longer than the target
        asking.cancel()
        await until(lambda: len(gateway.server.relay.records) == 1)
        [record] = (await gateway.server.desk.ask(RecordQuery(missed=True))).records
    assert (record.outcome, record.ttft_s) == ("cancelled", None)


async def test_a_retry_names_the_worker_to_blame(
    gateway: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    worker = pool.decode[0]
    worker.fail_next = [Reason.INTERNAL]
    body = {"model": "tiny", "prompt": "x"}
    async with http.post(gateway.url("/v1/completions"), json=body) as got:
        assert got.status == 200
    await until(lambda: len(gateway.server.relay.records) == 1)
    [record] = (await gateway.server.desk.ask(RecordQuery())).records
    first, *_, last = record.attempts
    assert (first.reason, first.blamed) == ("internal", worker.epoch.hex()[:8])
    assert last.reason == ""
    assert record.workers[first.blamed].startswith("127.0.0.1:")


async def test_a_client_that_hangs_up_leaves_a_record(
    gateway: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    pool.prefill[0].hold = True
    body = {"model": "tiny", "prompt": "x"}
    asked = asyncio.create_task(http.post(gateway.url("/v1/completions"), json=body).__aenter__())
    await until(lambda: bool(pool.prefill[0].received))
    asked.cancel()
    await until(lambda: len(gateway.server.relay.records) == 1)
    [record] = (await gateway.server.desk.ask(RecordQuery())).records
    assert record.outcome == "cancelled"
    assert sum(span.duration_ns for span in record.spans) == record.duration_ns


async def test_no_records_are_kept_where_none_are_wanted(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with running_gateway(pool, "--request-records=0") as gateway:
        async with http.post(gateway.url("/v1/completions"), json={"model": "tiny", "prompt": "x"}) as got:
            assert got.status == 200
        assert (await gateway.server.desk.ask(RecordQuery())).records == []


async def test_a_refused_request_has_a_record_that_only_its_tenant_finds(
    shared: RunningGateway, http: aiohttp.ClientSession
) -> None:
    """Found: the id of a refused request, which the access log has, was "the id of no request"."""
    await chat(shared, http, "alice", "refused-1", colour=1)
    await chat(shared, http, "alice", "served")
    await until(lambda: len(shared.server.relay.records) == 1)
    [record] = (await get(shared, http, KEYS["alice"], "?id=refused-1"))[1]["records"]
    assert (record["outcome"], record["code"], record["attempts"]) == ("refused", "unknown_parameter", [])
    assert (await get(shared, http, KEYS["bob"], "?id=refused-1"))[1]["records"] == []

    async def listed(query: str) -> set[str]:
        return {entry["id"] for entry in (await get(shared, http, KEYS["alice"], query))[1]["records"]}

    assert "refused-1" in await listed("?missed=true&slowest=9")
    assert "refused-1" not in await listed("?missed=true"), "the page's list of the latest"
    assert await listed("") == {"served"}, "a flood of refusals does not hide what was served"


def test_a_flood_of_refusals_pushes_no_other_record_out() -> None:
    ring = RecordRing(max_records=2)
    for number in range(MAX_REFUSED + 5):
        ring.add_refused(refused_trail(f"r{number}", "flood", "rate_limit_exceeded", 0.0, 0.1))
    assert (len(ring), ring.fell_out, len(list(ring.refused()))) == (0, 0, MAX_REFUSED)
    assert next(ring.refused()).id == f"r{MAX_REFUSED + 4}"
