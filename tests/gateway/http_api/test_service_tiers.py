"""Service tiers and priorities as clients ask for them, and the tier that an answer names."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.openai_types import parse_chat
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway
from baton_wire.tenant_table import PriorityClass, TenantKey, TenantRow, TenantShard, encode_shard

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
BATCH, STANDARD, INTERACTIVE = PriorityClass.BATCH, PriorityClass.STANDARD, PriorityClass.INTERACTIVE
USER = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": USER, "max_tokens": 8},
    "/v1/completions": {"model": "tiny", "prompt": "x", "max_tokens": 8},
    MESSAGES: {"model": "tiny", "messages": USER, "max_tokens": 8},
    RESPONSES: {"model": "tiny", "input": "x", "max_output_tokens": 8},
}


@pytest.mark.parametrize(
    ("fields", "priority"),
    [
        ({}, None),
        ({"service_tier": None, "priority": None}, None),
        ({"service_tier": "auto"}, None),
        ({"service_tier": "default"}, STANDARD),
        ({"service_tier": "flex"}, BATCH),
        ({"service_tier": "priority"}, INTERACTIVE),
        ({"priority": 0}, STANDARD),
        ({"priority": -5}, INTERACTIVE),
        ({"priority": 1 << 62}, BATCH),
        ({"priority": "Batch"}, BATCH),
        ({"priority": "interactive", "service_tier": "flex"}, INTERACTIVE),
    ],
)
def test_clients_ask_for_a_class_by_tier_number_or_name(fields: dict[str, Any], priority: PriorityClass | None) -> None:
    assert parse_chat(BODIES[CHAT] | fields).options.priority is priority


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("service_tier", "fast"), ("service_tier", 1), ("service_tier", ["flex"]), ("priority", 1.5),
        ("priority", True), ("priority", "urgent"), ("priority", 1 << 64), ("priority", []),
    ],
)  # fmt: skip
def test_another_value_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(RefusedError) as refusal:
        parse_chat(BODIES[CHAT] | {field: value})
    assert (refusal.value.problem.status, refusal.value.problem.param) == (400, field)


async def test_answers_name_the_tier_that_the_tenant_got(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    key = TenantKey(hashlib.sha256(b"key-of-team").hexdigest())
    rows = (TenantRow("team", (key,), priorities=(BATCH, STANDARD)),)
    (tmp_path / "tenants-0.json").write_bytes(encode_shard(TenantShard(0, 1, rows)))

    async with running_gateway(pool, f"--tenants={tmp_path}") as gateway:

        async def ask(path: str, **fields: Any) -> str:
            headers = {"Authorization": "Bearer key-of-team"}
            async with http.post(gateway.url(path), json=BODIES[path] | fields, headers=headers) as got:
                assert got.status == 200
                return await got.text()

        for path in (CHAT, "/v1/completions", RESPONSES):
            for asked, used in (("flex", "flex"), ("priority", "default"), ("auto", "default")):
                assert json.loads(await ask(path, service_tier=asked))["service_tier"] == used
            assert "service_tier" not in json.loads(await ask(path))
        for asked, used in (("flex", "batch"), ("standard_only", "standard")):
            assert json.loads(await ask(MESSAGES, service_tier=asked))["usage"]["service_tier"] == used
        chunks = [line for line in (await ask(CHAT, service_tier="flex", stream=True)).splitlines() if "{" in line]
        assert all(json.loads(chunk.removeprefix("data: "))["service_tier"] == "flex" for chunk in chunks)
