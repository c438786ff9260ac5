"""Answers of OpenAI's `/v1/responses`: a response of items, its events in their order, its errors.

Every event has the next sequence number. An item is added, its parts grow, and it is done. The last event has the whole
response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.apis.chat_body import rename_field
from baton_gateway.apis.response_tools import ClientTool
from baton_gateway.errors import Problem
from baton_gateway.openai_api.answer_forms import EventWriter
from baton_gateway.openai_api.json_pieces import EncodedJson, GrowingText, JsonBytes, json_pieces
from baton_gateway.openai_api.logprob_json import ChatLogprobs, LogprobsJson
from baton_gateway.openai_api.priority_fields import used_tier
from baton_gateway.openai_api.response_encoding import AnswerHead, FinishedChoice, Usage, error_body, message_and_param

_encode = msgspec.json.Encoder().encode

Item = dict[str, Any]

_NAMES = {
    r"messages$": "input",
    r"max_completion_tokens": "max_output_tokens",
    r"max_tokens": "max_output_tokens",
    r"(tools\[\d+\](?:\.tools\[\d+\])?)\.function": r"\1",
    r"tool_choice\.function": "tool_choice",
    r"response_format\.json_schema": "text.format",
    r"response_format": "text.format",
    r"reasoning_effort": "reasoning.effort",
}
"""Names of this API for fields of chats."""


def response_error_body(problem: Problem, request_id: str | None = None) -> bytes:
    """Encode an error in OpenAI's form, with the names of this endpoint's fields."""
    return error_body(rename_field(problem, _NAMES), request_id)


@dataclass(frozen=True, slots=True)
class ResponsesForm:
    """The form of OpenAI's responses: one choice, whose parts are items."""

    echo: Mapping[str, EncodedJson]
    """The request's fields that the answer repeats, encoded once: a stream repeats them three times."""
    tools: Mapping[str, ClientTool] = field(default_factory=dict)
    """The tools that are no plain functions, by their names in the chat."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        [choice] = choices
        output = _output(answer, choice, self.tools)
        return json_pieces(self.response(answer, _status(choice.finish), output, usage))

    def writer(self, answer: AnswerHead) -> EventWriter:
        return ResponseWriter(self, answer)

    def response(self, answer: AnswerHead, status: str, output: list[Item], usage: Usage | None) -> dict[str, Any]:
        """Return the response so far; `usage`: None until it has ended."""
        return {
            "id": _id("resp", answer),
            "object": "response",
            "created_at": answer.head.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": answer.head.model,
            "output": output,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
            **({} if answer.head.priority is None else {"service_tier": used_tier(answer.head.priority)}),
            **self.echo,
        }


def _status(finish: str) -> str:
    return "incomplete" if finish == "length" else "completed"


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the fields of `usage`. The API requires the details: unknown ones are 0. No request writes a cache."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _id(kind: str, answer: AnswerHead, place: int | None = None) -> str:
    return f"{kind}_{answer.head.id.partition('-')[2]}" + ("" if place is None else f"{place:02x}")


def _output(answer: AnswerHead, choice: FinishedChoice, tools: Mapping[str, ClientTool]) -> list[Item]:
    """Return the items of a whole answer; the last one has the status of the answer's end."""
    message, output = choice.message, list[Item]()
    if message.reasoning is not None:
        output.append(_reasoning(answer, len(output), message.reasoning, "completed"))
    if message.content or not (output or message.calls):
        output.append(_message(answer, len(output), message.content, _entries(choice.logprobs), "completed"))
    for call in message.calls:
        if (tool := tools.get(call.name)) is not None:
            item_id = _id("fc", answer, len(output))
            output.append(tool.item(item_id, call.id, call.arguments.text(), "completed"))
            continue
        output.append(_call(answer, len(output), call.id, call.name, call.arguments, "completed"))
    output[-1]["status"] = _status(choice.finish)
    return output


def _reasoning(answer: AnswerHead, place: int, text: GrowingText | None, status: str) -> Item:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {
        "id": _id("rs", answer, place), "type": "reasoning", "summary": [], "content": content, "status": status,
    }  # fmt: skip


def _message(answer: AnswerHead, place: int, text: GrowingText | None, logprobs: EncodedJson, status: str) -> Item:
    content = [] if text is None else [_text(text, logprobs)]
    return {
        "id": _id("msg", answer, place), "type": "message", "role": "assistant", "content": content, "status": status,
    }  # fmt: skip


def _text(text: GrowingText, logprobs: EncodedJson) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _call(answer: AnswerHead, place: int, call_id: str, name: str, arguments: str | GrowingText, status: str) -> Item:
    return {
        "id": _id("fc", answer, place), "type": "function_call", "call_id": call_id, "name": name,
        "arguments": arguments, "status": status,
    }  # fmt: skip


_NO_LOGPROBS = EncodedJson(b"[]")


def _entries(logprobs: LogprobsJson | None) -> EncodedJson:
    return logprobs.entries() if isinstance(logprobs, ChatLogprobs) else _NO_LOGPROBS


class ResponseWriter:
    """Encodes the events of one streamed response. What they repeat is encoded once."""

    def __init__(self, form: ResponsesForm, answer: AnswerHead) -> None:
        self._form = form
        self._answer = answer
        self._events = 0
        self._output: list[Item] = []
        """The items that are done."""
        self._open: Item | None = None
        """The open item, as it began."""
        self._text = GrowingText()
        """The open item's text."""
        self._logprobs: LogprobsJson | None = None
        """Log probabilities of its tokens."""
        self._status = "completed"
        self._tool: ClientTool | None = None
        """The tool of the open call, if it is no plain function."""

    def usage_so_far(self, usage: Usage) -> None:
        """Ignore it: only the last event has the usage."""

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        begun = self._form.response(self._answer, "in_progress", [], None)
        created = self._event("response.created", response=begun)
        return [*created, *self._event("response.in_progress", response=begun)]

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        return self._extend(part, None)

    def detailed(
        self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson | None, ids: Sequence[int] | None
    ) -> Sequence[JsonBytes]:
        """Encode parts; the last piece of content has the log probabilities. This API has no token ids."""
        last = max((place for place, part in enumerate(parts) if isinstance(part, ContentPart)), default=None)
        events: list[JsonBytes] = []
        for place, part in enumerate(parts):
            events += self._extend(part, logprobs if place == last else None)
        return events

    def finish(self, index: int, reason: str, stop: str | None) -> Sequence[JsonBytes]:
        self._status = _status(reason)
        begun: Sequence[JsonBytes] = ()
        if self._open is None and not self._output:  # an empty answer is an empty message
            begun = self._begin_message()
        return [*begun, *self._close(self._status)]

    def closing(self, usage: Usage) -> Sequence[JsonBytes]:
        response = self._form.response(self._answer, self._status, self._output, usage)
        return self._event(f"response.{self._status}", response=response)

    def failure(self, problem: Problem, usage: Usage, request_id: str | None) -> Sequence[JsonBytes]:
        """Encode an error: the open item is done, but incomplete."""
        ended = self._close("incomplete")
        response = self._form.response(self._answer, "failed", self._output, usage)
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        message, _ = message_and_param(problem)
        response["error"] = {"code": code, "message": f"{message} ({problem.code}; {request_id})"}
        return [*ended, *self._event("response.failed", response=response)]

    def _extend(self, part: AnswerPart, logprobs: LogprobsJson | None) -> Sequence[JsonBytes]:
        match part:
            case ContentPart(text):
                before: Sequence[JsonBytes] = ()
                if not self._has_open("message"):
                    before = [*self._close("completed"), *self._begin_message()]
                    text = text.lstrip() if self._output else text  # blanks between items mean nothing
                if isinstance(logprobs, ChatLogprobs) and isinstance(self._logprobs, ChatLogprobs):
                    self._logprobs.add_encoded(logprobs)
                entries: EncodedJson | list[Any] = [] if logprobs is None else _entries(logprobs)
                return [*before, *self._delta("output_text", text, logprobs=entries)]
            case ReasoningPart(text):
                before = () if self._has_open("reasoning") else [*self._close("completed"), *self._begin_reasoning()]
                return [*before, *self._delta("reasoning_text", text)]
            case CallPart(_, call_id, name):
                closed = self._close("completed")
                self._tool = self._form.tools.get(name)
                if self._tool is not None:
                    item = self._tool.item(_id("fc", self._answer, len(self._output)), call_id, "", "in_progress")
                else:
                    item = _call(self._answer, len(self._output), call_id, name, "", "in_progress")
                return [*closed, *self._begin(item)]
            case ArgumentsPart(_, text) if self._tool is not None and self._tool.kind != "function":
                self._text.add(text)
                return ()
            case ArgumentsPart(_, text):
                return self._delta("function_call_arguments", text)

    def _has_open(self, kind: str) -> bool:
        return self._open is not None and self._open["type"] == kind

    def _begin_message(self) -> Sequence[JsonBytes]:
        added = self._begin(_message(self._answer, len(self._output), None, _NO_LOGPROBS, "in_progress"))
        part = _text(GrowingText(), _NO_LOGPROBS)
        return [*added, *self._within("response.content_part.added", content_index=0, part=part)]

    def _begin_reasoning(self) -> Sequence[JsonBytes]:
        added = self._begin(_reasoning(self._answer, len(self._output), None, "in_progress"))
        part = {"type": "reasoning_text", "text": ""}
        return [*added, *self._within("response.content_part.added", content_index=0, part=part)]

    def _begin(self, item: Item) -> Sequence[JsonBytes]:
        self._open, self._text, self._logprobs = item, GrowingText(), self._answer.logprobs()
        return self._event("response.output_item.added", output_index=len(self._output), item=item)

    def _delta(self, kind: str, text: str, **fields: Any) -> Sequence[JsonBytes]:
        self._text.add(text)
        place = {} if kind == "function_call_arguments" else {"content_index": 0}
        return self._within(f"response.{kind}.delta", **place, delta=text, **fields)

    def _close(self, status: str) -> Sequence[JsonBytes]:
        """Close the open item."""
        if self._open is None:
            return ()
        item, text, place = self._open, self._text, len(self._output)
        match item["type"]:
            case "message":
                whole = _message(self._answer, place, text, _entries(self._logprobs), status)
                done = self._within(
                    "response.output_text.done", content_index=0, text=text, logprobs=_entries(self._logprobs)
                )
                part = self._within("response.content_part.done", content_index=0, part=whole["content"][0])
            case "reasoning":
                whole = _reasoning(self._answer, place, text, status)
                done = self._within("response.reasoning_text.done", content_index=0, text=text)
                part = self._within("response.content_part.done", content_index=0, part=whole["content"][0])
            case kind if kind != "function_call":
                assert self._tool is not None
                whole, part = self._tool.item(item["id"], item["call_id"], text.text(), status), ()
                done = self._input_events(whole) if kind == "custom_tool_call" else ()
            case _:
                whole, part = item | {"arguments": text, "status": status}, ()
                done = self._within("response.function_call_arguments.done", name=item["name"], arguments=text)
        ended = self._event("response.output_item.done", output_index=place, item=whole)
        self._output.append(whole)
        self._open = None
        return [*done, *part, *ended]

    def _input_events(self, item: Item) -> Sequence[JsonBytes]:
        """Encode the input of a custom tool, which is a text within JSON until its end."""
        delta = self._within("response.custom_tool_call_input.delta", delta=item["input"])
        return [*delta, *self._within("response.custom_tool_call_input.done", input=item["input"])]

    def _within(self, kind: str, **fields: Any) -> Sequence[JsonBytes]:
        """Encode an event of the open item."""
        assert self._open is not None
        return self._event(kind, item_id=self._open["id"], output_index=len(self._output), **fields)

    def _event(self, kind: str, **fields: Any) -> Sequence[JsonBytes]:
        event = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        if kind.endswith(".delta") and not isinstance(fields.get("logprobs"), EncodedJson):  # the usual case
            return (b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode(event)),)
        return [b"event: %b\ndata: " % kind.encode(), *json_pieces(event), b"\n\n"]
