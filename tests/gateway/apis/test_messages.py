"""`/v1/messages` as Anthropic's own client reads it: whole, streamed, refused, and without a key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, ids_of, running_gateway, until
from baton_testing.gateway.http_client import HttpClient
from baton_wire.messages.gateway_link import Cancel, Prefill
from baton_wire.messages.values import Reason, unpack_ids

PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}


CALL = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
CALLED = [
    *BODY["messages"],
    {"role": "assistant", "content": [{"type": "text", "text": "x"}, CALL, CALL | {"id": "c2"}]},
]


def results(*ids: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": "x"} for call in ids]


def answered(*blocks: dict[str, Any]) -> dict[str, Any]:
    """A chat whose last turn has these blocks, behind two calls."""
    return {"messages": [*CALLED, {"role": "user", "content": list(blocks)}]}


WORDS = {"type": "text", "text": "go on"}
RESULTS: list[tuple[dict[str, Any], str, str]] = [
    (answered(WORDS), "messages[1].content[1]", "invalid_value"),
    (answered(*results("c1"), WORDS), "messages[1].content[2]", "invalid_value"),
    (answered(WORDS, *results("c1", "c2")), "messages[1].content[1]", "invalid_value"),
    (answered(*results("c1", "c2", "c1")), "messages[2].content[2]", "invalid_value"),
    (answered(*results("c1", "c3", "c2")), "messages[2].content[1]", "invalid_value"),
]
"""Some result is missing, comes late, twice, or answers no call."""


@pytest.fixture
async def claude(gateway: RunningGateway) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key="sk-none", base_url=gateway.url(""), max_retries=0) as client:
        yield client


def prompt(client: HttpClient) -> str:
    tokens = unpack_ids(client.prefill().tokens)
    text = client.gateway.pool.tokenizer.tokenizer.decode(tokens, skip_special_tokens=False)
    assert isinstance(text, str)
    return text


async def events(client: HttpClient, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream."""
    return await client.named_events(PATH, **BODY | body)


async def refused(client: HttpClient, **body: Any) -> tuple[int, dict[str, Any]]:
    async with client.http.post(client.gateway.url(PATH), json=BODY | body) as got:
        content = await got.json()
        assert content["type"] == "error"
        assert content["request_id"] == got.headers["X-Request-Id"]
        return got.status, content["error"]


async def test_a_message_is_answered_whole(claude: anthropic.AsyncAnthropic) -> None:
    message = await claude.messages.create(**BODY)
    [block] = message.content
    assert block.type == "text"
    assert block.text == ANSWER
    assert (message.role, message.model, message.stop_reason, message.stop_sequence) == (
        "assistant", "tiny", "end_turn", None,
    )  # fmt: skip
    assert message.usage.output_tokens == len(ids_of(ANSWER)) + 1
    counted = await claude.messages.count_tokens(model="tiny", messages=BODY["messages"])
    assert counted.input_tokens == message.usage.input_tokens > 0


async def test_tokens_read_from_a_cache_are_counted_apart(client: HttpClient, claude: anthropic.AsyncAnthropic) -> None:
    prompt_tokens = (await claude.messages.create(**BODY)).usage.input_tokens
    client.pool.prefill[0].cached_tokens = 1
    async with claude.messages.stream(**BODY) as stream:
        streamed = (await stream.get_final_message()).usage
    for usage in (streamed, (await claude.messages.create(**BODY)).usage):
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (prompt_tokens - 1, 1)


async def test_a_stream_says_the_same(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(**BODY) as stream:
        pieces = [text async for text in stream.text_stream]
        message = await stream.get_final_message()
    whole = await claude.messages.create(**BODY)
    assert "".join(pieces) == ANSWER
    assert message.to_dict() == whole.to_dict() | {"id": message.id, "stop_details": None}
    assert message.to_dict()["content"] == [{"type": "text", "text": ANSWER}]


async def test_the_events_of_a_stream_come_in_their_order(client: HttpClient) -> None:
    client.gateway.take_step_by_step()
    received = await events(client)
    kinds = [event["type"] for event in received]
    deltas = kinds.count("content_block_delta")
    assert deltas > 1
    assert kinds == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * deltas, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert received[0]["message"]["usage"]["input_tokens"] > 0
    assert received[-2]["usage"] == received[0]["message"]["usage"] | {"output_tokens": len(ids_of(ANSWER)) + 1}


@pytest.mark.parametrize(
    ("body", "reason", "sequence"),
    [
        ({"max_tokens": 2}, "max_tokens", None),
        ({"stop_sequences": ["zebra", "baton"]}, "stop_sequence", "baton"),
        ({}, "end_turn", None),
    ],
)
async def test_the_reason_of_an_end_is_told_whole_and_streamed(
    client: HttpClient, claude: anthropic.AsyncAnthropic, body: dict[str, Any], reason: str, sequence: str | None
) -> None:
    message = await claude.messages.create(**BODY | body)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert (await events(client, **body))[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


async def test_an_answer_without_text_has_no_block(client: HttpClient, claude: anthropic.AsyncAnthropic) -> None:
    client.say("")
    assert (await claude.messages.create(**BODY)).content == []
    assert [event["type"] for event in await events(client)] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]


async def test_an_answer_that_the_client_began_is_gone_on_with(
    client: HttpClient, claude: anthropic.AsyncAnthropic
) -> None:
    client.say(" and more")
    begun: Any = [*BODY["messages"], {"role": "assistant", "content": "It is this"}]
    [block] = (await claude.messages.create(**BODY | {"messages": begun})).content
    assert block.type == "text"
    assert block.text == " and more"
    assert prompt(client).endswith("It is this")
    counted = await claude.messages.count_tokens(model="tiny", messages=begun)
    assert counted.input_tokens == len(unpack_ids(client.prefill().tokens))


async def test_what_agents_send_by_the_beta_client_is_taken(
    client: HttpClient, claude: anthropic.AsyncAnthropic
) -> None:
    """Fields that leave the conversation as it is, and a path with a query."""
    asked: Any = BODY | {
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u"},
        "betas": ["context-management-2025-06-27"],
    }
    async with claude.beta.messages.stream(**asked) as stream:
        message = await stream.get_final_message()
    assert [block.type for block in message.content] == ["text"]
    for edit in ({"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}):
        status, error = await refused(client, context_management={"edits": [edit]})
        assert (status, error["param"]) == (400, "context_management")


async def test_turns_and_blocks_are_one_chat(client: HttpClient) -> None:
    """Turns that follow each other on one side are one turn; what the prompt is, chat says of the same."""
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "user", "content": "one"},
        {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "text", "text": "three"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "four", "citations": None}]},
        {"role": "user", "content": "five"},
    ]
    await client.http.post(client.gateway.url(PATH), json=BODY | {"system": [cached], "messages": messages})
    rendered = prompt(client)
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one\ntwo\nthree"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five"},
    ]
    await client.ask("/v1/chat/completions", messages=chat)
    assert rendered == prompt(client)


async def test_sampling_is_as_asked(client: HttpClient) -> None:
    body = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "metadata": {"user_id": "x"}, "service_tier": "auto"}
    async with client.http.post(client.gateway.url(PATH), json=BODY | body) as got:
        assert got.status == 200
    sampling = client.sampling()
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.25, 0.5, 7, 64)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"max_tokens": 0}, "max_tokens", "out_of_range"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"messages": []}, "messages", "out_of_range"),
        ({"messages": "x"}, "messages", "invalid_type"),
        ({"messages": ["x"]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "out_of_range"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_parameter",
        ),
        (
            {"messages": [*BODY["messages"], {"role": "assistant", "content": [CALL]}]},
            "messages[1].content[0]",
            "invalid_value",
        ),
        *RESULTS,
        (
            {"messages": [*BODY["messages"], {"role": "assistant", "content": " "}]},
            "messages",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "no", "content": "x"}]}]},
            "messages[0].content[0]",
            "invalid_value",
        ),
        ({"stop_sequences": "x"}, "stop_sequences", "invalid_type"),
        ({"stop_sequences": ["x" * 300]}, "stop_sequences[0]", "too_long"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences", "too_long"),
        ({"system": 1}, "system", "invalid_type"),
        ({"temperature": 3}, "temperature", "out_of_range"),
        ({"thinking": {"type": "always"}}, "thinking.type", "invalid_value"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "missing_required_parameter"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens", "out_of_range"),
        (
            {"max_tokens": 8, "thinking": {"type": "enabled", "budget_tokens": 8}},
            "thinking.budget_tokens",
            "out_of_range",
        ),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type", "invalid_value"),
        ({"tools": [{"type": "shelf_20250305", "name": "w"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type", "invalid_value"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "invalid_value"),
        ({"mcp_servers": [{}]}, "mcp_servers", "unsupported_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
    ],
)
async def test_what_breaks_a_rule_is_told_by_the_name_that_the_client_wrote(
    client: HttpClient, body: dict[str, Any], param: str, code: str
) -> None:
    status, error = await refused(client, **body)
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, code)


async def test_errors_are_those_of_that_api(claude: anthropic.AsyncAnthropic, gateway: RunningGateway) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(**BODY | {"model": "other"})
    assert "served here: 'tiny'" in str(missing.value)
    with pytest.raises(anthropic.BadRequestError, match="context length"):
        await claude.messages.create(**BODY | {"max_tokens": 20_000})
    async with aiohttp.ClientSession() as http:
        async with http.get(gateway.url(PATH)) as got:
            assert (got.status, got.headers["Allow"]) == (405, "POST")
            assert (await got.json())["error"]["type"] == "invalid_request_error"
        async with http.post(gateway.url(PATH), data=b"{", headers={"Content-Type": "application/json"}) as got:
            assert (await got.json())["error"]["code"] == "invalid_json"


async def test_a_stream_that_fails_later_ends_with_an_error_event(
    client: HttpClient, claude: anthropic.AsyncAnthropic, gateway: RunningGateway
) -> None:
    client.pool.decode[0].step_s = 0.05
    stream = await claude.messages.create(**BODY | {"stream": True})
    await anext(aiter(stream))
    for live in list(gateway.server.relay._by_ticket.values()):
        live.life.deadline_s = 0.0
        gateway.server.relay._tick(live)
    with pytest.raises(anthropic.APIStatusError, match="timeout_error"):
        [event async for event in stream]


async def test_a_stream_that_failed_before_its_first_token_is_an_ordinary_error(
    client: HttpClient, claude: anthropic.AsyncAnthropic
) -> None:
    client.pool.prefill[0].fail_next = [Reason.NO_CAPACITY] * 3
    with pytest.raises(anthropic.RateLimitError) as failed:
        await claude.messages.create(**BODY | {"stream": True})
    assert failed.value.status_code == 429


async def test_a_key_may_come_in_the_header_of_that_api_and_only_there(pool: FakePool, tmp_path: Path) -> None:
    keys = tmp_path / "api-keys"
    keys.write_text("team-a: sk-good-key-1\n")
    async with running_gateway(pool, f"--api-keys={keys}") as gateway, aiohttp.ClientSession() as http:

        async def status(path: str, **headers: str) -> int:
            body = BODY if path == PATH else {"model": "tiny", "prompt": "x"}
            async with http.post(gateway.url(path), json=body, headers=headers) as got:
                if path == PATH and got.status == 401:
                    assert (await got.json())["error"]["type"] == "authentication_error"
                return got.status

        assert await status(PATH) == 401
        assert await status(PATH, **{"x-api-key": "sk-wrong-key"}) == 401
        assert await status(PATH, **{"x-api-key": "sk-good-key-1"}) == 200
        assert await status(PATH, Authorization="Bearer sk-good-key-1") == 200
        assert await status(PATH, Authorization="Bearer sk-wrong-key", **{"x-api-key": "sk-good-key-1"}) == 401
        assert await status("/v1/completions", **{"x-api-key": "sk-good-key-1"}) == 401
        assert {message.salt for message in pool.prefill[0].of_type(Prefill) if isinstance(message, Prefill)} != {""}


async def test_a_client_that_hangs_up_frees_the_workers(client: HttpClient, claude: anthropic.AsyncAnthropic) -> None:
    client.pool.decode[0].step_s = 0.02
    client.say("word " * 300)
    stream = await claude.messages.create(**BODY | {"max_tokens": 300, "stream": True})
    await anext(aiter(stream))
    await stream.close()
    await until(lambda: all(worker.is_idle for worker in client.pool.workers))
    assert client.pool.decode[0].of_type(Cancel), "the workers went on to the end"
