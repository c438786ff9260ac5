"""The client against a real HTTP server: streams, errors, and answers that break off."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from baton_local.client import AnswerEnd, AnswerError, ask, chat, open_session, send
from baton_local.pages import get_json

DELTAS = [{"role": "assistant"}, {"content": "Once "}, {"content": "upon"}]
CALL = [{"tool_calls": [{"function": {"name": "look", "arguments": ""}}]}] + [
    {"tool_calls": [{"function": {"arguments": part}}]} for part in ('{"city"', ': "Ur"}')
]


class Service(BaseHTTPRequestHandler):
    """Answers by the name of the model that is asked for."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["model"] == "unknown":
            self.answer(404, json.dumps({"error": {"message": "no model unknown", "type": "x"}}))
        elif asked["model"] == "locked":
            self.answer(401, json.dumps({"error": {"message": "The API key is missing or unknown.", "type": "x"}}))
        elif asked["model"].startswith("busy"):
            self.answer(429, "{}", **{"Retry-After": asked["model"].removeprefix("busy ")})
        elif not asked["stream"]:
            self.answer(200, json.dumps({"choices": [{"message": {"content": asked["messages"][0]["content"]}}]}))
        else:
            self.answer(200, "".join(f"data: {line}\n\n" for line in self.lines(asked["model"])))

    def lines(self, model: str) -> Iterator[str]:
        for delta in CALL if model == "calls" else DELTAS:
            yield json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        if model == "failing":
            yield json.dumps({"error": {"message": "no worker left"}})
        if model in ("ends", "calls"):
            yield json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            yield json.dumps({"choices": [], "usage": {"completion_tokens": 7}})
            yield "[DONE]"

    def do_GET(self) -> None:
        self.answer(
            *{"/state": (200, '{"pid": 1}'), "/list": (200, "[1]"), "/text": (200, "x")}.get(self.path, (404, "{}"))
        )

    def answer(self, status: int, body: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_stream_gives_pieces_then_the_count_and_the_reason(endpoint: str) -> None:
    pieces: list[str] = []
    answer = ask(endpoint, chat("ends", "Hi"), pieces.append)
    assert pieces == ["Once ", "upon"]
    assert (answer.texts, answer.tokens, answer.finished) == ({0: "Once upon"}, 7, {0: "stop"})
    assert answer.sent_s <= answer.times_s[0] <= answer.times_s[-1] <= answer.ended_s
    assert answer.ttft_s == answer.times_s[0] - answer.sent_s
    assert answer.tpot_s == (answer.times_s[-1] - answer.times_s[0]) / 6


def test_the_parts_of_a_call_are_pieces_too(endpoint: str) -> None:
    answer = ask(endpoint, chat("calls", "Hi"))
    assert (answer.texts, answer.calls) == ({0: ""}, {0: 'look{"city": "Ur"}'})
    assert len(answer.times_s) == len(CALL) + 1


def test_a_stream_that_breaks_off_is_an_error(endpoint: str) -> None:
    with pytest.raises(AnswerError, match="broke off before its end"):
        ask(endpoint, chat("cut", "Hi"))


def test_an_error_inside_a_stream_is_shown(endpoint: str) -> None:
    with pytest.raises(AnswerError, match="no worker left"):
        ask(endpoint, chat("failing", "Hi"))


@pytest.mark.parametrize("stream", [True, False])
def test_a_refusal_is_shown_in_the_services_words(endpoint: str, stream: bool) -> None:
    with pytest.raises(AnswerError, match="no model unknown"):
        ask(endpoint, chat("unknown", "Hi", stream=stream))


def test_a_missing_key_names_the_variable_that_has_it(endpoint: str) -> None:
    """Found: next to LLMTenants `baton ask` reported a missing key, and not where it looks for one."""
    with pytest.raises(AnswerError, match=r"missing or unknown\. \(the key that is sent: the variable BATON_API_KEY\)"):
        ask(endpoint, chat("locked", "Hi"))


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("0", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
async def test_a_refusal_keeps_when_to_ask_again(endpoint: str, header: str, seconds: float | None) -> None:
    async with open_session() as session:
        answer = await send(session, endpoint, chat(f"busy {header}", "Hi"))
    assert (answer.end, answer.retry_after_s) == (AnswerEnd.REFUSED, seconds)


def test_a_whole_answer_needs_no_stream(endpoint: str) -> None:
    assert ask(endpoint, chat("any", "Echo", stream=False)).texts == {0: "Echo"}


def test_nobody_there_is_one_line() -> None:
    with pytest.raises(AnswerError, match=r"http://127\.0\.0\.1:9 does not answer \(Connect.*\): it may be down"):
        ask("http://127.0.0.1:9", chat("any", "Hi"))


@pytest.mark.parametrize(
    ("model", "end", "failure", "text"),
    [
        ("ends", AnswerEnd.WHOLE, "", "Once upon"),
        ("cut", AnswerEnd.BROKEN, "no [DONE]", "Once upon"),
        ("failing", AnswerEnd.REFUSED, "error event", "Once upon"),
        ("unknown", AnswerEnd.REFUSED, "HTTP 404", ""),
    ],
)
async def test_what_came_before_a_break_stays_known(
    endpoint: str, model: str, end: AnswerEnd, failure: str, text: str
) -> None:
    async with open_session(10.0) as session:
        answer = await send(session, endpoint, chat(model, "Hi"), due_s=1.0)
    assert (answer.end, answer.failure, "".join(answer.texts.values())) == (end, failure, text)
    assert answer.due_s == 1.0
    assert (answer.tpot_s < float("inf")) == (end is AnswerEnd.WHOLE)


def test_pages_that_are_no_json_object_are_unknown(endpoint: str) -> None:
    assert get_json(endpoint, "/state") == {"pid": 1}
    assert [get_json(endpoint, path) for path in ("/list", "/text", "/missing")] == [None, None, None]
    assert get_json("http://127.0.0.1:9", "/state") is None
