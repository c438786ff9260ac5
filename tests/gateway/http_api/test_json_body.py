"""Bounds on a body's shape: what is counted is what the parser would make, whatever strings hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.json_body import MAX_KEYS, count_json, parse_object
from baton_gateway.openai_api.response_encoding import error_body
from baton_gateway.workers.request_limits import LARGEST_BODY_BYTES, SMALLEST_BODY_BYTES, body_limits

TRICKY = st.text(st.sampled_from('"\\:,[]{}/ué😀\n x'), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TRICKY,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TRICKY, inner, max_size=5),
    max_leaves=30,
)
OBJECTS = st.dictionaries(TRICKY, VALUES, max_size=6)


def counted(value: Any) -> tuple[int, int, int]:
    """Commas and opening brackets, keys, depth."""
    if isinstance(value, dict):
        inner, keys = [counted(each) for each in value.values()], len(value)
    elif isinstance(value, list):
        inner, keys = [counted(each) for each in value], 0
    else:
        return 0, 0, 0
    commas = max(0, len(inner) - 1)
    return (
        1 + commas + sum(values for values, _, _ in inner),
        keys + sum(below for _, below, _ in inner),
        1 + max((depth for _, _, depth in inner), default=0),
    )


@given(OBJECTS, st.booleans(), st.sampled_from([None, 1]))
def test_the_shape_is_that_of_the_parsed_value(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    shape = count_json(body, 10_000)
    assert (shape.values, shape.keys, shape.depth) == counted(value)
    assert parse_object(body, shape) == json.loads(body)


@given(st.binary(max_size=200) | st.text(st.sampled_from('{}[]":,\\u0d8x1e'), max_size=60).map(str.encode))
def test_any_bytes_are_an_object_or_refused_with_a_code(body: bytes) -> None:
    problem, value = parsed(body)
    if problem is None:
        assert value == json.loads(body)
        return
    assert problem.status == 400
    assert problem.code in {"invalid_json", "invalid_utf8", "duplicate_key", "json_too_deep", "too_many_values"}
    json.loads(error_body(problem))


def parsed(body: bytes) -> tuple[Problem | None, Any]:
    try:
        return None, parse_object(body, count_json(body, 1_000))
    except RefusedError as refusal:
        return refusal.problem, None


@given(st.lists(st.sampled_from(["a", "b", 'c"', "d\\"]), min_size=1, max_size=6), st.integers(0, 3))
def test_a_key_that_occurs_twice_is_found_at_any_depth(names: list[str], depth: int) -> None:
    fields = ",".join(f"{json.dumps(name)}:0" for name in names)
    body = ('{"x":[' * depth + "{" + fields + "}" + "]}" * depth).encode()
    if len(set(names)) == len(names):
        parse_object(body, count_json(body, 1_000))
        return
    with pytest.raises(RefusedError) as refusal:
        parse_object(body, count_json(body, 1_000))
    assert refusal.value.problem.code == "duplicate_key"
    assert refusal.value.problem.param in names


def test_the_most_values_and_keys_are_allowed_and_one_more_is_not() -> None:
    most = b'{"a":[' + b"1," * 997 + b"1]}"
    assert count_json(most, 999).values == 999
    with pytest.raises(RefusedError, match="999"):
        count_json(most.replace(b"[", b"[1,"), 999)
    keys = b",".join(b'"%d":1' % number for number in range(MAX_KEYS))
    assert count_json(b"{" + keys + b"}", 1 << 20).keys == MAX_KEYS
    with pytest.raises(RefusedError, match="keys"):
        count_json(b'{"x":1,' + keys + b"}", 1 << 20)


def test_a_body_may_hold_what_fills_the_context_and_no_more_than_that_needs() -> None:
    assert body_limits(None, None).max_bytes == LARGEST_BODY_BYTES
    assert body_limits(2_048, 2_048 * 13).max_bytes == SMALLEST_BODY_BYTES
    assert body_limits(8_192, 8_192 * 64).max_bytes >= 6 * 8_192 * 64
    assert body_limits(1 << 20, (1 << 20) * 128).max_bytes == LARGEST_BODY_BYTES
    for context in (16, 2_048, 131_072, 1 << 20):
        assert body_limits(context, None).max_values > context
    assert body_limits(None, None).max_values > 131_072


def test_an_error_can_be_written_whatever_it_quotes() -> None:
    content = json.loads(error_body(Problem(404, "x", "The model 'a\ud800' does not exist.", "b\udcff", "c")))
    assert content["error"]["message"] == "The model 'a?' does not exist."
    assert content["error"]["param"] == "b?"
