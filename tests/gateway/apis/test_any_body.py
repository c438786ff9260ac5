"""Whatever stands in a body of another API: a chat comes of it, or a refusal that names a field. Nothing else."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from baton_gateway.apis.messages_answer import message_error_body
from baton_gateway.apis.messages_request import parse_message
from baton_gateway.apis.responses_answer import response_error_body
from baton_gateway.apis.responses_request import parse_response
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.openai_api.openai_types import ChatRequest

TEXT = {"type": "text", "text": ""}
CALL = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}
MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 8,
    "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": ""}, CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}]},
    ],
    "tools": [{"name": "f", "description": "x", "input_schema": {"type": "object"}, "strict": False}],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 4},
    "output_config": {"effort": "low"},
    "stop_sequences": ["x"],
}  # fmt: skip
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "instructions": "x",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}], "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
}
VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, 2**63, "", "x", "tool_use", "reasoning", "text", [], {}, [[]], [{}],
    {"type": "text"}, [None], ["x"], {"a": {}}, [{"type": "text", "text": "x"}], {"type": []}, {"type": {}},
]  # fmt: skip
NAMES = ("type", "text", "content", "role", "id", "name", "input", "n", "", "cache_control", "arguments")


def spoilt(body: Any, dice: random.Random) -> Any:
    """The body with something in it replaced, removed or added."""
    place: Any = copy.deepcopy(body)
    whole = place
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return whole
        key = dice.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and dice.random() < 0.75:
            place = place[key]
            continue
        match dice.randrange(3):
            case 0:
                place[key] = copy.deepcopy(dice.choice(VALUES))
            case 1:
                del place[key]
            case _ if isinstance(place, dict):
                place[dice.choice(NAMES)] = copy.deepcopy(dice.choice(VALUES))
            case _:
                place.insert(key, copy.deepcopy(dice.choice(VALUES)))
        return whole


def problem_of(parse: Callable[[dict[str, Any]], ChatRequest], body: dict[str, Any]) -> Problem | None:
    try:
        parse(body)
    except RefusedError as refusal:
        return refusal.problem
    return None


@pytest.mark.parametrize(
    ("good", "parse", "told"),
    [
        (MESSAGE, parse_message, message_error_body),
        (RESPONSE, lambda raw: parse_response(raw)[0], response_error_body),
    ],
)
def test_a_spoilt_body_makes_a_chat_or_a_refusal(
    good: dict[str, Any], parse: Callable[[dict[str, Any]], ChatRequest], told: Callable[[Any, str], bytes]
) -> None:
    assert isinstance(parse(good), ChatRequest)
    dice = random.Random(5)
    refused = 0
    for _ in range(6_000):
        body = good
        for _ in range(dice.choice((1, 1, 2, 4))):
            body = spoilt(body, dice)
        before = copy.deepcopy(body)
        problem = problem_of(parse, body)
        assert problem is None or (problem.status == 400 and told(problem, "req-1"))
        refused += problem is not None
        assert body == before, "a parser changes nothing"
    assert 1_000 < refused < 5_900
