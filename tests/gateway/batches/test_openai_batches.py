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


async def test_a_batch_goes_on_with_the_next_owner_and_answers_each_line_once(pool: FakePool, tmp_path: Path) -> None:
    flags = f"--batch-folder={tmp_path / 'batches'}", "--batch-concurrency=2"
    batch_id = ""
    for _ in range(3):
        async with running_gateway(pool, *flags) as gateway:  # noqa: SIM117
            async with openai.AsyncOpenAI(api_key="sk-none", base_url=gateway.url("/v1"), max_retries=0) as client:
                if not batch_id:
                    batch_id = (await begin(client, "".join(line(f"q{number}") for number in range(60)))).id
                await asyncio.sleep(0.2)
    async with running_gateway(pool, *flags) as gateway:  # noqa: SIM117
        async with openai.AsyncOpenAI(api_key="sk-none", base_url=gateway.url("/v1"), max_retries=0) as client:
            ended = await until_ended(client, batch_id)
            assert set(await answers(client, ended.output_file_id)) == {f"q{number}" for number in range(60)}


async def test_a_file_with_an_id_twice_fails_and_names_the_line(gpt: openai.AsyncOpenAI) -> None:
    ended = await until_ended(gpt, (await begin(gpt, line("a") + line("a"))).id)
    assert ended.status == "failed"
    assert ended.errors is not None
    assert [(error.code, error.line, error.param) for error in ended.errors.data or []] == [
        ("duplicate_custom_id", 2, "custom_id")
    ]


async def test_a_line_that_is_too_long_is_refused_by_field(gpt: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await upload(gpt, line("a") + "x" * (10 << 20))
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (413, "line_too_long", "file")


async def test_files_are_listed_read_and_deleted(gpt: openai.AsyncOpenAI) -> None:
    file_id = await upload(gpt, "x\n")
    assert [file.id async for file in gpt.files.list()] == [file_id]
    assert (await gpt.files.retrieve(file_id)).bytes == 2
    assert (await gpt.files.content(file_id)).content == b"x\n"
    assert (await gpt.files.delete(file_id)).deleted
    for name in (file_id, "x..y", "file-" + "0" * 32, "file-%2e%2e"):
        with pytest.raises(openai.NotFoundError):
            await gpt.files.retrieve(name)


async def test_a_cancelled_batch_ends_soon_and_keeps_its_answers(gpt: openai.AsyncOpenAI, pool: FakePool) -> None:
    batch = await begin(gpt, "".join(line(f"q{number}") for number in range(1_000)))
    await gpt.batches.cancel(batch.id)
    ended = await until_ended(gpt, batch.id)
    assert ended.status == "cancelled"
    assert ended.request_counts is not None
    assert ended.request_counts.completed < 1_000
