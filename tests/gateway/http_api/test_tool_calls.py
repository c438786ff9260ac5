"""Calls of tools and thoughts over HTTP: what a client of OpenAI's API reads, whole and streamed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, answer, ids_of, tokenizer
from baton_testing.gateway.http_client import CHAT, USER, HttpClient, finishes
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from baton_wire.messages.values import Finish, Role, unpack_ids

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
THOUGHT = "<think>\nIt is about weather.\n</think>\n\n"


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    pool = FakePool(tmp_path, dataclasses.replace(tokenizer(), template=TOOL_TEMPLATE), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    yield pool
    await pool.stop()


def prompt_text(client: HttpClient) -> str:
    """The last prompt, as text."""
    text: str = tokenizer().tokenizer.decode(unpack_ids(client.prefill().tokens), skip_special_tokens=False)
    return text


async def test_a_thought_and_two_calls_are_told_apart(client: HttpClient) -> None:
    client.say(f"{THOUGHT}I look.\n{CALL}\n{CALL}")
    got = await client.ask(CHAT, messages=USER, tools=[TOOL])
    [choice] = got["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["content"], message["reasoning_content"]) == ("I look.", "It is about weather.")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Köln"}'}
    ] * 2
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    thought = len(ids_of("\nIt is about weather.\n"))
    counted = got["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert abs(counted - thought) <= 14, "the marks are no single tokens here"


async def test_a_call_without_words_has_no_content(client: HttpClient) -> None:
    client.say(CALL)
    [choice] = (await client.ask(CHAT, messages=USER, tools=[TOOL]))["choices"]
    assert choice["message"]["content"] is None
    assert "reasoning_content" not in choice["message"]


async def test_a_stream_has_the_same_parts_in_openais_form(client: HttpClient) -> None:
    client.say(f"{THOUGHT}I look.\n{CALL}")
    chunks = await client.stream(CHAT, messages=USER, tools=[TOOL], stream_options={"include_usage": True})
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert finishes(chunks) == ["tool_calls"]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I look."
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "It is about weather."
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert calls[0].keys() == {"index", "id", "type", "function"}
    assert calls[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Köln"}'
    assert all(call["index"] == 0 for call in calls)
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_each_choice_is_read_for_itself(client: HttpClient) -> None:
    client.say(CALL, "Words.")
    got = await client.ask(CHAT, messages=USER, tools=[TOOL], n=2)
    assert [choice["finish_reason"] for choice in got["choices"]] == ["tool_calls", "stop"]
    assert [bool(choice["message"].get("tool_calls")) for choice in got["choices"]] == [True, False]


async def test_log_probabilities_stand_beside_calls(client: HttpClient) -> None:
    client.say(f"I look. {CALL}")
    body: dict[str, Any] = {"messages": USER, "tools": [TOOL], "logprobs": True}
    [choice] = (await client.ask(CHAT, **body))["choices"]
    shown = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert "get_weather" in shown
    chunks = await client.stream(CHAT, **body)
    entries = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice.get("logprobs")
        for entry in choice["logprobs"]["content"]
    ]
    assert [entry["token"] for entry in entries] == [entry["token"] for entry in choice["logprobs"]["content"]]


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_stream_has_the_ids_of_thoughts_and_calls(client: HttpClient, parallel: bool) -> None:
    client.say(f"{THOUGHT}I look.\n{CALL}\n{CALL}")
    body = {"messages": USER, "tools": [TOOL], "return_token_ids": True, "parallel_tool_calls": parallel}
    whole = await client.ask(CHAT, **body)
    chunks = await client.stream(CHAT, **body)
    streamed = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or []]
    assert streamed == whole["choices"][0]["token_ids"]


async def test_one_call_ends_an_answer_that_may_have_one(client: HttpClient) -> None:
    client.say(f"{CALL}\n{CALL} and more")
    [choice] = (await client.ask(CHAT, messages=USER, tools=[TOOL], parallel_tool_calls=False))["choices"]
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "tool_calls"


async def test_an_answer_that_was_cut_says_so(client: HttpClient) -> None:
    client.say(CALL)
    [choice] = (await client.ask(CHAT, messages=USER, tools=[TOOL], max_tokens=45))["choices"]
    assert choice["finish_reason"] == Finish.LENGTH.value


async def test_without_tools_or_with_none_a_call_is_text(client: HttpClient) -> None:
    client.say(CALL)
    for body in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        [choice] = (await client.ask(CHAT, messages=USER, **body))["choices"]
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"
        assert "get_weather" not in prompt_text(client)


async def test_the_template_sees_tools_history_and_variables(client: HttpClient) -> None:
    client.say("Sunny.")
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Köln"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    await client.ask(CHAT, messages=messages, tools=[TOOL], chat_template_kwargs={"enable_thinking": False})
    text = prompt_text(client)
    assert json.dumps(TOOL["function"], ensure_ascii=False) in text
    assert '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}' in text
    assert text.endswith("<think>\n\n</think>\n\n")
    await client.ask(CHAT, messages=USER, reasoning_effort="none")
    assert prompt_text(client).endswith("<think>\n\n</think>\n\n")
    await client.ask(CHAT, messages=USER, reasoning_effort="high")
    assert prompt_text(client).endswith("<|assistant|>\n")
    status, error = await client.refused(CHAT, messages=USER, chat_template_kwargs={"thinking_budget": 1})
    assert (status, error["param"]) == (400, "chat_template_kwargs")
    assert "enable_thinking" in error["message"]


async def test_an_unfinished_message_is_gone_on_with(client: HttpClient) -> None:
    client.say(" more</think>done")
    begun = [*USER, {"role": "assistant", "content": "<think>some"}]
    [choice] = (await client.ask(CHAT, messages=begun, continue_final_message=True))["choices"]
    assert prompt_text(client).endswith("<|assistant|>\n<think>some")
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("more", "done")


async def test_a_bound_on_thoughts_reaches_the_workers(client: HttpClient) -> None:
    client.say("Hi")
    await client.ask(CHAT, messages=USER, max_thinking_tokens=7)
    thought = client.sampling().thought
    assert thought is not None
    assert (list(thought.start), list(thought.end)) == (ids_of("<think>"), ids_of("</think>"))
    assert thought.max_tokens == 7


async def test_behind_a_thought_that_the_prompt_ended_a_grammar_holds_at_once(client: HttpClient) -> None:
    """The template writes an empty thought when thinking is switched off, and a client may have begun the answer."""
    shape: Any = {"response_format": {"type": "json_object"}}
    begun = [*USER, {"role": "assistant", "content": '{"a": '}]
    off = {"enable_thinking": False}
    await client.ask(CHAT, messages=USER, **shape)
    assert client.sampling().thought is not None
    for fields in ({"chat_template_kwargs": off}, {"messages": begun, "continue_final_message": True}):
        await client.ask(CHAT, **{"messages": USER, **shape, **fields})
        assert client.sampling().grammar is not None
        assert client.sampling().thought is None
    await client.ask(CHAT, messages=USER, chat_template_kwargs=off, max_thinking_tokens=3)
    assert client.sampling().thought is not None, "without a grammar a thought is bounded where it comes"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
async def test_a_call_that_must_come_is_bound_by_a_grammar_behind_a_thought(client: HttpClient, choice: Any) -> None:
    client.say(f"{THOUGHT}{CALL}")
    [choice_read] = (await client.ask(CHAT, messages=USER, tools=[TOOL], tool_choice=choice))["choices"]
    assert [call["function"]["name"] for call in choice_read["message"]["tool_calls"]] == ["get_weather"]
    sampling = client.sampling()
    assert sampling.grammar is not None
    assert "get_weather" in sampling.grammar.definition
    assert sampling.thought is not None
    assert list(sampling.thought.end) == ids_of("</think>")
    for fields in ({"ignore_eos": True}, {"min_tokens": 1}):
        status, error = await client.refused(CHAT, messages=USER, tools=[TOOL], tool_choice=choice, **fields)
        assert (status, error["param"]) == (400, next(iter(fields)))


SCHEMA = {"type": "object", "properties": {"mood": {"type": "string"}}, "required": ["mood"]}
IN_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@pytest.mark.parametrize("form", [IN_FORMAT, {"type": "json_object"}], ids=["json_schema", "json_object"])
async def test_tools_beside_a_format_give_calls_or_the_format(client: HttpClient, form: Any) -> None:
    asked: Any = {"messages": USER, "tools": [TOOL], "response_format": form}
    for text, calls in ((f"{THOUGHT}{CALL}", 1), (f'{THOUGHT}{{"mood": "<tool_call>"}}', 0)):
        client.say(text)
        [choice] = (await client.ask(CHAT, **asked))["choices"]
        assert len(choice["message"].get("tool_calls") or []) == calls
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        assert choice["message"]["content"] == (None if calls else '{"mood": "<tool_call>"}')
        sampling = client.sampling()
        assert sampling.grammar is not None
        assert "get_weather" in sampling.grammar.definition
        assert ("mood" in sampling.grammar.definition) is (form is IN_FORMAT)
        assert sampling.thought is not None


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=str)
async def test_a_demanded_call_comes_whatever_the_format(client: HttpClient, choice: Any) -> None:
    client.say(CALL)
    asked: Any = {"messages": USER, "tools": [TOOL], "tool_choice": choice}
    await client.ask(CHAT, **asked)
    definition = client.sampling().grammar
    await client.ask(CHAT, **asked, response_format=IN_FORMAT)
    assert client.sampling().grammar == definition


async def test_a_strict_tool_is_bound_and_a_free_one_is_not(client: HttpClient) -> None:
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}  # type: ignore[operator]
    for tool, is_constrained in ((TOOL, False), (strict, True)):
        await client.ask(CHAT, messages=USER, tools=[tool])
        assert (client.sampling().grammar is not None) is is_constrained


async def test_the_official_client_takes_a_tool_round_and_a_stream(
    gateway: RunningGateway, client: HttpClient, http: aiohttp.ClientSession
) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.url("/v1"), api_key="-", max_retries=0) as official:
        client.say(CALL)
        asked: Any = {"model": "tiny", "tools": [TOOL], "messages": [*USER]}
        first = await official.chat.completions.create(**asked)
        [call] = first.choices[0].message.tool_calls or []
        asked["messages"] += [
            first.choices[0].message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "sun"},
        ]
        async with official.chat.completions.stream(**asked) as stream:
            final = await stream.get_final_completion()
        [streamed] = final.choices[0].message.tool_calls or []
        assert json.loads(streamed.function.arguments) == {"city": "Köln"}
