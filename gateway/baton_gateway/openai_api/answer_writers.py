"""Where a request's answer goes, and what it charges to the memory budget; here collected for one response.

Whatever an answer holds is bytes that are encoded as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton_gateway.errors import Problem, RefusedError, internal_error, out_of_memory
from baton_gateway.openai_api.answer_forms import OPENAI, AnswerForm
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import EncodedJson, JsonBytes
from baton_gateway.openai_api.logprob_json import CompletionLogprobs, LogprobsJson
from baton_gateway.openai_api.response_encoding import AnswerHead, FinishedChoice, Usage
from baton_gateway.text.choice_text import Increment

MARGIN_BYTES = 64 << 10
"""What a growing answer charges at least at once."""

ChargeMemory = Callable[[int], bool]
"""Charges bytes to the memory budget until the request has ended; False where they are not free."""


def charge_nothing(size: int) -> bool:
    """Where nothing is charged."""
    return True


class AnswerCharge:
    """What one answer has charged to the budget: ahead of what comes, so that few tokens cost a call."""

    __slots__ = ("_charged", "_hold", "_size")

    def __init__(self, hold: ChargeMemory) -> None:
        self._hold = hold
        self._size = self._charged = 0

    def begin(self, size: int) -> None:
        """Charge what the answer is expected to hold. Raises RefusedError when that is not free."""
        if size > 0 and not self._hold(size):
            raise RefusedError(out_of_memory())
        self._charged += size

    def grow(self, size: int) -> bool:
        """Count bytes that came; whether there was room for them."""
        self._size += size
        if self._size <= self._charged:
            return True
        missing = self._size - self._charged
        for more in (missing + max(MARGIN_BYTES, self._charged // 4), missing):
            if self._hold(more):
                self._charged += more
                return True
        return False


class AnswerWriter(Protocol):
    """The client's side of one request. All calls return at once."""

    def begin(self, answer: AnswerHead) -> None:
        """The request is about to run. Raises RefusedError when there is no memory for its answer."""
        ...

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        """Log probabilities of the prompt of a choice, for a field of their own; before its first increment."""
        ...

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        """The prompt of a choice, which its answer begins with; before its first increment."""
        ...

    def increment(self, choice: int, increment: Increment) -> None: ...

    def flush(self) -> None:
        """The increments since the last flush belong together."""
        ...

    def end(self, problem: Problem | None, usage: Usage) -> None:
        """Called once; `problem` None when every choice finished."""
        ...


@dataclass(slots=True)
class _Collected:
    logprobs: LogprobsJson | None
    answer: CollectedMessage = field(default_factory=CollectedMessage)
    finish: str = ""
    stop: str | None = None
    prompt: EncodedJson | None = None


@dataclass(frozen=True, slots=True)
class CollectedAnswer:
    """A whole answer, of about `size` bytes."""

    form: AnswerForm
    head: AnswerHead
    choices: Sequence[FinishedChoice]
    usage: Usage
    size: int

    def body(self) -> list[JsonBytes]:
        """The response's body in pieces. May be called in another thread."""
        return self.form.body(self.head, self.choices, self.usage)


class CollectingWriter:
    """Keeps everything, as bytes; `done` resolves to the whole answer or the problem."""

    def __init__(self, form: AnswerForm = OPENAI, hold: ChargeMemory = charge_nothing) -> None:
        self._form = form
        self.done: asyncio.Future[CollectedAnswer | Problem] = asyncio.get_running_loop().create_future()
        self._answer: AnswerHead | None = None
        self._choices: list[_Collected] = []
        self._charge = AnswerCharge(hold)
        self._size = 0

    def begin(self, answer: AnswerHead) -> None:
        self._charge.begin(answer.ahead_bytes)
        self._answer = answer
        self._choices = [_Collected(answer.logprobs()) for _ in range(answer.num_choices)]

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        if not self.done.done():
            self._choices[choice].prompt = scores

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        if self.done.done():
            return
        collected = self._choices[choice]
        size = collected.answer.content.add(text)
        if logprobs is not None and isinstance(collected.logprobs, CompletionLogprobs):
            size += collected.logprobs.add_encoded(logprobs)
        self._grow(size)

    def increment(self, choice: int, increment: Increment) -> None:
        if self.done.done():
            return
        collected = self._choices[choice]
        size = collected.answer.take(increment.output_parts)
        if increment.tokens and collected.logprobs is not None:
            size += collected.logprobs.add(increment.tokens)
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
        choices = [
            FinishedChoice(each.answer, each.logprobs, each.finish, each.prompt, each.stop) for each in self._choices
        ]
        self.done.set_result(CollectedAnswer(self._form, self._answer, choices, usage, self._size))

    def _grow(self, size: int) -> None:
        self._size += size
        if not self._charge.grow(size) and not self.done.done():
            self._choices = []
            self.done.set_result(out_of_memory())
