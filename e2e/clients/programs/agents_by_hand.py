"""Loops of calls by the official clients: parsed messages resent, and requests as Claude Code and Codex write them."""

import json
from typing import Any

import anthropic
import openai
from addition_task import LIMIT, SCHEMA, Task, Total, add, endpoint, run, url

TOOL: Any = {
    "type": "function",
    "function": {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA, "strict": True},
}  # fmt: skip


def parsed(task: Task) -> Any:
    """The official client's parsed messages, sent back as they are."""
    client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": task.question}]
    for turn in range(LIMIT):
        asked: Any = {"model": "scripted", "messages": messages, "tools": [TOOL], "response_format": Total}
        if turn % 2:
            with client.chat.completions.stream(**asked) as stream:
                message: Any = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.parse(**asked).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.parsed
        messages += [_result(call) for call in message.tool_calls]
    return None


def _result(call: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": str(add(**json.loads(call.function.arguments)))}


def as_claude_code(task: Task) -> Any:
    """Requests as Claude Code's: marks for the cache, a system message behind the user's, tools of all kinds."""
    client = anthropic.Anthropic(base_url=endpoint, api_key="unused", max_retries=0)
    mark: Any = {"cache_control": {"type": "ephemeral"}}
    tools: Any = [
        {"name": "add", "description": "Add two numbers.", "input_schema": SCHEMA, **mark},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ]
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": task.question, **mark}]},
        {"role": "system", "content": "The date is today."},
    ]
    system: list[Any] = [{"type": "text", "text": "You add.", **mark}]
    for _ in range(LIMIT):
        with client.messages.stream(
            model="scripted", max_tokens=400, system=system, tools=tools,
            messages=messages, metadata={"user_id": "u"},
        ) as stream:  # fmt: skip
            message: Any = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        if message.stop_reason != "tool_use":
            return Total.model_validate_json(message.content[-1].text)
        results = [
            {
                "type": "tool_result",
                "tool_use_id": block.id,
                "content": [{"type": "text", "text": str(add(**block.input))}],
            }
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results})
    return None


def as_codex(task: Task) -> Any:
    """Requests as Codex's: developer items, a shell, a patch tool, a namespace, a hosted search, and metadata."""
    client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
    tools: Any = [
        {"type": "function", "name": "add", "description": "Add two numbers.", "strict": False, "parameters": SCHEMA},
        {"type": "local_shell"},
        {"type": "custom", "name": "apply_patch", "description": "Edit files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "mcp__notes", "description": "Notes.",
         "tools": [{"type": "function", "name": "list", "parameters": {"type": "object"}}]},
    ]  # fmt: skip
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandboxed."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": task.question}]},
    ]
    for _ in range(LIMIT):
        stream = client.responses.create(
            model="scripted", instructions="You are a coding agent.", input=items, tools=tools, tool_choice="auto",
            parallel_tool_calls=True, store=False, stream=True, include=["reasoning.encrypted_content"],
            prompt_cache_key="k", extra_body={"client_metadata": {"turn": "1"}},
            text={"format": {"type": "json_schema", "name": "total", "schema": Total.model_json_schema()}},
        )  # fmt: skip
        last: Any = list(stream)[-1]
        done = last.response
        items += [item.to_dict() for item in done.output]
        made = [item for item in done.output if item.type == "function_call"]
        if not made:
            return Total.model_validate_json(done.output_text)
        items += [
            {"type": "function_call_output", "call_id": call.call_id, "output": str(add(**json.loads(call.arguments)))}
            for call in made
        ]
    return None


run(parsed=parsed, as_claude_code=as_claude_code, as_codex=as_codex)
