"""Whatever a client reads has the fields of the official clients' types: none that is required is missing, none is of
another type, and none stands there that the API does not have.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import answer, tokenizer
from baton_testing.gateway.http_client import CHAT, USER, HttpClient
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from baton_wire.messages.values import Role

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "look", "arguments": {"city": "Köln"}}\n</tool_call>'
ANSWERS = {
    "words": "Hello there.",
    "nothing": "",
    "a thought and words": "<think>\nHm.\n</think>\n\nHello.",
    "words and two calls": f"I look.\n{CALL}\n{CALL}",
    "a thought and a call": f"<think>\nHm.\n</think>\n\n{CALL}",
    "a call that is cut": CALL,
}
OURS = {"reasoning_content", "store", "name", "bytes"}
"""Fields that the newest types lack: reasoning, OpenAI's own `store`, a name that older types require, the bytes of a
token.
"""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    pool = FakePool(tmp_path, dataclasses.replace(tokenizer(), template=TOOL_TEMPLATE), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    yield pool
    await pool.stop()


def extras(value: Any, path: str = "") -> Iterator[str]:
    """Paths of fields that the type does not have."""
    if isinstance(value, pydantic.BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in value.model_fields_set - (value.model_extra or {}).keys():
            yield from extras(getattr(value, name), f"{path}.{name}")
    if isinstance(value, list):
        for place, item in enumerate(value):
            yield from extras(item, f"{path}[{place}]")


@functools.cache
def adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    """Made once: a stream's events are a union of some fifty types."""
    return pydantic.TypeAdapter(kind)


def check(kind: Any, content: dict[str, Any]) -> None:
    """Raises for what is not of the type."""
    parsed = adapter(kind).validate_python(content)
    assert [path for path in extras(parsed) if path.rpartition(".")[2] not in OURS] == [], content


def body(name: str, limit: str) -> dict[str, Any]:
    return {"model": "tiny", limit: 45 if "cut" in name else 400}


@pytest.mark.parametrize("name", list(ANSWERS))
async def test_chats_are_openais(client: HttpClient, name: str) -> None:
    client.say(ANSWERS[name])
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    for more in ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}):
        asked = body(name, "max_tokens") | {"messages": USER, "tools": [tool], **more}
        check(ChatCompletion, await client.ask(CHAT, **asked))
        for options in ({}, {"stream_options": {"include_usage": True}}):
            for chunk in await client.stream(CHAT, **asked | options):
                check(ChatCompletionChunk, chunk)


@pytest.mark.parametrize("name", list(ANSWERS))
async def test_responses_are_openais(client: HttpClient, name: str) -> None:
    client.say(ANSWERS[name])
    tool = {"type": "function", "name": "look", "parameters": SCHEMA, "strict": False, "description": None}
    for more in ({}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}, {"tool_choice": "none"}):
        asked = body(name, "max_output_tokens") | {"input": "x", "tools": [tool], **more}
        async with client.http.post(client.gateway.url(RESPONSES), json=asked) as got:
            check(Response, await got.json())
        for event in await client.named_events(RESPONSES, **asked):
            check(ResponseStreamEvent, event)


@pytest.mark.parametrize("name", list(ANSWERS))
async def test_messages_are_anthropics(client: HttpClient, name: str) -> None:
    client.say(ANSWERS[name])
    asked = body(name, "max_tokens") | {"messages": USER, "tools": [{"name": "look", "input_schema": SCHEMA}]}
    async with client.http.post(client.gateway.url(MESSAGES), json=asked) as got:
        whole = await got.json()
    check(Message, whole)
    assert (whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0) == ("thought" in name)
    events = await client.named_events(MESSAGES, **asked)
    assert events[-2]["usage"] == whole["usage"]
    for event in events:
        if event["type"] != "ping":  # the client's types leave it out
            check(RawMessageStreamEvent, event)
