"""`/v1/responses` as OpenAI's own client reads it: whole, streamed, refused; nothing is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from baton_gateway.apis.responses_request import parse_response
from baton_gateway.errors import RefusedError
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, ids_of
from baton_testing.gateway.http_client import HttpClient
from baton_wire.messages.values import Reason, unpack_ids

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": "tiny", "input": "Hello"}


HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}


def called(number: int) -> dict[str, Any]:
    return {"type": "function_call", "call_id": f"c{number}", "name": f"f{number}", "arguments": "{}"}


def output(number: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": f"said {number}"}


@pytest.fixture
async def gpt(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="sk-none", base_url=gateway.url("/v1"), max_retries=0) as client:
        yield client


async def events(client: HttpClient, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream; each has the next number."""
    named = await client.named_events(PATH, **BODY | body)
    assert [event["sequence_number"] for event in named] == list(range(len(named)))
    return named


def prompt(client: HttpClient) -> str:
    tokens = unpack_ids(client.prefill().tokens)
    return str(client.pool.tokenizer.tokenizer.decode(tokens, skip_special_tokens=False))


async def test_a_response_is_answered_whole(gpt: openai.AsyncOpenAI) -> None:
    response = await gpt.responses.create(**BODY, metadata={"a": "b"}, instructions="Be brief.")
    assert response.output_text == ANSWER
    assert (response.status, response.model, response.error, response.incomplete_details) == (
        "completed", "tiny", None, None,
    )  # fmt: skip
    assert (response.metadata, response.instructions, response.to_dict()["store"]) == ({"a": "b"}, "Be brief.", False)
    assert response.usage is not None
    assert response.usage.output_tokens == len(ids_of(ANSWER)) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_cached_tokens_are_a_detail_of_the_input(client: HttpClient, gpt: openai.AsyncOpenAI) -> None:
    client.pool.prefill[0].cached_tokens = 1
    usage = (await gpt.responses.create(**BODY)).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == 1


async def test_a_stream_says_the_same(gpt: openai.AsyncOpenAI) -> None:
    async with gpt.responses.stream(**BODY) as stream:
        pieces = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        response = await stream.get_final_response()
    whole = await gpt.responses.create(**BODY)
    assert "".join(pieces) == ANSWER == response.output_text
    assert_alike(response, whole)


def assert_alike(streamed: Response, whole: Response) -> None:
    """All but ids and the time."""

    def plain(response: Response) -> dict[str, Any]:
        repeated = json.loads(response.model_dump_json(exclude={"id", "created_at", "output_parsed"}))
        for item in repeated["output"]:
            del item["id"]
            for part in item.get("content") or []:
                part.pop("parsed", None)
            item.pop("parsed_arguments", None)
        return dict(repeated)

    assert plain(streamed) == plain(whole)


async def test_the_events_of_a_stream_come_in_their_order(client: HttpClient) -> None:
    client.gateway.take_step_by_step()
    received = await events(client)
    kinds = [event["type"].removeprefix("response.") for event in received]
    deltas = kinds.count("output_text.delta")
    assert deltas > 1
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * deltas,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    done, ended = received[-2]["item"], received[-1]["response"]
    assert ended["output"] == [done]
    assert {event["item_id"] for event in received if "item_id" in event} == {done["id"]}
    assert received[0]["response"]["id"] == ended["id"]


async def test_an_answer_that_is_cut_is_incomplete(client: HttpClient, gpt: openai.AsyncOpenAI) -> None:
    response = await gpt.responses.create(**BODY, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    last = (await events(client, max_output_tokens=2))[-1]
    assert (last["type"], last["response"]["output"][0]["status"]) == ("response.incomplete", "incomplete")


async def test_an_empty_answer_is_an_empty_message(client: HttpClient, gpt: openai.AsyncOpenAI) -> None:
    client.say("")
    response = await gpt.responses.create(**BODY)
    assert (response.output_text, len(response.output)) == ("", 1)
    ended = (await events(client))[-1]["response"]
    assert [(item["type"], item["content"][0]["text"]) for item in ended["output"]] == [("message", "")]


async def test_log_probabilities_are_told_beside_the_text(client: HttpClient, gpt: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = await gpt.responses.create(**BODY | asked)
    logprobs = response.to_dict()["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in logprobs).decode() == ANSWER
    received = await events(client, **asked)
    streamed = [entry for event in received if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    assert streamed == logprobs == received[-1]["response"]["output"][0]["content"][0]["logprobs"]


async def test_items_are_one_chat(client: HttpClient) -> None:
    """An answer resent as it came, instructions, and turns that belong together."""
    items = [
        {"role": "developer", "content": "Answer in German."},
        {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "status": "completed"},
        {
            "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "three", "annotations": [], "logprobs": []}],
        },
        {"type": "message", "role": "user", "content": "four"},
    ]  # fmt: skip
    async with client.http.post(
        client.gateway.url(PATH), json=BODY | {"instructions": "Be brief.", "input": items}
    ) as got:
        assert got.status == 200, await got.text()
    rendered = prompt(client)
    chat = [
        {"role": "system", "content": "Be brief.\nAnswer in German."},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    await client.ask("/v1/chat/completions", messages=chat)
    assert rendered == prompt(client)


async def test_what_an_official_client_sends_beside_is_taken(gpt: openai.AsyncOpenAI) -> None:
    response = await gpt.responses.create(
        **BODY,
        store=True,
        background=False,
        truncation="disabled",
        include=["reasoning.encrypted_content"],
        parallel_tool_calls=False,
        text={"format": {"type": "text"}},
        tool_choice="auto",
        user="x",
        service_tier="auto",
    )
    assert response.to_dict()["store"] is False, "the answer says that it is not kept"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "out_of_range"),
        ({"input": 1}, "input", "invalid_type"),
        ({"input": [1]}, "input[0]", "invalid_type"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input", "invalid_value"),
        ({"input": [{"role": "judge", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "unsupported_parameter",
        ),
        ({"input": [{"type": "web_search_call"}]}, "input", "invalid_value"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type", "unsupported_parameter"),
        ({"input": [{"type": "function_call_output", "call_id": "no", "output": "x"}]}, "input[0]", "invalid_value"),
        ({"input": [HELLO, called(1), called(2), output(1)]}, "input[2]", "invalid_value"),
        ({"input": [HELLO, called(1), called(1), output(1)]}, "input[2]", "invalid_value"),
        ({"input": [HELLO, called(1), HELLO]}, "input[1]", "invalid_value"),
        ({"input": [HELLO, called(1), output(1), output(1)]}, "input[3]", "invalid_value"),
        ({"input": [HELLO, called(1), output(1), HELLO, output(1)]}, "input[4]", "invalid_value"),
        ({"input": [HELLO, output(1), called(1)]}, "input[1]", "invalid_value"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "out_of_range"),
        ({"temperature": 3}, "temperature", "out_of_range"),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tools[0].type",
            "unsupported_parameter",
        ),
        ({"tools": [{"type": "shelf"}]}, "tools[0].type", "unsupported_parameter"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{"type": "function", "name": 1}]}, "tools[0].name", "invalid_type"),
        ({"tools": ["x"]}, "tools[0]", "invalid_type"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_parameter"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": "x"}, "text", "invalid_type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"include": ["file_search_call.colour"]}, "include[0]", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "x"}}, "prompt", "unsupported_parameter"),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"messages": []}, "messages", "unknown_parameter"),
    ],
)
async def test_what_breaks_a_rule_is_told_by_the_name_that_the_client_wrote(
    client: HttpClient, body: dict[str, Any], param: str, code: str
) -> None:
    async with client.http.post(client.gateway.url(PATH), json=BODY | body) as got:
        error = (await got.json())["error"]
        assert (got.status, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, code)


@pytest.mark.parametrize(
    ("items", "read"),
    [
        ([HELLO, called(1), output(1), called(2), output(2)], "user 1 tool1 2 tool2"),
        ([HELLO, called(1), called(2), output(2), output(1)], "user 12 tool2 tool1"),
        ([HELLO, called(1), HELLO, output(1)], "user 1 tool1 user"),
        ([HELLO, called(1), called(2), output(1), HELLO, output(2), HELLO], "user 12 tool1 tool2 user"),
        ([HELLO, called(1), HELLO, called(2), output(2), output(1)], "user 1 tool1 user 2 tool2"),
        ([HELLO, called(1), HELLO, called(1), output(1), HELLO], None),
    ],
)
def test_an_output_may_stand_anywhere_behind_its_call_and_is_read_right_behind_it(
    items: list[dict[str, Any]], read: str | None
) -> None:
    """Agents put messages of their own between the two; OpenAI's API finds outputs by their ids."""
    if read is None:
        with pytest.raises(RefusedError, match="'c1' has no result"):
            parse_response(BODY | {"input": items})
        return
    chat, _ = parse_response(BODY | {"input": items})
    texts: list[str] = []
    for message in chat.messages:
        if message["role"] == "tool":
            texts.append(f"tool{message['tool_call_id'][1:]}")
        elif "tool_calls" in message:
            texts.append("".join(call["id"][1:] for call in message["tool_calls"]))
        else:
            texts.append(message["role"])
    assert " ".join(texts) == read


async def test_a_prompt_that_is_too_long_is_told_as_input(client: HttpClient) -> None:
    async with client.http.post(client.gateway.url(PATH), json=BODY | {"input": "word " * 5_000}) as got:
        error = (await got.json())["error"]
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


async def test_a_stream_that_fails_later_ends_with_a_failed_response(
    client: HttpClient, gpt: openai.AsyncOpenAI, gateway: RunningGateway
) -> None:
    client.pool.decode[0].step_s = 0.05
    stream = await gpt.responses.create(**BODY, stream=True)
    received = [await anext(aiter(stream))]
    for live in list(gateway.server.relay._by_ticket.values()):
        live.life.deadline_s = 0.0
        gateway.server.relay._tick(live)
    received += [event async for event in stream]
    last = received[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert last.response.error.code == "server_error"
    assert "deadline_exceeded" in last.response.error.message
    assert [event.type for event in received][-2] == "response.output_item.done"
    assert last.response.output[0].status == "incomplete"


async def test_a_stream_that_failed_before_its_first_token_is_an_ordinary_error(
    client: HttpClient, gpt: openai.AsyncOpenAI
) -> None:
    client.pool.prefill[0].fail_next = [Reason.NO_CAPACITY] * 3
    with pytest.raises(openai.RateLimitError) as failed:
        await gpt.responses.create(**BODY, stream=True)
    assert failed.value.status_code == 429
