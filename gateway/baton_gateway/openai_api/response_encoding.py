"""Encodes OpenAI's response objects and stream chunks.

The chunk with one piece of text is by far the most frequent message of a gateway, so its constant parts are encoded
once per stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.answers.output_parts import AnswerPart, ArgumentsPart, CallPart, ContentPart, ReasoningPart
from baton_gateway.errors import Problem
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import EncodedJson, JsonBytes, json_pieces
from baton_gateway.openai_api.logprob_json import LogprobsJson, logprobs_json
from baton_gateway.openai_api.openai_types import ApiEndpoint
from baton_gateway.openai_api.priority_fields import used_tier
from baton_gateway.text.revision_text import TextModel
from baton_wire.messages.values import unpack_ids
from baton_wire.tenant_table import PriorityClass

DONE = b"data: [DONE]\n\n"
MAX_MESSAGE_CHARS = 4_096
MAX_PARAM_CHARS = 512
_encode = msgspec.json.Encoder().encode


class ResponseHead(msgspec.Struct, frozen=True):
    """The fields that all messages of one response share."""

    endpoint: ApiEndpoint
    id: str
    created: int
    model: str
    system_fingerprint: str
    priority: PriorityClass | None = None
    """The class of the request, which the answer names; None: it does not."""

    def fields(self, is_chunk: bool) -> dict[str, Any]:
        if self.endpoint is ApiEndpoint.CHAT:
            kind = "chat.completion.chunk" if is_chunk else "chat.completion"
        else:
            kind = "text_completion"
        tier = {} if self.priority is None else {"service_tier": used_tier(self.priority)}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            **tier,
        }


class AnswerHead(msgspec.Struct, frozen=True):
    """The properties of an answer that its writer needs before the first token."""

    head: ResponseHead
    text: TextModel
    num_choices: int
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int
    wants_logprobs: bool
    is_held: bool = False
    """True if the whole answer is held until its end."""
    ahead_bytes: int = 0
    """Bytes that are charged before the first token."""
    token_bytes: int = 0
    """Approximate bytes of one token in a stream."""
    prompt_ids: tuple[bytes, ...] | None = None
    """The ids of each prompt, packed, if they are requested; None: they are not."""

    def logprobs(self) -> LogprobsJson | None:
        """Build the empty log probabilities of a choice or chunk; None: none are reported."""
        return logprobs_json(self.head.endpoint, self.text) if self.wants_logprobs else None


class Usage(msgspec.Struct, frozen=True):
    """The tokens that a request used."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None
    """Reasoning tokens of the completion; None: it is not known which these are."""
    cached_tokens: int | None = None
    """Prompt tokens whose KV was cached; None: no worker has reported it."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of `usage`; unknown details are left out."""
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


class FinishedChoice(msgspec.Struct, frozen=True):
    """One choice of a response that is not streamed."""

    message: CollectedMessage
    logprobs: LogprobsJson | None
    finish: str
    prompt: EncodedJson | None = None
    """Log probabilities of the prompt's tokens, if they are requested in their own field."""
    stop: str | None = None
    """The stop string that ended the choice."""
    ids: Sequence[int] | None = None
    """The ids of its tokens, if they are requested."""
    prompt_ids: Sequence[int] | None = None
    """The ids of its prompt's tokens, if they are requested."""


def error_body(problem: Problem, request_id: str | None = None) -> bytes:
    """Encode an error. Always succeeds: what a client sent, say in its path, need not be text.

    `request_id`: None in a file.
    """
    message, param = message_and_param(problem)
    error = {"message": message, "type": problem.type, "param": param, "code": problem.code}
    return _encode({"error": error if request_id is None else error | {"request_id": request_id}})


def message_and_param(problem: Problem) -> tuple[str, str | None]:
    """Return message and param of an error, cut so that no error is long."""
    param = None if problem.param is None else encodable(problem.param[:MAX_PARAM_CHARS])
    message = problem.message
    if len(message) > MAX_MESSAGE_CHARS:
        message = message[:MAX_MESSAGE_CHARS] + "…"
    return encodable(message), param


def encodable(text: str) -> str:
    """Replace what cannot be encoded in a text."""
    return text.encode(errors="replace").decode()


def response_body(head: ResponseHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
    """Encode the whole answer of a request that is not streamed, in pieces."""
    entries = []
    body = head.fields(is_chunk=False)
    for index, choice in enumerate(choices):
        logprobs = None if choice.logprobs is None else choice.logprobs.value()
        entry: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": choice.finish}
        if head.endpoint is ApiEndpoint.CHAT:
            entry["message"] = message_fields(choice.message)
        else:
            entry["text"] = choice.message.content
        if choice.prompt is not None:  # as in vLLM: a chat has one prompt, a completion's choices may differ
            place = body if head.endpoint is ApiEndpoint.CHAT else entry
            place["prompt_logprobs"] = choice.prompt
        if choice.ids is not None:
            entry["token_ids"] = list(choice.ids)
        if choice.prompt_ids is not None:  # in the same places as the log probabilities of the prompt
            place = body if head.endpoint is ApiEndpoint.CHAT else entry
            place["prompt_token_ids"] = list(choice.prompt_ids)
        entries.append(entry)
    return json_pieces(body | {"choices": entries, "usage": usage.fields()})


def message_fields(message: CollectedMessage) -> dict[str, Any]:
    """Return the `message` of a choice. With calls, empty content is null."""
    fields: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
    if message.reasoning is not None:
        fields["reasoning_content"] = message.reasoning
    if message.calls:
        fields["content"] = message.content or None
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return fields


class ChunkWriter:
    """Encodes the chunks of one stream."""

    def __init__(self, answer: AnswerHead) -> None:
        head, include_usage = answer.head, answer.include_usage
        self._endpoint = head.endpoint
        self._include_usage = include_usage
        self._usage: dict[str, Any] = {"usage": None} if include_usage else {}
        self._fields = head.fields(is_chunk=True)
        self._prompts = answer.prompt_ids or ()
        self._choices_per_prompt = max(1, answer.num_choices // max(1, len(self._prompts)))
        self._prompt: tuple[int, EncodedJson] | None = None
        """The prompt whose ids were sent last, and these ids."""
        self._parts: dict[int, bytes] = {}
        self._choice_end = b'},"logprobs":null,"finish_reason":null}]' if self._is_chat else b"}]"
        self._tail = self._choice_end + (b',"usage":null' if include_usage else b"") + b"}\n\n"

    @property
    def _is_chat(self) -> bool:
        return self._endpoint is ApiEndpoint.CHAT

    def usage_so_far(self, usage: Usage) -> None:
        """Include this usage in each further chunk."""
        self._usage = {"usage": usage.fields()}
        self._tail = self._choice_end + b',"usage":' + _encode(usage.fields()) + b"}\n\n"

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        """Encode the role, with which a chat choice begins, and the ids of the prompt if they are requested."""
        if self._is_chat:
            prompt = {"prompt_token_ids": self._prompt_ids(0)} if self._prompts and self._prompt is None else {}
            return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, **_OPEN}, prompt)
        if not self._prompts:
            return ()
        ids = self._prompt_ids(index // self._choices_per_prompt)
        return self._chunk({"index": index, "text": "", **_OPEN, "prompt_token_ids": ids, "token_ids": []})

    def _prompt_ids(self, number: int) -> EncodedJson:
        """The ids of a prompt, which its choices share."""
        if self._prompt is None or self._prompt[0] != number:
            self._prompt = number, EncodedJson(_encode(unpack_ids(self._prompts[number])))
        return self._prompt[1]

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        """Encode the next part of a choice, without details of its tokens."""
        if isinstance(part, ContentPart):
            return (self._text(index, part.text),)
        return self._chunk({"index": index, "delta": _delta(part), **_OPEN})

    def detailed(
        self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson | None, ids: Sequence[int] | None
    ) -> Sequence[JsonBytes]:
        """Encode the next parts; the last chunk has the log probabilities and the ids of their tokens."""
        *before, last = parts or (ContentPart(""),)
        values = None if logprobs is None else logprobs.value()
        entry: dict[str, Any] = {"index": index, "finish_reason": None, "logprobs": values}
        entry |= {"delta": _delta(last)} if self._is_chat else {"text": _content(last)}
        if ids is not None:
            entry["token_ids"] = list(ids)
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
        """Encode the end of a complete stream, with the usage if it was requested."""
        if not self._include_usage:
            return (DONE,)
        return b"data: ", _encode(self._fields | {"choices": [], "usage": usage.fields()}), b"\n\n", DONE

    def failure(self, problem: Problem, usage: Usage, request_id: str | None) -> Sequence[JsonBytes]:
        """Encode an error, which ends the stream."""
        return b"data: ", error_body(problem, request_id), b"\n\n"

    def _constant_part(self, index: int) -> bytes:
        """Encode a text chunk up to its text, so that only the text need be encoded later."""
        head = _encode(self._fields)[:-1] + b',"choices":[{"index":%d,' % index
        if self._is_chat:
            return b"data: " + head + b'"delta":{"content":'
        return b"data: " + head + b'"logprobs":null,"finish_reason":null,"text":'

    def _chunk(self, entry: dict[str, Any], more: dict[str, Any] | None = None) -> Sequence[JsonBytes]:
        fields = self._fields | (more or {}) | {"choices": [entry]} | self._usage
        return b"data: ", *json_pieces(fields), b"\n\n"


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
