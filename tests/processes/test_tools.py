"""Tools through real processes: calls that must come, and twenty rounds of calls, by the official client."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from baton_testing.engine import tiny_llama
from baton_testing.gateway.made_tokenizers import TOOL_TEMPLATE
from baton_testing.processes.deployment import Shape

pytestmark = pytest.mark.processes

ROUNDS = 20
ADD: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": [1, 2, 3]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
SCHEMAS = {"add": ADD, "look": LOOK}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    """tiny-llama with a template that knows tools; its weights were never trained with any."""
    return Shape(model=tiny_llama.with_template(tmp_path_factory.mktemp("model") / "tiny-tools", TOOL_TEMPLATE))


def check(call: Any) -> None:
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look"}}], ids=str)
def test_a_call_that_must_come_comes_and_is_valid(client: openai.OpenAI, choice: Any, temperature: float) -> None:
    asked: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Tell me about owls."}], "tools": TOOLS}
    asked |= {"tool_choice": choice, "temperature": temperature, "seed": 7, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    [call] = whole.message.tool_calls or []
    check(call)
    assert choice == "required" or call.function.name == "look"
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion().choices[0]
    [streamed] = final.message.tool_calls or []
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)


def test_twenty_rounds_of_calls_and_what_the_tools_said(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Add."}]
    for number in range(ROUNDS):
        reply = client.chat.completions.create(
            model="tiny",
            messages=messages,
            tools=TOOLS,
            tool_choice={"type": "function", "function": {"name": "add"}},
            temperature=1,
            seed=number,
        )
        [call] = reply.choices[0].message.tool_calls or []
        assert call.type == "function"
        check(call)
        arguments = json.loads(call.function.arguments)
        messages += [
            reply.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": str(arguments["a"] + arguments["b"])},
        ]
    assert len(messages) == 1 + 2 * ROUNDS
