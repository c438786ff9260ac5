"""Answers of `/v1/messages` (Anthropic's): a message of blocks, its events, its errors.

A stream is message_start, then for each block its start, deltas and stop, then message_delta and message_stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.apis.chat_body import renamed
from baton_gateway.errors import Problem
from baton_gateway.openai_api.answer_forms import AnswerForm, EventWriter
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import EncodedJson, GrowingText, JsonBytes, json_pieces
from baton_gateway.openai_api.logprob_json import LogprobsJson
from baton_gateway.openai_api.response_encoding import AnswerHead, FinishedChoice, Usage, message_and_param

_encode = msgspec.json.Encoder().encode

UNPARSED = "unparsed_arguments"
"""The key of a call's input whose arguments are no JSON object, as when the answer was cut within them."""
_NAMES = {
    r"stop(?=\[|$)": "stop_sequences",
    r"tools\[(\d+)\]\.function\.parameters": r"tools[\1].input_schema",
    r"tools\[(\d+)\]\.function": r"tools[\1]",
    r"tool_choice\.function\.name": "tool_choice.name",
    r"response_format\.json_schema\.schema": "output_config.format.schema",
    r"response_format": "output_config.format",
    r"reasoning_effort": "output_config.effort",
    r"max_thinking_tokens": "thinking.budget_tokens",
    r"continue_final_message": "messages",
}
"""Fields of chats that are called otherwise here."""
_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")} | {
    "tool_use": ("input_json_delta", "partial_json")
}
"""By the type of the block: of its deltas the type, and the field with the text."""


def message_error_body(problem: Problem, request_id: str | None = None) -> bytes:
    """The error object of that API, with the field and code of ours beside it."""
    problem = renamed(problem, _NAMES)
    kind = _ERROR_TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    message, param = message_and_param(problem)
    error = {"type": kind, "message": message, "param": param, "code": problem.code}
    return _encode({"type": "error", "error": error, "request_id": request_id})


class _MessagesForm:
    """One choice; its parts are blocks."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        [choice] = choices
        message = _message(answer, _blocks(choice.answer), _usage(usage))
        return json_pieces(message | _ended(choice.finish, choice.stop))

    def writer(self, answer: AnswerHead) -> EventWriter:
        return MessageWriter(answer)


MESSAGES: AnswerForm = _MessagesForm()


def _blocks(answer: CollectedMessage) -> list[dict[str, Any]]:
    blocks = [] if answer.reasoning is None else [_thinking(answer.reasoning)]
    blocks += [_text(answer.content)] if answer.content else []
    return blocks + [_tool_use(call.id, call.name, _input(call.arguments)) for call in answer.calls]


def _text(text: str | GrowingText) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thinking(text: str | GrowingText) -> dict[str, Any]:
    """Thoughts are not signed: they may be resent as they came."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(call_id: str, name: str, given: EncodedJson | dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def _input(arguments: GrowingText) -> EncodedJson | dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments.text() or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    return EncodedJson(_encode(value)) if isinstance(value, dict) else {UNPARSED: arguments}


def _message(answer: AnswerHead, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.head.id.partition('-')[2]}",
        "type": "message",
        "role": "assistant",
        "model": answer.head.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _ended(finish: str, stop: str | None) -> dict[str, Any]:
    reason = "stop_sequence" if stop is not None else _STOP_REASONS[finish]
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(usage: Usage) -> dict[str, Any]:
    """Of the prompt, `input_tokens` counts what was not read from a cache, as in Anthropic's API. What is not known is
    left out.
    """
    cached, thought = usage.cached_tokens, usage.reasoning_tokens
    fields: dict[str, Any] = {"input_tokens": usage.prompt_tokens - (cached or 0)}
    if cached is not None:
        fields["cache_read_input_tokens"] = cached
    fields["output_tokens"] = usage.completion_tokens
    if thought is not None:
        fields["output_tokens_details"] = {"thinking_tokens": thought}
    return fields


class MessageWriter:
    """Events of one streamed message."""

    def __init__(self, answer: AnswerHead) -> None:
        self._answer = answer
        self._number = -1
        """Of the last block that was begun."""
        self._open: str | None = None
        """The type of the block that is not ended."""
        self._delta = b""
        """Of this block's deltas what stands before the text."""
        self._ended: dict[str, Any] = {}

    def usage_so_far(self, usage: Usage) -> None:
        """There is no place for it: the last event says the usage."""

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        message = _message(self._answer, [], _usage(Usage(self._answer.prompt_tokens, 0)))
        return _event("message_start", {"message": message}), _event("ping", {})

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        match part:
            case ContentPart(text):
                return self._within(_text("")), self._piece(text)
            case ReasoningPart(text):
                return self._within(_thinking("")), self._piece(text)
            case CallPart(_, call_id, name):
                return self._stop(), self._begin(_tool_use(call_id, name, {}))
            case ArgumentsPart(_, text):
                return (self._piece(text),)

    def logprobs(self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson) -> Sequence[JsonBytes]:
        """This API has none."""
        return [event for part in parts for event in self.part(index, part)]

    def finish(self, index: int, reason: str, stop: str | None) -> Sequence[JsonBytes]:
        self._ended = _ended(reason, stop)
        return (self._stop(),)

    def closing(self, usage: Usage) -> Sequence[JsonBytes]:
        ended = {"delta": self._ended, "usage": _usage(usage)}
        return _event("message_delta", ended), _event("message_stop", {})

    def failure(self, problem: Problem, usage: Usage, request_id: str | None) -> Sequence[JsonBytes]:
        return b"event: error\ndata: ", message_error_body(problem, request_id), b"\n\n"

    def _within(self, block: dict[str, Any]) -> bytes:
        return b"" if self._open == block["type"] else self._stop() + self._begin(block)

    def _begin(self, block: dict[str, Any]) -> bytes:
        self._number, self._open = self._number + 1, block["type"]
        kind, name = _DELTAS[block["type"]]
        head = b'{"type":"content_block_delta","index":%d,"delta":' % self._number
        self._delta = b'event: content_block_delta\ndata: %b{"type":"%b","%b":' % (head, kind.encode(), name.encode())
        return _event("content_block_start", {"index": self._number, "content_block": block})

    def _piece(self, text: str) -> bytes:
        return self._delta + _encode(text) + b"}}\n\n"

    def _stop(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", {"index": self._number})


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))
