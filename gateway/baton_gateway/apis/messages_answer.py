"""Answers of Anthropic's `/v1/messages`: a message of blocks, its events, its errors.

A stream is message_start, then the start, deltas and stop of each block, then message_delta and message_stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.apis.chat_body import rename_field
from baton_gateway.errors import Problem
from baton_gateway.openai_api.answer_forms import AnswerForm, EventWriter
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import EncodedJson, GrowingText, JsonBytes, json_pieces
from baton_gateway.openai_api.logprob_json import LogprobsJson
from baton_gateway.openai_api.response_encoding import AnswerHead, FinishedChoice, Usage, message_and_param
from baton_wire.tenant_table import PriorityClass

_encode = msgspec.json.Encoder().encode

UNPARSED = "unparsed_arguments"
"""The key in a call's input for arguments that are not a JSON object, as when the answer was cut within them."""
THREAD_UNSUPPORTED = "thread_unsupported_request"
"""The code of an error after which Anthropic's client sends its whole conversation."""
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
"""Names of this API for fields of chats."""
_ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
_TIERS = {
    PriorityClass.BATCH: "batch",
    PriorityClass.STANDARD: "standard",
    PriorityClass.INTERACTIVE: "priority",
}
"""The `usage.service_tier` of each class, as Anthropic's API names it."""
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")} | {
    "tool_use": ("input_json_delta", "partial_json")
}
"""The type of a block's deltas and their field with the text, by the block's type."""


def message_error_body(problem: Problem, request_id: str | None = None) -> bytes:
    """Encode an error in Anthropic's form, with our `param` and `code` added."""
    problem = rename_field(problem, _NAMES)
    kind = _ERROR_TYPES.get(problem.status, "api_error" if problem.status >= 500 else "invalid_request_error")
    message, param = message_and_param(problem)
    error: dict[str, Any] = {"type": kind, "message": message, "param": param, "code": problem.code}
    if problem.code == THREAD_UNSUPPORTED:
        error["details"] = {"error_code": THREAD_UNSUPPORTED, "unsupported": ["thread"]}
    return _encode({"type": "error", "error": error, "request_id": request_id})


class _MessagesForm:
    """The form of Anthropic's messages: one choice, whose parts are blocks."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        [choice] = choices
        message = _message(answer, _blocks(choice.message), _usage(answer, usage))
        return json_pieces(message | _ending(choice.finish, choice.stop))

    def writer(self, answer: AnswerHead) -> EventWriter:
        return MessageWriter(answer)


MESSAGES: AnswerForm = _MessagesForm()


def _blocks(message: CollectedMessage) -> list[dict[str, Any]]:
    blocks = [] if message.reasoning is None else [_thinking(message.reasoning)]
    blocks += [_text(message.content)] if message.content else []
    return blocks + [_tool_use(call.id, call.name, _input(call.arguments)) for call in message.calls]


def _text(text: str | GrowingText) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _thinking(text: str | GrowingText) -> dict[str, Any]:
    """Build a thinking block. Its signature is empty: reasoning may be resent unchanged."""
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_use(call_id: str, name: str, arguments: EncodedJson | dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


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


def _ending(finish: str, stop: str | None) -> dict[str, Any]:
    reason = "stop_sequence" if stop is not None else _STOP_REASONS[finish]
    return {"stop_reason": reason, "stop_sequence": stop}


def _usage(answer: AnswerHead, usage: Usage) -> dict[str, Any]:
    """Return the fields of `usage`. As in Anthropic's API, `input_tokens` excludes tokens that were cached.

    Unknown details are left out.
    """
    cached, reasoning = usage.cached_tokens, usage.reasoning_tokens
    fields: dict[str, Any] = {"input_tokens": usage.prompt_tokens - (cached or 0)}
    if cached is not None:
        fields["cache_read_input_tokens"] = cached
    fields["output_tokens"] = usage.completion_tokens
    if reasoning is not None:
        fields["output_tokens_details"] = {"thinking_tokens": reasoning}
    if answer.head.priority is not None:
        fields["service_tier"] = _TIERS[answer.head.priority]
    return fields


class MessageWriter:
    """Encodes the events of one streamed message."""

    def __init__(self, answer: AnswerHead) -> None:
        self._answer = answer
        self._number = -1
        """The number of the last block."""
        self._open: str | None = None
        """The type of the open block; None: no block is open."""
        self._delta = b""
        """The open block's deltas, up to the text."""
        self._ending: dict[str, Any] = {}

    def usage_so_far(self, usage: Usage) -> None:
        """Ignore it: only the last event has the usage."""

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        message = _message(self._answer, [], _usage(self._answer, Usage(self._answer.prompt_tokens, 0)))
        return _event("message_start", {"message": message}), _event("ping", {})

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        match part:
            case ContentPart(text):
                is_later = self._number >= 0 and self._open != "text"  # blanks between blocks mean nothing
                return self._within(_text("")), self._piece(text.lstrip() if is_later else text)
            case ReasoningPart(text):
                return self._within(_thinking("")), self._piece(text)
            case CallPart(_, call_id, name):
                return self._stop(), self._begin(_tool_use(call_id, name, {}))
            case ArgumentsPart(_, text):
                return (self._piece(text),)

    def detailed(
        self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson | None, ids: Sequence[int] | None
    ) -> Sequence[JsonBytes]:
        """Encode the parts alone: this API has neither logprobs nor token ids."""
        return [event for part in parts for event in self.part(index, part)]

    def finish(self, index: int, reason: str, stop: str | None) -> Sequence[JsonBytes]:
        self._ending = _ending(reason, stop)
        return (self._stop(),)

    def closing(self, usage: Usage) -> Sequence[JsonBytes]:
        event = {"delta": self._ending, "usage": _usage(self._answer, usage)}
        return _event("message_delta", event), _event("message_stop", {})

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
