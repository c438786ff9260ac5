"""The writer of a stream: sends an answer as server-sent events while it grows.

A stream never waits for its client. Text for a slow client is merged into fewer, larger chunks. If more is buffered
than `is_stalled` allows, or the client takes no byte for `STALL_S`, the stream counts as stalled and its request is
cancelled. One step encodes and writes little, so that other work runs between two pieces.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from baton_gateway.answers.output_parts import AnswerPart, ContentPart, merge_parts
from baton_gateway.errors import Problem, out_of_memory
from baton_gateway.openai_api.answer_forms import OPENAI, AnswerForm, EventWriter
from baton_gateway.openai_api.answer_writers import ID_BYTES, AnswerCharge, ChargeMemory, charge_nothing
from baton_gateway.openai_api.json_pieces import PIECE_BYTES, EncodedJson, JsonBytes, even_pieces
from baton_gateway.openai_api.logprob_json import CompletionLogprobs, LogprobsJson
from baton_gateway.openai_api.openai_types import ApiEndpoint
from baton_gateway.openai_api.response_encoding import AnswerHead, Usage
from baton_gateway.text.choice_text import Increment
from baton_wire.messages.values import PACKED_ID_BYTES

MAX_BUFFERED_BYTES = 256 << 10
MERGE_ABOVE_BYTES = 64 << 10
TURN_BYTES = 256 << 10
"""About the bytes that are written at once."""
STALL_S = 30.0
_PUMP_S = 0.05
_NEXT_TURN_S = 0.002
_LEAST_MERGED = 256
"""Parts of a choice that wait before they are merged: a part takes some 100 bytes more than its text."""
_STEPS_BEHIND = 4
"""Steps of all its choices that a stream may lag behind, however large one step is."""


@dataclass(slots=True)
class _Pending:
    """Parts of one choice that are not written yet. Only text and ids are still to be encoded."""

    parts: list[AnswerPart] = field(default_factory=list)
    merge_at: int = _LEAST_MERGED
    """The number of parts at which neighbours of one kind are merged. Where nothing merges, it doubles."""
    logprobs: LogprobsJson | None = None
    """Log probabilities of the tokens, after those of an echoed prompt; None: there are none."""
    ids: array[int] = field(default_factory=lambda: array("I"))
    """Ids of the tokens, if they are requested."""
    finish: str | None = None
    stop: str | None = None
    size: int = 0
    """Approximate bytes."""


class StreamingWriter:
    """Writes events to the connection once the response's head has been sent.

    `opened` resolves at the first chunk (None), or at an end before it (the problem, for an ordinary error response).
    `closed` resolves when the connection has the last byte of the stream.
    """

    def __init__(
        self, request_id: str | None = None, form: AnswerForm = OPENAI, charge: ChargeMemory = charge_nothing
    ) -> None:
        """`request_id`: reported if the stream ends in an error."""
        self._form = form
        self._request_id = request_id
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.opened: asyncio.Future[Problem | None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._charge = AnswerCharge(charge)
        self._answer: AnswerHead | None = None
        self._writer: EventWriter | None = None
        self._continuous_from: int | None = None
        """Prompt tokens, if every chunk has the usage so far; else None."""
        self._counted: list[int] = []
        """Tokens of each choice so far."""
        self._handed: list[int] = []
        """Tokens of each choice that were handed to the connection."""
        self.handed_tokens = 0
        """Tokens of all choices that were handed to the connection."""
        self.on_handed: Callable[[int], None] | None = None
        """Called with `handed_tokens` right before tokens are handed over."""
        self._begun: list[bool] = []
        self._allowed_bytes = MAX_BUFFERED_BYTES
        self._prompt_bytes: dict[int, int] = {}
        """Bytes of the prompt's ids in the first chunk of each choice that has not begun."""
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._pieces: Iterator[bytes] | None = None
        """The remaining pieces of large events."""
        self._end: tuple[Problem | None, Usage] | None = None
        self._is_over = False
        """True once nothing more is accepted."""
        self._transport: asyncio.Transport | None = None
        self._is_chunked = True
        self._pump: asyncio.TimerHandle | None = None
        self._written = 0
        self._taken = 0
        self._taken_s = loop.time()
        self.behind_since_s: float | None = None
        """Since when the connection has had more than it takes; None: its client reads what comes."""

    def begin(self, answer: AnswerHead) -> None:
        step_bytes = answer.num_choices * answer.token_bytes
        self._allowed_bytes = max(MAX_BUFFERED_BYTES, _STEPS_BEHIND * step_bytes)
        self._prompt_bytes = _prompt_bytes(answer)
        self._allowed_bytes += sum(self._prompt_bytes.values())
        self._charge.begin(answer.ahead_bytes + self._allowed_bytes - MAX_BUFFERED_BYTES)
        self._answer = answer
        self._writer = self._form.writer(answer)
        self._continuous_from = answer.prompt_tokens if answer.continuous_usage else None
        self._counted = [0] * answer.num_choices
        self._handed = [0] * answer.num_choices
        self._begun = [False] * answer.num_choices

    @property
    def is_written(self) -> bool:
        """True if the connection has everything that came."""
        return not self._pending and self._pieces is None

    def prompt(self, choice: int, scores: EncodedJson) -> None:
        raise AssertionError("a stream has no field for them: such a request is refused")

    def echo(self, choice: int, text: str, logprobs: CompletionLogprobs | None) -> None:
        if self._is_over:
            return
        pending = self._pending[choice] = _Pending([ContentPart(text)], size=len(text))
        if logprobs is not None and self._answer is not None:
            pending.logprobs = self._answer.logprobs()
            if isinstance(pending.logprobs, CompletionLogprobs):
                pending.size += pending.logprobs.add_encoded(logprobs)
        size = pending.size
        self._pending_bytes += size
        self._allowed_bytes += size

    def increment(self, choice: int, increment: Increment) -> None:
        if self._is_over:
            return
        pending = self._pending.get(choice)
        if pending is None:
            pending = self._pending[choice] = _Pending()
        pending.parts += increment.output_parts
        if len(pending.parts) >= pending.merge_at:
            pending.parts = merge_parts(pending.parts)
            pending.merge_at = max(_LEAST_MERGED, 2 * len(pending.parts))
        size = len(increment.text) + self._prompt_bytes.pop(choice, 0)
        if increment.tokens and self._answer is not None:
            if pending.logprobs is None:
                pending.logprobs = self._answer.logprobs()
            if pending.logprobs is not None:
                size += pending.logprobs.add(increment.tokens)
        if increment.ids:
            pending.ids.extend(increment.ids)
            size += ID_BYTES * len(increment.ids)
        if increment.finish is not None:
            pending.finish, pending.stop = increment.finish_reason, increment.stop
        self._counted[choice] = increment.counted
        pending.size += size
        self._pending_bytes += size
        if self._answer is not None and self._answer.is_held and not self._charge.grow(size):
            self.end(out_of_memory(), Usage(self._answer.prompt_tokens, sum(self._counted)))

    def flush(self) -> None:
        if self._transport is None:
            if not self.opened.done():
                self.opened.set_result(None)
            return
        if self._pump is not None:
            if not self._is_small or self._transport.get_write_buffer_size() > MERGE_ABOVE_BYTES:
                return
            self._pump.cancel()
        self._write_more()

    def end(self, problem: Problem | None, usage: Usage) -> None:
        if self._is_over:
            return
        if not self.opened.done():
            self.opened.set_result(problem)
        self._end, self._is_over = (problem, usage), True
        self.flush()

    def attach(self, transport: asyncio.Transport, is_chunked: bool) -> None:
        """Start writing: the head of the response has been sent."""
        self._transport = transport
        self._is_chunked = is_chunked
        self.flush()

    def is_stalled(self, now: float) -> bool:
        """Return True if the client has stopped reading. Must be called regularly."""
        if self._transport is None:
            return False
        buffered = self._transport.get_write_buffer_size()
        if (taken := self._written - buffered) > self._taken or buffered == 0:
            self._taken, self._taken_s = taken, now
        return now - self._taken_s > STALL_S or buffered + self._pending_bytes > self._allowed_bytes

    @property
    def unread_since_s(self) -> float:
        """Since when a client that has stopped reading is behind, or, where that is little, takes nothing."""
        return self._taken_s if self.behind_since_s is None else self.behind_since_s

    def abort(self) -> None:
        """Cut the connection: the client does not read."""
        self._is_over = True
        if self._pump is not None:
            self._pump.cancel()
        if self._transport is not None:
            self._transport.abort()
        if not self.closed.done():
            self.closed.set_result(None)

    # Writing ----------------------------------------------------------------------------------------------------------

    def _write_more(self) -> None:
        """Write as much as the connection takes and one step may cost, and schedule the rest."""
        self._pump = None
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > MERGE_ABOVE_BYTES:
            if self.behind_since_s is None:
                self.behind_since_s = self._loop.time()
            self._pump = self._loop.call_later(_PUMP_S if self._is_small else _NEXT_TURN_S, self._write_more)
            return
        self.behind_since_s = None
        if self._pieces is None:
            self._write_events(self._take_events())
        else:
            self._write_piece()
        if self._pieces is not None or self._pending or self._end is not None:
            wait_s = 0 if self._transport.get_write_buffer_size() == 0 else _NEXT_TURN_S
            self._pump = self._loop.call_later(wait_s, self._write_more)

    @property
    def _is_small(self) -> bool:
        """True if the pending parts can wait until more comes."""
        return self._pieces is None and self._pending_bytes <= TURN_BYTES

    def _take_events(self) -> list[JsonBytes]:
        """Encode pending parts, as much as one step may, and the end once nothing is pending."""
        if self._continuous_from is not None and self._writer is not None:
            self._writer.usage_so_far(Usage(self._continuous_from, sum(self._counted)))
        if self._pending_bytes <= TURN_BYTES:
            taken, self._pending, self._pending_bytes = self._pending, {}, 0
        else:
            taken = self._take_some()
        events: list[JsonBytes] = []
        for choice, pending in taken.items():
            self.handed_tokens += self._counted[choice] - self._handed[choice]
            self._handed[choice] = self._counted[choice]
            self._add_events(events, choice, pending)
        if taken and self.on_handed is not None:
            self.on_handed(self.handed_tokens)
        if self._end is not None and not self._pending:
            events += self._last_events(*self._end)
            self._end = None
        return events

    def _take_some(self) -> dict[int, _Pending]:
        taken: dict[int, _Pending] = {}
        size = 0
        for choice, pending in self._pending.items():
            if size >= TURN_BYTES:
                break
            taken[choice] = pending
            size += pending.size
        for choice in taken:
            del self._pending[choice]
        self._pending_bytes -= size
        return taken

    def _add_events(self, events: list[JsonBytes], choice: int, pending: _Pending) -> None:
        assert self._writer is not None
        assert self._answer is not None
        if not self._begun[choice]:
            self._begun[choice] = True
            events += self._writer.beginning(choice)
        parts = merge_parts(pending.parts)
        logprobs, ids = pending.logprobs, pending.ids or None
        if logprobs is None and ids is None:
            for part in parts:
                events += self._writer.part(choice, part)
        else:
            events += self._writer.detailed(choice, parts, logprobs, ids)
        if pending.finish is not None:
            events += self._writer.finish(choice, pending.finish, pending.stop)

    def _last_events(self, problem: Problem | None, usage: Usage) -> Sequence[JsonBytes]:
        if self._writer is None:
            return ()
        if problem is None:
            return self._writer.closing(usage)
        return self._writer.failure(problem, usage, self._request_id)

    def _write_events(self, events: list[JsonBytes]) -> None:
        if sum(map(len, events)) <= PIECE_BYTES:
            self._write(b"".join(events))
            if self._is_over:
                self._close_if_over()
        else:
            self._pieces = even_pieces(events)
            self._write_piece()

    def _write_piece(self) -> None:
        assert self._pieces is not None
        assert self._transport is not None
        piece = None if self._transport.is_closing() else next(self._pieces, None)
        if piece is None:
            self._pieces = None
            self._close_if_over()
        else:
            self._write(piece)

    def _close_if_over(self) -> None:
        if self._is_over and self._end is None and not self._pending and not self.closed.done():
            self.closed.set_result(None)

    def _write(self, data: bytes) -> None:
        if not data or self._transport is None or self._transport.is_closing():
            return
        framed = b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data
        self._written += len(framed)
        self._transport.write(framed)


def _prompt_bytes(answer: AnswerHead) -> dict[int, int]:
    """The bytes of the prompts' ids by the choice whose first chunk has them. A chat sends its prompt once."""
    sizes = [len(packed) * ID_BYTES // PACKED_ID_BYTES for packed in answer.prompt_ids or ()]
    if not sizes or answer.head.endpoint is ApiEndpoint.CHAT:
        return dict(enumerate(sizes))
    choices_per_prompt = max(1, answer.num_choices // len(sizes))
    return {choice: sizes[choice // choices_per_prompt] for choice in range(answer.num_choices)}
