"""Traces from HTTP to a collector on loopback, decoded with the protocol's schema: contexts of clients, sampling,
failures, and nothing secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, running_gateway, until
from baton_testing.gateway.otlp_receiver import OtlpReceiver, otlp_receiver
from baton_wire.messages.gateway_link import Prefill, Reserve

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEY, PROMPT, SYSTEM = "marked-secret-key-9911", "Marked-secret-prompt", "Marked-secret-system"
EXPORTED, FAILED = (f'baton_gateway_traces_total{{result="{result}"}}' for result in ("exported", "failed"))


@pytest.fixture
async def collector() -> AsyncIterator[OtlpReceiver]:
    async with otlp_receiver() as receiver:
        yield receiver


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    return {"model": "tiny", "messages": messages, "user": "marked-secret-user", **fields}


async def ask(gateway: RunningGateway, http: aiohttp.ClientSession, *traceparents: str, **fields: Any) -> None:
    headers = [("Authorization", f"Bearer {KEY}"), *(("traceparent", value) for value in traceparents)]
    async with http.post(gateway.url("/v1/chat/completions"), json=body(**fields), headers=headers) as got:
        assert got.status == 200
        await got.read()


def value_of(gateway: RunningGateway, series: str) -> float:
    page = gateway.server.metrics.page()[0].decode()
    return next(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(series))


async def test_a_request_arrives_as_one_trace_in_its_clients(
    pool: FakePool, http: aiohttp.ClientSession, collector: OtlpReceiver
) -> None:
    flags = (f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=0", "--name=gateway-0")
    async with running_gateway(pool, *flags) as gateway:
        await ask(gateway, http, f"00-{TRACE}-{SPAN}-01")
        await ask(gateway, http, f"00-{TRACE}-{SPAN}-00")
        await ask(gateway, http)
        await until(lambda: bool(collector.spans))
        records = [kept.record() for kept in gateway.server.relay.records.latest()]
    [root] = collector.named("baton.request")
    assert (root.trace_id, root.parent_id, root.kind) == (TRACE, SPAN, 2)
    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert root.instance.startswith("gateway-0/")
    [prefill], [decode] = collector.named("baton.prefill_worker"), collector.named("baton.decode_worker")
    assert {prefill.parent_id, decode.parent_id} == {root.span_id}
    assert (prefill.service, decode.service) == ("baton-prefill-worker", "baton-decode-worker")
    assert (root.attributes["baton.outcome"], root.attributes["baton.model"]) == ("finished", "tiny")
    assert root.attributes["baton.completion_tokens"] > 0
    assert [record.trace_id for record in reversed(records)] == [TRACE, TRACE, ""]


async def openmetrics(gateway: RunningGateway, http: aiohttp.ClientSession) -> list[str]:
    """The lines with exemplars of the page that a reader of OpenMetrics gets."""
    headers = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with http.get(gateway.url("/metrics"), headers=headers) as got:
        assert got.content_type == "application/openmetrics-text"
        page = await got.text()
    families = list(text_string_to_metric_families(page))  # type: ignore[no-untyped-call]
    return [
        f"{family.name} {sample.exemplar.labels}" for family in families for sample in family.samples if sample.exemplar
    ]


async def test_latencies_of_sampled_requests_lead_to_their_traces(
    pool: FakePool, http: aiohttp.ClientSession, collector: OtlpReceiver
) -> None:
    flags = (f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=0")
    async with running_gateway(pool, *flags) as gateway:
        await ask(gateway, http, f"00-{TRACE}-{SPAN}-00")
        await ask(gateway, http)
        assert await openmetrics(gateway, http) == []
        await ask(gateway, http, f"00-{TRACE}-{SPAN}-01")
        labels = str({"trace_id": TRACE})
        assert await openmetrics(gateway, http) == [
            f"baton_gateway_ttft_seconds {labels}",
            f"baton_gateway_tpot_seconds {labels}",
        ]
        assert "# {" not in gateway.server.metrics.page()[0].decode(), "plain text has no exemplars"


@pytest.mark.parametrize("prompt", ["text", [5, 6, 7]])
async def test_workers_get_the_trace_ids_of_sampled_requests_alone(
    pool: FakePool, http: aiohttp.ClientSession, collector: OtlpReceiver, prompt: str | list[int]
) -> None:
    flags = (f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=0")
    async with running_gateway(pool, *flags) as gateway:
        for flag in ("00", "01"):
            headers = {"traceparent": f"00-{TRACE}-{SPAN}-{flag}"}
            asked = {"model": "tiny", "prompt": prompt, "max_tokens": 4}
            async with http.post(gateway.url("/v1/completions"), json=asked, headers=headers) as got:
                assert got.status == 200
                await got.read()
    for kind in (Prefill, Reserve):
        [worker] = [worker for worker in pool.workers if worker.of_type(kind)]
        received = [message for message in worker.of_type(kind) if isinstance(message, kind)]
        assert [message.trace_id for message in received] == [None, bytes.fromhex(TRACE)]


async def test_malformed_contexts_begin_new_traces(
    pool: FakePool, http: aiohttp.ClientSession, collector: OtlpReceiver
) -> None:
    async with running_gateway(pool, f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=1") as gateway:
        await ask(gateway, http, f"00-{TRACE}-{SPAN}")
        await ask(gateway, http, f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01")
        await ask(gateway, http, stream=True)
        await until(lambda: len(collector.named("baton.request")) == 3)
    roots = collector.named("baton.request")
    assert {root.parent_id for root in roots} == {""}
    assert len({root.trace_id for root in roots} - {TRACE}) == 3


async def test_traces_hold_no_key_prompt_or_answer(
    pool: FakePool,
    http: aiohttp.ClientSession,
    collector: OtlpReceiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    file = tmp_path / "api-keys"
    file.write_text(f"acme: {KEY}\n")
    flags = (f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=1", f"--api-keys={file}")
    async with running_gateway(pool, *flags) as gateway:
        await ask(gateway, http)
        await ask(gateway, http, stream=True, stop=["Marked-secret-stop"])
        await until(lambda: len(collector.named("chat tiny")) == 2)
    root = collector.named("chat tiny")[0]
    assert (root.attributes["gen_ai.operation.name"], root.attributes["gen_ai.provider.name"]) == ("chat", "baton")
    assert root.attributes["baton.tenant"] == "acme"
    sent = b"".join(collector.bodies).lower()
    for secret in ("marked", KEY, ANSWER, "baton is handed", "grüße"):
        assert secret.lower().encode() not in sent


async def test_a_collector_that_refuses_costs_no_request_and_is_counted(
    pool: FakePool, http: aiohttp.ClientSession, collector: OtlpReceiver
) -> None:
    collector.status = 400
    async with running_gateway(pool, f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=1") as gateway:
        await ask(gateway, http)
        await until(lambda: value_of(gateway, FAILED) == 1)
        collector.status = 200
        await ask(gateway, http)
        await until(lambda: value_of(gateway, EXPORTED) == 1)
    assert len(collector.named("baton.request")) == 1


async def test_traces_of_the_last_requests_are_exported_before_the_end(
    pool: FakePool, http: aiohttp.ClientSession, collector: OtlpReceiver
) -> None:
    async with running_gateway(
        pool, f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=1", "--request-records=0"
    ) as gateway:
        await asyncio.gather(*(ask(gateway, http) for _ in range(3)))
    assert len(collector.named("baton.request")) == 3
    assert len(gateway.server.relay.records) == 0


async def test_without_the_flag_no_context_is_read(pool: FakePool, http: aiohttp.ClientSession) -> None:
    async with running_gateway(pool) as gateway:
        await ask(gateway, http, f"00-{TRACE}-{SPAN}-01")
        [record] = [kept.record() for kept in gateway.server.relay.records.latest()]
    assert (record.trace_id, gateway.server.traces) == ("", None)
