"""Usage, the same from all four endpoints, whole and streamed: cached tokens, reasoning tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import answer, ids_of, tokenizer
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from baton_wire.messages.values import Role

SAID = "<think>\nIt is about weather.\n</think>\n\nSun."
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    pool = FakePool(tmp_path, dataclasses.replace(tokenizer(), template=TOOL_TEMPLATE), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    yield pool
    await pool.stop()


async def whole(client: HttpClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    async with client.http.post(client.gateway.url(path), json={"model": "tiny", **body}) as got:
        assert got.status == 200, await got.text()
        usage: dict[str, Any] = (await got.json())["usage"]
        return usage


async def test_cached_tokens_and_thoughts_are_told_by_every_endpoint(client: HttpClient) -> None:
    client.say(SAID)
    client.pool.prefill[0].cached_tokens = 1
    chat = await whole(client, CHAT, {"messages": USER})
    prompt, drawn = chat["prompt_tokens"], chat["completion_tokens"]
    thought = chat["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < thought < drawn == len(ids_of(SAID)) + 1
    assert chat["prompt_tokens_details"] == {"cached_tokens": 1}
    chunks = await client.stream(CHAT, messages=USER, stream_options={"include_usage": True})
    assert chunks[-1]["usage"] == chat

    response = await whole(client, RESPONSES, {"input": "Hello"})
    assert (response["input_tokens"], response["output_tokens"]) == (prompt, drawn)
    assert response["input_tokens_details"]["cached_tokens"] == 1
    assert response["output_tokens_details"] == {"reasoning_tokens": thought}
    events = await client.named_events(RESPONSES, model="tiny", input="Hello")
    assert events[-1]["response"]["usage"] == response

    message = await whole(client, MESSAGES, {"messages": USER, "max_tokens": 100})
    assert message["cache_read_input_tokens"] == 1
    assert (message["input_tokens"] + 1, message["output_tokens"]) == (prompt, drawn)
    assert message["output_tokens_details"] == {"thinking_tokens": thought}
    events = await client.named_events(MESSAGES, model="tiny", messages=USER, max_tokens=100)
    assert events[-2]["usage"] == message

    text = await whole(client, COMPLETIONS, {"prompt": "Hello", "max_tokens": 100})
    assert text["completion_tokens"] == drawn
    assert text["prompt_tokens_details"] == {"cached_tokens": 1}
    assert "completion_tokens_details" not in text, "its text is not read, so nobody knows which tokens are a thought"
