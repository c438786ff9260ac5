"""Resent answers: with every field of the clients' own types, most of them null."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from openai.types.chat import ChatCompletion

from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.chat_messages import read_messages
from baton_gateway.openai_api.openai_types import parse_chat
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "Hello"}]
RESENT: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Hi", "annotations": []},
    {"role": "assistant", "content": "Hi", "annotations": None, "audio": None, "refusal": None, "tool_calls": None},
    {"role": "assistant", "content": None},
    {"role": "assistant"},
    {"role": "assistant", "content": "Hi", "reasoning_content": None, "a_field_of_tomorrow": None},
    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": None}], "name": None},
    {"role": "assistant", "content": []},
    {"role": "assistant", "content": '{"a": 1}', "parsed": {"a": 1}},
    {"role": "assistant", "content": "Hi", "annotations": [{"type": "url_citation", "url_citation": {"url": "x"}}]},
    {"role": "assistant", "content": None, "refusal": "I will not."},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]},
    {"role": "assistant", "content": "Hi", "provider_specific_fields": {"a": [1]}, "images": [], "thinking_blocks": []},
    {"role": "assistant", "content": "Hi", "reasoning": "x", "reasoning_details": [{"type": "reasoning.text"}]},
    {"role": "assistant", "content": "Hi", "id": "x", "status": "completed", "reasoning_opaque": "zz"},
    {"role": "system", "content": "Hi", "cache_control": {"type": "ephemeral"}},
    {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
    {"role": "user", "content": "Hi", "providerOptions": {"a": {}}, "experimental_providerMetadata": {}},
]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"role": "user", "content": None}, "content", "missing_required_parameter"),
    ({"role": "user", "content": []}, "content", "invalid_value"),
    ({"role": "user", "content": "x", "parsed": {}}, "parsed", "unknown_parameter"),
    ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "content[0].type", "unsupported_parameter"),
    ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "audio", "unsupported_parameter"),
    ({"role": "assistant", "content": "x", "function_call": {"name": "f"}}, "function_call", "unsupported_parameter"),
    ({"role": "assistant", "content": "x", "tomorrow": False}, "tomorrow", "unknown_parameter"),
]  # fmt: skip
OPTIONAL = (
    "n", "max_tokens", "temperature", "stop", "stop_token_ids", "logit_bias", "seed", "stream", "stream_options",
    "tools", "response_format", "user", "unknown_to_all",
)  # fmt: skip


async def post(gateway: RunningGateway, http: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, Any]:
    default: dict[str, Any] = {"messages": USER} if path == CHAT else {"prompt": "Hello"}
    async with http.post(gateway.url(path), json={"model": "tiny", **default, **body}) as got:
        return got.status, await got.json()


@pytest.mark.parametrize("resent", RESENT, ids=str)
async def test_a_message_that_a_client_kept_is_taken_back(
    gateway: RunningGateway, http: aiohttp.ClientSession, resent: dict[str, Any]
) -> None:
    status, answer = await post(gateway, http, CHAT, messages=[*USER, resent, *USER])
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(("resent", "field", "code"), REFUSED, ids=str)
async def test_what_asks_for_something_is_refused_by_name(
    gateway: RunningGateway, http: aiohttp.ClientSession, resent: dict[str, Any], field: str, code: str
) -> None:
    status, answer = await post(gateway, http, CHAT, messages=[*USER, resent])
    assert (status, answer["error"]["param"], answer["error"]["code"]) == (400, f"messages[1].{field}", code)


async def test_the_official_client_may_dump_an_answer_into_its_next_question(
    gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    _, answer = await post(gateway, http, CHAT)
    message = ChatCompletion.model_validate(answer).choices[0].message.model_dump()
    assert {"annotations", "tool_calls"} <= set(message), "the client dumps what the API never said"
    assert (await post(gateway, http, CHAT, messages=[*USER, message, *USER]))[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, dict.fromkeys(OPTIONAL)),
        (COMPLETIONS, {"suffix": None, "echo": None, "best_of": None, "also_unknown": None}),
        (CHAT, {"logit_bias": {"5": None}}),
    ],
)
async def test_null_counts_as_absent_in_every_place(
    gateway: RunningGateway, http: aiohttp.ClientSession, path: str, body: dict[str, Any]
) -> None:
    status, answer = await post(gateway, http, path, **body)
    assert status == 200, answer


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "x"}
CALLS: list[tuple[dict[str, Any], Any]] = [
    (CALL, {"a": 1}),
    (CALL | {"function": CALL["function"] | {"parsed_arguments": {"a": 1}}}, {"a": 1}),  # type: ignore[operator]
    (CALL | {"type": None}, {"a": 1}),
    ({"id": "c1", "function": CALL["function"]}, {"a": 1}),
    (CALL | {"function": {"name": "f", "arguments": {"a": 1}}}, {"a": 1}),
    (CALL | {"function": {"name": "f", "arguments": None}}, {}),
    (CALL | {"function": {"name": "f"}}, {}),
    (CALL | {"function": {"name": "f", "arguments": "null"}}, {}),
    (CALL | {"function": {"name": "f", "arguments": " "}}, {}),
    (CALL | {"function": {"name": "f", "arguments": "[1]"}}, "[1]"),
    (CALL | {"index": 0, "extra_content": {"google": {"thought_signature": "x"}}}, {"a": 1}),
    (CALL | {"provider_specific_fields": {"x": 1}, "cache_control": {"type": "ephemeral"}}, {"a": 1}),
]


@pytest.mark.parametrize(("call", "arguments"), CALLS, ids=str)
def test_a_call_that_a_client_kept_is_taken_back(call: dict[str, Any], arguments: Any) -> None:
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}, RESULT]
    [_, caller, _] = read_messages(messages)
    [read] = caller["tool_calls"]
    assert (read["type"], read["function"]) == ("function", {"name": "f", "arguments": arguments})


@pytest.mark.parametrize("content", ["", [], None, "absent", [{"type": "text", "text": ""}]], ids=str)
def test_a_tool_may_return_nothing(content: Any) -> None:
    result = {key: value for key, value in (RESULT | {"content": content}).items() if value != "absent"}
    messages = [*USER, {"role": "assistant", "tool_calls": [CALL]}, result | {"is_error": True, "artifact": {}}]
    assert read_messages(messages)[2]["content"] == ""


def test_a_refusal_is_what_the_model_said_unless_it_said_more() -> None:
    [_, only, both] = read_messages([
        *USER, {"role": "assistant", "refusal": "no"}, {"role": "assistant", "content": "yes", "refusal": "no"},
    ])  # fmt: skip
    assert (only["content"], both["content"]) == ("no", "yes")


@pytest.mark.parametrize(
    ("parameters", "kind"),
    [
        ({"type": "object"}, "object"),
        ({"type": ["object"]}, "object"),
        ({"type": ["object", "null"]}, "object"),
        ({"type": None, "properties": {}}, "object"),
        ({}, None),
    ],
    ids=str,
)
def test_arguments_are_an_object_however_the_schema_says_so(parameters: dict[str, Any], kind: str | None) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    [read] = parse_chat({"model": "m", "messages": USER, "tools": [tool]}).tool_use.tools
    assert (read.parameters or {}).get("type") == kind


def test_marks_for_other_providers_have_no_effect_on_tools() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    function = {"name": "f", "parameters": None, "strict": None} | mark
    for tool in ({"type": "function", "function": function} | mark, {"function": function}):
        [read] = parse_chat({"model": "m", "messages": USER, "tools": [tool]}).tool_use.tools
        assert read.for_template() == {"type": "function", "function": {"name": "f"}}


EXTRAS: tuple[dict[str, Any], ...] = (
    {"client_metadata": {"session": "x"}}, {"litellm_metadata": {}}, {"provider": {"order": ["a"]}},
    {"route": "fallback"},
    {"transforms": []}, {"include_reasoning": True}, {"session_id": "x", "trace": {}},
    {"prompt_cache_retention": "24h"},
    {"verbosity": "medium"}, {"reasoning": {"exclude": False}}, {"thinking": {"type": "enabled"}},
)  # fmt: skip


@pytest.mark.parametrize("extra", EXTRAS, ids=str)
def test_fields_for_gateways_and_routers_have_no_effect(extra: dict[str, Any]) -> None:
    assert parse_chat({"model": "m", "messages": USER, **extra}) == parse_chat({"model": "m", "messages": USER})


@pytest.mark.parametrize(
    ("fields", "effort", "variables"),
    [
        ({"reasoning": {"effort": "high", "summary": "auto"}}, "high", {}),
        ({"reasoning": {"enabled": False}}, "none", {}),
        ({"thinking": {"type": "disabled"}}, "none", {}),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, "low", {}),
        ({"enable_thinking": False}, None, {"enable_thinking": False}),
        ({"enable_thinking": "False"}, None, {"enable_thinking": False}),
        ({"chat_template_kwargs": {"enable_thinking": "true"}}, None, {"enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": "FALSE", "x": "false"}}, None,
         {"enable_thinking": False, "x": "false"}),
        ({"chat_template_kwargs": {"thinking": "false"}}, None, {"thinking": False}),
        ({"chat_template_kwargs": {"thinking": "deep"}}, None, {"thinking": "deep"}),
    ],
    ids=str,
)  # fmt: skip
def test_thinking_is_switched_in_every_clients_way(
    fields: dict[str, Any], effort: str | None, variables: dict[str, Any]
) -> None:
    prompting = parse_chat({"model": "m", "messages": USER, **fields}).prompting
    assert (prompting.effort, prompting.variables) == (effort, variables)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": "maybe"}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template_kwargs": {"enable_thinking": "0"}}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning": {"exclude": True}}, "reasoning.exclude"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"transforms": ["middle-out"]}, "transforms"),
        ({"verbosity": "low"}, "verbosity"),
    ],
    ids=str,
)
def test_what_cannot_be_done_for_a_router_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        parse_chat({"model": "m", "messages": USER, **fields})
    assert refusal.value.problem.param == param


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer", "tool", "function", "User", None, 1, []])
@pytest.mark.parametrize("content", ["", "Hi", "x" * 100, None, 1, [], [{"type": "text", "text": "Hi"}]], ids=str)
def test_a_message_of_two_fields_is_read_as_one_with_a_third_that_is_null(role: Any, content: Any) -> None:
    def read(**more: None) -> object:
        try:
            return read_messages([*USER, {"role": role, "content": content, **more}, *USER])
        except RefusedError as refusal:
            return refusal.problem

    assert read() == read(name=None)


def test_a_call_without_a_result_is_refused_whatever_message_follows() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*USER, {"role": "assistant", "content": None, "tool_calls": [call]}, *USER]
    with pytest.raises(RefusedError, match="no result"):
        read_messages(messages)
