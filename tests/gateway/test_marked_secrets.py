"""Keys, prompts and answers that are marked: none is in a record, log, trace, page, metric, ledger or history.

Everything that a gateway serves is asked for, by tenants of a key file and of the compiled table, rightly and wrongly.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")

from baton_testing.gateway.batch_client import begin, client_of, line, line_of, until_ended
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, answer, running_gateway, tokenizer
from baton_testing.gateway.otlp_receiver import otlp_receiver
from baton_testing.gateway.three_tenants import GOOD, key_file
from baton_wire.keys import operator_token, read_keys
from baton_wire.messages.encoding import EncodingLimits
from baton_wire.messages.values import Role
from baton_wire.tenant_table import TenantKey, TenantLimits, TenantRow, TenantShard, encode_shard, shard_of

MARK = "Marked-by-this-test"
PROMPT, NAME, VALUE = f"{MARK}-prompt", f"{MARK}-name", f"{MARK}-value"
KEY, FEW_KEY, WRONG_KEY = (f"{MARK}-{what}" for what in ("key-of-a-tenant", "key-of-another", "wrong-key"))
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {NAME: {"enum": [VALUE]}}, "required": [NAME]}
TOOL = {"type": "function", "function": {"name": "f", "description": PROMPT, "parameters": SCHEMA}}
CHATS: tuple[dict[str, Any], ...] = (
    {},
    {"stream": True, "user": VALUE, "safety_identifier": VALUE, "prompt_cache_key": VALUE},
    {"stop": [VALUE], "logit_bias": {"5": 1}, "metadata": {NAME: VALUE}},
    {"tools": [TOOL]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
    {"temperature": VALUE},
    {NAME: VALUE},
    {"messages": [{"role": VALUE, "content": PROMPT}]},
    {"model": VALUE},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"pattern": f"({MARK}"}}}},
)
"""Chats, right and wrong."""
OTHERS: tuple[tuple[str, dict[str, Any]], ...] = (
    (COMPLETIONS, {"prompt": PROMPT, "suffix": VALUE}),
    (COMPLETIONS, {"prompt": [PROMPT, f"{PROMPT} again"], "echo": True, "logprobs": 2}),
    ("/v1/embeddings", {"input": [PROMPT, f"{PROMPT} again"]}),
    ("/v1/embeddings", {"input": {NAME: PROMPT}}),
    ("/rerank", {"query": PROMPT, "documents": [VALUE]}),
    ("/score", {"text_1": PROMPT, "text_2": VALUE}),
    ("/classify", {"input": PROMPT}),
    ("/tokenize", {"prompt": PROMPT}),
    ("/v1/messages", {"max_tokens": 8, "messages": [{"role": "user", "content": PROMPT}]}),
    ("/v1/responses", {"input": PROMPT, "instructions": VALUE}),
)
CLIENTS = ("openai", "httpx", "httpcore")
"""Loggers of the client's side."""
FORMS = (MARK, base64.b64encode(MARK.encode())[:-4].decode(), MARK.encode().hex(), ANSWER)
"""What is looked for: the mark in three spellings, and the answer of all chats."""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    """A pair that generates, and encodes besides."""
    (tmp_path / "pool").mkdir()
    pool = FakePool(tmp_path / "pool", tokenizer(), answer)
    await pool.add(Role.PREFILL, encoding=EncodingLimits(6))
    await pool.add(Role.DECODE)
    yield pool
    await pool.stop()


def table_of(folder: Path) -> Path:
    """The compiled table of two tenants, of which one may ask once a minute."""
    folder.mkdir()
    for name, key, limits in (("marked", KEY, TenantLimits()), ("few", FEW_KEY, TenantLimits(1))):
        row = TenantRow(name, (TenantKey(hashlib.sha256(key.encode()).hexdigest()),), limits=limits)
        place = shard_of(name)
        (folder / f"tenants-{place}.json").write_bytes(encode_shard(TenantShard(place, 1, (row,))))
    return folder


async def ask_everything(gateway: RunningGateway, http: aiohttp.ClientSession) -> list[int]:
    """Send every request with each key, and return the statuses."""
    statuses = []
    for key in (KEY, GOOD, WRONG_KEY):
        headers = {"Authorization": f"Bearer {key}", "traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        chats = [(CHAT, {"messages": [{"role": "user", "content": PROMPT}]} | fields) for fields in CHATS]
        for path, body in (*chats, *OTHERS):
            async with http.post(gateway.url(path), json={"model": "tiny", **body}, headers=headers) as got:
                await got.read()
                statuses.append(got.status)
        async with http.post(gateway.url(CHAT), data=f'{{"{NAME}": {VALUE}', headers=headers) as got:
            statuses.append(got.status)
        async with http.get(gateway.url(f"/v1/models/{VALUE}"), headers=headers) as got:
            statuses.append(got.status)
    for _ in range(2):
        body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}
        async with http.post(gateway.url(CHAT), json=body, headers={"Authorization": f"Bearer {FEW_KEY}"}) as got:
            statuses.append(got.status)
    return statuses


async def run_batch(gateway: RunningGateway, key: str) -> None:
    """Run a batch of right and wrong lines."""
    async with client_of(gateway.url("/v1"), key) as client:
        lines = line("a", messages=[{"role": "user", "content": PROMPT}]) + line("b", temperature=VALUE)
        batch = await begin(client, lines + line_of("c", CHAT, {NAME: PROMPT}), metadata={"k": VALUE})
        await until_ended(client, batch.id)
        with suppress(Exception):  # refused, and only its traces are of interest
            await until_ended(client, (await begin(client, f"{{{PROMPT}")).id)


async def published(gateway: RunningGateway, http: aiohttp.ClientSession, token: str) -> list[str]:
    """Everything that the gateway shows to the operator and to the tenant."""
    texts = []
    for key in (token, KEY, GOOD):
        for path in ("/requests", "/ui/data.json", "/v1/models", "/metrics"):
            headers = {"Authorization": f"Bearer {key}", "Accept": "application/openmetrics-text, */*"}
            async with http.get(gateway.url(path), headers=headers) as got:
                texts.append(await got.text())
    texts += [bytes(kept.trail).decode("latin-1") for kept in gateway.server.relay.records.latest()]
    texts.append((await gateway.server.page.parts()).decode())
    return texts


async def test_nothing_that_is_kept_or_published_has_a_marked_secret(
    pool: FakePool,
    http: aiohttp.ClientSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
    token = operator_token(next(iter(read_keys(tmp_path / "pool" / "keys").by_id.values())))
    ledger, batches = tmp_path / "ledger", tmp_path / "batches"
    ledger.mkdir()
    async with otlp_receiver() as collector:
        flags = (
            *(f"--tenants={table_of(tmp_path / 'table')}", f"--api-keys={key_file(tmp_path)}"),
            *(f"--ledger={ledger}", f"--batch-folder={batches}"),
            *(f"--tracing-endpoint={collector.endpoint}", "--tracing-sample-ratio=1"),
        )
        async with running_gateway(pool, *flags) as gateway:
            statuses = await ask_everything(gateway, http)
            for key in (GOOD, KEY):
                await run_batch(gateway, key)
            num_records = len(gateway.server.relay.records)
            texts = await published(gateway, http, token)
    assert {200, 400, 401, 404, 429} <= set(statuses)
    assert num_records > 30
    assert len(collector.named("chat tiny")) > 3, "what was traced is sent before the gateway ends"
    texts += [json.dumps(span.attributes) for span in collector.spans]
    texts += [body.decode("latin-1") for body in collector.bodies]
    texts += [path.read_text("latin-1") for path in ledger.rglob("*") if path.is_file()]
    texts += [record.getMessage() for record in caplog.records if not record.name.startswith(CLIENTS)]
    assert sum("marked" in text for text in texts) > num_records, "the tenant's records are among what is scanned"
    leaks = [
        (form, text[max(0, text.find(form) - 200) :][:400])
        for text in texts
        for form in (*FORMS, token)
        if form in text
    ]
    assert leaks == []
