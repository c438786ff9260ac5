"""Tools, calls in the history and template options of a chat: what is refused, by which path, and what it becomes."""

from __future__ import annotations

from typing import Any

import pytest

from baton_gateway.answers.tool_use import NO_TOOLS, ToolMode
from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.openai_types import ChatRequest, parse_chat

USER = {"role": "user", "content": "x"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | fields}


def parsed(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return parse_chat({"model": "m", "messages": [USER, *messages], **fields})


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, **fields}


FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
"""A function as `/v1/responses` has it."""

REFUSED: list[tuple[str, Any, str, str]] = [
    ("tools", "x", "tools", "invalid_type"),
    ("tools", ["x"], "tools[0]", "invalid_type"),
    ("tools", [tool(name=f"f{number}") for number in range(1_000)], "tools", "too_long"),
    ("tools", [tool(description="d" * 262_144)], "tools", "too_long"),
    ("tools", [tool(), tool()], "tools[1].function.name", "invalid_value"),
    ("tools", [{"type": "function"}], "tools[0].function", "missing_required_parameter"),
    ("tools", [{"type": "functions"}], "tools[0].type", "unsupported_parameter"),
    ("tools", [{"type": "web_search\r\nX-Evil"}], "tools[0].type", "unsupported_parameter"),
    ("tools", [FLAT, FLAT], "tools[1].name", "invalid_value"),
    ("tools", [tool(), FLAT], "tools[1].name", "invalid_value"),
    ("tools", [FLAT | {"name": "a b"}], "tools[0].name", "invalid_value"),
    ("tools", [FLAT | {"parameters": {"type": "string"}}], "tools[0].parameters.type", "invalid_value"),
    ("tools", [FLAT | {"colour": 1}], "tools[0].colour", "unknown_parameter"),
    ("tools", [{"type": "function", "function": 1}], "tools[0].function", "invalid_type"),
    ("tools", [tool() | {"colour": 1}], "tools[0].colour", "unknown_parameter"),
    *(
        ("tools", [tool(name=name)], "tools[0].function.name", "invalid_value")
        for name in ('a"b', "a\nb", "", "ä", "a b", "n" * 129, "<x>")
    ),
    ("tools", [tool(name=1)], "tools[0].function.name", "invalid_type"),
    ("tools", [tool(description=1)], "tools[0].function.description", "invalid_type"),
    ("tools", [tool(parameters=1)], "tools[0].function.parameters", "invalid_type"),
    ("tools", [tool(parameters={"type": "string"})], "tools[0].function.parameters.type", "invalid_value"),
    ("tools", [tool(strict=1)], "tools[0].function.strict", "invalid_type"),
    ("tools", [tool(colour=1)], "tools[0].function.colour", "unknown_parameter"),
    ("tool_choice", "any", "tool_choice", "invalid_value"),
    ("tool_choice", 1, "tool_choice", "invalid_type"),
    ("tool_choice", {"type": "custom"}, "tool_choice.type", "unsupported_parameter"),
    ("tool_choice", {"type": "function"}, "tool_choice.function", "missing_required_parameter"),
    ("tool_choice", {"type": "function", "function": 1}, "tool_choice.function", "invalid_type"),
    ("tool_choice", {"type": "function", "function": {"name": "g"}}, "tool_choice.function.name", "invalid_value"),
    (
        "tool_choice",
        {"type": "function", "function": {"name": "f", "x": 1}},
        "tool_choice.function.x",
        "unknown_parameter",
    ),
    ("parallel_tool_calls", 1, "parallel_tool_calls", "invalid_type"),
    ("functions", [{"name": "f"}], "functions", "unsupported_parameter"),
    ("chat_template_kwargs", "x", "chat_template_kwargs", "invalid_type"),
    ("chat_template_kwargs", {"a": "x" * 16_385}, "chat_template_kwargs", "too_long"),
    ("reasoning_effort", "very", "reasoning_effort", "invalid_value"),
    ("reasoning_effort", 1, "reasoning_effort", "invalid_value"),
    ("continue_final_message", True, "continue_final_message", "invalid_value"),
    ("continue_final_message", 1, "continue_final_message", "invalid_type"),
    ("add_generation_prompt", 1, "add_generation_prompt", "invalid_type"),
    ("max_thinking_tokens", -1, "max_thinking_tokens", "out_of_range"),
]


@pytest.mark.parametrize(("field", "value", "param", "code"), REFUSED, ids=lambda value: str(value)[:40])
def test_bad_tools_are_refused_by_their_path(field: str, value: Any, param: str, code: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        parsed(**({"tools": [tool()]} | {field: value}))
    assert (refusal.value.problem.status, refusal.value.problem.param, refusal.value.problem.code) == (400, param, code)


CUSTOM_CALL = {"id": "c1", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin Patch"}}

HISTORY: list[tuple[dict[str, Any], str, str]] = [
    ({"role": "tool", "content": "x"}, "tool_call_id", "missing_required_parameter"),
    ({"role": "tool", "content": "x", "tool_call_id": "c1"}, "tool_call_id", "invalid_value"),
    ({"role": "function", "content": "x", "name": "f"}, "role", "unsupported_parameter"),
    ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls", "invalid_value"),
    ({"role": "user", "content": "x", "tool_call_id": "c1"}, "tool_call_id", "unknown_parameter"),
    (assistant(tool_calls="x"), "tool_calls", "invalid_type"),
    (assistant(tool_calls=[{}]), "tool_calls[0].id", "missing_required_parameter"),
    (assistant(tool_calls=[CALL] * 129), "tool_calls", "too_long"),
    (assistant(tool_calls=[CALL | {"id": "c" * 257}]), "tool_calls[0].id", "too_long"),
    (assistant(tool_calls=[CALL | {"type": "mcp"}]), "tool_calls[0].type", "unsupported_parameter"),
    (assistant(tool_calls=[CALL | {"type": "custom"}]), "tool_calls[0].custom", "missing_required_parameter"),
    (assistant(tool_calls=[CUSTOM_CALL | {"custom": 1}]), "tool_calls[0].custom", "invalid_type"),
    (
        assistant(tool_calls=[CUSTOM_CALL | {"custom": {"name": "f", "input": 1}}]),
        "tool_calls[0].custom.input",
        "invalid_type",
    ),
    (assistant(tool_calls=[CALL | {"function": 1}]), "tool_calls[0].function", "invalid_type"),
    (assistant(tool_calls=[CALL | {"colour": 1}]), "tool_calls[0].colour", "unknown_parameter"),
    (
        assistant(tool_calls=[CALL | {"function": {"name": "f", "arguments": []}}]),
        "tool_calls[0].function.arguments",
        "invalid_type",
    ),
    (
        assistant(tool_calls=[CALL | {"function": {"name": "f" * 513, "arguments": "{}"}}]),
        "tool_calls[0].function.name",
        "too_long",
    ),
    (assistant(reasoning_content=1), "reasoning_content", "invalid_type"),
]


@pytest.mark.parametrize(("message", "field", "code"), HISTORY, ids=lambda value: str(value)[:40])
def test_a_bad_history_is_refused_by_its_path(message: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        parsed(message)
    assert (refusal.value.problem.param, refusal.value.problem.code) == (f"messages[1].{field}", code)


OTHERS = [
    {"type": "custom", "custom": {"name": "apply_patch", "format": {"type": "text"}}},
    {"type": "custom", "name": "ApplyPatch", "description": "Edits.", "format": {"type": "grammar"}},
    {"type": "web_search"},
    {"type": "web_search_preview", "search_context_size": "low"},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "openrouter:web_search"},
    {"type": "browser_search"},
    {"type": "builtin_function", "function": {"name": "$web_search"}},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "mcp", "server_label": "notes", "server_url": "https://notes.example"},
    {"type": "namespace", "name": "mcp__notes", "tools": []},
    {"type": "local_shell"},
    {"type": "computer_use_preview", "display_width": 800},
]
"""Tools that clients send in chats beside functions."""


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: str(other["type"]))
def test_a_tool_that_is_no_function_is_skipped_by_name_unless_a_call_is_demanded(other: dict[str, Any]) -> None:
    for choice in (None, "auto", "none"):
        chat = parsed(tools=[other, tool()], tool_choice=choice)
        assert [kept.name for kept in chat.tool_use.tools] == ["f"]
        assert chat.options.ignored == (f"tools[0]:{other['type']}",)
    for demanded in ("required", {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(RefusedError, match="with tool_choice 'auto'") as refusal:
            parsed(tools=[other, tool()], tool_choice=demanded)
        assert refusal.value.problem.param == "tools[0].type"
    assert parsed(tools=[other]).tool_use == NO_TOOLS


def test_a_function_may_be_written_as_in_responses() -> None:
    flat = parsed(tools=[FLAT, tool(name="g")], tool_choice={"type": "function", "name": "f"}).tool_use
    assert [kept.name for kept in flat.tools] == ["f", "g"]
    assert (flat.mode, flat.named) == (ToolMode.REQUIRED, "f")
    assert flat.tools[0].parameters == {"type": "object"}


def test_a_custom_call_of_another_provider_may_be_resent_with_its_result() -> None:
    answer = {"role": "tool", "tool_call_id": "c1", "content": "Done."}
    *_, resent, _ = parsed(assistant(tool_calls=[CUSTOM_CALL]), answer).messages
    assert resent["tool_calls"][0]["function"] == {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}


def call(number: int) -> dict[str, Any]:
    return CALL | {"id": f"c{number}"}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "content": "42", "tool_call_id": f"c{number}"}


BOTH, ONE, SAID = (
    assistant(tool_calls=[call(1), call(2)]),
    assistant(tool_calls=[call(1)]),
    {"role": "user", "content": "x"},
)
RESULTS: list[tuple[str, list[dict[str, Any]], str, str]] = [
    (
        "none, at the end",
        [BOTH],
        "messages[1].tool_calls[0].id",
        "'c1' has no result (nor have 1 more); each call needs",
    ),
    (
        "one of two, at the end",
        [BOTH, result(1)],
        "messages[1].tool_calls[1].id",
        "'c2' has no result; each call needs",
    ),
    ("one of two, then a user", [BOTH, result(2), SAID], "messages[1].tool_calls[0].id", "'c1' has no result"),
    ("none, then the assistant", [ONE, assistant(content="y")], "messages[1].tool_calls[0].id", "'c1' has no result"),
    ("behind a user", [ONE, SAID, result(1)], "messages[1].tool_calls[0].id", "'c1' has no result"),
    (
        "twice",
        [BOTH, result(1), result(1), result(2)],
        "messages[3].tool_call_id",
        "'c1' has a result already; each call",
    ),
    ("twice, a turn later", [ONE, result(1), SAID, result(1)], "messages[4].tool_call_id", "'c1' is an earlier turn's"),
    ("of no call", [ONE, result(1), result(3)], "messages[3].tool_call_id", "'c3' is not the id of a call"),
    (
        "of two calls",
        [assistant(tool_calls=[call(1), call(1)])],
        "messages[1].tool_calls[1].id",
        "'c1' is the id of two",
    ),
]


@pytest.mark.parametrize(
    ("messages", "param", "reason"), [case[1:] for case in RESULTS], ids=[case[0] for case in RESULTS]
)
def test_each_call_has_one_result_directly_after_its_turn(
    messages: list[dict[str, Any]], param: str, reason: str
) -> None:
    with pytest.raises(RefusedError) as refusal:
        parsed(*messages)
    problem = refusal.value.problem
    assert (problem.status, problem.param, problem.code) == (400, param, "invalid_value")
    assert problem.message.startswith(f"'{param}': {reason}")


def test_results_come_in_any_order_and_a_later_turn_may_count_its_calls_anew() -> None:
    chat = parsed(BOTH, result(2), result(1), ONE, result(1), SAID, ONE, result(1)).messages
    assert [message.get("tool_call_id") for message in chat if message["role"] == "tool"] == ["c2", "c1", "c1", "c1"]


def test_calls_and_what_the_tools_said_become_what_templates_read() -> None:
    result = {"role": "tool", "content": "42", "tool_call_id": "c1"}
    request = parsed(assistant(tool_calls=[CALL], reasoning_content="hm"), result)
    assert request.messages[1:] == (
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "thinking": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}},
            ],
        },
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f"},
    )


@pytest.mark.parametrize("text", ["{", "[1]", "7", "[" * 100_000])
def test_arguments_that_a_model_wrote_wrong_stay_as_they_are(text: str) -> None:
    call = CALL | {"function": {"name": "f", "arguments": text}}
    message = parsed(assistant(tool_calls=[call]), result(1)).messages[1]
    assert message["tool_calls"][0]["function"]["arguments"] == text


def test_the_choice_of_a_tool_decides_which_may_be_called() -> None:
    tools = [tool(), tool(name="g", strict=True, parameters={"type": "object"})]

    def callable_names(**fields: Any) -> list[str]:
        return [callable_tool.name for callable_tool in parsed(tools=tools, **fields).tool_use.callable]

    assert parsed().tool_use == parsed(tools=[], tool_choice="auto").tool_use == NO_TOOLS
    assert parsed(tools=tools).tool_use.mode is ToolMode.AUTO
    assert callable_names() == callable_names(tool_choice="required") == ["f", "g"]
    assert callable_names(tool_choice="none") == []
    assert callable_names(tool_choice={"type": "function", "function": {"name": "g"}}) == ["g"]
    with pytest.raises(RefusedError, match="needs 'tools'"):
        parsed(tool_choice="required")


def test_templates_are_told_of_a_tool_in_the_usual_form_without_strict() -> None:
    [parsed_tool] = parsed(tools=[tool(strict=True, description="d", parameters={"type": "object"})]).tool_use.tools
    assert parsed_tool.strict
    assert parsed_tool.for_template() == tool(description="d", parameters={"type": "object"})
