"""I10 for one stream: what a client does not read is bounded; and the check sees it when it is not (row F27)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from baton_gateway.answers.answer_parts import ContentPart
from baton_gateway.http_api.openai_types import ApiEndpoint
from baton_gateway.http_api.responses import AnswerHead, ResponseHead
from baton_gateway.http_api.sinks import MAX_BUFFERED_BYTES, STALL_S, StreamingSink
from baton_gateway.text.choice_text import Increment

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


def stream_to(sink: StreamingSink, transport: StuckTransport, tokens_per_s: int) -> tuple[int, int]:
    """Tokens for two minutes, a look every second; seconds until it counts as stalled, and the most that was held."""
    sink.begin(answer())
    sink.attach(cast(Any, transport), True)
    start, most = sink._taken_s, 0
    for second in range(120):
        for _ in range(tokens_per_s):
            sink.increment(0, Increment("x" * STEP_BYTES))
            sink.flush()
        most = max(most, transport.get_write_buffer_size() + sink_holds(sink))
        if sink.is_stalled(start + second):
            sink.abort()
            return second, most
    return 120, most


def sink_holds(sink: StreamingSink) -> int:
    return sum(
        len(part.text) for pending in sink._pending.values() for part in pending.parts if isinstance(part, ContentPart)
    )


def is_bounded(seconds: int, held_bytes: int) -> bool:
    return seconds <= STALL_S + 1 and held_bytes <= ROOM_BYTES


@pytest.mark.parametrize("tokens_per_s", [1, 100, 2_000])
async def test_a_client_that_does_not_read_holds_bounded_bytes_for_a_bounded_time(tokens_per_s: int) -> None:
    assert is_bounded(*stream_to(StreamingSink(), StuckTransport(), tokens_per_s))


class NeverLooks(StreamingSink):
    """smg-project/smg#2097: nobody asks whether the client reads."""

    def is_stalled(self, now: float) -> bool:
        return False


class WritesWhateverIsThere(StreamingSink):
    """smg-project/smg#2097: every chunk goes to the connection, however much it holds already."""

    def flush(self) -> None:
        if self._transport is not None:
            self._write_events(self._take_events())

    def is_stalled(self, now: float) -> bool:
        return now - self._taken_s > STALL_S


class CountsOnlyTheSocket(StreamingSink):
    """smg-project/smg#2097: what is merged for later is nobody's bytes."""

    def is_stalled(self, now: float) -> bool:
        self._pending_bytes = 0
        self._taken_s = now
        return super().is_stalled(now)


@pytest.mark.parametrize("defect", [NeverLooks, WritesWhateverIsThere, CountsOnlyTheSocket])
async def test_a_sink_without_a_bound_is_caught(defect: type[StreamingSink]) -> None:
    assert not is_bounded(*stream_to(defect(), StuckTransport(), 150))
