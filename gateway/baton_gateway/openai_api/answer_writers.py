"""Writers of answers: the interface, the memory that an answer is charged for, and the writer of one whole response.

A held answer consists of bytes that are encoded as they come.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from baton_gateway.errors import Problem, RefusedError, internal_error, out_of_memory
from baton_gateway.openai_api.answer_forms import OPENAI, AnswerForm
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import EncodedJson, JsonBytes
from baton_gateway.openai_api.logprob_json import CompletionLogprobs, LogprobsJson
from baton_gateway.openai_api.response_encoding import AnswerHead, FinishedChoice, Usage
from baton_gateway.text.choice_text import Increment
from baton_wire.messages.values import PACKED_ID_BYTES, unpack_ids

ID_BYTES = 16
"""One token id, collected and as JSON."""
MARGIN_BYTES = 64 << 10
"""The least that a growing answer charges at once."""

ChargeMemory = Callable[[int], bool]
"""Charges bytes to the memory budget until the request has ended. False: they are not free."""


def charge_nothing(size: int) -> bool:
    """Charge nothing: there is no budget."""
    return True


class AnswerCharge:
    """The bytes that one answer has charged to the budget: ahead of its growth, so that few tokens cost a call."""

    __slots__ = ("_charge", "_charged", "_size")

    def __init__(self, charge: ChargeMemory) -> None:
        self._charge = charge
        self._size = self._charged = 0

    def begin(self, size: int) -> None:
        """Charge the expected size of the answer. Raises RefusedError if it is not free."""
        if size > 0 and not self._charge(size):
            raise RefusedError(out_of_memory())
        self._charged += size

    def grow(self, size: int) -> bool:
        """Count bytes that came. False: they are not free."""
        self._size += size
        if self._size <= self._charged:
            return True
        missing = self._size - self._charged
        for more in (missing + max(MARGIN_BYTES, self._charged // 4), missing):
            if self._charge(more):
                self._charged += more
                return True
        return False


class AnswerWriter(Protocol):
    """Writes the answer of one request to its client. No call blocks."""

    def begin(self, answer: AnswerHead) -> None:
        """Begin the answer of a request that is about to run. Raises RefusedError if there is no memory for it."""
        ...

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        """Add the log probabilities of a choice's prompt, for their own field; before its first increment."""
        ...

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        """Add the prompt of a choice, which its answer repeats; before its first increment."""
        ...

    def increment(self, choice: int, increment: Increment) -> None:
        """Add the next piece of a choice."""
        ...

    def flush(self) -> None:
        """Mark the end of increments that belong together."""
        ...

    def end(self, problem: Problem | None, usage: Usage) -> None:
        """End the answer. Called once; `problem`: None if every choice finished."""
        ...


@dataclass(slots=True)
class _CollectedChoice:
    """One choice while it is collected."""

    logprobs: LogprobsJson | None
    message: CollectedMessage = field(default_factory=CollectedMessage)
    finish: str = ""
    stop: str | None = None
    prompt: EncodedJson | None = None
    ids: array[int] | None = None
    """The ids of the tokens so far; None: they are not requested."""


class CollectedAnswer(msgspec.Struct, frozen=True):
    """A whole answer, of about `size` bytes."""

    form: AnswerForm
    head: AnswerHead
    choices: Sequence[FinishedChoice]
    usage: Usage
    size: int

    def body(self) -> list[JsonBytes]:
        """Encode the response's body in pieces. May be called in another thread."""
        return self.form.body(self.head, self.choices, self.usage)


class CollectingWriter:
    """Collects the whole answer as bytes. `done` resolves to the answer or the problem."""

    def __init__(self, form: AnswerForm = OPENAI, charge: ChargeMemory = charge_nothing) -> None:
        self._form = form
        self.done: asyncio.Future[CollectedAnswer | Problem] = asyncio.get_running_loop().create_future()
        self._answer: AnswerHead | None = None
        self._choices: list[_CollectedChoice] = []
        self._charge = AnswerCharge(charge)
        self._size = 0

    def begin(self, answer: AnswerHead) -> None:
        self._charge.begin(answer.ahead_bytes)
        self._answer = answer
        self._choices = [_CollectedChoice(answer.logprobs()) for _ in range(answer.num_choices)]
        if answer.prompt_ids is not None:
            for choice in self._choices:
                choice.ids = array("I")
            self._grow(sum(map(len, answer.prompt_ids)) * ID_BYTES // PACKED_ID_BYTES)

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        if not self.done.done():
            self._choices[choice].prompt = scores

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        if self.done.done():
            return
        collected = self._choices[choice]
        size = collected.message.content.add(text)
        if logprobs is not None and isinstance(collected.logprobs, CompletionLogprobs):
            size += collected.logprobs.add_encoded(logprobs)
        self._grow(size)

    def increment(self, choice: int, increment: Increment) -> None:
        if self.done.done():
            return
        collected = self._choices[choice]
        size = collected.message.add(increment.output_parts)
        if increment.tokens and collected.logprobs is not None:
            size += collected.logprobs.add(increment.tokens)
        if collected.ids is not None:
            collected.ids.extend(increment.ids)
            size += ID_BYTES * len(increment.ids)
        if increment.finish is not None:
            collected.finish, collected.stop = increment.finish_reason or "", increment.stop
        if size:
            self._grow(size)

    def flush(self) -> None:
        pass

    def end(self, problem: Problem | None, usage: Usage) -> None:
        if self.done.done():
            return
        if problem is not None or self._answer is None:
            self.done.set_result(problem or internal_error())
            return
        prompts = [None] if self._answer.prompt_ids is None else list(map(unpack_ids, self._answer.prompt_ids))
        choices_per_prompt = max(1, len(self._choices) // len(prompts))
        choices = [
            FinishedChoice(
                choice.message, choice.logprobs, choice.finish, choice.prompt, choice.stop, choice.ids,
                prompts[number // choices_per_prompt],
            )
            for number, choice in enumerate(self._choices)
        ]  # fmt: skip
        self.done.set_result(CollectedAnswer(self._form, self._answer, choices, usage, self._size))

    def _grow(self, size: int) -> None:
        self._size += size
        if not self._charge.grow(size) and not self.done.done():
            self._choices = []
            self.done.set_result(out_of_memory())
