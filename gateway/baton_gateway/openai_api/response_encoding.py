"""What clients read: OpenAI's response objects and stream chunks, as bytes.

The chunk with one piece of text is by far the most frequent message that a gateway writes; its constant parts are
encoded once per stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.errors import Problem
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import EncodedJson, JsonBytes, json_pieces
from baton_gateway.openai_api.logprob_json import LogprobsJson, logprobs_json
from baton_gateway.openai_api.openai_types import ApiEndpoint
from baton_gateway.text.revision_text import TextModel

DONE = b"data: [DONE]\n\n"
MAX_MESSAGE_CHARS = 4_096
MAX_PARAM_CHARS = 512
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What all messages of one response share."""

    endpoint: ApiEndpoint
    id: str
    created: int
    model: str
    system_fingerprint: str

    def fields(self, is_chunk: bool) -> dict[str, Any]:
        if self.endpoint is ApiEndpoint.CHAT:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        else:
            kind = "text_completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What whoever writes an answer must know before the first token."""

    head: ResponseHead
    text: TextModel
    num_choices: int
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int
    wants_logprobs: bool
    is_held: bool = False
    """Whether all of it is held until its end."""
    ahead_bytes: int = 0
    """What is charged for it before its first token."""
    token_bytes: int = 0
    """What one token weighs in a stream, about."""

    def logprobs(self) -> LogprobsJson | None:
        """Empty log probabilities of a choice or chunk; None where none are told."""
        return logprobs_json(self.head.endpoint, self.text) if self.wants_logprobs else None


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None
    """Of the completion, those of thoughts; None: nobody knows which they are."""
    cached_tokens: int | None = None
    """Of the prompts, those whose KV was there; None: no worker has told."""

    def fields(self) -> dict[str, Any]:
        """Details that are not known are left out."""
        total = self.prompt_tokens + self.completion_tokens
        fields: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }
        if self.cached_tokens is not None:
            fields["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.reasoning_tokens is not None:
            fields["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return fields


@dataclass(frozen=True, slots=True)
class FinishedChoice:
    """One choice of a response that is not streamed."""

    answer: CollectedMessage
    logprobs: LogprobsJson | None
    finish: str
    prompt: EncodedJson | None = None
    """Log probabilities of the prompt's own tokens, when they are wanted in a field of their own."""
    stop: str | None = None
    """The stop string that ended it."""


def error_body(problem: Problem, request_id: str | None = None) -> bytes:
    """Always succeeds: what a client sent, say in its path, need not be text. `request_id`: None in a file."""
    message, param = message_and_param(problem)
    error = {"message": message, "type": problem.type, "param": param, "code": problem.code}
    return _encode({"error": error if request_id is None else error | {"request_id": request_id}})


def message_and_param(problem: Problem) -> tuple[str, str | None]:
    """As they are shown: no error is long, whatever it quotes."""
    param = None if problem.param is None else shown(problem.param[:MAX_PARAM_CHARS])
    message = problem.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "…"
    return shown(message), param


def shown(text: str) -> str:
    """A text that can be encoded, whatever it was made of."""
    return text.encode(errors="replace").decode()


def response_body(head: ResponseHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
    """The whole answer of a request that is not streamed, in pieces."""
    entries = []
    body = head.fields(is_chunk=False)
    for index, choice in enumerate(choices):
        logprobs = None if choice.logprobs is None else choice.logprobs.value()
        entry: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": choice.finish}
        if head.endpoint is ApiEndpoint.CHAT:
            entry["message"] = message_fields(choice.answer)
        else:
            entry["text"] = choice.answer.content
        if choice.prompt is not None:  # where vLLM has it: a chat has one prompt, a completion's choices may differ
            place = body if head.endpoint is ApiEndpoint.CHAT else entry
            place["prompt_logprobs"] = choice.prompt
        entries.append(entry)
    return json_pieces(body | {"choices": entries, "usage": usage.fields()})


def message_fields(answer: CollectedMessage) -> dict[str, Any]:
    """The `message` of a choice. Content is null beside calls when there is none."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning is not None:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


class ChunkWriter:
    """Chunks of one stream."""

    def __init__(self, answer: AnswerHead) -> None:
        head, include_usage = answer.head, answer.include_usage
        self._endpoint = head.endpoint
        self._include_usage = include_usage
        self._usage: dict[str, Any] = {"usage": None} if include_usage else {}
        self._fields = head.fields(is_chunk=True)
        self._parts: dict[int, bytes] = {}
        self._choice_end = b'},"logprobs":null,"finish_reason":null}]' if self._is_chat else b"}]"
        self._tail = self._choice_end + (b',"usage":null' if include_usage else b"") + b"}\n\n"

    @property
    def _is_chat(self) -> bool:
        return self._endpoint is ApiEndpoint.CHAT

    def usage_so_far(self, usage: Usage) -> None:
        """From now on each chunk says this usage."""
        self._usage = {"usage": usage.fields()}
        self._tail = self._choice_end + b',"usage":' + _encode(usage.fields()) + b"}\n\n"

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        """A chat choice begins with the role of who speaks."""
        if not self._is_chat:
            return ()
        return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, **_OPEN})

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        """The next part of a choice, without logprobs."""
        if isinstance(part, ContentPart):
            return (self._text(index, part.text),)
        return self._chunk({"index": index, "delta": _delta(part), **_OPEN})

    def logprobs(self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson) -> Sequence[JsonBytes]:
        """The next parts with the log probabilities of their tokens, which stand in the last chunk of them."""
        *before, last = parts or (ContentPart(""),)
        entry: dict[str, Any] = {"index": index, "finish_reason": None, "logprobs": logprobs.value()}
        entry |= {"delta": _delta(last)} if self._is_chat else {"text": _content(last)}
        chunk = json_pieces(self._fields | {"choices": [entry]} | self._usage)
        return [*(event for part in before for event in self.part(index, part)), b"data: ", *chunk, b"\n\n"]

    def _text(self, index: int, text: str) -> bytes:
        part = self._parts.get(index)
        if part is None:
            part = self._parts[index] = self._constant_part(index)
        return part + _encode(text) + self._tail

    def finish(self, index: int, reason: str, stop: str | None = None) -> Sequence[JsonBytes]:
        entry: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": reason}
        empty: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": ""}
        return self._chunk(entry | empty)

    def closing(self, usage: Usage) -> Sequence[JsonBytes]:
        """The end of a good stream, with the usage if it was asked for."""
        if not self._include_usage:
            return (DONE,)
        return b"data: ", _encode(self._fields | {"choices": [], "usage": usage.fields()}), b"\n\n", DONE

    def failure(self, problem: Problem, usage: Usage, request_id: str | None) -> Sequence[JsonBytes]:
        """The end of a bad one."""
        return b"data: ", error_body(problem, request_id), b"\n\n"

    def _constant_part(self, index: int) -> bytes:
        """Everything of a text chunk that stands before the text; written so that only the text need be encoded."""
        head = _encode(self._fields)[:-1] + b',"choices":[{"index":%d,' % index
        if self._is_chat:
            return b"data: " + head + b'"delta":{"content":'
        return b"data: " + head + b'"logprobs":null,"finish_reason":null,"text":'

    def _chunk(self, entry: dict[str, Any]) -> Sequence[JsonBytes]:
        return (b"data: " + _encode(self._fields | {"choices": [entry]} | self._usage) + b"\n\n",)


def _delta(part: AnswerPart) -> dict[str, Any]:
    match part:
        case ContentPart(text):
            return {"content": text}
        case ReasoningPart(text):
            return {"reasoning_content": text}
        case CallPart(number, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": number, "id": call_id, "type": "function", "function": function}]}
        case ArgumentsPart(number, text):
            return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}


def _content(part: AnswerPart) -> str:
    assert isinstance(part, ContentPart), "a completion has neither thoughts nor calls"
    return part.text


_OPEN: dict[str, Any] = {"logprobs": None, "finish_reason": None}
