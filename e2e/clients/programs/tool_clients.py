"""Calls of tools that the request demands, as three libraries ask for them."""

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import instructor
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    """What is to be told of an animal. Nothing else: the model was never told when to stop."""

    model_config = ConfigDict(extra="forbid")

    animal: Literal["fox", "owl"]
    is_old: bool


url, question = f"{sys.argv[1]}/v1", sys.argv[2]
client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
messages: Any = [{"role": "user", "content": question}]
SCHEMA: Any = Verdict.model_json_schema()
TOOL: Any = {"name": "Verdict", "description": "Tells of an animal."}


def langchain() -> Any:
    chat = ChatOpenAI(model="tiny", base_url=url, api_key="unused", max_retries=0, temperature=0)
    [call] = chat.bind_tools([Verdict], tool_choice="any", parallel_tool_calls=False).invoke(question).tool_calls
    return Verdict(**call["args"])


def with_instructor() -> Any:
    found = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    return found.create(model="tiny", messages=messages, response_model=Verdict, max_retries=0, temperature=0)


def responses() -> Any:
    """A call, and its result put back."""
    tools: Any = [{"type": "function", "parameters": SCHEMA, "strict": True, **TOOL}]
    asked: Any = {"model": "tiny", "tools": tools, "parallel_tool_calls": False, "temperature": 0}
    with client.responses.stream(**asked, input=question, tool_choice="required") as stream:
        item: Any = stream.get_final_response().output[0]
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "It is."}
    items: Any = [*messages, {key: getattr(item, key) for key in ("type", "call_id", "name", "arguments")}, result]
    client.responses.create(**asked, input=items, tool_choice="none", max_output_tokens=4)
    return Verdict.model_validate_json(item.arguments)


ways: tuple[Callable[[], Any], ...] = (langchain, with_instructor, responses)
print(json.dumps({way.__name__: isinstance(way(), Verdict) for way in ways}))
