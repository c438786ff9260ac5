"""Aliases of a model: accepted wherever a model is named, repeated in answers, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from baton_gateway.settings import SettingsError, parse_settings
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, running_gateway
from baton_testing.gateway.http_client import CHAT, COMPLETIONS

ALIASES = "--model-aliases=gpt-4o=tiny,team/chat:latest=tiny,elsewhere=other,tiny=other"
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def gateway(pool: FakePool) -> AsyncIterator[RunningGateway]:
    async with running_gateway(pool, ALIASES) as gateway:
        yield gateway


async def post(gateway: RunningGateway, http: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> Any:
    async with http.post(gateway.url(path), json=body) as got:
        assert got.status == 200, await got.text()
        return await got.json()


@pytest.mark.parametrize("name", ["tiny", "gpt-4o", "team/chat:latest"])
async def test_every_name_is_answered_and_repeated(
    gateway: RunningGateway, http: aiohttp.ClientSession, name: str
) -> None:
    chat = await post(gateway, http, CHAT, {"model": name, "messages": MESSAGES})
    completion = await post(gateway, http, COMPLETIONS, {"model": name, "prompt": "hello"})
    assert (chat["model"], completion["model"]) == (name, name)
    tokens = await post(gateway, http, "/tokenize", {"model": name, "prompt": "hello"})
    back = await post(gateway, http, "/detokenize", {"model": name, "tokens": tokens["tokens"]})
    assert back["prompt"].endswith("hello")


async def test_a_stream_repeats_the_name_too(gateway: RunningGateway, http: aiohttp.ClientSession) -> None:
    body = {"model": "gpt-4o", "messages": MESSAGES, "stream": True}
    async with http.post(gateway.url(CHAT), json=body) as got:
        lines = [line for line in (await got.text()).split("\n\n") if line.startswith("data: {")]
    assert {json.loads(line.removeprefix("data: "))["model"] for line in lines} == {"gpt-4o"}


async def test_every_name_is_listed_with_what_it_stands_for(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    async with http.get(gateway.url("/v1/models")) as got:
        entries = (await got.json())["data"]
    listed = [(entry["id"], entry["root"], entry["parent"], entry["max_model_len"]) for entry in entries]
    names = ["tiny", "gpt-4o", "team/chat:latest"]
    assert listed == [(name, "tiny", None, 2_048) for name in names], "an alias of what nobody serves is not there"
    for entry in entries:
        async with http.get(gateway.url(f"/v1/models/{entry['id']}")) as got:
            assert await got.json() == entry
    async with http.get(gateway.url("/v1/models/elsewhere")) as got:
        assert got.status == 404
        assert "'gpt-4o'" in (await got.json())["error"]["message"]


async def test_what_follows_from_the_name_is_that_of_the_served_one(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    await post(gateway, http, CHAT, {"model": "gpt-4o", "messages": MESSAGES})
    async with http.get(gateway.url("/metrics")) as got:
        assert "gpt-4o" not in await got.text()
    async with http.post(gateway.url(CHAT), json={"model": "elsewhere", "messages": MESSAGES}) as got:
        assert (got.status, (await got.json())["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("a", "'a' is not ALIAS=SERVED_NAME"),
        ("a=", "'a=' is not"),
        ("=b", "'=b' is not"),
        ("a=b,,c=d", "'' is not"),
        ("a=a", "'a=a' is not"),
        ("a=b,a=c", "an alias is given twice"),
    ],
)
def test_a_wrong_list_is_refused(value: str, message: str) -> None:
    needed = ["--keys=k", "--prefill-discovery=file:a", "--decode-discovery=file:b"]
    with pytest.raises(SettingsError, match=f"--model-aliases: {message}"):
        parse_settings([*needed, f"--model-aliases={value}"])
