"""Files and batches through OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, running_gateway

ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = "/v1/chat/completions", **fields: Any) -> str:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8} | fields
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


@pytest.fixture
async def batching(pool: FakePool, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    async with running_gateway(pool, f"--batch-folder={tmp_path / 'batches'}") as gateway:
        yield gateway


@pytest.fixture
async def gpt(batching: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="sk-none", base_url=batching.url("/v1"), max_retries=0) as client:
        yield client


async def upload(gpt: openai.AsyncOpenAI, content: str) -> str:
    file = await gpt.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    return file.id


async def begin(gpt: openai.AsyncOpenAI, content: str, **fields: Any) -> Batch:
    file_id = await upload(gpt, content)
    return await gpt.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", **fields
    )


async def until_ended(gpt: openai.AsyncOpenAI, batch_id: str) -> Batch:
    for _ in range(2_000):
        batch = await gpt.batches.retrieve(batch_id)
        if batch.status in ENDED:
            return batch
        await asyncio.sleep(0.02)
    raise TimeoutError(batch)


async def answers(gpt: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    content = await gpt.files.content(file_id)
    lines = [json.loads(text) for text in content.text.splitlines()]
    assert len({answer["custom_id"] for answer in lines}) == len(lines)
    return {answer["custom_id"]: answer for answer in lines}


async def test_a_batch_is_created_and_answered(gpt: openai.AsyncOpenAI) -> None:
    content = line("a") + "\n" + line("b") + line("bad", temperature=99)
    batch = await begin(gpt, content, metadata={"team": "search"})
    assert batch.status in ("validating", "in_progress")
    assert batch.metadata == {"team": "search"}
    ended = await until_ended(gpt, batch.id)
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert (ended.request_counts.total, ended.request_counts.completed) == (3, 2)
    output = await answers(gpt, ended.output_file_id)
    assert set(output) == {"a", "b"}
    said = output["a"]["response"]["body"]["choices"][0]["message"]["content"]
    assert said
    assert ANSWER.startswith(said)
    errors = await answers(gpt, ended.error_file_id)
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
