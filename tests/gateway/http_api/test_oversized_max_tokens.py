"""Requests for more tokens than the context holds: refused, or given what fits where the gateway is configured so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, HttpClient

USER = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def clamping(pool: FakePool, http: aiohttp.ClientSession) -> AsyncIterator[HttpClient]:
    async with running_gateway(pool, "--oversized-max-tokens=clamp") as gateway:
        yield HttpClient(gateway, http)


BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": USER, "max_tokens": 16_384}),
    (CHAT, {"messages": USER, "max_completion_tokens": 1 << 20}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 32_000}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 32_000}),
    ("/v1/messages", {"messages": USER, "max_tokens": 32_000, "thinking": {"type": "adaptive"}}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=str)
async def test_by_default_they_are_refused(client: HttpClient, path: str, body: dict[str, Any]) -> None:
    async with client.http.post(client.gateway.url(path), json={"model": "tiny"} | body) as got:
        assert (got.status, (await got.json())["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=str)
async def test_a_gateway_that_clamps_gives_what_fits(
    clamping: HttpClient, path: str, body: dict[str, Any], streams: bool
) -> None:
    asked = {"model": "tiny", "stream": streams} | body
    async with clamping.http.post(clamping.gateway.url(path), json=asked) as got:
        assert got.status == 200, await got.text()
        await got.read()
    assert clamping.sampling().max_tokens == 2_048 - clamping.prefill().prompt_tokens


async def test_what_fits_stays_as_asked_and_a_prompt_without_room_stays_refused(clamping: HttpClient) -> None:
    await clamping.ask(CHAT, messages=USER, max_tokens=7)
    assert clamping.sampling().max_tokens == 7
    long = [{"role": "user", "content": "word " * 3_000}]
    for fields in ({"max_tokens": 5}, {}):
        _, error = await clamping.refused(CHAT, messages=long, **fields)
        assert error["code"] == "context_length_exceeded"
    status, error = await clamping.refused(CHAT, messages=USER, max_tokens=9_000, min_tokens=8_000)
    assert (status, error["param"]) == (400, "min_tokens")
