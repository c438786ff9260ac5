"""Calls under a grammar: whatever a model without sense draws is read as calls that keep to their schemas."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from baton_gateway.answers.answer_parts import WholeAnswer, whole_answer
from baton_gateway.answers.answer_reading import reading_of
from baton_gateway.answers.formats import CALLS, HARMONY, AnswerFormat
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import RefusedError
from baton_gateway.shapes.definition import definition_of
from baton_testing.engine.tiny_llama import FOLDER

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "unit": {"enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NONE: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (Tool("get_weather", None, CITY, False), Tool("now", None, NONE, True))
SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
HARMONY_FORM = AnswerFormat(HARMONY, HARMONY)
FORMS = [*(AnswerFormat("think", name) for name in CALLS), HARMONY_FORM, AnswerFormat()]
DRAWS = 8


@cache
def tokenizer() -> LLTokenizer:
    return LLTokenizer((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))


def definition(form: AnswerFormat, use: ToolUse) -> str:
    shape = reading_of(form, use, "", None).shape
    assert shape is not None
    return definition_of(shape)


def draw(dice: random.Random, definition: str, begin: str = "") -> str:
    """An answer of tokens that the grammar allows, each as likely as the others."""
    matcher = LLMatcher(tokenizer(), definition, log_level=0)
    ids = list(tokenizer().tokenize_str(begin))
    assert matcher.validate_tokens(ids) == len(ids)
    for token in ids:
        matcher.consume_token(token)
    while not matcher.is_stopped() and not (matcher.is_accepting() and dice.random() < 0.5):
        mask = matcher.compute_bitmask()
        allowed = [place * 8 + bit for place, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        ids.append(dice.choice([token for token in allowed if token < tokenizer().vocab_size]))
        assert matcher.consume_token(ids[-1])
    return tokenizer().decode_bytes([token for token in ids if token != tokenizer().eos_token]).decode(errors="replace")


def read(form: AnswerFormat, use: ToolUse, text: str) -> WholeAnswer:
    reader = reading_of(form, use, "", None).reader()
    return whole_answer([*reader.push(text), *reader.end()])


def check(answer: WholeAnswer) -> None:
    for call in answer.calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name] or {})


@pytest.mark.parametrize("form", FORMS, ids=lambda form: str(form.calls))
@pytest.mark.parametrize("named", [None, "get_weather"])
def test_a_call_that_must_come_comes_and_is_valid(form: AnswerFormat, named: str | None) -> None:
    use = ToolUse(TOOLS, ToolMode.REQUIRED, named)
    grammar = definition(form, use)
    dice = random.Random(f"{form} {named}")
    for _ in range(DRAWS):
        text = draw(dice, grammar)
        answer = read(form, use, text)
        assert answer.calls, text
        assert answer.content == "", text
        assert named is None or [call.name for call in answer.calls] == [named]
        check(answer)


@pytest.mark.parametrize("form", [AnswerFormat(None, name) for name in ("hermes", "qwen3_coder", "glm")], ids=str)
def test_free_text_may_come_and_a_strict_call_keeps_to_its_schema(form: AnswerFormat) -> None:
    use = ToolUse(TOOLS, ToolMode.AUTO)
    grammar = definition(form, use)
    dice = random.Random(str(form))
    for _ in range(DRAWS):
        assert read(form, use, "Some words, <tool or {not}.").calls == []
        answer = read(form, use, draw(dice, grammar, "I look. <tool_call>"))
        assert answer.content.startswith("I look.")
        for call in answer.calls:
            assert call.name in SCHEMAS
            assert isinstance(json.loads(call.arguments), dict)
            if call.name == "now":
                check(WholeAnswer(calls=[call]))
    matcher = LLMatcher(tokenizer(), grammar, log_level=0)
    wrong = tokenizer().tokenize_str('<tool_call>\n{"name": "now", "arguments": {"a')
    assert matcher.validate_tokens(wrong) < len(wrong)


@pytest.mark.parametrize("form", [AnswerFormat(None, name) for name in ("mistral", "pythonic", "deepseek_v3")], ids=str)
def test_a_strict_tool_is_refused_where_free_text_and_calls_cannot_be_told_apart(form: AnswerFormat) -> None:
    with pytest.raises(RefusedError) as refusal:
        reading_of(form, ToolUse(TOOLS, ToolMode.AUTO), "", None)
    assert refusal.value.problem.param == "tools[1].function.strict"
    assert reading_of(form, ToolUse(TOOLS[:1], ToolMode.AUTO), "", None).shape is None


def test_one_call_is_all_where_there_may_be_one() -> None:
    for use in (ToolUse(TOOLS, ToolMode.REQUIRED, parallel=False), ToolUse(TOOLS, ToolMode.REQUIRED, "now")):
        matcher = LLMatcher(tokenizer(), definition(FORMS[0], use), log_level=0)
        for token in tokenizer().tokenize_str('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'):
            matcher.consume_token(token)
        assert matcher.is_stopped()


@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"properties": {"a": {"$ref": "http://x/y"}}}, "/properties/a/$ref"),
        ({"properties": {"a": {"enum": []}}}, "/properties/a/enum"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_refused_by_its_pointer(parameters: dict[str, Any], pointer: str) -> None:
    use = ToolUse((TOOLS[1], Tool("f", None, parameters, True)), ToolMode.REQUIRED)
    with pytest.raises(RefusedError) as refusal:
        definition(FORMS[0], use)
    assert (refusal.value.problem.param or "").startswith("tools[1].function.parameters")
    assert pointer in (refusal.value.problem.param or "") + refusal.value.problem.message
