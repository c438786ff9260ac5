"""Tools together with a format of the answer: it is calls, or text that keeps to the format, and never a mixture."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from baton_gateway.answers.formats import TOOL_CALL_FORMATS, AnswerFormat
from baton_gateway.answers.output_parts import WholeAnswer, WholeCall, whole_answer
from baton_gateway.answers.parse_plan import make_parse_plan
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_gateway.structured_outputs.output_format import (
    FormatKind,
    OutputFormat,
    choice_format,
    json_format,
    text_format,
)
from baton_testing.gateway.answer_transcripts import RENDERERS, same
from baton_testing.gateway.grammar_draws import draw, encoded, tokenizer, with_tokens
from baton_wire.rules.answer_formats import HARMONY

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 0, "maximum": 9}},
}
TOOLS = (Tool("get_weather", None, CITY, True), Tool("search", None, {"type": "object"}, False))
ANSWER: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "marks": {"$ref": "#/$defs/marks"}},
    "required": ["name", "marks"],
    "additionalProperties": False,
    "$defs": {"marks": {"type": "array", "items": {"enum": ["<tool_call>", "[f(", "[TOOL_CALLS]"]}, "maxItems": 3}},
}
LIST: dict[str, Any] = {"type": "array", "items": {"enum": ["get_weather(", 7]}, "minItems": 1, "maxItems": 3}
FIELD = "response_format.json_schema.schema"
HARMONY_FORM = AnswerFormat(HARMONY, HARMONY)
FORMS = [
    *((form, is_token) for form in (AnswerFormat("think", name) for name in TOOL_CALL_FORMATS) for is_token in (0, 1)),
    (HARMONY_FORM, 0),
    (HARMONY_FORM, 1),
]
AUTO = ToolUse(TOOLS, ToolMode.AUTO)
FINAL = "<|channel|>final<|message|>"


def formed(form: AnswerFormat, is_token: int) -> AnswerFormat:
    return with_tokens(form) if is_token else form


def grammar(form: AnswerFormat, use: ToolUse, answer: OutputFormat) -> str:
    output_format = make_parse_plan(form, use, "", None, answer).output_format
    assert output_format is not None
    return build_grammar(output_format)


def read(form: AnswerFormat, use: ToolUse, answer: OutputFormat, text: str, cut: int = 0) -> WholeAnswer:
    parser = make_parse_plan(form, use, "", None, answer).make_parser()
    pieces = (text[:cut], text[cut:]) if cut else (text,)
    return whole_answer([*(part for piece in pieces for part in parser.push(piece)), *parser.end()])


def check(answer: WholeAnswer, schema: dict[str, Any]) -> None:
    if not answer.calls:
        jsonschema.validate(json.loads(answer.content), schema)
        return
    assert answer.content.strip() == ""
    for call in answer.calls:
        tool = next(tool for tool in TOOLS if tool.name == call.name)
        jsonschema.validate(json.loads(call.arguments), tool.parameters or {})


def final(form: AnswerFormat, text: str) -> str:
    return FINAL + text if form.is_harmony else text


@pytest.mark.parametrize(("form", "is_token"), FORMS, ids=str)
@pytest.mark.parametrize("schema", [ANSWER, LIST], ids=["object", "list"])
def test_whatever_is_drawn_is_calls_or_keeps_to_the_schema(
    form: AnswerFormat, is_token: int, schema: dict[str, Any]
) -> None:
    form, answer = formed(form, is_token), json_format(schema, FIELD)
    source, dice = grammar(form, AUTO, answer), random.Random(f"{form} {len(schema)}")
    for _ in range(4):
        text = draw(dice, source, with_marks=bool(is_token))
        whole = read(form, AUTO, answer, text)
        check(whole, schema)
        assert same(read(form, AUTO, answer, text, dice.randrange(len(text))), whole)


@pytest.mark.parametrize(("form", "is_token"), FORMS, ids=str)
def test_both_ways_are_open_and_are_read_for_what_they_are(form: AnswerFormat, is_token: int) -> None:
    form, answer = formed(form, is_token), json_format(ANSWER, FIELD)
    source = grammar(form, AUTO, answer)
    call = WholeCall("id", "get_weather", '{"city": "Köln", "days": 3}')
    called = WholeAnswer(calls=[call] * (2 if form.calls == "mistral" else 1))
    shown = json.dumps({"name": "Köln", "marks": ["<tool_call>", "[f("]}, ensure_ascii=False)
    written = RENDERERS[form.calls or ""](called).replace("'", '"')
    head = encoded(final(form, ""), bool(is_token))
    for ids, expected in (
        (encoded(written, bool(is_token)), called),
        (head + encoded(shown), WholeAnswer(content=shown)),
    ):
        matcher = LLMatcher(tokenizer(bool(is_token)), source, log_level=0)
        assert matcher.validate_tokens(ids) == len(ids), (expected, matcher.validate_tokens(ids))
        assert same(read(form, AUTO, answer, written if expected is called else final(form, shown)), expected)


@pytest.mark.parametrize(("form", "is_token"), FORMS, ids=str)
def test_free_text_is_neither(form: AnswerFormat, is_token: int) -> None:
    form = formed(form, is_token)
    source = grammar(form, AUTO, json_format(ANSWER, FIELD))
    for text in ("Sure, I look.", '{"name": 5', "[1", '{"city": "x"'):
        matcher = LLMatcher(tokenizer(bool(is_token)), source, log_level=0)
        ids = encoded(final(form, text), bool(is_token))
        assert matcher.validate_tokens(ids) < len(ids), text


def test_several_calls_may_come_beside_a_schema_unless_one_is_allowed() -> None:
    text = RENDERERS["hermes"](WholeAnswer(calls=[WholeCall("a", "search", '{"q": 1}')] * 2))
    form, answer = AnswerFormat(None, "hermes"), json_format(ANSWER, FIELD)
    for is_parallel in (True, False):
        use = replace(AUTO, parallel=is_parallel)
        matcher = LLMatcher(tokenizer(), grammar(form, use, answer), log_level=0)
        ids = encoded(text)
        assert (matcher.validate_tokens(ids) == len(ids)) is is_parallel


@pytest.mark.parametrize("family", [*TOOL_CALL_FORMATS, HARMONY])
@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (text_format(FormatKind.REGEX, r"\d{2}/[a-z]+\n?", "structured_outputs.regex"), r"[0-9]{2}/[a-z]+\n?"),
        (text_format(FormatKind.REGEX, r"(<|\[|\{).*", "guided_regex"), r"[<\[{].*"),
        (choice_format(["yes", "no / maybe"], "structured_outputs.choice"), "yes|no / maybe"),
        (json_format({"type": "object"}, "response_format"), r"\{(.|\n)*\}"),
    ],
    ids=["regex", "marks", "choice", "json_object"],
)
def test_other_formats_stand_beside_tools_too(family: str, answer: OutputFormat, rule: str) -> None:
    form = HARMONY_FORM if family == HARMONY else AnswerFormat(None, family)
    source, dice = grammar(form, AUTO, answer), random.Random(family + rule)
    for _ in range(6):
        whole = read(form, AUTO, answer, draw(dice, source))
        assert whole.calls or re.fullmatch(rule, whole.content, re.DOTALL), whole


def test_a_demanded_call_comes_whatever_the_format() -> None:
    answer = json_format(ANSWER, FIELD)
    for use in (replace(AUTO, mode=ToolMode.REQUIRED), ToolUse(TOOLS, ToolMode.REQUIRED, "search")):
        plan = make_parse_plan(AnswerFormat(None, "hermes"), use, "", None, answer)
        assert plan == make_parse_plan(AnswerFormat(None, "hermes"), use, "", None)
    assert make_parse_plan(AnswerFormat(), ToolUse(TOOLS, ToolMode.NONE), "", None, answer).output_format is None


@pytest.mark.parametrize(
    ("form", "answer", "field"),
    [
        (AnswerFormat(), json_format(ANSWER, FIELD), "tools"),
        (FORMS[0][0], text_format(FormatKind.LARK, 'start: "a"', "guided_grammar"), "guided_grammar"),
        (FORMS[0][0], text_format(FormatKind.REGEX, "(?=a)", "guided_regex"), "guided_regex"),
        (FORMS[0][0], json_format({"not": {"type": "string"}}, FIELD, True), FIELD),
    ],
    ids=["unknown format", "grammar", "expression", "schema"],
)
def test_what_cannot_be_combined_is_refused_by_its_field(form: AnswerFormat, answer: OutputFormat, field: str) -> None:
    with pytest.raises(RefusedError) as refusal:
        grammar(form, AUTO, answer)
    assert (refusal.value.problem.param or "").partition("/")[0] == field


def test_a_schema_that_a_format_cannot_write_is_written_as_json() -> None:
    tools = (Tool("f", None, {"properties": {"a b": {"type": "integer"}}}, True),)
    form, answer = AnswerFormat(None, "pythonic"), json_format(ANSWER, FIELD)
    use = ToolUse(tools, ToolMode.AUTO)
    matcher = LLMatcher(tokenizer(), grammar(form, use, answer), log_level=0)
    text = '<tool_call>\n{"name": "f", "arguments": {"a b": 1}}\n</tool_call>'
    assert matcher.validate_tokens(encoded(text)) == len(encoded(text))
    assert [call.name for call in read(form, use, answer, text).calls] == ["f"]


def test_neither_begins_with_a_blank() -> None:
    """After a thought workers allow blanks before any grammar. Here one would decide for calls, or be content."""
    form = AnswerFormat("think", "hermes")
    for answer in (json_format(ANSWER, FIELD), choice_format(["yes"], "guided_choice")):
        matcher = LLMatcher(tokenizer(), grammar(form, AUTO, answer), log_level=0)
        assert matcher.validate_tokens(encoded("\n")) == 0
