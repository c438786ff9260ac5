"""One streamed chat request through real HTTP, real links and a fake pair of workers."""

from __future__ import annotations

import json

import aiohttp

from baton_testing.gateway.gateway_process import ANSWER, RunningGateway


async def test_a_streamed_chat_answer_arrives_whole_and_ends_with_done(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with http.post(gateway.url("/v1/chat/completions"), json=body) as got:
        assert got.status == 200
        assert got.content_type == "text/event-stream"
        events = [line[6:] for line in (await got.text()).split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == ANSWER
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
