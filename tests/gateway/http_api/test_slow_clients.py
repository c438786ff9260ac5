"""I10 for one stream: what a client does not read is bounded; and the check sees it when it is not (row F27)."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton_gateway.answers.output_parts import ContentPart
from baton_gateway.apis.responses_request import parse_response
from baton_gateway.openai_api.answer_bounds import token_bytes
from baton_gateway.openai_api.json_pieces import PIECE_BYTES
from baton_gateway.openai_api.logprob_json import CompletionLogprobs
from baton_gateway.openai_api.openai_types import ApiEndpoint
from baton_gateway.openai_api.response_encoding import AnswerHead, ResponseHead, Usage
from baton_gateway.openai_api.streaming_writer import (
    MAX_BUFFERED_BYTES,
    MERGE_ABOVE_BYTES,
    STALL_S,
    TURN_BYTES,
    StreamingWriter,
)
from baton_gateway.requests.answer_flushes import FLUSH_S, AnswerFlushes
from baton_gateway.text.choice_text import Increment, TokenInfo
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_testing.gateway.gateway_process import tokenizer
from baton_testing.gateway.made_tokenizers import bundle_hash
from baton_wire.messages.values import Finish, TokenLogprob

STEP_BYTES = 20
ROOM_BYTES = MAX_BUFFERED_BYTES + 2_000 * STEP_BYTES
"""The bound, and what may come between two looks, which are a second apart."""


class StuckTransport:
    """A connection whose client takes nothing."""

    def __init__(self) -> None:
        self.written = 0
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.written

    def is_closing(self) -> bool:
        return self.is_aborted

    def write(self, data: bytes) -> None:
        self.written += len(data)

    def abort(self) -> None:
        self.is_aborted = True


def answer() -> AnswerHead:
    head = ResponseHead(ApiEndpoint.CHAT, "chatcmpl-1", 0, "tiny", "fp_1")
    return AnswerHead(head, cast(Any, None), 1, False, False, 1, False)


def stream_to(writer: StreamingWriter, transport: StuckTransport, tokens_per_s: int) -> tuple[int, int]:
    """Tokens for two minutes, a look every second; seconds until it counts as stalled, and the most that was held."""
    writer.begin(answer())
    writer.attach(cast(Any, transport), True)
    start, most = writer._taken_s, 0
    for second in range(120):
        for _ in range(tokens_per_s):
            writer.increment(0, Increment("x" * STEP_BYTES))
            writer.flush()
        most = max(most, transport.get_write_buffer_size() + writer_holds(writer))
        if writer.is_stalled(start + second):
            writer.abort()
            return second, most
    return 120, most


def writer_holds(writer: StreamingWriter) -> int:
    return sum(
        len(part.text)
        for pending in writer._pending.values()
        for part in pending.parts
        if isinstance(part, ContentPart)
    )


def is_bounded(seconds: int, held_bytes: int) -> bool:
    return seconds <= STALL_S + 1 and held_bytes <= ROOM_BYTES


@pytest.mark.parametrize("tokens_per_s", [1, 100, 2_000])
async def test_a_client_that_does_not_read_holds_bounded_bytes_for_a_bounded_time(tokens_per_s: int) -> None:
    assert is_bounded(*stream_to(StreamingWriter(), StuckTransport(), tokens_per_s))


class NeverLooks(StreamingWriter):
    """smg-project/smg#2097: nobody asks whether the client reads."""

    def is_stalled(self, now: float) -> bool:
        return False


class WritesWhateverIsThere(StreamingWriter):
    """smg-project/smg#2097: every chunk goes to the connection, however much it holds already."""

    def flush(self) -> None:
        if self._transport is not None:
            self._write_events(self._take_events())

    def is_stalled(self, now: float) -> bool:
        return now - self._taken_s > STALL_S


class CountsOnlyTheSocket(StreamingWriter):
    """smg-project/smg#2097: what is merged for later is nobody's bytes."""

    def is_stalled(self, now: float) -> bool:
        self._pending_bytes = 0
        self._taken_s = now
        return super().is_stalled(now)


@pytest.mark.parametrize("defect", [NeverLooks, WritesWhateverIsThere, CountsOnlyTheSocket])
async def test_a_sink_without_a_bound_is_caught(defect: type[StreamingWriter]) -> None:
    assert not is_bounded(*stream_to(defect(), StuckTransport(), 150))


TOP = tuple((300 + place, -1.0 - place) for place in range(20))


def with_logprobs(text: TextModel, choices: int) -> AnswerHead:
    head = ResponseHead(ApiEndpoint.COMPLETIONS, "cmpl-1", 0, "tiny", "fp_1")
    return AnswerHead(head, text, choices, False, False, 1, True, token_bytes=token_bytes(20))


def scored(finish: Finish | None = None) -> Increment:
    return Increment("x", (TokenInfo(300, TokenLogprob(-1.0, TOP), 0),), finish)


@pytest.fixture(scope="module")
def text() -> TextModel:
    data = tokenizer().bundle()
    return load_text_model(data, bundle_hash(data))


async def test_what_waits_for_a_slow_client_weighs_what_its_log_probabilities_weigh(text: TextModel) -> None:
    writer, transport = StreamingWriter(), StuckTransport()
    writer.begin(with_logprobs(text, 1))
    writer.attach(cast(Any, transport), True)
    transport.written = MERGE_ABOVE_BYTES + 1
    tokens = 0
    while not writer.is_stalled(writer._taken_s):
        writer.increment(0, scored())
        writer.flush()
        tokens += 1
    pending = writer._pending[0].logprobs
    assert isinstance(pending, CompletionLogprobs)
    assert MAX_BUFFERED_BYTES // 2 < pending.size <= writer._allowed_bytes + pending.size // tokens


async def test_a_stream_knows_since_when_its_client_is_behind(text: TextModel) -> None:
    writer, transport = StreamingWriter(), StuckTransport()
    writer.begin(with_logprobs(text, 1))
    writer.attach(cast(Any, transport), True)
    assert writer.behind_since_s is None
    transport.written = MERGE_ABOVE_BYTES + 1
    writer.increment(0, scored())
    before_s = writer._loop.time()
    writer.flush()
    since_s = writer.behind_since_s
    assert since_s is not None
    assert before_s <= since_s <= writer._loop.time()
    writer._write_more()
    assert writer.behind_since_s == since_s, "it has not caught up"
    transport.written = 0
    writer._write_more()
    assert writer.behind_since_s is None


async def test_a_client_that_takes_nothing_of_a_small_answer_has_not_read_since_it_took_something(
    text: TextModel,
) -> None:
    """Found: it is not behind, so its record counted the time until it was cut off as decoding."""
    writer, transport = StreamingWriter(), StuckTransport()
    writer.begin(with_logprobs(text, 1))
    writer.attach(cast(Any, transport), True)
    began_s = writer._loop.time()
    assert not writer.is_stalled(began_s)
    writer.increment(0, Increment("x"))
    writer.flush()
    assert writer.is_stalled(began_s + STALL_S + 1)
    assert (writer.behind_since_s, writer.unread_since_s) == (None, began_s)


class FastTransport(StuckTransport):
    """A connection whose client takes everything at once; what came in one turn of the loop is one entry."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[bytes] = []
        self._is_new_turn = True

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        if self._is_new_turn:
            self._is_new_turn = False
            self.turns.append(b"")
            asyncio.get_running_loop().call_soon(self._end_turn)
        self.turns[-1] += data

    def _end_turn(self) -> None:
        self._is_new_turn = True


def events_of(transport: FastTransport) -> list[dict[str, Any]]:
    events = b"".join(transport.turns).decode().removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_a_step_of_many_choices_is_written_in_several_turns_of_the_loop(text: TextModel) -> None:
    writer, transport = StreamingWriter(), FastTransport()
    writer.begin(with_logprobs(text, 1_024))
    writer.attach(cast(Any, transport), False)
    for choice in range(1_024):
        writer.increment(choice, scored())
    writer.flush()
    for choice in range(1_024):
        writer.increment(choice, scored(Finish.LENGTH))
    writer.end(None, Usage(1, 2_048))
    await asyncio.wait_for(writer.closed, 60)
    assert len(transport.turns) > 10
    assert max(map(len, transport.turns)) <= 2 * TURN_BYTES
    events = events_of(transport)
    choices_read = [event["choices"][0] for event in events]
    assert sum(len(choice["logprobs"]["tokens"]) for choice in choices_read if choice["logprobs"]) == 2_048
    assert sorted(choice["index"] for choice in choices_read if choice["finish_reason"]) == list(range(1_024))
    assert writer.is_written


async def test_a_long_last_event_is_written_in_pieces(text: TextModel) -> None:
    _, form = parse_response({"model": "tiny", "input": "x", "stream": True, "top_logprobs": 20})
    writer, transport = StreamingWriter(None, form), FastTransport()
    head = ResponseHead(ApiEndpoint.CHAT, "chatcmpl-1", 0, "tiny", "fp_1")
    writer.begin(AnswerHead(head, text, 1, False, False, 1, True, True))
    writer.attach(cast(Any, transport), False)
    for _ in range(300):
        writer.increment(0, scored())
        writer.flush()
    writer.increment(0, scored(Finish.LENGTH))
    writer.end(None, Usage(1, 301))
    await asyncio.wait_for(writer.closed, 60)
    assert max(map(len, transport.turns[1:])) <= PIECE_BYTES
    last = b"".join(transport.turns).decode().removesuffix("\n\n").rpartition("data: ")[2]
    assert len(json.loads(last)["response"]["output"][0]["content"][0]["logprobs"]) == 301


async def test_a_stream_whose_end_repeats_it_ends_with_a_named_error_when_memory_is_full(text: TextModel) -> None:
    _, form = parse_response({"model": "tiny", "input": "x", "stream": True})
    charged = [0]

    def hold(size: int) -> bool:
        is_free = charged[0] + size <= 100_000
        charged[0] += size * is_free
        return is_free

    writer, transport = StreamingWriter("req-1", form, hold), FastTransport()
    head = ResponseHead(ApiEndpoint.CHAT, "chatcmpl-1", 0, "tiny", "fp_1")
    writer.begin(AnswerHead(head, text, 1, False, False, 1, False, True))
    writer.attach(cast(Any, transport), False)
    for _ in range(1_000):
        writer.increment(0, Increment("x" * 200))
        writer.flush()
    await asyncio.wait_for(writer.closed, 60)
    last = json.loads(b"".join(transport.turns).decode().removesuffix("\n\n").rpartition("data: ")[2])
    assert last["type"] == "response.failed"
    assert "out_of_memory" in last["response"]["error"]["message"]
    writer.end(None, Usage(1, 1))


async def test_many_streams_are_written_in_several_turns_of_the_loop() -> None:
    now, later, written = [0.0], list[Any](), list[int]()

    class AnswerWriter:
        def __init__(self, ticket: int) -> None:
            self.ticket = ticket

        def flush(self) -> None:
            now[0] += FLUSH_S / 4
            written.append(self.ticket)

    lives = {ticket: SimpleNamespace(ticket=ticket, writer=AnswerWriter(ticket)) for ticket in range(64)}
    loop = SimpleNamespace(time=lambda: now[0], call_soon=later.append)
    AnswerFlushes(cast(Any, loop), lives).schedule().update(cast(Any, lives))
    turns = 0
    while later:
        before = len(written)
        later.pop(0)()
        turns += 1
        assert len(written) - before <= 6
    assert written == list(range(64))
    assert turns > 8
