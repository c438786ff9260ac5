"""Grammars and readers of tagged calls agree on which values are written without quotes."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from baton_gateway.answers.formats import AnswerFormat
from baton_gateway.answers.output_parts import WholeAnswer, whole_answer
from baton_gateway.answers.parse_plan import make_parse_plan
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_testing.gateway.grammar_draws import draw, encoded, tokenizer

DRAWS = 4


def definition(form: AnswerFormat, use: ToolUse) -> str:
    output_format = make_parse_plan(form, use, "", None).output_format
    assert output_format is not None
    return build_grammar(output_format)


def read(form: AnswerFormat, use: ToolUse, text: str) -> WholeAnswer:
    parser = make_parse_plan(form, use, "", None).make_parser()
    return whole_answer([*parser.push(text), *parser.end()])


OPTIONAL: list[tuple[dict[str, Any], list[str]]] = [
    ({"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]}, ["12345", "null", '{"x"', "a b"]),
    ({"type": ["string", "null"]}, ["12345", "null", '"quoted"', "two\nlines"]),
    ({"$ref": "#/$defs/Text"}, ["12345", "true"]),
    ({"enum": ["1", "two", None]}, ["1", "two", "null"]),
    ({"oneOf": [{"const": "x"}, {"type": "null"}]}, ["x", "null"]),
    ({"type": "string", "nullable": True}, ["1", "null"]),
]


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(("schema", "texts"), OPTIONAL, ids=lambda value: json.dumps(value)[:40])
def test_optional_strings_are_written_without_quotes_under_a_grammar(
    schema: dict[str, Any], texts: list[str], family: str
) -> None:
    """Otherwise the reader, which knows nothing of grammars, would take the quotes for a part of the string."""
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    parameters["$defs"] = {"Text": {"type": "string"}}
    form, use = AnswerFormat(None, family), ToolUse((Tool("f", None, parameters, True),), ToolMode.REQUIRED)
    grammar = definition(form, use)
    before, after = WRITTEN[family]
    for text in texts:
        whole = before + text + after
        matcher = LLMatcher(tokenizer(), grammar, log_level=0)
        ids = encoded(whole)
        assert matcher.validate_tokens(ids) == len(ids), whole
        [call] = read(form, use, whole).calls
        assert json.loads(call.arguments) == {"a": None if text == "null" else text}
    dice = random.Random(json.dumps(schema))
    for _ in range(DRAWS):
        [call, *_] = read(form, use, draw(dice, grammar)).calls
        plain = {"anyOf": [schema, {"type": "null"}]} if schema.get("nullable") else schema  # OpenAPI's word
        jsonschema.validate(json.loads(call.arguments), parameters | {"properties": {"a": plain}})


WRITTEN = {
    "qwen3_coder": ("<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "glm": ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>", "</arg_value>\n</tool_call>"),
}


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
def test_optional_strings_with_a_pattern_are_written_as_json(family: str) -> None:
    schema = {"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "null"}]}
    tool = Tool("f", None, {"type": "object", "properties": {"a": schema}, "required": ["a"]}, True)
    form, use = AnswerFormat(None, family), ToolUse((tool,), ToolMode.REQUIRED)
    text = draw(random.Random(0), definition(form, use))
    assert text.lstrip().startswith('<tool_call>\n{"name": "f"')
    for call in read(form, use, text).calls:
        jsonschema.validate(json.loads(call.arguments), tool.parameters or {})
