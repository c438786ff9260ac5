"""Thoughts, texts and calls in the forms of other APIs: the official clients put a stream together to the whole answer,
however its parts were cut.
"""

from __future__ import annotations

import json
from typing import Any, cast

import anthropic
import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.apis.messages_answer import MESSAGES, UNPARSED
from baton_gateway.apis.responses_answer import ResponsesForm
from baton_gateway.apis.responses_request import parse_response
from baton_gateway.openai_api.answer_forms import AnswerForm
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.openai_types import ApiEndpoint
from baton_gateway.openai_api.response_encoding import AnswerHead, FinishedChoice, ResponseHead, Usage

HEAD = ResponseHead(ApiEndpoint.CHAT, "chatcmpl-0123456789ab", 1, "tiny", "fp_x")
ANSWER = AnswerHead(HEAD, cast(Any, None), 1, False, False, 7, False)
USAGE = Usage(7, 11)
ARGUMENTS = '{"city": "Zürich", "days": [1, 2]}'
WEATHER: list[AnswerPart] = [CallPart(0, "call_1", "weather"), ArgumentsPart(0, ARGUMENTS)]
CASES: dict[str, list[AnswerPart]] = {
    "text": [ContentPart("Hello \U0001f600")],
    "nothing": [],
    "thoughts and text": [ReasoningPart("Hm.\n"), ContentPart("42")],
    "thoughts alone": [ReasoningPart("Hm")],
    "a call": WEATHER,
    "text and a call": [ContentPart("I look."), *WEATHER],
    "thoughts and two calls": [
        ReasoningPart("Both."), *WEATHER, CallPart(1, "call_2", "clock"), ArgumentsPart(1, "{}"),
    ],
    "a call without arguments": [CallPart(0, "call_1", "clock")],
}  # fmt: skip
_, FORM = parse_response({"model": "tiny", "input": "x"})


def finish_of(parts: list[AnswerPart]) -> str:
    return "tool_calls" if any(isinstance(part, CallPart) for part in parts) else "stop"


def whole(form: AnswerForm, parts: list[AnswerPart], finish: str) -> dict[str, Any]:
    answer = CollectedMessage()
    answer.add(parts)
    choice = FinishedChoice(answer, None, finish)
    return dict(json.loads(b"".join(form.body(ANSWER, [choice], USAGE))))


def streamed(form: AnswerForm, parts: list[AnswerPart], finish: str) -> bytes:
    writer = form.writer(ANSWER)
    events = [writer.beginning(0), *(writer.part(0, part) for part in parts), writer.finish(0, finish, None)]
    return b"".join(piece for event in [*events, writer.closing(USAGE)] for piece in event)


def transport(stream: bytes) -> httpx2.Client:
    """A client that is answered with these bytes, whatever it asks."""
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(200, headers=headers, content=stream))
    )


def read_by_anthropic(stream: bytes) -> dict[str, Any]:
    client = anthropic.Anthropic(api_key="x", base_url="http://test", http_client=transport(stream), max_retries=0)
    message: Any = {"role": "user", "content": "x"}
    with client.messages.stream(model="tiny", max_tokens=8, messages=[message]) as found:
        told = found.get_final_message().to_dict()
    told.pop("stop_details", None)
    return dict(told)


def read_by_openai(stream: bytes) -> dict[str, Any]:
    client = openai.OpenAI(api_key="x", base_url="http://test", http_client=transport(stream), max_retries=0)
    with client.responses.stream(model="tiny", input="x") as found:
        last = [event for event in found][-1]
    assert last.type in ("response.completed", "response.incomplete")
    told = last.response.to_dict()
    for item in cast(list[dict[str, Any]], told["output"]):
        item.pop("parsed_arguments", None)
        for part in item.get("content", []):
            part.pop("parsed", None)
    return dict(told)


def cut(parts: list[AnswerPart], size: int) -> list[AnswerPart]:
    """Every text in pieces of this many characters."""
    found: list[AnswerPart] = []
    for part in parts:
        if isinstance(part, CallPart):
            found.append(part)
            continue
        for start in range(0, len(part.text), size):
            piece = part.text[start : start + size]
            found.append(ArgumentsPart(part.number, piece) if isinstance(part, ArgumentsPart) else type(part)(piece))
    return found


@pytest.mark.parametrize("size", [1, 3, 1_000])
@pytest.mark.parametrize("name", list(CASES))
def test_a_stream_put_together_is_the_whole_answer(name: str, size: int) -> None:
    parts, finish = CASES[name], finish_of(CASES[name])
    assert read_by_anthropic(streamed(MESSAGES, cut(parts, size), finish)) == whole(MESSAGES, parts, finish)
    assert read_by_openai(streamed(FORM, cut(parts, size), finish)) == whole(FORM, parts, finish)


def test_what_the_whole_answers_are() -> None:
    parts = CASES["thoughts and two calls"]
    message = whole(MESSAGES, parts, "tool_calls")
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "thinking", "thinking": "Both.", "signature": ""},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": json.loads(ARGUMENTS)},
        {"type": "tool_use", "id": "call_2", "name": "clock", "input": {}},
    ]
    response = whole(FORM, parts, "tool_calls")
    assert response["status"] == "completed"
    told = [(item["type"], item.get("call_id"), item.get("arguments")) for item in response["output"]]
    assert told == [
        ("reasoning", None, None), ("function_call", "call_1", ARGUMENTS), ("function_call", "call_2", "{}"),
    ]  # fmt: skip


def test_a_call_that_was_cut_loses_nothing_and_says_so() -> None:
    parts: list[AnswerPart] = [CallPart(0, "call_1", "weather"), ArgumentsPart(0, '{"city": "Zü')]
    message = whole(MESSAGES, parts, "length")
    assert (message["stop_reason"], message["content"][0]["input"]) == ("max_tokens", {UNPARSED: '{"city": "Zü'})
    response = read_by_openai(streamed(FORM, parts, "length"))
    assert response == whole(FORM, parts, "length")
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")


def test_calls_resent_as_they_came_are_the_same_chat() -> None:
    """An assistant's items of one turn are one message of it, with what its tools said behind."""
    answer = whole(FORM, CASES["thoughts and two calls"], "tool_calls")["output"]
    results = [{"type": "function_call_output", "call_id": f"call_{n}", "output": f"sunny {n}"} for n in (1, 2)]
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("weather", "clock")]
    asked = {"model": "tiny", "input": [{"role": "user", "content": "x"}, *answer, *results], "tools": tools}
    chat, _ = parse_response(asked)
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "tool"]
    turn = chat.messages[1]
    assert (turn["reasoning_content"], turn["content"]) == ("Both.", "")
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["weather", "clock"]
    assert turn["tool_calls"][0]["function"]["arguments"] == json.loads(ARGUMENTS)
    assert [message["content"] for message in chat.messages[2:]] == ["sunny 1", "sunny 2"]


PIECES = st.one_of(
    st.text(max_size=5).map(ContentPart),
    st.text(max_size=5).map(ReasoningPart),
    st.text(max_size=5).map(lambda text: ("arguments", text)),
    st.just(("call", "")),
)


@given(st.lists(PIECES, max_size=12), st.sampled_from(["stop", "length"]))
def test_any_order_of_parts_makes_events_that_close_what_they_open(pieces: list[Any], finish: str) -> None:
    parts: list[AnswerPart] = []
    calls = 0
    for piece in pieces:
        match piece:
            case ("call", _):
                parts.append(CallPart(calls, f"call_{calls}", "f"))
                calls += 1
            case ("arguments", text):
                if parts and isinstance(parts[-1], CallPart | ArgumentsPart):
                    parts.append(ArgumentsPart(calls - 1, text))
            case _:
                parts.append(piece)
    message = _events(streamed(MESSAGES, parts, finish))
    opened = [event["index"] for event in message if event["type"] == "content_block_start"]
    assert opened == [event["index"] for event in message if event["type"] == "content_block_stop"]
    assert opened == list(range(len(opened)))
    response = _events(streamed(FORM, parts, finish))
    added = [event["item"]["id"] for event in response if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in response if event["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in done]
    assert response[-1]["response"]["output"] == done
    assert [event["sequence_number"] for event in response] == list(range(len(response)))


def _events(stream: bytes) -> list[dict[str, Any]]:
    found = stream.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(event.split("\n")[1].removeprefix("data: ")) for event in found]


def test_a_form_is_one_requests_own() -> None:
    assert isinstance(FORM, ResponsesForm)
    assert parse_response({"model": "x", "input": "x", "metadata": {"a": "b"}})[1].echo != FORM.echo
