"""Histories as agents keep them: parts and blocks of other APIs, empty answers, limits of reasoning, own fields."""

from __future__ import annotations

from typing import Any

import pytest

from baton_gateway.apis.messages_request import parse_message
from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.openai_fields import MAX_UNKNOWN, UnknownFields
from baton_gateway.openai_api.openai_types import ChatRequest, parse_chat

USER = {"role": "user", "content": "x"}
CALL: dict[str, Any] = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}


def chat(*messages: Any, unknown: UnknownFields = UnknownFields.REFUSE, **fields: Any) -> ChatRequest:
    return parse_chat({"model": "m", "messages": [USER, *messages], **fields}, unknown)


def message(*messages: Any, **fields: Any) -> ChatRequest:
    return parse_message({"model": "m", "max_tokens": 9, "messages": [USER, *messages], **fields})


@pytest.mark.parametrize(
    ("parts", "text", "thought"),
    [
        ([{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}], "a", None),
        ([{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "a"}], "a", "t"),
        ([{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, {"type": "text", "text": "a"}], "a", "t"),
        ([{"type": "reasoning", "text": "t"}, {"type": "reasoning", "text": "u"}], "", "t\nu"),
        ([{"type": "redacted_thinking", "data": "zz"}, {"type": "text", "text": "a"}], "a", None),
        ([{"type": "thinking", "thinking": ""}, {"type": "text", "text": "a"}], "a", None),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "a"}], "a", None),
    ],
    ids=str,
)
def test_parts_of_other_apis_are_text_or_reasoning(parts: list[Any], text: str, thought: str | None) -> None:
    resent = chat({"role": "assistant", "content": parts}, USER).messages[1]
    assert (resent["content"], resent.get("reasoning_content")) == (text, thought)


def test_input_text_is_text_and_only_an_assistant_has_reasoning() -> None:
    asked = chat({"role": "user", "content": [{"type": "input_text", "text": "a"}]})
    assert asked.messages[-1]["content"] == "a"
    for kind in ("thinking", "reasoning", "redacted_thinking"):
        with pytest.raises(RefusedError, match="only 'text' parts"):
            chat({"role": "user", "content": [{"type": kind, "thinking": "t"}]})


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "reasoning_text"])
def test_reasoning_is_read_under_each_of_its_names(name: str) -> None:
    resent = chat({"role": "assistant", "content": "a", name: "t", "reasoning_opaque": "zz"}, USER).messages[1]
    assert resent["reasoning_content"] == "t"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1_024}}, 1_024),
        ({"thinking": {"type": "enabled", "clear_thinking": False}}, None),
        ({"thinking": {"type": "disabled"}}, None),
        ({"reasoning": {"max_tokens": 100}}, 100),
        ({"reasoning": {"effort": "low", "max_tokens": None}}, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 7}, "max_thinking_tokens": 5}, 5),
    ],
    ids=str,
)
def test_other_providers_limits_of_reasoning_count(fields: dict[str, Any], limit: int | None) -> None:
    assert chat(**fields).max_thinking_tokens == limit


@pytest.mark.parametrize("budget", [-1, "7", 1.5, True, 1 << 40])
def test_a_bad_limit_of_reasoning_is_refused_by_its_path(budget: Any) -> None:
    with pytest.raises(RefusedError) as refusal:
        chat(thinking={"type": "enabled", "budget_tokens": budget})
    assert refusal.value.problem.param == "thinking.budget_tokens"


def test_the_highest_effort_of_other_clients_is_ours() -> None:
    assert chat(reasoning_effort="max").prompting.effort == "xhigh"
    assert chat(logprobs=False, top_logprobs=0).options.logprobs is None


OWN = {
    "id": 7, "opts": {"visible": False}, "agent": "cli", "messageId": "m", "timestamp": 3, "injected": True,
}  # fmt: skip


def test_fields_of_messages_are_ignored_by_name_where_unknown_fields_are() -> None:
    asked = chat(
        USER | OWN, {"role": "assistant", "content": "a", "agent": "b", "id": "c"}, USER, unknown=UnknownFields.IGNORE
    )
    assert [entry["content"] for entry in asked.messages] == ["x", "x", "a", "x"]
    assert asked.options.ignored == tuple(f"messages[].{name}" for name in OWN)
    for name in OWN:
        with pytest.raises(RefusedError, match=name):
            chat(USER | {name: OWN[name]})


@pytest.mark.parametrize(
    "own",
    [{"prefix": True}, {"partial": True}, {"function_call": {"name": "f"}}, {"a b": 1}, {"x\r\ny": 1},
     {f"own_{number}": 1 for number in range(MAX_UNKNOWN + 1)}],
    ids=lambda own: str(own)[:24],
)  # fmt: skip
def test_what_would_change_the_answer_or_fits_no_header_stays_refused(own: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        chat({"role": "assistant", "content": "a", **own}, unknown=UnknownFields.IGNORE)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "tool_reference", "tool_name": "ExitPlanMode"}, "Tool available: ExitPlanMode"),
        ({"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]}, "t\ns\na"),
        ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}}, "a"),
        ({"type": "document", "title": "t", "source": {"type": "content", "content": "a"}}, "t\na"),
        ({"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}, ""),
        ({"type": "tool_reference", "tool_name": "mcp__notes__list", "cache_control": None},
         "Tool available: mcp__notes__list"),
        ({"type": "tool_reference", "tool_name": "a.b-c_1", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
         "Tool available: a.b-c_1"),
        ({"type": "tool_reference", "tool_name": "x" * 128}, f"Tool available: {'x' * 128}"),
        ({"type": "search_result", "source": "s", "title": "t", "content": []}, "t\ns"),
        ({"type": "search_result", "source": "s", "title": "", "content": "a", "citations": {"enabled": True}}, "s\na"),
        ({"type": "search_result", "content": [{"type": "text", "text": "a", "citations": None}] * 2}, "a\na"),
        ({"type": "search_result", "source": "https://x/?a=1&b=2", "title": None,
          "content": [{"type": "text", "text": "é\n", "cache_control": {"type": "ephemeral"}}]},
         "https://x/?a=1&b=2\né\n"),
        ({"type": "document", "source": {"type": "text", "data": ""}}, ""),
        ({"type": "document", "title": "t", "context": "c", "citations": {"enabled": True},
          "source": {"type": "text", "media_type": "text/plain", "data": "a"}}, "t\nc\na"),
        ({"type": "document", "context": None, "cache_control": {"type": "ephemeral"},
          "source": {"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}},
         "a\nb"),
        ({"type": "document", "source": {"type": "content", "content": []}}, ""),
    ],
    ids=lambda value: str(value)[:80],
)  # fmt: skip
def test_a_tools_result_may_have_blocks_that_are_shown_as_text(block: dict[str, Any], text: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    assert message(CALL, {"role": "user", "content": [result]}, tools=tools).messages[-1]["content"] == text
    if block["type"] in ("document", "search_result"):
        assert message({"role": "user", "content": [block]}).messages[-1]["content"].endswith(text)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}},
        {"type": "document", "source": "x"},
        {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "document"}]},
        {"type": "tool_reference"},
        {"type": "tool_reference", "tool_name": "a b"},
        {"type": "tool_reference", "tool_name": ""},
        {"type": "tool_reference", "tool_name": "a", "tool_id": "b"},
        {"type": "search_result", "source": "s", "title": "t"},
        {"type": "search_result", "source": {"url": "s"}, "title": "t", "content": "a"},
        {"type": "search_result", "source": "s", "title": "t", "content": ["a"]},
        {"type": "document", "source": {"type": "url", "url": "https://x"}},
        {"type": "document", "source": {"type": "file", "file_id": "f"}},
        {"type": "document", "source": {"type": "text", "data": ["a"]}},
        {"type": "container_upload", "file_id": "f"},
    ],
    ids=str,
)
def test_a_block_without_text_is_refused(block: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        message(CALL, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [block]}]})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([], ""),
        ("", ""),
        ([{"type": "text", "text": ""}], ""),
        ([{"type": "compaction", "content": "Summary."}], "Summary."),
        ([{"type": "compaction", "content": "Summary.", "encrypted_content": None, "signature": "zz"}], "Summary."),
        ([{"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, {"type": "text", "text": "a"}], "a"),
    ],
    ids=str,
)
def test_an_answer_is_taken_back_as_it_came(content: Any, text: str) -> None:
    assert message({"role": "assistant", "content": content}, USER).messages[1]["content"] == text


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "tool_reference", "tool_name": name} for name in ("a", "b", "c")],
        [{"type": "text", "text": "Found:"}, {"type": "tool_reference", "tool_name": "a"}],
        [
            {"type": "search_result", "source": "s", "title": "t", "content": ""},
            {"type": "tool_reference", "tool_name": "a"},
        ],
    ],
    ids=str,
)  # fmt: skip
def test_blocks_of_several_types_are_shown_in_their_order(content: list[dict[str, Any]]) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": False, "toolset_name": "set"}
    [call] = CALL["content"]
    shown = message(
        {"role": "assistant", "content": [call | {"toolset_name": "set"}]}, {"role": "user", "content": [result]}
    ).messages[-1]["content"]
    words = [block.get("tool_name") or block.get("text") or block["title"] for block in content]
    assert [shown.index(word) for word in words] == sorted(shown.index(word) for word in words)


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content": {}},
        {"type": "tool_search_tool_result", "tool_use_id": "s1", "content": {"tool_references": []}},
        {"type": "mcp_tool_use", "id": "m1", "name": "list", "server_name": "notes", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": "a"},
        {"type": "mcp_tool_listing", "server_name": "notes", "tools": []},
        {"type": "advisor_tool_result", "tool_use_id": "s1", "content": {}},
    ],
    ids=lambda block: block["type"],
)
def test_blocks_of_a_providers_own_tools_have_no_effect(block: dict[str, Any]) -> None:
    resent = message({"role": "assistant", "content": [block, {"type": "text", "text": "a"}]}, USER)
    assert resent.messages[1]["content"] == "a"
    with pytest.raises(RefusedError, match="not available for user"):
        message({"role": "user", "content": [block]})


@pytest.mark.parametrize("name", ["betas", "anthropic_beta", "anthropic_version", "fallbacks"])
def test_fields_of_anthropics_side_have_no_effect(name: str) -> None:
    assert message(**{name: ["x"]}).options.ignored == ()


def test_the_former_name_of_the_output_format_is_read() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    formats = [
        message(**fields).options.output_format
        for fields in (
            {"output_format": form},
            {"output_config": {"format": form}},
            {"output_format": form, "output_config": None},
            {"output_format": form, "output_config": {"effort": "low"}},
            {"output_format": None, "output_config": {"format": form}},
            {"output_format": form, "tools": [], "betas": ["structured-outputs-2025-11-13"]},
        )
    ]
    assert formats[0] is not None
    assert formats == formats[:1] * len(formats)
    for wrong in ("json", {"type": "text"}, {"type": "json_schema"}, form | {"strict": True}):
        with pytest.raises(RefusedError, match="output_format"):
            message(output_format=wrong)
