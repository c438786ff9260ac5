"""The forms of answers, one for each API: a whole body, or the events of a stream.

The writers do what all forms share: collecting, merging, back-pressure. A form is pure: values in, bytes out.
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
    """Encodes the events of one stream, in order. Each call returns pieces of bytes to be sent, perhaps none."""

    def usage_so_far(self, usage: Usage) -> None:
        """Include this usage in each further event, if the form has a field for it."""
        ...

    def beginning(self, index: int) -> Sequence[JsonBytes]:
        """Encode what comes before the first piece of a choice."""
        ...

    def part(self, index: int, part: AnswerPart) -> Sequence[JsonBytes]:
        """Encode the next part of a choice, without details of its tokens."""
        ...

    def detailed(
        self, index: int, parts: Sequence[AnswerPart], logprobs: LogprobsJson | None, ids: Sequence[int] | None
    ) -> Sequence[JsonBytes]:
        """Encode the next parts of a choice, perhaps none, with the log probabilities and the ids of their tokens as
        far as they are requested and the form has fields for them."""
        ...

    def finish(self, index: int, reason: str, stop: str | None) -> Sequence[JsonBytes]:
        """Encode the end of a choice; `stop`: the stop string that ended it."""
        ...

    def closing(self, usage: Usage) -> Sequence[JsonBytes]:
        """Encode what comes after the end of all choices."""
        ...

    def failure(self, problem: Problem, usage: Usage, request_id: str | None) -> Sequence[JsonBytes]:
        """Encode an error in place of the rest of the stream."""
        ...


class AnswerForm(Protocol):
    """The form of one API's answers."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        """Encode the whole answer of a request that is not streamed, in pieces."""
        ...

    def writer(self, answer: AnswerHead) -> EventWriter:
        """Build the encoder of a streamed answer."""
        ...


class _OpenAiForm:
    """The form of chat and text completions."""

    def body(self, answer: AnswerHead, choices: Sequence[FinishedChoice], usage: Usage) -> list[JsonBytes]:
        return response_body(answer.head, choices, usage)

    def writer(self, answer: AnswerHead) -> EventWriter:
        return ChunkWriter(answer)


OPENAI: AnswerForm = _OpenAiForm()
