"""Histories as agents keep them: parts and blocks of other APIs, empty answers, limits of reasoning, own fields."""

from __future__ import annotations

from typing import Any

import pytest

from baton_gateway.apis.messages_request import parse_message
from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.openai_fields import MAX_UNKNOWN, UnknownFields
from baton_gateway.openai_api.openai_types import ChatRequest, parse_chat

USER = {"role": "user", "content": "x"}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}


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
    ],
    ids=str,
)
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
        ([{"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}, {"type": "text", "text": "a"}], "a"),
    ],
    ids=str,
)
def test_an_answer_is_taken_back_as_it_came(content: Any, text: str) -> None:
    assert message({"role": "assistant", "content": content}, USER).messages[1]["content"] == text


@pytest.mark.parametrize("name", ["betas", "anthropic_beta", "anthropic_version", "fallbacks"])
def test_fields_of_anthropics_side_have_no_effect(name: str) -> None:
    assert message(**{name: ["x"]}).options.ignored == ()


def test_the_former_name_of_the_output_format_is_read() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for fields in ({"output_format": {"type": "json_schema", "schema": schema}},
                   {"output_config": {"format": {"type": "json_schema", "schema": schema}}}):  # fmt: skip
        assert message(**fields).options.output_format is not None
