"""litellm in front of the endpoint: its objects resent, with its marks for the cache on parts and tools."""

import json
from typing import Any

import litellm
from addition_task import LIMIT, SCHEMA, Task, Total, add, run, url

TOOL: Any = {
    "type": "function", "cache_control": {"type": "ephemeral"},
    "function": {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA, "strict": True},
}  # fmt: skip
FORMAT: Any = {
    "type": "json_schema", "json_schema": {"name": "total", "schema": Total.model_json_schema(), "strict": True},
}  # fmt: skip


def with_litellm(task: Task) -> Any:
    """litellm's objects, with its marks for the cache."""
    part = {"type": "text", "text": task.question, "cache_control": {"type": "ephemeral"}}
    messages: list[Any] = [{"role": "user", "content": [part]}]
    for _ in range(LIMIT):
        answer: Any = litellm.completion(
            model="openai/scripted", api_base=url, api_key="unused", messages=messages, tools=[TOOL],
            response_format=FORMAT,
        )  # fmt: skip
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return Total.model_validate_json(message.content)
        messages += [_result(call) for call in message.tool_calls]
    return None


def _result(call: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": str(add(**json.loads(call.function.arguments)))}


run(with_litellm=with_litellm)
