"""Agents do a whole task against a model that follows a script: ten calls, and a schema at the end.

The answers are known, so a call that gets lost, an argument that changes or an answer beside the schema shows.
"""

from __future__ import annotations

import json

import pytest
from e2e.clients.runs import Clients

from baton_testing.engine.scripted_model import script, tokens_for

TURNS = 10
CALLS = [[turn, turn * turn] for turn in range(1, TURNS + 1)]
TOTAL = {"total": sum(map(sum, CALLS)), "note": None}


def call(name: str, **arguments: object) -> str:
    """A call as Hermes and Qwen write it, with its marks as tokens."""
    return tokens_for(f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")


QUESTION = "Add them. " + script(*(call("add", a=a, b=b) for a, b in CALLS), json.dumps(TOTAL))


@pytest.mark.parametrize("name", ["agents_openai", "agents_pydantic_ai", "agents_litellm", "agents_by_hand"])
def test_an_agent_makes_ten_calls_and_ends_with_its_schema(scripted: Clients, name: str) -> None:
    for way, (total, calls) in scripted.program(name, QUESTION).items():
        assert (total, calls) == (TOTAL, CALLS), way
