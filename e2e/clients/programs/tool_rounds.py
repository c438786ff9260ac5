"""Rounds of tool calls and their results, by two official clients, every second round streamed."""

import json
import sys
from typing import Any

import anthropic
import openai

endpoint, question, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
SCHEMA: Any = {
    "type": "object", "properties": {"a": {"enum": [1, 2, 3]}, "b": {"enum": [1, 2, 3]}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip


def total(given: Any) -> str:
    assert set(given) == {"a", "b"}
    assert set(given.values()) <= {1, 2, 3}
    return str(given["a"] + given["b"])


def with_openai() -> int:
    client = openai.OpenAI(base_url=f"{endpoint}/v1", api_key="unused", max_retries=0)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA, "strict": True}}
    messages: list[Any] = [{"role": "user", "content": question}]
    asked: Any = {"model": "tiny", "tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    for number in range(rounds):
        asked |= {"messages": messages, "temperature": 1, "seed": number}
        if number % 2:
            with client.chat.completions.stream(**asked) as stream:
                choice: Any = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**asked).choices[0]
        [call] = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
        result = {"role": "tool", "tool_call_id": call.id, "content": total(json.loads(call.function.arguments))}
        messages += [choice.message.model_dump(exclude_none=True), result]
        for tool_call in messages[-2]["tool_calls"]:
            tool_call["function"].pop("parsed_arguments", None)
    return len(messages) // 2


def with_anthropic() -> int:
    client = anthropic.Anthropic(base_url=endpoint, api_key="unused", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": question}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked: Any = {"model": "tiny", "max_tokens": 400, "tool_choice": choice}
    asked["tools"] = [{"name": "add", "input_schema": SCHEMA, "strict": True}]
    for number in range(rounds):
        asked |= {"messages": messages}
        if number % 2:
            with client.messages.stream(**asked) as stream:
                message: Any = stream.get_final_message()
        else:
            message = client.messages.create(**asked)
        [block] = message.content
        assert message.stop_reason == "tool_use", message
        result = {"type": "tool_result", "tool_use_id": block.id, "content": total(block.input)}
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    return len(messages) // 2


print(json.dumps({"openai": with_openai(), "anthropic": with_anthropic()}))
