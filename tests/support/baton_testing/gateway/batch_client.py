"""A client of files and batches, and lines for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
from openai.types import Batch

ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str = "/v1/chat/completions", **fields: Any) -> str:
    """A request for a chat as one line of a batch's input."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8} | fields
    return line_of(custom_id, url, body)


def line_of(custom_id: str, url: str, body: dict[str, Any]) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}) + "\n"


@asynccontextmanager
async def client_of(base_url: str, key: str = "sk-none") -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=key, base_url=base_url, max_retries=0) as client:
        yield client


async def upload(gpt: openai.AsyncOpenAI, content: str) -> str:
    """Upload a batch's input; returns the file's id."""
    file = await gpt.files.create(file=("in.jsonl", content.encode()), purpose="batch")
    return file.id


async def begin(gpt: openai.AsyncOpenAI, content: str, endpoint: Any = "/v1/chat/completions", **fields: Any) -> Batch:
    """Upload lines, and create a batch of them."""
    file_id = await upload(gpt, content)
    return await gpt.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h", **fields)


async def until_ended(gpt: openai.AsyncOpenAI, batch_id: str) -> Batch:
    """Wait for the end of a batch. Raises TimeoutError."""
    for _ in range(2_000):
        batch = await gpt.batches.retrieve(batch_id)
        if batch.status in ENDED:
            return batch
        await asyncio.sleep(0.02)
    raise TimeoutError(batch)


async def until_answered(gpt: openai.AsyncOpenAI, batch_id: str, lines: int) -> Batch:
    """Wait until a batch has noted this many answers. Raises TimeoutError."""
    for _ in range(2_000):
        batch = await gpt.batches.retrieve(batch_id)
        if batch.request_counts is not None and batch.request_counts.completed >= lines:
            return batch
        await asyncio.sleep(0.02)
    raise TimeoutError(batch)


async def answers(gpt: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of an output file by their ids, none of which occurs twice."""
    assert file_id is not None
    content = await gpt.files.content(file_id)
    lines = [json.loads(text) for text in content.text.splitlines()]
    assert len({answer["custom_id"] for answer in lines}) == len(lines)
    return {answer["custom_id"]: answer for answer in lines}
