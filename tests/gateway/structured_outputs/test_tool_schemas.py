"""Schemas of real tools, as their packages define them: taken as they are, and what is drawn is valid."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.grammar_builder import compile_format
from baton_gateway.structured_outputs.json_schema import Enforcement
from baton_gateway.structured_outputs.output_format import composed_format, json_format, named_schema
from baton_testing.gateway.grammar_draws import draw

TOOLS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "tool_schemas.json").read_text())["tools"]
TOO_COMPLEX = {"firecrawl_search"}
"""A pattern of host names together with `maxLength` is more than the compiler's bound."""


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["name"])
def test_a_real_tool_is_taken_and_its_arguments_are_valid(tool: dict[str, Any]) -> None:
    *_, result = compile_format(json_format(tool["schema"], "f", is_strict=True))
    if tool["name"] in TOO_COMPLEX:
        assert "Unable to determine" in result.message
        return
    is_whole = result.grammar is not None
    if not is_whole:
        assert "'strict' has these formats" in result.message
        named = named_schema(tool["schema"], "f", Enforcement.SUPPORTED, rule="start")
        *_, result = compile_format(composed_format("", [named], "f"))
        is_whole = all(place.endswith("/format") for place in result.ignored)
    assert result.grammar is not None, result.message
    text = draw(random.Random(tool["name"]), result.grammar)
    if is_whole:
        jsonschema.validate(json.loads(text), tool["schema"])


def test_a_schema_that_cannot_be_kept_would_show() -> None:
    tool = {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}
    with pytest.raises((RefusedError, AssertionError)):
        test_a_real_tool_is_taken_and_its_arguments_are_valid({"name": "x", "schema": tool})
