"""`baton bench --sessions` against a server with an endless cache of token ids."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from baton_local.__main__ import main
from baton_local.client import Answer, AnswerEnd
from baton_local.load_test.closed_loop import TurnAnswer, closed_loop
from baton_local.load_test.load_record import LoadRecord, read_load_record
from baton_local.load_test.prompts import words
from baton_local.load_test.session_prompts import IdSegments, SessionPrompts, WordSegments
from baton_local.load_test.session_report import SessionRun, session_figures
from baton_simulate.sessions.session_load import SessionLoad, SessionTurn
from baton_simulate.sessions.turn_order import LoopLimits
from baton_testing.threaded_server import serve_in_thread

Prompt = tuple[Any, ...]


@dataclass
class CachingServer:
    """Answers with one token at once, and reports the longest prefix in common with any earlier prompt."""

    url: str = ""
    reports: bool = True
    prompts: list[Prompt] = field(default_factory=list)
    headers: set[str | None] = field(default_factory=set)
    running: int = 0
    most_running: int = 0
    refused: int = 0
    """Requests to refuse."""

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "served"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        prompt: Prompt = tuple(text.split()) if isinstance(text, str) else tuple(text)
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": body["max_tokens"]}
        if not body["stream"]:
            return web.json_response({"choices": [{"text": "x"}], "usage": usage})
        if self.refused:
            self.refused -= 1
            return web.json_response({"error": {"message": "not now"}}, status=503)
        self.headers.add(request.headers.get("X-Session-Id"))
        cached = max((_common(prompt, other) for other in self.prompts), default=0)
        self.prompts.append(prompt)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1
        if self.reports:
            usage["prompt_tokens_details"] = {"cached_tokens": min(cached, len(prompt) - 1)}
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for event in ({"choices": [{"index": 0, "text": "x", "delta": {"content": "x"}}]}, {"usage": usage}):
            await reply.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await reply.write(b"data: [DONE]\n\n")
        return reply


def _common(one: Prompt, other: Prompt) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@pytest.fixture
def server() -> Iterator[CachingServer]:
    served, app = CachingServer(), web.Application(client_max_size=1 << 26)
    app.router.add_get("/v1/models", served.models)
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, served.completions)
    with serve_in_thread(app) as served.url:
        yield served


SMALL = ("--session-count", "6", "--turns", "3", "--new-tokens", "20", "--output-tokens", "4", "--think-scale", "0")
FIRST = ("--prompt-tokens", "100", "--shared-tokens", "40")


def run(server: CachingServer, path: Path, *arguments: str, status: int = 0) -> LoadRecord:
    assert main(["bench", "--endpoint", server.url, "--json", str(path), *arguments]) == status
    return read_load_record(path)


@pytest.mark.parametrize("way", [("--ids", "16-499"), (), ("--chat",)])
def test_a_server_that_caches_everything_reaches_the_ideal(
    way: tuple[str, ...], server: CachingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = run(server, tmp_path / "out.json", "--sessions", "agents", *SMALL, *FIRST, *way, "--in-flight", "1")
    (report,) = record.reports
    assert report.whole == report.offered == 18
    assert (figures := report.sessions) is not None
    assert (figures.sessions, figures.turns, figures.unreported) == (6, 18, 0)
    assert figures.planned_prompt_tokens == 6 * (100 + 124 + 148)
    assert figures.ideal_cached_tokens == 5 * 40 + 6 * (100 + 124)
    assert figures.cached_of_ideal == pytest.approx(1.0, abs=0.002)
    assert figures.interactivity_p90 is not None
    assert figures.interactivity_p50 is not None
    assert figures.interactivity_p90 <= figures.interactivity_p50
    assert figures.first_turns_ttft_s is not None
    assert figures.later_turns_ttft_s is not None
    assert server.most_running == 1
    out = capsys.readouterr().out
    assert "of the ideal" in out
    assert "P90" in out


def test_seeds_are_runs_that_share_nothing(server: CachingServer, tmp_path: Path) -> None:
    record = run(
        server, tmp_path / "o.json", "--sessions", "agents", *SMALL, *FIRST, "--ids", "16-9999", "--seeds", "2"
    )
    figures = record.reports[0].sessions
    assert figures is not None
    assert figures.ideal_cached_tokens == 2 * (5 * 40 + 6 * (100 + 124))
    assert figures.cached_of_ideal is not None
    assert figures.cached_of_ideal <= 1.0
    assert len({prompt[:40] for prompt in server.prompts}) == 2


def test_a_trace_and_a_number_are_loads_too(server: CachingServer, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [{"timestamp": 0, "input_length": 1100, "output_length": 3, "hash_ids": [1, 2, 3]},
            {"timestamp": 10, "input_length": 1300, "output_length": 3, "hash_ids": [1, 2, 4]}]  # fmt: skip
    trace.write_text("\n".join(map(json.dumps, rows)))
    record = run(server, tmp_path / "o.json", "--sessions", str(trace), "--ids", "16-9999")
    assert (figures := record.reports[0].sessions) is not None
    assert (figures.sessions, figures.turns, figures.ideal_cached_tokens, figures.cached_tokens) == (1, 2, 1024, 1024)
    drawn = run(
        *(server, tmp_path / "p.json", "--sessions", "5", "--session-count", "3", "--think-scale", "0"),
        *("--duration", "2s", "--ids", "16-99"),
    )
    assert drawn.load == "sessions: drawn shape 5"
    assert (figures := drawn.reports[0].sessions) is not None
    assert figures.turns > 0


def test_a_server_that_counts_no_cached_tokens_has_no_share(
    server: CachingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.reports = False
    record = run(server, tmp_path / "o.json", "--sessions", "agents", *SMALL, *FIRST, "--ids", "16-9999")
    assert (figures := record.reports[0].sessions) is not None
    assert (figures.cached_tokens, figures.cached_of_ideal) == (None, None)
    assert figures.ideal_cached_tokens > 0
    assert "not reported by the server" in capsys.readouterr().out


def test_a_refused_turn_is_lost_and_its_session_goes_on(server: CachingServer, tmp_path: Path) -> None:
    server.refused = 1
    record = run(
        *(server, tmp_path / "o.json", "--sessions", "agents", *SMALL, *FIRST, "--ids", "16-9999", "--users", "1")
    )
    (report,) = record.reports
    assert (report.whole, report.refused) == (17, 1)
    assert report.failed_because == "not now"


def test_a_session_is_named_only_where_that_is_asked_for(server: CachingServer, tmp_path: Path) -> None:
    load = ("--sessions", "agents", *SMALL, *FIRST, "--ids", "16-9999")
    run(server, tmp_path / "o.json", *load)
    assert server.headers == {None}
    run(server, tmp_path / "o.json", *load, "--session-ids")
    assert len(server.headers) == 7


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--sessions", "nothing"), "--sessions: 'nothing' is not allowed: must be one of agents, short, head"),
        (("--sessions", "99999999999"), "must be at most"),
        (("--sessions", "agents", "--rate", "3"), "--rate: not allowed with --sessions"),
        (("--sessions", "agents", "--trace", "x"), "--trace: not allowed with --sessions"),
        (("--sessions", "agents", "--find", "1-2"), "--find: not allowed with --sessions"),
        (
            ("--sessions", "agents", "--prompt-tokens", "50"),
            "--prompt-tokens: 50 is not allowed: must be over the 12000",
        ),
        (("--sessions", "agents", "--turns", "2~9"), "--turns: 2~9 is not allowed with --sessions"),
    ],
)
def test_sessions_that_cannot_be_sent_are_one_line(
    arguments: tuple[str, ...], complaint: str, server: CachingServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--endpoint", server.url, *arguments]) == 2
    assert complaint in capsys.readouterr().err
    assert server.prompts == []


def test_lengths_of_a_trace_are_its_own(
    server: CachingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 9, "output_length": 3, "hash_ids": [1]}))
    assert main(["bench", "--endpoint", server.url, "--sessions", str(trace), "--turns", "3"]) == 2
    assert "--turns: not allowed with a trace" in capsys.readouterr().err


def test_a_turn_waits_for_all_that_it_comes_after_and_users_are_at_most_as_many() -> None:
    turns = (
        SessionTurn(0, ((0, 5),), 1),
        SessionTurn(0, ((0, 5), (1, 5)), 1, after=(0,)),
        SessionTurn(0, ((0, 5), (2, 5)), 1, after=(0,)),
        SessionTurn(0, ((0, 5), (3, 5)), 1, after=(1, 2)),
        SessionTurn(1, ((4, 5),), 1),
    )
    running: set[int] = set()
    seen: list[tuple[int, frozenset[int]]] = []

    async def send_turn(turn: SessionTurn) -> Answer:
        place = turns.index(turn)
        running.add(place)
        await asyncio.sleep(0)
        seen.append((place, frozenset(running)))
        for _ in range(3):
            await asyncio.sleep(0)
        running.remove(place)
        return Answer(0.0, float(place), end=AnswerEnd.WHOLE)

    answers = asyncio.run(closed_loop(SessionLoad("x", turns), send_turn, LoopLimits(users=1)))
    assert [answer.place for answer in answers] == [0, 1, 2, 3, 4]
    at_once = dict(seen)
    assert at_once[0] == {0}
    assert at_once[2] == {1, 2}, "sub-agents run side by side"
    assert at_once[3] == {3}
    assert at_once[4] == {4}, "the second session waits for the end of the first"


def test_turns_that_are_due_after_the_duration_are_not_sent() -> None:
    turns = (
        SessionTurn(0, ((0, 5),), 1),
        SessionTurn(0, ((0, 5), (1, 5)), 1, after=(0,), think_s=3_600.0),
        SessionTurn(0, ((0, 5), (1, 5), (2, 5)), 1, after=(1,)),
    )

    async def send_turn(turn: SessionTurn) -> Answer:
        return Answer(0.0, 0.0, end=AnswerEnd.WHOLE)

    answers = asyncio.run(closed_loop(SessionLoad("x", turns), send_turn, LoopLimits(duration_s=60.0)))
    assert [answer.place for answer in answers] == [0]


def test_segments_are_the_same_in_every_prompt_and_a_short_one_begins_the_long_one() -> None:
    for writer in (IdSegments(16, 499, 1), WordSegments(2.0, 1)):
        prompts = SessionPrompts(writer, kept_bytes=100)
        short, long = json.loads(prompts.as_json([(1, 40), (2, 10)])), json.loads(prompts.as_json([(1, 60)]))
        again = json.loads(prompts.as_json([(1, 40), (2, 10)]))
        assert short == again
        common = 40 if isinstance(writer, IdSegments) else len(" ".join(words(random.Random("1 segment 1"), 20)))
        assert short[:common] == long[:common]


def test_the_ideal_counts_only_where_the_server_counts() -> None:
    load = SessionLoad("x", (SessionTurn(0, ((0, 50),), 1), SessionTurn(0, ((0, 50), (1, 9)), 1, after=(0,)),
                             SessionTurn(0, ((0, 50), (1, 9), (2, 9)), 1, after=(1,))))  # fmt: skip

    def answer(place: int, cached: int | None, end: AnswerEnd = AnswerEnd.WHOLE) -> TurnAnswer:
        return TurnAnswer(place, Answer(0.0, 0.0, [0.5], tokens=10, ended_s=2.0, end=end, cached_tokens=cached))

    figures = session_figures([SessionRun(load, (answer(0, 0), answer(1, 25), answer(2, None)))])
    assert (figures.cached_tokens, figures.cached_of_ideal, figures.ideal_cached_tokens) == (25, 0.5, 50 + 59)
    assert figures.unreported == 1
    assert figures.interactivity_p90 == 5.0
    none = session_figures([SessionRun(load, (answer(0, None, AnswerEnd.BROKEN),))])
    assert (none.cached_tokens, none.cached_of_ideal, none.interactivity_p90) == (None, None, None)
