"""What no grammar can follow: rewritten where that is exact, left out and named if less is demanded, else refused."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import build_grammar, compile_format, json_grammar
from baton_gateway.structured_outputs.json_schema import Enforcement, check_schema
from baton_gateway.structured_outputs.look_ahead import split_look_aheads
from baton_gateway.structured_outputs.output_format import composed_format, json_format, named_schema
from baton_gateway.structured_outputs.pattern import translate_pattern
from baton_testing.gateway.grammar_draws import draw, tokenizer

DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
LOOK_AHEADS = [
    DECIMAL, EMAIL, r"^(?!-)[a-z-]+$", r"^(?!\s*$).+", r"^(?!abc)[a-c]*$", r"^(?!ab$)[a-c]*$", r"^(?!.*ab)[a-c]*$",
    r"^(?=.*\d)(?=.*[a-z])[a-z0-9]{2,5}$", r"^(?!.*a)[a-c.\n]*$", r"^(?![.]+$)[a.]*$", r"^(?!xn--)(?!.*--)[xn-]+$",
    r"^(?!\^)[\^a]*$", r"^(?!.*[\]a])[^b]*$", r"^(?![^a-c])[a-z]*$",
]  # fmt: skip
UNKNOWN = [r"^a(?!b)", r"(?!a)b", r"^(?!a)b|c$", r"^(?!(a|b)x)c", r"^[a-z]+(?<!-)$", r"^(?!a*b)c", r"(?<=a)b"]


@pytest.mark.parametrize("pattern", LOOK_AHEADS)
def test_a_leading_look_ahead_is_several_patterns_that_mean_the_same(pattern: str) -> None:
    parts = split_look_aheads(pattern)
    assert parts is not None
    dice = random.Random(pattern)
    for part in parts:
        translate_pattern(part)
    for _ in range(5_000):
        text = "".join(dice.choice("ab.x-\n1c+@0nA]^ ") for _ in range(dice.randrange(8)))
        assert matches(pattern, text) is all(matches(part, text) for part in parts), text


def matches(pattern: str, text: str) -> bool:
    """As ECMA-262: `$` is the end alone."""
    return re.search(re.sub(r"(?<!\\)\$", r"\\Z", pattern), text) is not None


@pytest.mark.parametrize("pattern", LOOK_AHEADS)
def test_what_is_drawn_under_a_look_ahead_matches_it(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": 40}
    grammar, dice = build_grammar(json_format(schema, "f", is_strict=True)), random.Random(pattern)
    for _ in range(4):
        assert matches(pattern, json.loads(draw(dice, grammar)))


@pytest.mark.parametrize("pattern", UNKNOWN)
def test_other_look_around_is_refused_with_strict_and_otherwise_named(pattern: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    with pytest.raises(RefusedError, match="look-around"):
        build_grammar(json_format(schema, "f", is_strict=True))
    [result] = list(compile_format(json_format(schema, "f")))[-1:]
    assert result.ignored == ("f/properties/a/pattern",)


def test_a_broken_pattern_is_refused_whatever_is_demanded() -> None:
    for pattern in ("^(?=a)(b", "(", "["):
        for demand in Enforcement:
            with pytest.raises(RefusedError):
                check_schema({"type": "string", "pattern": pattern}, "f", demand)


UNIQUE: list[tuple[dict[str, Any], bool]] = [
    ({"items": {"enum": ["a", "b", "c"]}}, True),
    ({"items": {"type": "string", "enum": ["a", "b", "c", "d", "e", "f", "g", "h"]}, "minItems": 1}, True),
    ({"items": {"type": "boolean"}}, True),
    ({"items": {"const": 5}, "minItems": 1}, True),
    ({"items": {"type": "string"}, "maxItems": 1}, True),
    ({"items": {"enum": ["a", "b", None]}, "minItems": 2, "maxItems": 2}, True),
    ({"items": {"type": "string"}}, False),
    ({"items": {"enum": [[1], [2]]}}, False),
    ({"items": {"enum": ["a", "a"]}}, False),
    ({"prefixItems": [{}, {}]}, False),
    ({}, False),
]


@pytest.mark.parametrize(("array", "is_enforced"), UNIQUE, ids=str)
def test_different_items_are_enforced_where_they_are_few(array: dict[str, Any], is_enforced: bool) -> None:
    schema = {"type": "array", "uniqueItems": True, **array}
    if not is_enforced:
        with pytest.raises(RefusedError, match="uniqueItems"):
            check_schema(schema, "f", Enforcement.STRICT)
        assert check_schema(schema, "f", Enforcement.USUAL).ignored == ("/uniqueItems",)
        return
    checked, dice = check_schema(schema, "f", Enforcement.STRICT), random.Random(str(array))
    assert checked.ignored == ()
    for _ in range(6):
        jsonschema.validate(json.loads(draw(dice, json_grammar(checked.schema))), schema)


def test_a_choice_of_lists_that_nothing_satisfies_is_refused() -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "uniqueItems": True}
    with pytest.raises(RefusedError):
        build_grammar(json_format(schema, "f", is_strict=True))


KEYWORDS: dict[str, Any] = {
    "not": {"type": "null"}, "if": {"type": "string"}, "then": {}, "contains": {"const": 1},
    "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": {}}, "propertyNames": {"minLength": 3},
    "unevaluatedProperties": False, "uniqueItems": True, "minProperties": 3, "madeUp": 1, "$dynamicRef": "#x",
    "format": "colour", "pattern": "a(?!b)",
    "oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}],
}  # fmt: skip


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_field_that_no_call_uses_does_not_refuse_a_tool_without_strict(keyword: str) -> None:
    schema = {"type": "object", "properties": {"x": {keyword: KEYWORDS[keyword]}, "y": {"type": "integer"}}}
    lenient = check_schema(schema, "f", Enforcement.SUPPORTED)
    assert lenient.ignored == (f"/properties/x/{keyword}",)
    with pytest.raises(RefusedError):
        check_schema(schema, "f", Enforcement.STRICT)
    named = named_schema(schema, "tools[0].function.parameters", Enforcement.SUPPORTED, rule="start")
    [result] = compile_format(composed_format("", [named], "tools"))
    assert result.grammar is not None
    assert result.ignored == (f"tools[0].function.parameters/properties/x/{keyword}",)
    matcher = LLMatcher(tokenizer(), result.grammar, log_level=0)
    for text, is_allowed in (('{"y": 1', True), ('{"y": "', False)):
        ids = tokenizer().tokenize_str(text)
        assert (matcher.validate_tokens(ids) == len(ids)) is is_allowed, "other keywords stay enforced"


@pytest.mark.parametrize(
    ("bound", "kept"),
    [
        ({"maximum": 9223372036854775807}, {"maximum": 1 << 53}),
        ({"minimum": -9223372036854775808}, {"minimum": -(1 << 53)}),
        ({"exclusiveMaximum": 1e300}, {"exclusiveMaximum": 1 << 53}),
        ({"exclusiveMinimum": -1e20}, {"exclusiveMinimum": -(1 << 53)}),
        ({"minimum": 0, "maximum": 18446744073709551615}, {"minimum": 0, "maximum": 1 << 53}),
    ],
    ids=str,
)
def test_a_bound_of_64_bits_is_brought_to_what_can_be_enforced(bound: dict[str, Any], kept: dict[str, Any]) -> None:
    assert check_schema({"type": "integer", **bound}, "f", Enforcement.STRICT).schema == {"type": "integer", **kept}
    for beyond in ({"minimum": 1e20}, {"maximum": -1e20}):
        with pytest.raises(RefusedError, match="beyond"):
            check_schema({"type": "integer", **beyond}, "f", Enforcement.STRICT)
