"""A body of known parts is what it is when it is read whole, and is refused for the same reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.apis.messages_request import parse_message
from baton_gateway.apis.responses_request import parse_response
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.http_api.parsed_part_cache import CACHED_FIELDS, MIN_PART_BYTES, ParsedPartCache, SplitBody
from baton_gateway.openai_api.json_body import MAX_DEPTH, MAX_KEYS, JsonCounts, count_json, parse_object
from baton_gateway.openai_api.openai_fields import UnknownFields
from baton_gateway.openai_api.openai_types import parse_chat, parse_completion

MOST = 50_000
TEXT = st.text(st.sampled_from('"\\:,[]{}/ué😀\n x'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=20,
)
DEFINITIONS = VALUES.map(lambda value: {"type": "x" * MIN_PART_BYTES, 'inner "': value, "list": [[value], "[{,"]})
BODIES = st.builds(
    lambda first, parts, last: {**first, **parts, **last},
    st.dictionaries(TEXT, VALUES, max_size=4),
    st.dictionaries(st.sampled_from(CACHED_FIELDS), DEFINITIONS, min_size=1, max_size=3),
    st.dictionaries(TEXT, VALUES, max_size=4),
)
LONG = json.dumps({"type": "json_schema", "x": ["y" * MIN_PART_BYTES]})


def whole(body: bytes) -> tuple[JsonCounts, dict[str, Any]] | Problem:
    try:
        shape = count_json(body, MOST)
        return shape, parse_object(body, shape)
    except RefusedError as refusal:
        return refusal.problem


def apart(known: ParsedPartCache, body: bytes) -> SplitBody | None:
    """Read twice: the second time all parts are known."""
    known.split(body, MOST)
    return known.split(body, MOST)


@given(BODIES, st.booleans(), st.sampled_from([None, 1]))
def test_a_known_body_is_what_it_is_as_a_whole(body: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode()
    parted = apart(ParsedPartCache(), data)
    assert parted is not None
    assert (parted.counts, parted.read()) == whole(data)
    assert list(parted.read()) == list(body)


@given(BODIES, st.data())
def test_what_is_wrong_with_a_body_is_never_hidden_by_what_is_known_of_it(body: dict[str, Any], data: Any) -> None:
    """Spoilt anywhere: also where its parts are known from the sound one."""
    known, sound = ParsedPartCache(), json.dumps(body).encode()
    apart(known, sound)
    place = data.draw(st.integers(0, len(sound)))
    put = data.draw(st.sampled_from([b"", b'"', b"\\", b"{", b"}", b",", b"[", b"\xff", b"\x00", b'"model":1,']))
    spoilt = sound[:place] + put + sound[place + data.draw(st.integers(0, 2)) :]
    found, expected = apart(known, spoilt), whole(spoilt)
    if found is None:
        return  # it is read whole
    try:
        read = found.counts, found.read()
    except RefusedError:
        assert isinstance(expected, Problem)
    else:
        assert read == expected


@pytest.mark.parametrize(
    "body",
    [
        f'{{"tools":{LONG},"tools":{LONG}}}',
        f'{{"tools":{LONG},"\\u0074ools":{LONG}}}',
        f'{{"model":1,"tools":{LONG},"model":2}}',
        f'{{"tools":{LONG[:-1]},"z":1,"z":2}}}}',
        f'{{"tools":{LONG}}}}}',
        f'[{{"tools":{LONG}}}]',
        f'{{"tools":{LONG[:-1]},"n":NaN}}}}',
    ],
)
def test_keys_that_came_twice_and_broken_bodies_are_left_to_the_whole_reading(body: str) -> None:
    known = ParsedPartCache()
    known.split(f'{{"tools":{LONG}}}'.encode(), MOST)
    assert isinstance(whole(body.encode()), Problem)
    for _ in range(2):
        assert known.split(body.encode(), MOST) is None


def test_bounds_count_the_known_parts_too() -> None:
    known = ParsedPartCache()

    def fits(field: Any, rest: Any, most: int = MOST) -> bool:
        data = json.dumps({"tools": [LONG, field], "rest": rest}).encode()
        sound = True
        try:
            count_json(data, most)
        except RefusedError:
            sound = False
        for _ in range(2):
            assert (known.split(data, most) is not None) == sound
        return sound

    numbers = [1] * 500
    assert fits(numbers, numbers, 1_004)
    assert not fits(numbers, numbers, 1_003)
    keys = {str(number): 1 for number in range(MAX_KEYS // 2 - 1)}
    assert fits(keys, keys)
    assert not fits({**keys, "x": 1}, {**keys, "x": 1})
    deep: Any = 1
    for _ in range(MAX_DEPTH - 2):
        deep = [deep]
    assert fits(deep, 1)
    assert not fits([deep], 1)


def test_short_parts_and_conversations_are_not_kept() -> None:
    known = ParsedPartCache()
    messages = json.dumps({"messages": [LONG], "input": LONG, "prompt": LONG, "tools": [{"name": "x"}]}).encode()
    assert known.split(messages, MOST) is None
    assert known.cached_bytes == 0


def test_what_nobody_sent_for_longest_is_forgotten() -> None:
    known = ParsedPartCache(max_cached_bytes=10 * (MIN_PART_BYTES + 200))

    def send(number: int) -> SplitBody | None:
        return known.split(json.dumps({"tools": [f"{number}", "x" * MIN_PART_BYTES]}).encode(), MOST)

    first = send(0)
    for number in range(1, 40):
        send(number)
        again = send(0)
        assert first is not None
        assert again is not None
        assert again.values["tools"] is first.values["tools"]
        assert 0 < known.cached_bytes <= 10 * (MIN_PART_BYTES + 200)


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x" * MIN_PART_BYTES]}}, "required": ["a"]}
FUNCTION = {"name": "look", "description": "x", "parameters": SCHEMA}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
TEXT_FORM = {"type": "json_schema", "name": "a", "schema": SCHEMA}
MESSAGE_FORM = {"type": "json_schema", "schema": SCHEMA}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, CHAT | {"response_format": FORM}),
        (parse_chat, CHAT | {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}),
        (parse_completion, {"model": "m", "prompt": "x", "structured_outputs": {"json": SCHEMA}}),
        (parse_completion, {"model": "m", "prompt": "x", "guided_json": SCHEMA}),
        (parse_response, {"model": "m", "input": "x", "tools": [FUNCTION | {"type": "function"}]}),
        (
            parse_response,
            {"model": "m", "input": "x", "text": {"format": TEXT_FORM}},
        ),
        (parse_message, CHAT | {"max_tokens": 9, "tools": [{"name": "look", "input_schema": SCHEMA}]}),
        (
            parse_message,
            CHAT | {"max_tokens": 9, "output_config": {"format": MESSAGE_FORM}},
        ),
    ],
)
def test_requests_share_a_known_part_and_none_changes_it(
    parse: Callable[[dict[str, Any], UnknownFields], Any], body: Any
) -> None:
    known, data = ParsedPartCache(), json.dumps(body).encode()
    parts = [apart(known, data) for _ in range(2)]
    for parted in parts:
        assert parted is not None
        parse(parted.read(), UnknownFields.REFUSE)
        assert parted.read() == body
    assert parts[0] is not None
    assert parts[1] is not None
    for name in parts[0].values:
        assert parts[0].values[name] is parts[1].values[name]
