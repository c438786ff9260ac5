"""Files and batches through OpenAI's own client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import openai
import pytest

from baton_testing.gateway.batch_client import answers, begin, client_of, line, until_ended, upload
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, running_gateway, until


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


async def test_lists_have_pages_an_order_and_a_purpose(gpt: openai.AsyncOpenAI) -> None:
    ids = [await upload(gpt, line(f"q{number}")) for number in range(5)]
    listed = [file.id async for file in gpt.files.list(limit=2)]
    assert sorted(listed) == sorted(ids), "the client asks for page after page"
    assert [file.id async for file in gpt.files.list(order="asc", limit=2)] == listed[::-1]
    assert [file.id async for file in gpt.files.list(after=listed[3])] == listed[4:]
    assert [file.id async for file in gpt.files.list(purpose="batch_output")] == []
    batches = [
        await gpt.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"at": file_id}
        )
        for file_id in ids
    ]
    shown = [batch async for batch in gpt.batches.list(limit=2)]
    assert sorted(batch.id for batch in shown) == sorted(batch.id for batch in batches)
    assert {batch.id: batch.metadata for batch in shown} == {
        batch.id: {"at": file_id} for batch, file_id in zip(batches, ids, strict=True)
    }
    for batch in batches:
        await until_ended(gpt, batch.id)
    outputs = [file async for file in gpt.files.list(purpose="batch_output")]
    assert len(outputs) == len(batches)


async def test_files_are_kept_as_long_as_their_creation_says(gpt: openai.AsyncOpenAI) -> None:
    after = {"anchor": "created_at", "seconds": 3_600}
    file = await gpt.files.create(
        file=("in.jsonl", line("a").encode() + line("b", temperature=99).encode()),
        purpose="batch",
        expires_after=after,  # type: ignore[arg-type]
    )
    assert file.expires_at == file.created_at + 3_600
    batch = await gpt.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        output_expires_after=after,  # type: ignore[arg-type]
    )
    ended = await until_ended(gpt, batch.id)
    assert (ended.output_file_id, ended.error_file_id) != (None, None)
    for file_id in (ended.output_file_id, ended.error_file_id):
        assert file_id is not None
        made = await gpt.files.retrieve(file_id)
        assert made.expires_at == made.created_at + 3_600


@pytest.mark.parametrize(
    ("after", "param"),
    [
        ({"anchor": "now", "seconds": 3_600}, "output_expires_after.anchor"),
        ({"anchor": "created_at", "seconds": 3_599}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": 2_592_001}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": True}, "output_expires_after.seconds"),
        ({"anchor": "created_at"}, "output_expires_after.seconds"),
        ({"anchor": "created_at", "seconds": 3_600, "colour": 1}, "output_expires_after.colour"),
        ([], "output_expires_after"),
    ],
)
async def test_a_bad_expiry_of_answers_is_refused_by_its_field(
    gpt: openai.AsyncOpenAI, after: object, param: str
) -> None:
    file_id = await upload(gpt, line("a"))
    with pytest.raises(openai.BadRequestError) as caught:
        await gpt.batches.create(
            input_file_id=file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            output_expires_after=after,  # type: ignore[arg-type]
        )
    assert caught.value.param == param


async def test_a_file_of_ten_gigabytes_is_refused_before_a_byte_of_it_is_read(
    batching: RunningGateway, batch_folder: Path
) -> None:
    url = urlsplit(batching.url("/v1/files"))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        f"Content-Length: {10 << 30}\r\nExpect: 100-continue\r\n\r\n"
    )
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.readuntil(b"}}"), 30.0)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"file_too_large" in answer
    assert stored_bytes(batch_folder) == 0


async def test_a_file_of_unknown_size_is_refused_once_it_is_too_large_and_nothing_of_it_stays(
    pool: FakePool, tmp_path: Path
) -> None:
    folder = tmp_path / "small"

    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        for _ in range(64):
            yield b"x" * 1_023 * 64 + b"\n"

    async with (
        running_gateway(pool, f"--batch-folder={folder}", "--batch-file-mib=1") as gateway,
        aiohttp.ClientSession() as http,
    ):
        headers = {"Content-Type": "multipart/form-data; boundary=b"}
        try:
            async with http.post(gateway.url("/v1/files"), data=form(), headers=headers) as answer:
                assert answer.status == 413
        except aiohttp.ClientConnectionError:
            pass  # the gateway does not read the rest
        await until(lambda: stored_bytes(folder) == 0)


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
