"""Formats and tools in a batch: answers keep to them as over HTTP, and a definition that cannot be kept is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from baton_local.__main__ import main
from baton_testing.engine import tiny_llama

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "owl"]}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["animal", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {"name": "look", "parameters": SCHEMA, "strict": True}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
REQUESTS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": FORMAT},
    "object": {"response_format": {"type": "json_object"}},
    "expression": {"structured_outputs": {"regex": "[a-c]{3}"}},
    "choice": {"guided_choice": ["yes", "no"]},
    "demanded": {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    "demanded with a schema": {
        "tools": [TOOL], "tool_choice": "required", "response_format": FORMAT, "parallel_tool_calls": False,
    },
    "either": {"tools": [TOOL], "response_format": FORMAT},
    "either, strict": {"tools": [STRICT], "response_format": FORMAT},
    "forbidden": {"tools": [TOOL], "tool_choice": "none", "response_format": FORMAT},
    "unknown": {"guided_regex": "(?=a)"},
    "recursion": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#"}}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("batch")
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "tiny", "messages": [{"role": "user", "content": "An animal?"}], "max_tokens": 900, **fields,
            },
        }
        for name, fields in REQUESTS.items()
    ]  # fmt: skip
    (folder / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    flags = ["--kv-cache-bytes", str(32 << 20), "--max-sequences", "16", "--model", str(tiny_llama.FOLDER)]
    assert main(["batch", str(folder / "in"), str(folder / "out"), "--served-name", "tiny", *flags]) == 0
    written = [json.loads(line) for line in (folder / "out").read_text().splitlines()]
    return {line["custom_id"]: line["response"] for line in written}


def message(responses: dict[str, Any], name: str) -> dict[str, Any]:
    assert responses[name]["status_code"] == 200, responses[name]
    [choice] = responses[name]["body"]["choices"]
    read: dict[str, Any] = choice["message"]
    return read


def test_texts_of_a_batch_keep_to_their_formats(responses: dict[str, Any]) -> None:
    for name in ("schema", "forbidden"):
        jsonschema.validate(json.loads(message(responses, name)["content"]), SCHEMA)
    assert message(responses, "object")["content"].startswith("{")
    assert set(message(responses, "expression")["content"]) <= set("abc")
    assert message(responses, "choice")["content"] in ("yes", "no")


@pytest.mark.parametrize("name", ["demanded", "demanded with a schema"])
def test_a_call_that_a_batch_demands_comes(responses: dict[str, Any], name: str) -> None:
    for call in message(responses, name)["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


@pytest.mark.parametrize("name", ["either", "either, strict"])
def test_tools_beside_a_schema_give_calls_or_the_schema(responses: dict[str, Any], name: str) -> None:
    read = message(responses, name)
    if calls := read.get("tool_calls"):
        assert [call["function"]["name"] for call in calls] == ["look"] * len(calls)
    else:
        jsonschema.validate(json.loads(read["content"]), SCHEMA)


@pytest.mark.parametrize("name", ["unknown", "recursion"])
def test_what_no_grammar_can_follow_is_refused_in_its_line(responses: dict[str, Any], name: str) -> None:
    assert responses[name]["status_code"] == 400
    assert responses[name]["body"]["error"]["code"] == "invalid_schema"
