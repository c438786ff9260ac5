"""Limits of an LLMTenant as its client meets them: status, code, `Retry-After`, and what is left in headers."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway, until
from baton_wire.tenant_table import TenantKey, TenantLimits, TenantRow, TenantShard, encode_shard, shard_of
from baton_wire.tenant_usage import UsageShard, encode_usage, month_at, month_ends_s, usage_file

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8}


def table(folder: Path, *rows: TenantRow, generation: int = 1) -> str:
    (folder / "tenants-0.json").write_bytes(encode_shard(TenantShard(0, generation, rows)))
    return f"--tenants={folder}"


def row(name: str, **fields: Any) -> TenantRow:
    return TenantRow(name, (TenantKey(hashlib.sha256(f"key-of-{name}".encode()).hexdigest()),), **fields)


async def ask(
    gateway: RunningGateway, http: aiohttp.ClientSession, name: str, **fields: Any
) -> tuple[int, str | None, dict[str, str]]:
    headers = {"Authorization": f"Bearer key-of-{name}"}
    async with http.post(gateway.url(CHAT), json=BODY | fields, headers=headers) as got:
        error = {} if fields.get("stream") and got.status == 200 else (await got.json()).get("error", {})
        await got.read()
        return got.status, error.get("code"), {key.lower(): value for key, value in got.headers.items()}


async def test_a_tenant_at_its_limit_is_told_when_to_try_again_and_others_are_not_refused(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(requests_per_minute=2)), row("b"))
    async with running_gateway(pool, flags) as gateway:
        first, second, third = [await ask(gateway, http, "a", stream=stream) for stream in (False, True, False)]
        assert [first[0], second[0]] == [200, 200]
        assert first[2]["x-ratelimit-limit-requests"] == "2"
        assert [got[2]["x-ratelimit-remaining-requests"] for got in (first, second, third)] == ["1", "0", "0"]
        assert third[:2] == (429, "rate_limit_exceeded")
        assert 1 <= int(third[2]["retry-after"]) <= 30
        assert third[2]["x-ratelimit-reset-requests"].endswith("s")
        other = await ask(gateway, http, "b")
        assert other[0] == 200
        assert not any(header.startswith("x-ratelimit") for header in other[2])


async def test_tokens_are_settled_by_what_was_delivered(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(output_tokens_per_minute=1_000, input_tokens_per_minute=900)))
    async with running_gateway(pool, flags) as gateway:
        _, _, headers = await ask(gateway, http, "a")
        assert headers["x-ratelimit-limit-tokens"] in ("900", "1000")
        await until(lambda: gateway.server.relay.num_live == 0)
        _, _, headers = await ask(gateway, http, "a")
        assert int(headers["x-ratelimit-remaining-tokens"]) >= 860


async def test_a_model_that_the_tenant_may_not_ask_is_403_and_not_listed(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, table(tmp_path, row("a", models=("other",)), row("b"))) as gateway:
        assert (await ask(gateway, http, "a"))[:2] == (403, "model_not_allowed")
        for name, listed in (("a", []), ("b", ["tiny"])):
            headers = {"Authorization": f"Bearer key-of-{name}"}
            async with http.get(gateway.url("/v1/models"), headers=headers) as got:
                assert [model["id"] for model in (await got.json())["data"]] == listed
            async with http.post(
                gateway.url("/tokenize"), json={"prompt": "x", "model": "tiny"}, headers=headers
            ) as got:
                assert got.status == (200 if listed else 403)


async def test_the_context_of_a_tenant_may_be_shorter_than_the_models(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(max_context_tokens=32)), row("b"))
    async with running_gateway(pool, flags) as gateway:
        long = {"messages": [{"role": "user", "content": "word " * 40}]}
        assert (await ask(gateway, http, "a", **long))[:2] == (400, "context_length_exceeded")
        assert (await ask(gateway, http, "b", **long))[0] == 200
        assert (await ask(gateway, http, "a"))[0] == 200


async def test_an_edited_table_counts_without_a_restart(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with running_gateway(pool, table(tmp_path, row("a"))) as gateway:
        assert [(await ask(gateway, http, name))[0] for name in ("a", "b")] == [200, 401]
        table(tmp_path, row("b"), generation=2)
        for _ in gateway.server.tenants.read_table():
            pass
        assert [(await ask(gateway, http, name))[0] for name in ("a", "b")] == [401, 200]


# Tokens of the month --------------------------------------------------------------------------------------------------


def save(folder: Path, name: str, used: int, month: str = "") -> None:
    """What a tenant used, as it is mounted next to the table."""
    shard = UsageShard(shard_of(name), month or month_at(time.time()), {name: used} if used else {})
    (folder / usage_file(shard.place)).write_bytes(encode_usage(shard))


async def test_a_tenant_without_tokens_of_the_month_is_told_when_there_are_new_ones_and_not_to_retry(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(tokens_per_month=10_000)), row("b"))
    save(tmp_path, "a", 9_950)
    async with running_gateway(pool, flags) as gateway:
        assert (await ask(gateway, http, "a"))[0] == 200
        await until(lambda: gateway.server.relay.num_live == 0)
        assert 9_958 <= (gateway.server.limits.months.used("a") or 0) <= 10_000
        long = {"messages": [{"role": "user", "content": "word " * 60}]}
        for stream in (False, True):
            status, code, headers = await ask(gateway, http, "a", **long, stream=stream)
            assert (status, code) == (429, "insufficient_quota")
            rest_s = month_ends_s(month_at(time.time())) - time.time()
            assert abs(int(headers["retry-after"]) - rest_s) < 120
            assert headers["x-should-retry"] == "false"
        assert (await ask(gateway, http, "b", **long))[0] == 200


async def test_every_way_of_asking_meets_the_limit_by_the_month(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(tokens_per_month=10)))
    save(tmp_path, "a", 10)
    bodies: dict[str, dict[str, Any]] = {
        CHAT: BODY,
        "/v1/completions": {"model": "tiny", "prompt": ["x", "y"], "max_tokens": 8},
        "/v1/responses": {"model": "tiny", "input": "x", "max_output_tokens": 16},
        "/v1/messages": {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8},
    }
    async with running_gateway(pool, flags) as gateway:
        for path, body in bodies.items():
            headers = {"Authorization": "Bearer key-of-a"}
            async with http.post(gateway.url(path), json=body, headers=headers) as got:
                error = (await got.json())["error"]
                assert (got.status, error["code"]) == (429, "insufficient_quota"), path


async def test_a_count_that_nobody_knows_is_503_and_known_as_soon_as_it_is_read(
    pool: FakePool, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(tokens_per_month=10_000)), row("b"))
    save(tmp_path, "a", 0, month="2020-01")
    async with running_gateway(pool, flags) as gateway:
        status, code, headers = await ask(gateway, http, "a")
        assert (status, code, headers["retry-after"]) == (503, "quota_unknown", "2")
        assert (await ask(gateway, http, "b"))[0] == 200
        save(tmp_path, "a", 0)
        gateway.server.limits.read_usage()
        assert (await ask(gateway, http, "a"))[0] == 200
        (tmp_path / usage_file(shard_of("a"))).write_bytes(b"{")
        gateway.server.limits.read_usage()
        assert (await ask(gateway, http, "a"))[0] == 200, "a broken file changes nothing"


async def test_openais_client_raises_its_error_for_a_used_up_quota_and_does_not_retry(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = table(tmp_path, row("a", limits=TenantLimits(tokens_per_month=10)))
    save(tmp_path, "a", 10)
    async with running_gateway(pool, flags) as gateway:
        seen: list[int] = []
        answered = gateway.server.metrics.answered

        def note(status: int) -> None:
            seen.append(status)
            answered(status)

        monkeypatch.setattr(gateway.server.metrics, "answered", note)
        async with openai.AsyncOpenAI(base_url=gateway.url("/v1"), api_key="key-of-a", max_retries=3) as client:
            with pytest.raises(openai.RateLimitError) as refusal:
                await client.chat.completions.create(**BODY)
        assert (refusal.value.code, refusal.value.type) == ("insufficient_quota", "insufficient_quota")
        assert seen == [429]
