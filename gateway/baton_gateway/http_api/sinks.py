"""Where a request's answer goes: collected for one response, or written as server-sent events while it grows.

A stream never waits for its client. Text for a client that reads slowly is merged into fewer, larger chunks; beyond
`MAX_BUFFERED_BYTES`, or after `STALL_S` without the client taking a byte, the stream counts as stalled and its request
is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton_gateway.answers.answer_parts import AnswerPart, joined, whole_answer
from baton_gateway.errors import Problem
from baton_gateway.http_api.answer_forms import OPENAI, AnswerForm, EventWriter
from baton_gateway.http_api.responses import AnswerHead, FinishedChoice, PromptScores, Usage
from baton_gateway.text.choice_text import Increment, TokenInfo

MAX_BUFFERED_BYTES = 256 << 10
MERGE_ABOVE_BYTES = 64 << 10
STALL_S = 30.0
_PUMP_S = 0.05


class Sink(Protocol):
    """The client's side of one request. All calls return at once."""

    def begin(self, answer: AnswerHead) -> None:
        """The request is running."""
        ...

    def prompt(self, choice: int, scores: PromptScores) -> None:
        """Log probabilities of the prompt of a choice, for a field of their own; before its first increment."""
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
    parts: list[AnswerPart] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finish: str = ""
    stop: str | None = None
    prompt: PromptScores | None = None


class CollectingSink:
    """Keeps everything; `done` resolves to the response's body or the problem."""

    def __init__(self, form: AnswerForm = OPENAI) -> None:
        self._form = form
        self.done: asyncio.Future[bytes | Problem] = asyncio.get_running_loop().create_future()
        self._answer: AnswerHead | None = None
        self._choices: list[_Collected] = []

    def begin(self, answer: AnswerHead) -> None:
        self._answer = answer
        self._choices = [_Collected() for _ in range(answer.num_choices)]

    def prompt(self, choice: int, scores: PromptScores) -> None:
        self._choices[choice].prompt = scores

    def increment(self, choice: int, increment: Increment) -> None:
        collected = self._choices[choice]
        collected.parts += increment.told
        collected.tokens += increment.tokens
        if increment.finish is not None:
            collected.finish, collected.stop = increment.finish_reason or "", increment.stop

    def flush(self) -> None:
        pass

    def end(self, problem: Problem | None, usage: Usage) -> None:
        if self.done.done():
            return
        if problem is not None or self._answer is None:
            self.done.set_result(problem or _UNANSWERED)
            return
        choices = [
            FinishedChoice(whole_answer(each.parts), each.tokens, each.finish, each.prompt, each.stop)
            for each in self._choices
        ]
        self.done.set_result(self._form.body(self._answer, choices, usage))


_UNANSWERED = Problem(500, "server_error", "Internal error.", None, "internal_error")


@dataclass(slots=True)
class _Pending:
    parts: list[AnswerPart] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None


class StreamingSink:
    """Writes events straight to the connection once the response's head is out.

    `opened` resolves at the first chunk (None) or at an end before it (the problem, for an ordinary error response);
    `closed` when the last byte of the stream has been handed to the connection.
    """

    def __init__(self, request_id: str | None = None, form: AnswerForm = OPENAI) -> None:
        """`request_id`: named where the stream ends in an error."""
        self._form = form
        self._request_id = request_id
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.opened: asyncio.Future[Problem | None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._writer: EventWriter | None = None
        self._continuous_from: int | None = None
        """Tokens of the prompts when every chunk says the usage so far."""
        self._counted: list[int] = []
        """Tokens of each choice so far."""
        self._begun: list[bool] = []
        self._pending: dict[int, _Pending] = {}
        self._pending_chars = 0
        self._end: tuple[Problem | None, Usage] | None = None
        self._transport: asyncio.Transport | None = None
        self._is_chunked = True
        self._pump: asyncio.TimerHandle | None = None
        self._written = 0
        self._taken = 0
        self._taken_s = loop.time()

    def begin(self, answer: AnswerHead) -> None:
        self._writer = self._form.writer(answer)
        self._continuous_from = answer.prompt_tokens if answer.continuous_usage else None
        self._counted = [0] * answer.num_choices
        self._begun = [False] * answer.num_choices

    def prompt(self, choice: int, scores: PromptScores) -> None:
        raise AssertionError("a stream has no place for them, and says so when it is asked")

    def increment(self, choice: int, increment: Increment) -> None:
        pending = self._pending.get(choice)
        if pending is None:
            pending = self._pending[choice] = _Pending()
        pending.parts += increment.told
        pending.tokens += increment.tokens
        if increment.finish is not None:
            pending.finish, pending.stop = increment.finish_reason, increment.stop
        self._counted[choice] = increment.counted
        self._pending_chars += len(increment.text) + 64 * len(increment.tokens)

    def flush(self) -> None:
        if self._transport is None:
            if not self.opened.done():
                self.opened.set_result(None)
            return
        if self._transport.get_write_buffer_size() > MERGE_ABOVE_BYTES:
            if self._pump is None:
                self._pump = self._loop.call_later(_PUMP_S, self._pump_again)
            return
        self._write(self._take_pending())

    def end(self, problem: Problem | None, usage: Usage) -> None:
        if not self.opened.done():
            self.opened.set_result(problem)
        self._end = problem, usage
        self.flush()

    def attach(self, transport: asyncio.Transport, is_chunked: bool) -> None:
        """The head of the response is out: write what there is, and from now on everything."""
        self._transport = transport
        self._is_chunked = is_chunked
        self.flush()

    def is_stalled(self, now: float) -> bool:
        """Whether the client has stopped reading. To be called regularly."""
        if self._transport is None:
            return False
        buffered = self._transport.get_write_buffer_size()
        if (taken := self._written - buffered) > self._taken or buffered == 0:
            self._taken, self._taken_s = taken, now
        return now - self._taken_s > STALL_S or buffered + self._pending_chars > MAX_BUFFERED_BYTES

    def abort(self) -> None:
        """Cut the connection; nobody is there."""
        if self._pump is not None:
            self._pump.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self.closed.done():
            self.closed.set_result(None)

    def _pump_again(self) -> None:
        self._pump = None
        self.flush()

    def _take_pending(self) -> bytes:
        pending, self._pending, self._pending_chars = self._pending, {}, 0
        if self._continuous_from is not None and self._writer is not None:
            self._writer.usage_so_far(Usage(self._continuous_from, sum(self._counted)))
        parts = [part for choice, each in pending.items() for part in self._chunks(choice, each)]
        return b"".join(parts)

    def _chunks(self, choice: int, pending: _Pending) -> Sequence[bytes]:
        assert self._writer is not None
        parts = []
        if not self._begun[choice]:
            self._begun[choice] = True
            parts.append(self._writer.beginning(choice))
        told = joined(pending.parts)
        if pending.tokens:
            parts.append(self._writer.logprobs(choice, told, pending.tokens))
        else:
            parts += [self._writer.part(choice, part) for part in told]
        if pending.finish is not None:
            parts.append(self._writer.finish(choice, pending.finish, pending.stop))
        return parts

    def _last_words(self, problem: Problem | None, usage: Usage) -> bytes:
        if self._writer is None:
            return b""
        return (
            self._writer.closing(usage) if problem is None else self._writer.failure(problem, usage, self._request_id)
        )

    def _write(self, data: bytes) -> None:
        if self._end is not None:
            data, self._end = data + self._last_words(*self._end), None
            if not self.closed.done():
                self.closed.set_result(None)
        if not data or self._transport is None or self._transport.is_closing():
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
        self._written += len(framed)
        self._transport.write(framed)
