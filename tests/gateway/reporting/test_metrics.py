"""The metrics page: what is counted, and that nothing a client sends makes a new series."""

from __future__ import annotations

from typing import Any

import aiohttp
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_wire.messages.values import Reason

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


async def samples(gateway: RunningGateway, http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get(gateway.url("/metrics")) as got:
        assert got.status == 200
        assert got.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await got.text()
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def test_requests_tokens_and_times_are_counted(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async with http.post(gateway.url(CHAT), json=BODY | {"max_tokens": 5, "n": 2}) as got:
        usage = (await got.json())["usage"]
    async with http.post(gateway.url(CHAT), json=BODY | {"n": 99}) as got:
        assert got.status == 400
    values = await samples(gateway, http)
    expected = {
        "baton_gateway_requests_total{outcome=finished}": 1,
        "baton_gateway_requests_total{outcome=failed}": 0,
        "baton_gateway_prompt_tokens_total": usage["prompt_tokens"],
        "baton_gateway_completion_tokens_total": 10,
        "baton_gateway_ttft_seconds_count": 1,
        "baton_gateway_tpot_seconds_count": 2,
        "baton_gateway_itl_seconds_count": 8,
        "baton_gateway_e2e_seconds_count": 1,
        "baton_gateway_queue_seconds_count": 1,
        "baton_gateway_routed_total{route=disaggregated}": 1,
        "baton_gateway_responses_total{status=200}": 1,
        "baton_gateway_responses_total{status=400}": 1,
    }
    assert {name: values[name] for name in expected} == expected


async def test_the_number_of_links_is_shown(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    async def links() -> list[float]:
        values = await samples(gateway, http)
        return [values[f"baton_gateway_links{{role={role}}}"] for role in ("prefill", "decode")]

    for _ in range(600):
        if await links() == [1, 1]:
            break
        await until(lambda: True)
        import asyncio

        await asyncio.sleep(0.1)
    assert await links() == [1, 1]


async def test_no_client_can_make_a_series(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    before = set(await samples(gateway, http))
    for number in range(300):
        headers = {"X-Request-Id": f"id-{number}", "User-Agent": f"agent-{number}", "X-Session-Id": f"session-{number}"}
        body = BODY | {"model": f"model-{number}", "user": f"user-{number}", "prompt_cache_key": f"key-{number}"}
        async with http.post(gateway.url(CHAT), json=body, headers=headers) as got:
            assert got.status == 404
        async with http.get(gateway.url(f"/path-{number}"), headers=headers) as got:
            assert got.status == 404
    async with http.post(gateway.url(CHAT), json=BODY, headers={"X-Session-Id": "x" * 7_000}) as got:
        assert got.status == 200
    assert set(await samples(gateway, http)) == before


async def test_what_was_found_of_the_cached_is_counted(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    for worker in gateway.pool.workers:
        worker.cached_tokens = 3
    async with http.post(gateway.url(CHAT), json=BODY) as got:
        assert got.status == 200
    values = await samples(gateway, http)
    assert values["baton_gateway_cached_tokens_total"] == 3
    assert values["baton_gateway_cacheable_tokens_total"] == 3, "more was found than was known"
    assert values["baton_gateway_moved_sessions_total{reason=busy}"] == 0
    report = gateway.server.report().cache
    assert (report.cached_tokens, report.cacheable_tokens) == (3, 3)
    assert report.prompt_tokens == values["baton_gateway_prompt_tokens_total"]


async def test_a_reader_of_openmetrics_gets_it(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    headers = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}
    async with http.get(gateway.url("/metrics"), headers=headers) as got:
        assert got.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
        text = await got.text()
    families = openmetrics_families(text)  # type: ignore[no-untyped-call]
    names = {sample.name for family in families for sample in family.samples}
    assert {"baton_gateway_requests_total", "baton_build_info", "process_cpu_seconds_total"} <= names
    assert not any(name.endswith("_created") for name in names)


async def test_the_targets_are_bounds_of_buckets(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with running_gateway(pool, "--slo-ttft-s=0.77", "--slo-tpot-s=0.033") as gateway:
        values = await samples(gateway, http)
    assert "baton_gateway_ttft_seconds_bucket{le=0.77}" in values
    assert "baton_gateway_tpot_seconds_bucket{le=0.033}" in values
    assert "baton_gateway_itl_seconds_bucket{le=0.033}" in values


async def test_a_retry_is_counted_with_its_reason(
    gateway: RunningGateway, pool: FakePool, http: aiohttp.ClientSession
) -> None:
    pool.decode[0].fail_next = [Reason.KV_CORRUPT]
    async with http.post(gateway.url(CHAT), json=BODY | {"max_tokens": 3}) as got:
        assert got.status == 200
    values = await samples(gateway, http)
    assert values["baton_gateway_retries_total{reason=kv_corrupt}"] >= 1
    assert values["baton_gateway_retries_total{reason=peer_lost}"] == 0
