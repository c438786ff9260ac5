"""Streams of servers that are not Baton: whatever they send, an answer is whole, refused or broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from aiohttp import web

from baton_local import client
from baton_local.client import Answer, AnswerEnd, completion, open_session, send

DONE = "[DONE]"
COUNTED = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}


def piece(text: str = "w ", **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": None, **fields}]}


def delta(content: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": content}]}


def used(tokens: int | None) -> dict[str, object]:
    return {"usage": {"completion_tokens": tokens}}


END = piece("", finish_reason="length")


async def answered(events: Sequence[object], stays_open: bool = False) -> Answer:
    """To one request, by a server that sends these events: objects as JSON, texts as they are, bytes with nothing
    before them."""

    async def handle(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for event in events:
            if isinstance(event, bytes):
                await reply.write(event)
            else:
                text = event if isinstance(event, str) else json.dumps(event)
                await reply.write(f"data: {text}\n\n".encode())
        if stays_open:
            await asyncio.Event().wait()
        return reply

    app = web.Application()
    app.router.add_post("/v1/completions", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with open_session(30.0) as session:
            return await send(session, endpoint, completion("m", "a b", 3))
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("events", "tokens", "is_counted", "pieces"),
    [
        ([piece(), piece(), piece(), END, COUNTED, DONE], 3, True, 4),
        ([piece(), piece(), piece(), END, DONE], 3, False, 4),
        ([piece(), piece(), piece(finish_reason="length"), DONE], 3, False, 3),
        ([piece("w w w "), END, COUNTED, DONE], 3, True, 2),
        ([piece(""), piece(), COUNTED, DONE], 3, True, 1),
        ([piece() | used(1), piece() | used(2), DONE], 2, True, 2),
        ([piece() | {"usage": None}, {"choices": []} | used(None), DONE], 1, False, 1),
        ([piece() | {"error": None}, DONE], 1, False, 1),
        ([{"type": "ping"}, b": comment\n\nevent: x\n\n", "", {"choices": None}, piece(), DONE], 1, False, 1),
        ([{"choices": [None, 3]}, delta(None), delta(3), piece(), DONE], 1, False, 1),
        ([delta({"tool_calls": [None]}), piece(), DONE], 1, False, 1),
        ([delta({"reasoning_content": "hm"}), delta({"reasoning": "so"}), DONE], 2, False, 2),
        ([piece(), DONE, piece(), "rubbish"], 1, False, 1),
        ([COUNTED, DONE], 3, True, 0),
    ],
)  # fmt: skip
async def test_a_stream_is_whole_whatever_else_is_in_it(
    events: list[object], tokens: int, is_counted: bool, pieces: int
) -> None:
    answer = await answered(events)
    assert (answer.end, answer.failure) == (AnswerEnd.WHOLE, "")
    assert (answer.tokens, answer.is_counted, len(answer.times_s)) == (tokens, is_counted, pieces)
    if not pieces:
        assert (answer.ttft_s, answer.tpot_s) == (float("inf"), float("inf"))


@pytest.mark.parametrize(
    ("events", "end", "failure"),
    [
        ([piece(), [1]], AnswerEnd.BROKEN, "ValueError"),
        ([piece(), 3], AnswerEnd.BROKEN, "ValueError"),
        ([piece(), "{torn"], AnswerEnd.BROKEN, "JSONDecodeError"),
        ([piece(), END], AnswerEnd.BROKEN, "no [DONE]"),
        ([piece(), {"error": "boom"}], AnswerEnd.REFUSED, "error event"),
        ([piece(), {"error": {"message": "boom"}}, DONE], AnswerEnd.REFUSED, "error event"),
    ],
)
async def test_what_is_no_answer_is_lost_and_has_its_name(events: list[object], end: AnswerEnd, failure: str) -> None:
    answer = await answered(events)
    assert (answer.end, answer.failure) == (end, failure)
    assert len(answer.times_s) in (1, 2)
    assert "\n" not in answer.detail


async def test_a_connection_that_stays_open_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LINGER_S", 0.05)
    answer = await answered([piece(), COUNTED, DONE], stays_open=True)
    assert answer.end is AnswerEnd.WHOLE
    assert answer.ended_s >= answer.times_s[-1]
