"""Schemas whose grammar is used before the compiler has judged it: it never refuses one, and none costs much."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from baton_engine.grammars.grammar_compiler import _parser_limits
from baton_gateway.structured_outputs.grammar_builder import ANSWER_OPTIONS, compile_format
from baton_gateway.structured_outputs.json_schema import Enforcement, check_schema
from baton_gateway.structured_outputs.output_format import json_format
from baton_gateway.structured_outputs.plain_schema import MAX_INTEGER, MAX_ITEMS, MAX_LENGTH, is_plain

BYTES = LLTokenizer("byte")
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)
INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)
SCALARS = NAMES | st.booleans() | st.none() | INTEGERS


def counted(kind: str, what: str, most: int) -> st.SearchStrategy[dict[str, Any]]:
    counts = st.lists(st.integers(0, most), max_size=2).map(sorted)
    keys = {0: (), 1: (f"max{what}",), 2: (f"min{what}", f"max{what}")}
    return counts.map(lambda found: {"type": kind} | dict(zip(keys[len(found)], found, strict=True)))


LEAVES = st.one_of(
    st.just({}),
    st.sampled_from(("number", "boolean", "null", "integer", "string")).map(lambda kind: {"type": kind}),
    counted("string", "Length", MAX_LENGTH),
    st.tuples(INTEGERS, INTEGERS).map(lambda two: {"type": "integer", "minimum": min(two), "maximum": max(two)}),
    INTEGERS.map(lambda least: {"type": "integer", "minimum": least}),
    st.lists(SCALARS, min_size=1, max_size=6).map(lambda values: {"enum": values}),
    st.lists(NAMES, min_size=1, max_size=6).map(lambda values: {"type": "string", "enum": values}),
    SCALARS.map(lambda value: {"const": value}),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda properties, required, others: {
            "type": "object",
            "properties": properties,
            "required": [name for name in properties if name in required],
            **({} if others is None else {"additionalProperties": others}),
        },
        st.dictionaries(NAMES, inner, max_size=5),
        st.lists(NAMES, max_size=3),
        st.none() | st.just(False) | inner,
    )


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(counted("array", "Items", MAX_ITEMS), inner).map(lambda two: two[0] | {"items": two[1]})


PLAIN = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner), arrays(inner), st.lists(inner, min_size=1, max_size=4).map(lambda cases: {"anyOf": cases})
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(PLAIN)
def test_the_compiler_takes_every_plain_schema(schema: dict[str, Any]) -> None:
    checked = check_schema(schema, "f", Enforcement.USUAL).schema
    assert is_plain(checked)
    provisional, final = compile_format(json_format(schema, "f"))
    assert provisional.is_provisional
    assert provisional.grammar is not None
    assert provisional.grammar == LLMatcher.grammar_from_json_schema(checked, overrides=ANSWER_OPTIONS)
    assert (final.grammar, final.is_provisional) == (provisional.grammar, False)
    matcher = LLMatcher(BYTES, provisional.grammar, log_level=0, limits=_parser_limits())
    matcher.compute_bitmask()
    assert not matcher.is_error()


def test_references_are_plain_and_recursive_ones_too() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}
    assert is_plain(check_schema({"$ref": "#/$defs/n", "$defs": {"n": node}}, "f", Enforcement.USUAL).schema)
    node["properties"]["next"]["anyOf"].append({"pattern": "a"})  # type: ignore[index]
    assert not is_plain(check_schema({"$ref": "#/$defs/n", "$defs": {"n": node}}, "f", Enforcement.USUAL).schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"type": "string", "format": "date"},
        {"type": "string", "maxLength": MAX_LENGTH + 1},
        {"type": "array", "maxItems": MAX_ITEMS + 1},
        {"type": "array", "prefixItems": [{}]},
        {"type": "integer", "maximum": MAX_INTEGER + 1},
        {"type": "integer", "minimum": 0.5},
        {"type": "integer", "exclusiveMinimum": 0},
        {"type": "integer", "multipleOf": 3},
        {"type": "number", "minimum": 0},
        {"type": ["string", "null"]},
        {"type": "object", "patternProperties": {"a": {}}},
        {"type": "object", "minProperties": 1},
        {"type": "object", "required": ["a"]},
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "properties": {"a": {"type": "array", "items": {"pattern": "a"}}}},
        {"type": "integer", "enum": ["a"]},
        {"type": "integer", "enum": [True]},
        {"enum": [[1]]},
        {"enum": [0.5]},
        {"const": {"a": 1}},
        {"anyOf": [{}] * 65},
        {"anyOf": [{}], "type": "string"},
        {"allOf": [{}]},
        {"anyOf": [{"type": "string"}, {"type": "string", "pattern": "a"}]},
        {"type": "object", "properties": {f"p{n}": {} for n in range(1_000)}},
    ],
)
def test_what_is_combined_matched_or_large_waits_for_the_compiler(schema: dict[str, Any]) -> None:
    assert not is_plain(check_schema(schema, "f", Enforcement.USUAL).schema)
