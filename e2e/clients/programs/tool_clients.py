"""Calls of tools that the request demands, as four libraries ask for them."""

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import instructor
import openai
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    """The answer about an animal. No further fields: the model was never trained to stop."""

    model_config = ConfigDict(extra="forbid")

    animal: Literal["fox", "owl"]
    is_old: bool


url, question = f"{sys.argv[1]}/v1", sys.argv[2]
client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
chat = ChatOpenAI(model="tiny", base_url=url, api_key="unused", max_retries=0, temperature=0)
messages: Any = [{"role": "user", "content": question}]
SCHEMA: Any = Verdict.model_json_schema()
TOOL: Any = {"name": "Verdict", "description": "Describes an animal."}
ASKED: Any = {
    "model": "tiny", "temperature": 0, "messages": messages, "tools": [openai.pydantic_function_tool(Verdict)],
    "tool_choice": "required",
}  # fmt: skip


def langchain() -> Any:
    """A call, its pieces, and its result put back."""
    bound = chat.bind_tools([Verdict], tool_choice="any", parallel_tool_calls=False)
    whole = bound.invoke(question)
    [call] = whole.tool_calls
    pieces = AIMessageChunk(content="")
    for piece in bound.stream(question):
        assert isinstance(piece, AIMessageChunk)
        pieces += piece
    assert [tool_call["args"] for tool_call in pieces.tool_calls] == [call["args"]]
    chat.bind(max_tokens=4).invoke([HumanMessage(question), whole, ToolMessage("It is.", tool_call_id=call["id"])])
    return Verdict(**call["args"])


def langchain_structured() -> Any:
    return chat.with_structured_output(Verdict, method="function_calling").invoke(question)


def with_instructor() -> Any:
    patched = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    return patched.create(model="tiny", messages=messages, response_model=Verdict, max_retries=0, temperature=0)


def parsed() -> Any:
    """Several calls, which the client parses by itself."""
    choice = client.chat.completions.parse(**ASKED).choices[0]
    assert choice.finish_reason == "tool_calls"
    values = [call.function.parsed_arguments for call in choice.message.tool_calls or []]
    assert all(isinstance(value, Verdict) for value in values)
    return values[0]


def streamed() -> Any:
    """The stream's helper reports each call when it is complete."""
    done: list[Any] = []
    with client.chat.completions.stream(**ASKED, parallel_tool_calls=False) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                done.append(event.parsed_arguments)
        final = stream.get_final_completion().choices[0]
    [call] = final.message.tool_calls or []
    assert [call.function.parsed_arguments] == done
    assert final.finish_reason == "tool_calls"
    return done[0]


def responses() -> Any:
    """A call, its events, and its result put back."""
    tools: Any = [{"type": "function", "parameters": SCHEMA, "strict": True, **TOOL}]
    asked: Any = {"model": "tiny", "tools": tools, "parallel_tool_calls": False, "temperature": 0}
    pieces, done = "", ""
    with client.responses.stream(**asked, input=question, tool_choice="required") as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                pieces += event.delta
            if event.type == "response.function_call_arguments.done":
                done = event.arguments
        item: Any = stream.get_final_response().output[0]
    assert pieces == done == item.arguments
    result = {"type": "function_call_output", "call_id": item.call_id, "output": "It is."}
    items: Any = [*messages, item.to_dict(), result]
    items[1].pop("parsed_arguments", None)
    client.responses.create(**asked, input=items, tool_choice="none", max_output_tokens=4)
    return Verdict.model_validate_json(item.arguments)


ways: tuple[Callable[[], Any], ...] = (
    langchain, langchain_structured, with_instructor, parsed, streamed, responses,
)  # fmt: skip
print(json.dumps({way.__name__: isinstance(way(), Verdict) for way in ways}))
