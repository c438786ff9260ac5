"""JSON Schema: refusals name the place, and an accepted schema means what the client wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_gateway.structured_outputs.json_schema import Enforcement, check_schema
from baton_gateway.structured_outputs.lark import MAX_BLANKS
from baton_gateway.structured_outputs.output_format import (
    FormatKind,
    OutputFormat,
    choice_format,
    composed_format,
    json_format,
    named_schema,
    text_format,
)
from baton_wire.messages.values import Grammar

BYTES = LLTokenizer("byte")


def follows(shape: OutputFormat, answer: str) -> bool:
    """Return True if `answer` is a complete answer in the format."""
    matcher = LLMatcher(BYTES, build_grammar(shape), log_level=0)
    ids = list(answer.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def allows(schema: Any, answer: str) -> bool:
    return follows(json_format(schema, "f"), answer)


def refusal(shape: OutputFormat) -> str:
    with pytest.raises(RefusedError) as caught:
        build_grammar(shape)
    assert caught.value.problem.status == 400
    assert caught.value.problem.code == "invalid_schema"
    return caught.value.problem.message


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


REFUSED = {
    "$ref to itself": ({"$ref": "#"}, ""),
    "required recursion": ({"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]}, ""),
    "two that lead to each other": (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "/$defs/",
    ),
    "remote": ({"properties": {"a": {"$ref": "http://127.0.0.1/x"}}}, "/properties/a/$ref"),
    "nowhere": ({"properties": {"a": {"$ref": "#/$defs/x"}}}, "/properties/a/$ref"),
    "empty enum": ({"properties": {"a": {"enum": []}}}, "/properties/a/enum"),
    "required and not allowed": (
        {"type": "object", "required": ["b", "a"], "properties": {"b": {}}, "additionalProperties": False},
        "/required/1",
    ),
    "required and false": ({"type": "object", "required": ["a"], "properties": {"a": False}}, "/required/0"),
    "unknown keyword": ({"properties": {"a/b": {"minLenght": 1}}}, "/properties/a~1b/minLenght"),
    "options of the compiler": ({"x-guidance": {"lenient": True}}, "/x-guidance"),
    "too deep": (nested(65), ""),
    "states": ({"type": "string", "pattern": "(a{1000}){1000}"}, "/pattern"),
    "states of one repeat": ({"type": "string", "pattern": "[a-z]{1,1000000}"}, "/pattern"),
    "crossed look-ahead": ({"type": "string", "pattern": "^(?=a)(b"}, "/pattern"),
    "half a character": ({"properties": {"a": {"pattern": "^\\uD83D\\uDE00$"}}}, "/properties/a/pattern"),
    "patterns at once": ({"allOf": [{"pattern": str(n)} for n in range(20)]}, ""),
    "patterns of names": ({"patternProperties": {f"^x{n}_": {} for n in range(400)}}, "/patternProperties"),
    "a multiple of a large prime": ({"multipleOf": 9_999_991}, "/multipleOf"),
    "multiples that multiply": ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}, "/allOf/1/multipleOf"),
    "a bound that crashes the compiler": ({"type": "integer", "minimum": -1e19, "maximum": -1e19}, "/maximum"),
    "crossed bounds": ({"type": "object", "properties": {"a": {"minimum": 2, "maximum": 1, "type": "integer"}},
                        "required": ["a"]}, "/properties/a"),
    "crossed lengths": ({"type": "string", "minLength": 2, "maxLength": 1}, "/minLength"),
    "names that cannot be told apart": ({"type": "object", "minProperties": 2}, "/minProperties"),
    "a control character": ({"enum": ["a", "b\x00"]}, "/enum/1"),
    "cases that overlap": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "/oneOf"),
    "names that overlap": ({"items": {"patternProperties": {"a": {}, "b": {"type": "null"}}}}, "/items"),
    "no answer": (False, ""),
    "not a schema": ({"items": 3}, "/items"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_it_is_refused_with_its_pointer(name: str) -> None:
    schema, pointer = REFUSED[name]
    message = refusal(json_format(schema, "f"))
    assert message.startswith(f"'f' at '{pointer}" if pointer else "'f'"), message


def whole(**properties: Any) -> dict[str, Any]:
    """An object of all these."""
    named = {"properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "object", **named}


NO_INTEGER = {"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (whole(a=whole(x=NO_INTEGER)), "at '/properties/a/properties/x': Unsatisfiable schema: integer interval"),
        (whole(a={"type": "string", "enum": [1, 2]}), "at '/properties/a': Unsatisfiable schema: incompatible types"),
        ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, ": no answer can be valid"),
        ({"$ref": "#"}, ": no finite answer can be valid: references"),
    ],
)
def test_why_no_answer_is_valid_is_said_of_the_innermost_place(schema: Any, message: str) -> None:
    assert refusal(json_format(schema, "f")).startswith(f"'f'{message}" if message[0] == ":" else f"'f' {message}")


def test_a_schema_within_a_composed_grammar_is_named_by_its_own_field() -> None:
    schemas = [named_schema(whole(a={}), "tools[0]", rule="x"), named_schema(whole(b=NO_INTEGER), "tools[1]", rule="y")]
    message = refusal(composed_format("start: x | y y", schemas, "tools"))
    assert message.startswith("'tools[1]' at '/properties/b': ")


def test_a_grammar_without_an_end_is_told_in_words() -> None:
    assert refusal(text_format(FormatKind.LARK, "start: start", "f")) == "'f': no answer can match."


KEYWORDS = "not if then else contains dependentRequired dependentSchemas dependencies $dynamicRef"


@pytest.mark.parametrize("keyword", [*KEYWORDS.split(), "unevaluatedProperties", "unevaluatedItems"])
def test_a_keyword_that_no_grammar_follows_is_refused_where_it_stands(keyword: str) -> None:
    message = refusal(json_format({"properties": {"a": {"items": {keyword: {"const": "x"}}}}}, "f"))
    assert message.startswith(f"'f' at '/properties/a/items/{keyword}': this keyword is not supported")


@pytest.mark.parametrize("names", [True, {}, {"type": "string"}, {"type": ["string", "null"], "description": "names"}])
def test_names_that_may_be_any_are_taken(names: Any) -> None:
    """So zod writes each record, and it says nothing: names are strings."""
    record = {"type": "object", "propertyNames": names, "additionalProperties": {"type": "integer"}}
    assert allows(record, '{"é": 1, "b": 2}')
    assert not allows(record, '{"é": "x"}')


@pytest.mark.parametrize(
    "names", [False, {"type": "integer"}, {"minLength": 1}, {"enum": []}, {"enum": ["a"], "pattern": "a"}]
)
def test_names_that_may_not_be_any_are_refused(names: Any) -> None:
    assert refusal(json_format({"propertyNames": names}, "f")).startswith("'f' at '/propertyNames': this keyword")


def test_names_that_are_listed_are_those_of_the_object() -> None:
    """zod's record of an enumeration. What another name would have, each listed one has."""
    integers: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
    for names in ({"type": "string", "enum": ["b", "a"]}, {"enum": ["b", 7, "a", "b"]}):
        record = integers | {"propertyNames": names}
        assert allows(record, '{"b": 1, "a": 2}')
        assert allows(record, "{}")
        assert not allows(record, '{"c": 1}')
        assert not allows(record, '{"b": "x"}')
    beside = record | {"properties": {"a": {"type": "null"}, "c": {}}, "required": ["b"]}
    assert allows(beside, '{"a": null, "b": 2}')
    assert not allows(beside, '{"a": null}')
    assert not allows(beside, '{"b": 1, "c": 1}')
    assert allows({"type": "object", "propertyNames": {"const": "a"}}, '{"a": [{}]}')
    inner = whole(**{"~/%": integers | {"propertyNames": {"enum": ["x"]}, "additionalProperties": {"enum": [2]}}})
    assert allows(inner, '{"~/%": {"x": 2}}')
    assert not allows(inner, '{"~/%": {"x": 3}}')
    assert refusal(json_format(record | {"required": ["c"]}, "f")).startswith("'f' at '/required/0'")


def test_names_of_a_pattern_are_those_of_the_object() -> None:
    record = {"type": "object", "propertyNames": {"pattern": "^[a-c]{2}$"}, "additionalProperties": {"type": "null"}}
    assert allows(record, '{"ab": null, "ca": null}')
    assert not allows(record, '{"abc": null}')
    assert not allows(record, '{"ab": 1}')
    for beside in ("properties", "patternProperties"):
        assert refusal(json_format(record | {beside: {"ab": {}}}, "f")).startswith("'f' at '/propertyNames': together")
    wrong = record | {"propertyNames": {"pattern": "(?=a)"}}
    assert refusal(json_format(wrong, "f")).startswith("'f' at '/propertyNames/pattern'")


def test_names_that_all_have_one_large_schema_have_it_once() -> None:
    others = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(200)}}
    names = [f"n{number}" for number in range(1_000)]
    checked = check_schema({"propertyNames": {"enum": names}, "additionalProperties": others}, "f", Enforcement.USUAL)
    assert len(json.dumps(checked.schema)) < 100_000


def test_openapis_nullable_adds_null_to_a_type() -> None:
    schema = {"type": "string", "maxLength": 1, "nullable": True}
    assert allows(schema, "null")
    assert allows(schema, '"a"')
    assert not allows(schema, "1")
    assert not allows(schema | {"nullable": False}, "null")
    assert allows({"nullable": True, "type": ["integer", "null"]}, "null")
    assert not allows(schema | {"enum": ["a"]}, "null"), "OpenAPI 3.0.3: an enumeration has to name it"
    assert refusal(json_format(whole(a={"nullable": True}), "f")).startswith("'f' at '/properties/a/nullable'")
    assert refusal(json_format(schema | {"nullable": 1}, "f")).startswith("'f' at '/nullable'")


@pytest.mark.parametrize("never", [{"not": {}}, {"not": True}, {"not": {"description": "never"}, "title": "x"}])
def test_what_may_never_be_is_left_out(never: Any) -> None:
    """zod writes `not: {}` for what is undefined or never."""
    schema = {"type": "object", "properties": {"a": {"anyOf": [never, {"type": "null"}]}, "b": never}}
    assert allows(schema, '{"a": null}')
    assert allows(schema, "{}")
    assert not allows(schema, '{"a": 1}')
    assert not allows(schema, '{"b": null}')
    assert refusal(json_format(schema | {"required": ["b"]}, "f")).startswith("'f' at '/required/0'")
    assert refusal(json_format(whole(a={"not": {"const": 1}}), "f")).startswith("'f' at '/properties/a/not'")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\d", "7", "१"),
        (r"\w", "_", "é"),
        (r"\D", "१", "7"),
        (r"\W", "é", "_"),
        (r"[\d.]", "7", "१"),
        (r"[^\w]", "é", "_"),
        (r"[\Dx]", "१", "7"),
        (r"[\w-]", "-", "é"),
        (r"\\d", "\\d", "7"),
    ],
)
def test_digits_and_letters_are_those_of_ecma_262(pattern: str, yes: str, no: str) -> None:
    """Found by asking for a telephone number: it came in digits of several scripts. Schemas were right."""
    asked = text_format(FormatKind.REGEX, pattern, "f")
    assert (follows(asked, yes), follows(asked, no)) == (True, False)
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    assert allows(schema, json.dumps(yes, ensure_ascii=False))
    assert not allows(schema, json.dumps(no, ensure_ascii=False))


def test_a_name_for_a_schema_says_nothing() -> None:
    schema = {"id": "urn:x", "$ref": "#/$defs/y", "$defs": {"y": {"id": "y", "type": "boolean"}}}
    assert allows(schema, "true")
    assert refusal(json_format({"id": "urn:x", "$ref": "urn:x"}, "f")).startswith("'f' at '/$ref': only references")


def test_legal_recursion_works() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert allows(tree, '{"next": {"next": {}}}')
    assert not allows(tree, '{"next": 1}')
    either = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
    assert allows(either, "[1, [2, []]]")


@pytest.mark.parametrize("name", ['a"b', "a\nb", "a\\b", "a/b~c", "é東", "a\x7f"])
def test_names_with_quotes_and_newlines_work(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    assert allows(schema | {"additionalProperties": False}, json.dumps({name: 1}, ensure_ascii=False))
    assert follows(choice_format([name, "x"], "f"), name)


def test_a_name_has_one_spelling() -> None:
    """Found by reading: the compiler took the escaped spelling for another name and let it have any value."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert allows(schema, '{"a": 1, "b": "x"}')
    assert not allows(schema, '{"a": 1, "\\u0061": "x"}')
    assert not allows(schema, '{"a": 1, "a": "x"}')


def test_blanks_are_bounded() -> None:
    """If the whole answer is JSON, the worker counts its blanks; a part of a grammar bounds its own."""
    part = composed_format("start: a", [named_schema({"type": "array"}, "f", rule="a")], "f")
    for shape in (whole := json_format({"type": "array"}, "f"), part):
        assert follows(shape, "[\n    1, 2\n]")
        assert not follows(shape, "[" + "\n" * 2 + "]")
        assert not follows(shape, "[" + " " * 40 + "]")
        assert not follows(shape, "[1]\n"), "an end is an end"
    indented = "[\n" + " " * 40 + "]"
    assert follows(whole, indented)
    assert not follows(part, indented)
    assert whole.grammar("{}") == Grammar("{}", MAX_BLANKS)
    assert part.grammar("{}") == text_format(FormatKind.LARK, "start: A", "f").grammar("{}") == Grammar("{}")


def test_dates_are_of_the_calendar() -> None:
    date, both = {"type": "string", "format": "date"}, {"type": "string", "format": "date", "pattern": "^2"}
    assert allows(date, '"2024-02-29"')
    assert not allows(date, '"2023-02-29"')
    assert not allows(date, '"1900-02-29"')
    assert allows(both, '"2024-02-29"')
    assert not allows(both, '"1924-02-29"')
    assert not allows({"type": "string", "format": "date-time"}, '"2024-01-01T23:59:60Z"')


def test_an_unknown_format_is_an_annotation_unless_strict() -> None:
    schema = {"type": "string", "format": "colour"}
    assert allows(schema, '"red"')
    assert "/format" in refusal(json_format(schema, "f", is_strict=True))


def test_cases_that_a_constant_tells_apart_are_followed() -> None:
    def case(kind: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": kind}, kind: {"type": "null"}},
                "required": ["kind", kind], "additionalProperties": False}  # fmt: skip

    schema = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": case("a"), "b": case("b")}}
    assert allows(schema, '{"kind": "b", "b": null}')
    assert not allows(schema, '{"kind": "b", "a": null}')


def test_lists_of_older_drafts_are_read() -> None:
    schema = {"items": [{"type": "string"}], "additionalItems": False, "type": "array"}
    assert allows(schema, '["a"]')
    assert not allows(schema, '["a", 1]')


def test_expressions_and_grammars() -> None:
    assert follows(text_format(FormatKind.REGEX, "^[a-c]{2}$", "f"), "ab")
    assert not follows(text_format(FormatKind.REGEX, "[a-c]{2}", "f"), "abc")
    assert follows(text_format(FormatKind.LARK, 'start: "x" NUMBER\nNUMBER: /[0-9]+/', "f"), "x12")
    assert follows(text_format(FormatKind.LARK, 'start: %json {"type": "string", "maxLength": 2}', "f"), '"ab"')
    for lark in ('start: %lark {"x": 1}', "start: <|im_end|>", "start: @other", '%llguidance {"x": 1}\nstart: A'):
        assert "not available" in refusal(text_format(FormatKind.LARK, lark, "f"))
    for lark in ("start: x", 'start: start "a"', "nothing", 'start: A\nA: B{1000}\nB: C{1000}\nC: "a"{1000}'):
        assert refusal(text_format(FormatKind.LARK, lark, "f"))
