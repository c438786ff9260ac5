"""How an answer is written, in the form of one API: whole, or as the events of a stream.

The sinks do what is alike in all forms: collecting, merging, back-pressure. A form is pure: values in, bytes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from baton_gateway.answers.output_parts import AnswerPart
from baton_gateway.errors import Problem
from baton_gateway.openai_api.json_pieces import JsonBytes
from baton_gateway.openai_api.logprob_json import LogprobsJson
from baton_gateway.openai_api.response_encoding import AnswerHead, ChunkWriter, FinishedChoice, Usage, response_body


class EventWriter(Protocol):
    """The events of one stream, in order. Each call gives pieces of the bytes to be sent, which may be none."""

    def usage_so_far(self, usage: Usage) -> None:
        """From now on each event says this usage, where the form has a place for it."""
        ...

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        """Before the first piece of a choice."""
        ...

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        """The next part of a choice, without logprobs."""
        ...

    def logprobs(self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson) -> Sequence[JsonBytes]:
        """The next parts of a choice, perhaps none, with the log probabilities of the tokens that they are made of."""
        ...

    def finish(self, index: int, reason: str, stop: str | None) -> Sequence[JsonBytes]:
        """The end of a choice; `stop`: the stop string that ended it."""
        ...

    def closing(self, usage: Usage) -> Sequence[JsonBytes]:
        """After the end of every choice."""
        ...

    def failure(self, problem: Problem, usage: Usage, request_id: str | None) -> Sequence[JsonBytes]:
        """Instead of what is still missing."""
        ...


class AnswerForm(Protocol):
    """One API's way to write the answer to one request."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        """The whole answer of a request that is not streamed, in pieces."""
        ...

    def writer(self, answer: AnswerHead) -> EventWriter: ...


class _OpenAiForm:
    """Chat and text completions."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        return response_body(answer.head, choices, usage)

    def writer(self, answer: AnswerHead) -> EventWriter:
        return ChunkWriter(answer)


OPENAI: AnswerForm = _OpenAiForm()
