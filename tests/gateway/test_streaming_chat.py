"""One streamed chat request through real HTTP, real links and a fake pair of workers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from baton_kv_transfer.wire.values import Role
from baton_testing.fake_worker import FakePool, FakeRequest
from baton_testing.gateway_process import RunningGateway, running_gateway
from baton_testing.made_tokenizers import byte_level

TOKENIZER = byte_level()
ANSWER = "Grüße, the baton is handed over."


def _answer(request: FakeRequest) -> list[int]:
    return list(TOKENIZER.tokenizer.encode(ANSWER, add_special_tokens=False).ids)


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    pool = FakePool(tmp_path, TOKENIZER, _answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    async with running_gateway(pool) as gateway:
        yield gateway
    await pool.stop()


async def test_a_streamed_chat_answer_arrives_whole_and_ends_with_done(gateway: RunningGateway) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with aiohttp.ClientSession() as session, session.post(gateway.url("/v1/chat/completions"), json=body) as got:
        assert got.status == 200
        assert got.content_type == "text/event-stream"
        events = [line[6:] for line in (await got.text()).split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
