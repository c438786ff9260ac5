"""`/ui/`: operators see all, a tenant what is its own, strangers nothing, and nobody a key, a prompt or an answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.page.static_files import static_files
from baton_gateway.records.record_query import RecordQuery, RecordsPage
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, running_gateway, until
from baton_wire.keys import operator_token, read_keys

KEYS = {"alice": "alices-secret-key-1", "bob": "bobs-secret-key-22", "oncall": "oncalls-secret-key"}
MARKED = "Marked-prompt-secret"


@pytest.fixture
async def shared(pool: FakePool, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway of two tenants, and of somebody on call."""
    folder = tmp_path / "api-keys"
    folder.mkdir()
    digest = hashlib.sha256(KEYS["oncall"].encode()).hexdigest()
    tenants = {"tenants": [{"name": "oncall", "key_sha256": [digest], "role": "operator"}]}
    (folder / "on-call").write_text(json.dumps(tenants))
    (folder / "others").write_text("".join(f"{name}: {KEYS[name]}\n" for name in ("alice", "bob")))
    async with running_gateway(pool, f"--api-keys={folder}") as gateway:
        yield gateway


async def data(
    gateway: RunningGateway, http: aiohttp.ClientSession, key: str | None = None, query: str = "", **headers: str
) -> tuple[int, Any]:
    credentials = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with http.get(gateway.url(f"/ui/data.json{query}"), headers=credentials | headers) as got:
        return got.status, await got.json()


async def chat(gateway: RunningGateway, http: aiohttp.ClientSession, tenant: str | None, id: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": MARKED}], "user": MARKED}
    headers = {"X-Request-Id": id} | ({} if tenant is None else {"Authorization": f"Bearer {KEYS[tenant]}"})
    async with http.post(gateway.url("/v1/chat/completions"), json=body, headers=headers) as got:
        assert got.status == 200
        await got.read()


def operator_key(pool: FakePool) -> str:
    [flag] = [flag for flag in pool.flags if flag.startswith("--keys=")]
    return operator_token(next(iter(read_keys(Path(flag.partition("=")[2])).by_id.values())))


async def asked(shared: RunningGateway, http: aiohttp.ClientSession) -> None:
    await chat(shared, http, "alice", "alices-request")
    await chat(shared, http, "bob", "bobs-request")
    await until(lambda: len(shared.server.relay.records) == 2)


async def test_the_operator_sees_pools_workers_tenants_and_all_requests(
    shared: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    await asked(shared, http)
    for key in (KEYS["oncall"], operator_key(pool)):
        status, page = await data(shared, http, key)
        assert status == 200
        assert page["viewer"] == {"sees_all": True, "tenant": None}
        assert [pool["role"] for pool in page["pools"]] == ["decode", "prefill"]
        assert {worker["state"] for worker in page["workers"]} == {"live"}
        assert {record["id"] for record in page["slowest"]} == {"alices-request", "bobs-request"}
        assert all(record["workers"] for record in page["slowest"])
        fields = page["series"]["fields"]
        sums = dict(zip(fields, map(sum, zip(*page["series"]["slots"], strict=True)), strict=True))
        assert (sums["first_tokens"], sums["finished"]) == (2, 2)
        for record in page["slowest"]:
            assert sum(span[2] for span in record["spans"]) == record["duration_ns"]
            assert {span[0] for span in record["spans"]} <= page["parts"].keys()


async def test_a_tenant_sees_its_own_requests_and_limits_alone(
    shared: RunningGateway, http: aiohttp.ClientSession
) -> None:
    await asked(shared, http)
    status, page = await data(shared, http, KEYS["alice"], "?id=bobs-request")
    assert status == 200
    assert page["viewer"] == {"sees_all": False, "tenant": "alice"}
    assert [record["id"] for record in page["slowest"]] == ["alices-request"]
    assert page["found"] == []
    assert [tenant["name"] for tenant in page["tenants"]] == ["alice"]
    assert not page.keys() & {"pools", "workers", "series", "history", "processes", "latency", "running"}
    text = json.dumps(page)
    assert "bob" not in text
    assert not any(str(worker.address) in text for worker in shared.server.table.all())


async def test_a_request_is_found_by_its_id(shared: RunningGateway, http: aiohttp.ClientSession) -> None:
    await asked(shared, http)
    _, page = await data(shared, http, KEYS["oncall"], "?id=bobs-request")
    assert [record["id"] for record in page["found"]] == ["bobs-request"]
    _, page = await data(shared, http, KEYS["oncall"], "?id=nobodys")
    assert page["found"] == []


@pytest.mark.parametrize("key", [None, "nobodys-key-3333", "0" * 64])
async def test_without_a_known_key_nothing_is_shown_even_on_this_machine(
    shared: RunningGateway, http: aiohttp.ClientSession, key: str | None
) -> None:
    assert (await data(shared, http, key))[0] == 401


async def test_a_key_in_the_url_is_refused_and_not_repeated(
    shared: RunningGateway, http: aiohttp.ClientSession
) -> None:
    status, refusal = await data(shared, http, KEYS["alice"], f"?key={KEYS['alice']}")
    assert (status, refusal["error"]["code"]) == (400, "invalid_query")
    assert KEYS["alice"] not in json.dumps(refusal)


async def test_a_failure_of_the_gateway_is_not_blamed_on_the_query(
    gateway: RunningGateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(query: RecordQuery) -> RecordsPage:
        raise ValueError("inside")

    monkeypatch.setattr(gateway.server.desk, "ask", fail)
    status, refusal = await data(gateway, http)
    assert status == 500
    assert "inside" not in json.dumps(refusal)


async def test_where_clients_need_no_key_this_machine_sees_all(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    status, page = await data(gateway, http)
    assert (status, page["viewer"]["sees_all"], page["playground"], page["models"]) == (200, True, True, ["tiny"])


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"X-Forwarded-For": "10.0.0.7"},
        {"Via": "1.1 proxy"},
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_proxies_rebound_names_and_foreign_sites_see_nothing(
    gateway: RunningGateway, http: aiohttp.ClientSession, headers: dict[str, str]
) -> None:
    status, refusal = await data(gateway, http, **headers)
    assert (status, refusal["error"]["code"]) == (403, "operator_only")


async def test_a_gateway_that_listens_for_other_machines_takes_nobody_for_one_of_this(
    pool: FakePool, http: aiohttp.ClientSession
) -> None:
    async with running_gateway(pool, "--listen=0.0.0.0:0") as gateway:
        assert (await data(gateway, http))[0] == 403
        assert (await data(gateway, http, operator_key(pool)))[0] == 200


async def test_no_origin_that_may_call_the_api_may_read_the_page(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with running_gateway(pool, "--allowed-origins=*") as gateway:
        assert (await data(gateway, http, Origin="https://evil.example"))[0] == 403


async def test_ten_viewers_at_once_cost_what_one_does(
    gateway: RunningGateway, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = 0
    build = gateway.server.page._make

    async def count(*arguments: Any) -> Any:
        nonlocal built
        built += 1
        return await build(*arguments)

    monkeypatch.setattr(gateway.server.page, "_make", count)
    monkeypatch.setattr(gateway.server.page._documents, "_kept_s", 600.0)
    assert built == 0
    pages = await asyncio.gather(*(data(gateway, http) for _ in range(10)))
    assert {status for status, _ in pages} == {200}
    assert built == 1
    found = await asyncio.gather(*(data(gateway, http, query=f"?id=drawn-{number}") for number in range(10)))
    assert [page["found"] for _, page in found] == [[]] * 10
    assert built == 1, "an id that nobody asked for before asks no process for its part"


async def test_the_files_are_for_everybody_and_let_a_browser_run_nothing_else(
    shared: RunningGateway, http: aiohttp.ClientSession
) -> None:
    assert static_files().keys() >= {"/ui/", "/ui/page.js", "/ui/page.css"}
    for path in static_files():
        async with http.get(shared.url(path)) as got:
            assert got.status == 200
            assert "default-src 'self'" in got.headers["Content-Security-Policy"]
            assert "unsafe" not in got.headers["Content-Security-Policy"]
            assert got.headers["X-Content-Type-Options"] == "nosniff"
            etag = got.headers["ETag"]
        async with http.get(shared.url(path), headers={"If-None-Match": etag}) as again:
            assert again.status == 304
    async with http.get(shared.url("/ui"), allow_redirects=False) as got:
        assert (got.status, got.headers["Location"]) == (308, "/ui/")
    for path in ("/ui/none.js", "/ui/../server.py", "/ui/%2e%2e/server.py", "/uiother", "/ui/__init__.py"):
        async with http.get(shared.url(path)) as got:
            assert got.status == 404


def test_no_module_reads_text_as_html_and_the_page_has_nothing_inline() -> None:
    for path, file in static_files().items():
        text = file.body.decode()
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in text, path
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), path
        assert "https://" not in text, path
    html = static_files()["/ui/"].body.decode()
    assert " style=" not in html
    assert "<style" not in html
    assert "onclick" not in html
    assert html.count("<script") == html.count('<script type="module" src=')


async def test_no_key_prompt_or_answer_is_in_anything_that_the_page_gets(
    shared: RunningGateway, pool: FakePool, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await asked(shared, http)
    secrets = [*KEYS.values(), MARKED, ANSWER, operator_key(pool)]
    texts = [file.body.decode() for file in static_files().values()] + [caplog.text]
    for key in (*KEYS.values(), operator_key(pool)):
        for query in ("", "?id=alices-request"):
            texts.append(json.dumps(await data(shared, http, key, query), ensure_ascii=False))
    texts.append((await shared.server.page.parts()).decode())
    texts += [bytes(kept.trail).decode("latin-1") for kept in shared.server.relay.records.latest()]
    async with http.get(shared.url("/metrics")) as got:
        texts.append(await got.text())
    assert len(texts) > 12
    assert any("alices-request" in text for text in texts[-3:]), "the records are among what is scanned"
    for text in texts:
        assert not [secret for secret in secrets if secret in text]


async def test_the_role_operator_of_a_key_shows_all_records_too_and_still_generates(
    shared: RunningGateway, http: aiohttp.ClientSession
) -> None:
    await asked(shared, http)
    await chat(shared, http, "oncall", "oncalls-request")
    await until(lambda: len(shared.server.relay.records) == 3)
    headers = {"Authorization": f"Bearer {KEYS['oncall']}"}
    async with http.get(shared.url("/requests"), headers=headers) as got:
        records = (await got.json())["records"]
    assert {record["id"] for record in records} == {"alices-request", "bobs-request", "oncalls-request"}
