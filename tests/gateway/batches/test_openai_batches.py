"""Files and batches through OpenAI's own client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import openai
import pytest

from baton_testing.gateway.batch_client import answers, begin, client_of, line, until_ended, upload
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, running_gateway


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
    text = output["a"]["response"]["body"]["choices"][0]["message"]["content"]
    assert text
    assert ANSWER.startswith(text)
    errors = await answers(gpt, ended.error_file_id)
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"


async def test_a_batch_goes_on_with_the_next_owner_and_answers_each_line_once(pool: FakePool, tmp_path: Path) -> None:
    flags = f"--batch-folder={tmp_path / 'batches'}", "--batch-concurrency=2"
    batch_id = ""
    for _ in range(3):
        async with running_gateway(pool, *flags) as gateway:  # noqa: SIM117
            async with client_of(gateway.url("/v1")) as client:
                if not batch_id:
                    batch_id = (await begin(client, "".join(line(f"q{number}") for number in range(60)))).id
                await asyncio.sleep(0.2)
    async with running_gateway(pool, *flags) as gateway:  # noqa: SIM117
        async with client_of(gateway.url("/v1")) as client:
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
