"""Usage while a stream runs: every chunk says it when the client asks for that."""

from __future__ import annotations

from typing import Any

import pytest

from baton_testing.gateway.http_client import CHAT, COMPLETIONS, HttpClient


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_each_chunk_says_the_usage_up_to_there_when_asked_for(client: HttpClient, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    client.gateway.take_step_by_step()
    chunks = await client.stream(path, max_tokens=6, n=2, stream_options=options)
    usages = [chunk["usage"] for chunk in chunks]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    assert sorted(set(counts)) == [2, 4, 6, 8, 10, 12], "each step counts once it is told"
    assert usages[-2] == usages[-1] == {"prompt_tokens": usages[0]["prompt_tokens"]} | usages[-1]
    assert counts[-1] == 12
    assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)


async def test_usage_up_to_a_chunk_counts_no_token_behind_a_stop_string(client: HttpClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for worker in client.pool.workers:
        worker.tokens_per_step = 4
    chunks = await client.stream(COMPLETIONS, max_tokens=30, stop=["baton"], stream_options=options)
    assert chunks[-2]["usage"] == chunks[-1]["usage"]


async def test_continuous_usage_says_nothing_without_usage(client: HttpClient) -> None:
    chunks = await client.stream(CHAT, max_tokens=5, stream_options={"continuous_usage_stats": True})
    assert all("usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_cached_tokens_are_told_where_a_worker_said_them(client: HttpClient, path: str) -> None:
    asked: dict[str, Any] = {"max_tokens": 5, "stream_options": {"include_usage": True}}
    assert "prompt_tokens_details" not in (await client.stream(path, **asked))[-1]["usage"]
    client.pool.prefill[0].cached_tokens = 1
    usages = [(await client.stream(path, **asked))[-1]["usage"], (await client.ask(path, max_tokens=5))["usage"]]
    assert [usage["prompt_tokens_details"] for usage in usages] == [{"cached_tokens": 1}] * 2
