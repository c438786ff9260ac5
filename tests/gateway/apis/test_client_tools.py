"""Tools as Codex, Claude Code and official clients send them: hosted, built-in and custom ones, namespaces."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from baton_gateway.apis.messages_answer import message_error_body
from baton_gateway.apis.messages_request import parse_message
from baton_gateway.apis.responses_request import parse_response
from baton_gateway.errors import RefusedError
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, answer, tokenizer
from baton_testing.gateway.http_client import HttpClient
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from baton_wire.messages.values import Role

RESPONSE: dict[str, Any] = {"model": "tiny", "input": "Hello"}
MESSAGE: dict[str, Any] = {"model": "tiny", "max_tokens": 200, "messages": [{"role": "user", "content": "Hello"}]}
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}
OWN = {"name": "look", "input_schema": {"type": "object"}}


def names_of(parsed: Any) -> list[str]:
    return [tool.name for tool in parsed.tool_use.tools]


@pytest.mark.parametrize(
    "kind",
    ["web_search", "web_search_preview_2025_03_11", "file_search", "code_interpreter", "image_generation", "mcp",
     "tool_search", "computer_use_preview"],
)  # fmt: skip
def test_a_tool_that_openai_would_run_is_skipped_by_name_unless_it_is_demanded(kind: str) -> None:
    asked = RESPONSE | {"tools": [{"type": kind, "some": {"setting": 1}}, FUNCTION]}
    for choice in (None, "auto", "none"):
        chat, _ = parse_response(asked | {"tool_choice": choice})
        assert names_of(chat) == ["look"]
        assert chat.options.ignored == (f"tools[0]:{kind}",)
    for demanded in ("required", {"type": "function", "name": "look"}):
        with pytest.raises(RefusedError, match="runs at the provider") as refusal:
            parse_response(asked | {"tool_choice": demanded})
        assert refusal.value.problem.param == "tools[0].type"
    alone, _ = parse_response(RESPONSE | {"tools": [{"type": kind}]})
    assert not alone.tool_use.tools


@pytest.mark.parametrize(
    "kind",
    ["web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "tool_search_tool_regex_20251119",
     "mcp_toolset", "advisor_20260301"],
)  # fmt: skip
def test_a_tool_that_anthropic_would_run_is_skipped_by_name_unless_one_is_demanded(kind: str) -> None:
    asked = MESSAGE | {"tools": [{"type": kind, "name": "x", "max_uses": 5}, OWN]}
    chat = parse_message(asked)
    assert (names_of(chat), chat.options.ignored) == (["look"], (f"tools[0]:{kind}",))
    with pytest.raises(RefusedError, match="runs at the provider"):
        parse_message(asked | {"tool_choice": {"type": "any"}})


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("bash_20250124", {"command", "restart"}),
        ("bash_20241022", {"command", "restart"}),
        ("text_editor_20250728", {"command", "path", "old_str", "new_str", "view_range"}),
        ("text_editor_20250124", {"file_text", "insert_line"}),
        ("memory_20250818", {"old_path", "new_path"}),
    ],
)
def test_a_tool_that_anthropics_clients_run_is_a_function_with_its_arguments(kind: str, arguments: set[str]) -> None:
    chat = parse_message(MESSAGE | {"tools": [{"type": kind, "name": "mine", "cache_control": {"type": "ephemeral"}}]})
    [tool] = chat.tool_use.tools
    assert tool.name == "mine"
    assert tool.description
    assert arguments <= set((tool.parameters or {})["properties"])


@pytest.mark.parametrize("kind", ["computer_20250124", "bash", "bash_2025", 5, "BASH_20250124"])
def test_a_tool_of_an_unknown_type_is_refused_with_the_known_ones(kind: Any) -> None:
    with pytest.raises(RefusedError, match="clients' tools are custom"):
        parse_message(MESSAGE | {"tools": [{"type": kind, "name": "x"}]})
    with pytest.raises(RefusedError, match="clients' tools are function"):
        parse_response(RESPONSE | {"tools": [{"type": f"x{kind}", "name": "x"}]})


PATCH = {
    "type": "custom", "name": "apply_patch", "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk+ end"},
}  # fmt: skip
NAMESPACE = {
    "type": "namespace", "name": "mcp__github", "description": "GitHub.",
    "tools": [FUNCTION, FUNCTION | {"name": "list", "defer_loading": True}],
}  # fmt: skip


def test_codexs_tools_become_functions() -> None:
    tools = [FUNCTION, PATCH, {"type": "local_shell"}, {"type": "web_search", "external_web_access": False}, NAMESPACE]
    chat, _ = parse_response(RESPONSE | {"tools": tools, "client_metadata": {"x": "y"}, "tool_choice": "auto"})
    assert names_of(chat) == ["look", "apply_patch", "local_shell", "mcp__github__look", "mcp__github__list"]
    assert [tool.path for tool in chat.tool_use.tools] == [
        "tools[0]", "tools[1]", "tools[2]", "tools[4].tools[0]", "tools[4].tools[1]",
    ]  # fmt: skip
    patch = chat.tool_use.tools[1]
    assert "start: begin hunk+ end" in (patch.description or "")
    assert (patch.parameters or {})["required"] == ["input"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (PATCH | {"name": "a b"}, "tools[1].name"),
        (PATCH | {"format": {"type": "grammar", "syntax": "lark"}}, "tools[1].format.definition"),
        (NAMESPACE | {"tools": [FUNCTION, FUNCTION]}, "tools[1].tools[1].name"),
        (NAMESPACE | {"tools": [FUNCTION | {"parameters": {"type": "array"}}]}, "tools[1].tools[0].parameters.type"),
        (NAMESPACE | {"tools": [NAMESPACE]}, "tools[1].tools[0].type"),
        (FUNCTION | {"name": "f", "parameters": 5}, "tools[1].parameters"),
    ],
)
async def test_a_bad_tool_is_named_by_its_own_place(client: HttpClient, tool: dict[str, Any], param: str) -> None:
    body = RESPONSE | {"tools": [{"type": "web_search"}, tool]}
    async with client.http.post(client.gateway.url("/v1/responses"), json=body) as got:
        assert (got.status, (await got.json())["error"]["param"]) == (400, param)


async def test_a_schema_that_cannot_be_kept_is_named_by_its_own_place(client: HttpClient) -> None:
    bad = FUNCTION | {"strict": True, "parameters": {"type": "object", "properties": {"a": {"enum": []}}}}
    body = RESPONSE | {"tools": [{"type": "web_search"}, NAMESPACE | {"tools": [bad]}]}
    async with client.http.post(client.gateway.url("/v1/responses"), json=body) as got:
        assert (got.status, (await got.json())["error"]["param"]) == (400, "tools[1].tools[0].parameters")


# Calls of such tools, and their way back -----------------------------------------------------------------------------


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    pool = FakePool(tmp_path, dataclasses.replace(tokenizer(), template=TOOL_TEMPLATE), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    yield pool
    await pool.stop()


@pytest.fixture
async def gpt(gateway: RunningGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="sk-none", base_url=gateway.url("/v1"), max_retries=0) as client:
        yield client


CALLS: list[tuple[dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    (PATCH, "apply_patch", {"input": "*** Begin\n+\"x\""}, {
        "type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin\n+\"x\"",
    }),
    ({"type": "local_shell"}, "local_shell", {"command": ["ls", "-l"], "timeout_ms": 9}, {
        "type": "local_shell_call", "action": {"type": "exec", "env": {}, "command": ["ls", "-l"], "timeout_ms": 9},
    }),
    ({"type": "shell"}, "shell", {"commands": ["ls"]}, {"type": "shell_call", "action": {"commands": ["ls"]}}),
    ({"type": "apply_patch"}, "apply_patch", {"type": "delete_file", "path": "a"}, {
        "type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"},
    }),
    (NAMESPACE, "mcp__github__look", {"a": 1}, {
        "type": "function_call", "name": "look", "namespace": "mcp__github", "arguments": '{"a": 1}',
    }),
    (FUNCTION, "look", {"a": 1}, {"type": "function_call", "name": "look", "arguments": '{"a": 1}'}),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "name", "arguments", "item"), CALLS, ids=lambda value: str(value)[:30])
async def test_a_call_is_the_item_that_the_client_knows_and_may_be_resent(
    client: HttpClient, tool: dict[str, Any], name: str, arguments: dict[str, Any], item: dict[str, Any]
) -> None:
    client.say(f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")
    path, body = "/v1/responses", RESPONSE | {"tools": [{"type": "web_search"}, tool]}
    async with client.http.post(client.gateway.url(path), json=body) as got:
        answer = await got.json()
        assert got.headers["X-Baton-Ignored"] == "tools[0]:web_search"
    [called] = answer["output"]
    assert item.items() <= called.items()
    assert called["status"] == "completed"
    events = await client.named_events(path, **body)
    [done] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert {key: value for key, value in done.items() if key not in ("id", "call_id")} == {
        key: value for key, value in called.items() if key not in ("id", "call_id")
    }
    kinds = [event["type"] for event in events]
    assert ("response.custom_tool_call_input.done" in kinds) is (called["type"] == "custom_tool_call")
    assert ("response.function_call_arguments.done" in kinds) is (called["type"] == "function_call")
    output = {"type": f"{called['type']}_output", "call_id": called["call_id"], "output": "done"}
    chat, _ = parse_response(body | {"input": [{"role": "user", "content": "x"}, called, output]})
    [call] = chat.messages[1]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == (name, arguments)
    assert chat.messages[2]["content"] == "done"


async def test_the_official_client_reads_a_custom_call_whole_and_streamed(
    client: HttpClient, gpt: openai.AsyncOpenAI
) -> None:
    client.say('<tool_call>{"name": "apply_patch", "arguments": {"input": "*** x"}}</tool_call>')
    asked: Any = {"model": "tiny", "input": "Hello", "tools": [PATCH]}
    response: Any = await gpt.responses.create(**asked)
    assert (response.output[0].type, response.output[0].input) == ("custom_tool_call", "*** x")
    pieces = ""
    async with gpt.responses.stream(**asked) as stream:
        async for event in stream:
            if event.type == "response.custom_tool_call_input.delta":
                pieces += event.delta
        final: Any = await stream.get_final_response()
    assert pieces == final.output[0].input == "*** x"


async def test_an_answer_that_is_cut_within_a_custom_call_is_incomplete(client: HttpClient) -> None:
    client.say('<tool_call>{"name": "apply_patch", "arguments": {"input": "*** x')
    for tools in ([PATCH], [{"type": "apply_patch"}]):
        body = RESPONSE | {"tools": tools, "max_output_tokens": 55}
        async with client.http.post(client.gateway.url("/v1/responses"), json=body) as got:
            assert (await got.json())["output"][-1]["type"] in ("custom_tool_call", "apply_patch_call")


def test_items_of_hosted_tools_and_shell_results_may_be_resent() -> None:
    results = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
    items = [
        {"role": "user", "content": "x"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search", "query": "q"}},
        {"type": "mcp_list_tools", "server_label": "s", "tools": []},
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"], "timeout_ms": None}, "id": "x"},
        {"type": "shell_call_output", "call_id": "c", "output": results, "max_output_length": 5},
        {"type": "function_call", "call_id": "d", "name": "f", "arguments": "", "parsed_arguments": None},
        {"type": "function_call_output", "call_id": "d", "output": []},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "y", "annotations": [{"type": "url_citation"}], "parsed": {"a": 1}},
            {"type": "refusal", "refusal": "no"},
        ]},
    ]  # fmt: skip
    chat, _ = parse_response(RESPONSE | {"input": items})
    assert [message["role"] for message in chat.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert json.loads(chat.messages[2]["content"])["stdout"] == "a"
    assert chat.messages[3]["tool_calls"][0]["function"]["arguments"] == {}
    assert chat.messages[5]["content"] == "y\nno"


def test_blocks_of_server_tools_and_hidden_thoughts_may_be_resent() -> None:
    content = [
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "y", "citations": [{"type": "web_search_result_location"}]},
    ]
    messages = [*MESSAGE["messages"], {"role": "assistant", "id": "msg", "content": content}, *MESSAGE["messages"]]
    chat = parse_message(MESSAGE | {"messages": messages, "client_metadata": {}})
    assert chat.messages[1]["content"] == "y"


# Anthropic's threads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}, 5])
def test_a_thread_is_refused_in_the_words_after_which_the_client_goes_on_without(thread: Any) -> None:
    with pytest.raises(RefusedError, match="send all messages") as refusal:
        parse_message(MESSAGE | {"thread": thread})
    details = json.loads(message_error_body(refusal.value.problem))["error"]["details"]
    assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


async def test_the_official_tool_runner_comes_to_its_end(client: HttpClient, gateway: RunningGateway) -> None:
    asked: Any = {"model": "tiny", "max_tokens": 64, "messages": MESSAGE["messages"]}
    async with anthropic.AsyncAnthropic(base_url=gateway.url(""), api_key="-", max_retries=0) as official:
        runner = official.beta.messages.tool_runner(**asked, tools=[])
        message = await runner.until_done()
    assert message.content
