"""Answers in the shape of a type, as four libraries ask for it."""

import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import instructor
import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict


class Verdict(BaseModel):
    """The answer about an animal. No further fields: the model was never trained to stop."""

    model_config = ConfigDict(extra="forbid")

    animal: Literal["fox", "owl"]
    is_old: bool


url = f"{sys.argv[1]}/v1"
client = openai.OpenAI(base_url=url, api_key="unused", max_retries=0)
messages: Any = [{"role": "user", "content": sys.argv[2]}]


def parsed() -> Any:
    return (
        client.chat.completions.parse(model="tiny", temperature=0, messages=messages, response_format=Verdict)
        .choices[0]
        .message.parsed
    )


def streamed() -> Any:
    with client.chat.completions.stream(
        model="tiny", temperature=0, messages=messages, response_format=Verdict
    ) as stream:
        return stream.get_final_completion().choices[0].message.parsed


def responses() -> Any:
    return client.responses.parse(model="tiny", temperature=0, input=sys.argv[2], text_format=Verdict).output_parsed


def langchain() -> Any:
    chat = ChatOpenAI(model="tiny", temperature=0, base_url=url, api_key="unused", max_retries=0)
    return chat.with_structured_output(Verdict, method="json_schema").invoke(sys.argv[2])


def with_instructor() -> Any:
    patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
    return patched.create(model="tiny", temperature=0, messages=messages, response_model=Verdict, max_retries=0)


ways: tuple[Callable[[], Any], ...] = (parsed, streamed, responses, langchain, with_instructor)
print(json.dumps({way.__name__: isinstance(way(), Verdict) for way in ways}))
