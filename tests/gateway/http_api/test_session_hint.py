"""A session that a client names tells equal workers apart; whatever the name is, it costs a number."""

from __future__ import annotations

import pytest

from baton_gateway.http_api.session_hint import SESSION_HEADERS, session_number
from baton_gateway.openai_api.openai_types import parse_chat

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_without_a_name_there_is_no_session() -> None:
    assert session_number({}, "", "a") is None
    assert session_number({"X-Session-Id": ""}, "", "a") is None


@pytest.mark.parametrize("header", SESSION_HEADERS)
def test_each_header_names_a_session_within_its_tenant(header: str) -> None:
    number = session_number({header: "one"}, "", "a")
    assert number == session_number({header: "one"}, "other key", "a")
    assert len({number, session_number({header: "two"}, "", "a"), session_number({header: "one"}, "", "b")}) == 3


@pytest.mark.parametrize("name", ["x" * 10_000, "\ud800", "é\n", '"', "0"])
def test_any_name_becomes_a_number_of_64_bits(name: str) -> None:
    number = session_number({"X-Session-Id": name}, "", "a")
    assert number is not None
    assert 0 <= number < 1 << 64
    assert session_number({}, name, "a") == number


def test_a_million_names_leave_nothing_behind() -> None:
    numbers = {session_number({"X-Session-Id": str(name)}, "", "a") for name in range(10_000)}
    assert len(numbers) == 10_000, "and no two of them are alike"


@pytest.mark.parametrize(("key", "expected"), [("run-7", "run-7"), (7, ""), (None, ""), (["x"], "")])
def test_the_bodys_key_is_a_hint_and_nothing_else_is_refused_for_it(key: object, expected: str) -> None:
    assert parse_chat(dict(CHAT, prompt_cache_key=key)).options.prompt_cache_key == expected
