"""Anthropic's own client with tools: each `tool_choice`, streamed, results put back, and an answer that was begun."""

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
question: Any = [{"role": "user", "content": sys.argv[2]}]


def tool(name: str, **properties: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"name": name, "description": f"What {name} does.", "input_schema": schema, "strict": True}


TOOLS = [
    tool("look", city={"enum": ["Rome", "Oslo"]}),
    tool("count", to={"type": "integer", "minimum": 0, "maximum": 99}),
]
ASKED: Any = {
    "model": "tiny", "max_tokens": 300, "tools": TOOLS, "messages": question, "extra_body": {"temperature": 0}
}  # fmt: skip
CITIES: Any = ({"city": "Rome"}, {"city": "Oslo"})
ONE: Any = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}


def named() -> bool:
    message = client.messages.create(**ASKED, tool_choice=ONE)
    [block] = message.content
    return message.stop_reason == "tool_use" and block.type == "tool_use" and bool(block.input in CITIES)


def any_of_them() -> bool:
    message = client.messages.create(**ASKED | {"max_tokens": 1_200}, tool_choice={"type": "any"})
    blocks = [block for block in message.content if block.type == "tool_use"]
    return len(blocks) == len(message.content) >= 1 and {block.name for block in blocks} <= {"look", "count"}


def none() -> bool:
    message = client.messages.create(**ASKED | {"max_tokens": 8}, tool_choice={"type": "none"})
    return all(block.type == "text" for block in message.content) and message.stop_reason != "tool_use"


def auto() -> bool:
    """The model was never trained on tools: any answer will do, if it ends as its blocks say."""
    message = client.messages.create(**ASKED | {"max_tokens": 40}, tool_choice={"type": "auto"})
    return bool(message.stop_reason != "tool_use") or any(block.type == "tool_use" for block in message.content)


def streamed() -> bool:
    """Pieces of JSON, which together are the input; the same as the whole answer."""
    whole = client.messages.create(**ASKED, tool_choice=ONE)
    pieces, kinds = "", []
    with client.messages.stream(**ASKED, tool_choice=ONE) as stream:
        for event in stream:
            kinds.append(event.type)
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                pieces += event.delta.partial_json
        final = stream.get_final_message()
    [block], [whole_block] = final.content, whole.content
    assert block.type == whole_block.type == "tool_use"
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", whole.usage.output_tokens)
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    return bool(json.loads(pieces) == block.input == whole_block.input)


def answered() -> bool:
    """The tool's result in both forms, and as a failure, is accepted."""
    message = client.messages.create(**ASKED, tool_choice=ONE)
    [block] = message.content
    assert block.type == "tool_use"
    for content in ("sunny", [{"type": "text", "text": "sunny"}], None):
        result: Any = {"type": "tool_result", "tool_use_id": block.id, "is_error": content is None}
        result |= {} if content is None else {"content": content}
        turns: Any = [
            *question,
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": [result]},
        ]
        asked = ASKED | {"messages": turns, "max_tokens": 4}
        if client.messages.create(**asked, tool_choice={"type": "none"}).type != "message":
            return False
    return True


def begun() -> bool:
    """An answer that goes on from where the client began it: the pieces are the rest of one answer."""
    asked = {key: value for key, value in ASKED.items() if key != "tools"} | {"max_tokens": 60}
    text = "".join(block.text for block in client.messages.create(**asked).content if block.type == "text")
    start, rest = text[:12].rstrip(), ""
    turns: Any = [*question, {"role": "assistant", "content": start}]
    with client.messages.stream(**asked | {"messages": turns}) as stream:
        rest = "".join(stream.text_stream)
    return bool(start) and (start + rest).startswith(text[:24])


ways: tuple[Callable[[], bool], ...] = (named, any_of_them, none, auto, streamed, answered, begun)
print(json.dumps({way.__name__: way() for way in ways}))
