"""Values of tagged formats by the resolved schema: strings where strings are allowed, else Python's words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from baton_gateway.answers.output_parser import OutputParser
from baton_gateway.answers.output_parts import AnswerPart, whole_answer
from baton_gateway.answers.python_literals import translate_literal
from baton_gateway.answers.tool_use import Tool
from baton_testing.gateway.answer_transcripts import form_of

STRING, NULL = {"type": "string"}, {"type": "null"}
DEFINITIONS = {
    "Text": STRING,
    "Name": {"$ref": "#/$defs/Text"},
    "Maybe": {"anyOf": [{"$ref": "#/$defs/Text"}, NULL]},
    "Colour": {"enum": ["1", "2"]},
    "Number": {"type": "integer"},
    "Loop": {"$ref": "#/$defs/Loop"},
}


def written(family: str, value: str) -> str:
    if family == "glm":
        return f"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
    return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


def read_value(parameters: dict[str, Any], value: str, family: str) -> Any:
    """Read one call, whole and character by character, and return the value of its argument."""
    tool, text = Tool("f", None, parameters, False), written(family, value)
    arguments = []
    for step in (len(text), 1):
        parser = OutputParser(form_of(family, False), [tool])
        parts: list[AnswerPart] = []
        for begin in range(0, len(text), step):
            parts += parser.push(text[begin : begin + step])
        [call] = whole_answer([*parts, *parser.end()]).calls
        arguments.append(json.loads(call.arguments))
    assert arguments[0] == arguments[1]
    return arguments[0]["a"]


OPTIONAL_STRINGS: list[dict[str, Any]] = [
    {"anyOf": [STRING, NULL]},
    {"oneOf": [NULL, STRING]},
    {"type": ["string", "null"]},
    {"type": "string", "nullable": True},
    {"$ref": "#/$defs/Maybe"},
    {"allOf": [{"$ref": "#/$defs/Maybe"}], "description": "a title"},
    {"anyOf": [{"$ref": "#/$defs/Name", "title": "Name"}, {"type": ["null"]}], "default": None},
    {"anyOf": [{"anyOf": [STRING, NULL]}, {"type": "string", "maxLength": 99}]},
    {"type": ["string", "null"], "pattern": ".*"},
    {"anyOf": [{"type": "string", "format": "uuid"}, NULL]},
    {"allOf": [{"type": ["string", "null"]}, {"maxLength": 99}]},
]


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
@pytest.mark.parametrize("schema", OPTIONAL_STRINGS, ids=json.dumps)
def test_a_string_stays_a_string_where_only_strings_or_null_are_allowed(schema: dict[str, Any], family: str) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
    for text in ("12345", '{"x": 1}', "[1]", "true", "1e5", "hello", "None", "nullable", "", "two\nlines"):
        assert read_value(parameters, text, family) == text
    assert read_value(parameters, "null", family) is None


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(
    "schema",
    [
        STRING,
        {"$ref": "#/$defs/Name"},
        {"allOf": [STRING, {"minLength": 1}]},
        {"allOf": [{"$ref": "#/$defs/Text"}], "pattern": "."},
        {"anyOf": [STRING, {"type": "string", "format": "date"}]},
        {"oneOf": [{"const": "12345"}, STRING]},
        {"type": ["string"]},
    ],
    ids=json.dumps,
)
def test_a_string_that_may_not_be_null_is_that_word(schema: dict[str, Any], family: str) -> None:
    parameters = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
    for text in ("12345", '{"x": 1}', "true", "null"):
        assert read_value(parameters, text, family) == text


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": ["string", "integer"]}, "12", 12),
        ({"type": ["string", "integer"]}, "1.5", "1.5"),
        ({"type": ["string", "integer"]}, "true", "true"),
        ({"type": ["string", "number"]}, "12", 12),
        ({"anyOf": [STRING, {"type": "array"}]}, '{"x": 1}', '{"x": 1}'),
        ({"anyOf": [STRING, {"type": "array"}]}, "[1]", [1]),
        ({"anyOf": [STRING, {"type": "object"}]}, '{"x": 1}', {"x": 1}),
        ({"anyOf": [{"$ref": "#/$defs/Number"}, STRING, NULL]}, "null", None),
        ({"anyOf": [{"$ref": "#/$defs/Number"}, STRING, NULL]}, "7", 7),
        ({"anyOf": [{"$ref": "#/$defs/Number"}, STRING, NULL]}, "[7]", "[7]"),
        ({"$ref": "#/$defs/Colour"}, "1", "1"),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"enum": [1, "auto"]}, "auto", "auto"),
        ({"const": "1"}, "1", "1"),
        ({"const": 1}, "1", 1),
        ({"enum": ["a", None]}, "null", None),
        ({}, "12", 12),
        ({"description": "anything"}, "text", "text"),
        ({"$ref": "#/$defs/Loop"}, "12", 12),
        ({"$ref": "#/$defs/nowhere"}, "12", 12),
        ({"anyOf": [STRING, {"type": "boolean"}]}, '"quoted"', "quoted"),
    ],
)
def test_a_union_is_read_as_its_types_say(schema: dict[str, Any], text: str, value: Any, family: str) -> None:
    read = read_value({"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}, text, family)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "additionalProperties": STRING},
        {"type": "object", "properties": {"b": {"type": "integer"}}, "additionalProperties": {"$ref": "#/$defs/Name"}},
        {"type": "object", "patternProperties": {"^a": STRING}, "additionalProperties": False},
        {"$ref": "#/$defs/Arguments"},
        {"allOf": [{"$ref": "#/$defs/Arguments"}, {"required": ["a"]}]},
        {"anyOf": [{"properties": {"a": STRING}}, {"properties": {"a": {"type": "string", "maxLength": 9}}}]},
    ],
    ids=json.dumps,
)
def test_the_schema_of_an_argument_is_found_wherever_it_is(parameters: dict[str, Any], family: str) -> None:
    definitions = DEFINITIONS | {"Arguments": {"type": "object", "properties": {"a": STRING}}}
    assert read_value(parameters | {"$defs": definitions}, "12345", family) == "12345"


@pytest.mark.parametrize("family", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, " False ", False),
        ({"anyOf": [{"type": "boolean"}, NULL]}, "None", None),
        ({"anyOf": [{"type": "integer"}, NULL]}, "None", None),
        ({"type": "integer"}, "0x10", 16),
        ({"type": "integer"}, "1_000", 1000),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "array"}, "['a', \"b\"]", ["a", "b"]),
        ({"type": "array"}, "('a', None)", ["a", None]),
        ({"type": "object"}, "{'x': True, 'y': [1,]}", {"x": True, "y": [1]}),
        ({"$ref": "#/$defs/Number"}, "+5", 5),
        ({"type": ["array", "null"], "items": STRING}, "['1', '2']", ["1", "2"]),
        ({"type": "boolean"}, "yes", "yes"),
        ({"type": "array"}, "a, b", "a, b"),
        ({"type": "array"}, "[open]", "[open]"),
        ({"anyOf": [{"type": "boolean"}, STRING]}, "True", "True"),
    ],
)
def test_python_is_read_where_no_string_is_allowed(schema: dict[str, Any], text: str, value: Any, family: str) -> None:
    read = read_value({"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}, text, family)
    assert (type(read), read) == (type(value), value)


def test_a_long_optional_string_comes_as_it_is_written() -> None:
    tool = Tool("f", None, {"properties": {"a": {"anyOf": [STRING, NULL]}}}, False)
    parser = OutputParser(form_of("qwen3_coder", False), [tool])
    parts = parser.push("<tool_call>\n<function=f>\n<parameter=a>\nnumbers: 1, 2")
    assert whole_answer(parts).calls[0].arguments == '{"a": "numbers: 1, 2'


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ('"a" "b"', "ab"), ("'a'\n  'b'", "ab"), ('"""x "y" z"""', 'x "y" z'), ("'''it's'''", "it's"), ("''", ""),
        (r"r'\d'", r"\d"), (r"'\x41\101\u00e9\n'", "AAé\n"), (r"'\ud83d\ude00'", "😀"), ("f'x'", "x"), ("b'x'", "x"),
        ("0x10", 16), ("0o17", 15), ("0b11", 3), ("1_000", 1000), ("-1_0.5", -10.5), ("+.5", 0.5), ("1.", 1.0),
        ("- 3", -3), ("(1)", 1), ("(1,)", [1]), ("()", []), ("('a' 'b')", "ab"), ("{1, 2}", [1, 2]), ("{}", {}),
        ("{1: 'a', None: 2,}", {"1": "a", "null": 2}), ("[1, [2, (3, 4)],]", [1, [2, [3, 4]]]), ("true", True),
    ],
)  # fmt: skip
def test_a_literal_is_read_as_python_reads_it(literal: str, value: Any) -> None:
    translated = translate_literal(literal)
    assert translated is not None
    assert json.loads(translated) == value


@pytest.mark.parametrize(
    "text",
    ["open", "f(1)", "007", "1_", "[1 2]", "[1,,2]", "{'a': 1, 2}", "{[1]: 2}", "'", '"""x"', "1 + 1", "[", "x=1", "",
     "[" * 100 + "]" * 100, "0x" + "f" * 5_000],
)  # fmt: skip
def test_what_is_no_literal_is_left_alone(text: str) -> None:
    assert translate_literal(text) is None
