"""`baton bench` against a server of a few lines: what is sent, what is reported, and how it fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from baton_local.__main__ import main
from baton_local.load_test.load_record import read_load_record
from baton_testing.threaded_server import serve_in_thread


@dataclass
class Server:
    """Streams as many tokens as asked for; counts two tokens a word; refuses what has over `most` tokens of answer."""

    url: str = ""
    most: int = 1_000
    context: int = 1_000_000
    """The most tokens of a prompt."""
    held: int = 1_000_000
    """Streams that are answered. The next one's client gets Ctrl-C, and no answer, nor do those after it."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "served"}]})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.keys.add(request.headers.get("Authorization"))
        is_chat = "messages" in body
        prompt, count = body["messages"][0]["content"] if is_chat else body["prompt"], body["max_tokens"]
        if count > self.most:
            return web.json_response({"error": {"message": "too long for me"}}, status=429)
        streams = sum(body["stream"] for body in self.bodies)
        if body["stream"] and streams > self.held:
            if streams == self.held + 1:  # a second one would end the client at once
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()  # until the client is gone
        tokens = 2 * len(prompt.split()) if isinstance(prompt, str) else len(prompt)
        if tokens > self.context:
            return web.json_response({"error": {"message": "a context of that length"}}, status=400)
        usage = {"prompt_tokens": tokens, "completion_tokens": count}
        if not body["stream"]:
            return web.json_response({"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage})
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        for place in range(count):
            choice = {"index": 0, "text": "x", "finish_reason": "length" if place == count - 1 else None}
            if is_chat:
                choice["delta"] = {"reasoning_content" if place < 2 else "content": choice.pop("text")}
            await reply.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        await reply.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
        return reply


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """Whoever started the tests in the background may have had SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def server() -> Iterator[Server]:
    served, app = Server(), web.Application()
    app.router.add_get("/v1/models", served.models)
    for path in ("/v1/completions", "/v1/chat/completions"):
        app.router.add_post(path, served.completions)
    with serve_in_thread(app) as served.url:
        yield served


def bench(server: Server, *arguments: str) -> int:
    return main(["bench", "--endpoint", server.url, "--duration", "500ms", *arguments])


def test_each_rate_is_a_line_and_a_report(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    shape = ("--prompt-tokens", "40", "--output-tokens", "3-9")
    goals = ("--ttft", "9s", "--tpot", "1s", "2s", "--gpus", "2", "--json", str(path))
    assert bench(server, "--rate", "10", "40", "--arrivals", "even", "--seeds", "2", *shape, *goals) == 0
    text = capsys.readouterr().out
    record = read_load_record(path)
    assert [(one.rate, one.offered, one.whole) for one in record.reports] == [(10, 10, 10), (40, 40, 40)]
    assert record.model == "served"
    assert record.reports[0].prompt_tokens == pytest.approx(40, abs=2)
    assert all(result.is_kept for report in record.reports for result in report.attainment)
    assert "goodput at TTFT 9000 ms, TPOT 2000 ms, 95 %" in text
    sent = [body for body in server.bodies if body["stream"]]
    assert len(sent) == 4 + 10 + 40
    assert {body["ignore_eos"] for body in sent} == {True}
    assert len({body["prompt"] for body in sent}) == len(sent)


@pytest.mark.parametrize("context", [70, 200, 400])
def test_words_are_counted_by_shorter_prompts_where_the_context_is_small(server: Server, context: int) -> None:
    server.context = context
    assert bench(server, "--rate", "10", "--arrivals", "even", "--prompt-tokens", "40") == 0
    assert {len(body["prompt"].split()) for body in server.bodies if body["stream"]} == {20}


def test_a_server_that_takes_no_prompt_says_why(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.context = 10
    assert bench(server, "--rate", "10", "--prompt-tokens", "40") == 1
    assert "a context of that length" in capsys.readouterr().err


def test_only_fields_of_openai_ids_and_the_key(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BATON_API_KEY", "secret-of-mine")
    assert bench(server, "--rate", "20", "--ids", "16-499", "--plain", "--warmup", "0", "--shared-tokens", "8") == 0
    assert not any("ignore_eos" in body for body in server.bodies)
    assert {len(body["prompt"]) for body in server.bodies} == {512}
    assert len({tuple(body["prompt"][:8]) for body in server.bodies}) == 1
    assert server.keys == {"Bearer secret-of-mine"}
    printed = capsys.readouterr()
    assert "secret-of-mine" not in printed.out + printed.err


def test_a_trace_is_sent_at_its_own_times(server: Server, tmp_path: Path) -> None:
    trace, path = tmp_path / "t.csv", tmp_path / "out.json"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,2\n0.1,30,3\n0.2,40,4\n")
    assert bench(server, "--trace", str(trace), "--ids", "1-9", "--warmup", "0", "--json", str(path)) == 0
    assert [(len(body["prompt"]), body["max_tokens"]) for body in server.bodies] == [(20, 2), (30, 3), (40, 4)]
    assert read_load_record(path).reports[0].offered == 3


def test_a_search_tells_the_highest_rate_that_it_kept(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    arguments = ("--find", "4-20", "--ids", "1-9", "--ttft", "9s", "--json", str(path))
    assert bench(server, *arguments) == 0
    assert [one.rate for one in read_load_record(path).reports] == [4, 20]
    assert "20 req/s" in capsys.readouterr().out


def test_what_is_refused_is_lost_and_said(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.most = 5
    arguments = ("--rate", "20", "--ids", "1-9", "--output-tokens", "6", "--tpot", "1s")
    assert bench(server, *arguments, "--warmup", "0") == 1
    assert "x HTTP 429; the first: too long for me" in capsys.readouterr().out
    assert bench(server, *arguments) == 1
    assert "too long for me" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --rate R"),
        (("--find", "1-2"), "needs --ttft or --tpot"),
        (("--rate", "1", "--plot", "x.pdf"), "must end in .png or .svg"),
        (("--rate", "1", "--trace", "no-such-file"), "cannot be read"),
        (("--rate", "1", "--beside", "no-such-file"), "--beside: no-such-file cannot be read"),
        (("--rate", "1", "--json", "no-such-folder/x"), "--json: no-such-folder/x cannot be written"),
        (("--rate", "1", "--plot", "no-such-folder/x.png"), "--plot: no-such-folder/x.png cannot be written"),
        (("--rate", "1", "--json", "/"), "--json: / cannot be written"),
        (("--rate", "1", "--chat", "--ids", "1-9"), "--chat: prompts are texts"),
    ],
)
def test_what_cannot_be_run_is_one_line(
    server: Server, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(server, *arguments) != 0
    assert message in capsys.readouterr().err
    assert server.bodies == []


@pytest.mark.parametrize("flag", ["--duration", "--timeout", "--ttft", "--tpot"])
def test_a_time_of_nothing_is_refused(flag: str, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(server, "--rate", "1", flag, "0s")
    assert f"argument {flag}: '0s' is not allowed: must be a time over 0" in capsys.readouterr().err


def test_a_trace_without_a_request_in_its_time_is_refused_and_one_at_once_is_sent(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,2\n")
    assert bench(server, "--trace", str(trace), "--ids", "1-9", "--warmup", "0", "--tpot", "1s") == 0
    assert "goodput at TPOT 1000 ms, 95 %" in capsys.readouterr().out
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,20,2\n9,20,2\n")
    arguments = ("--trace", str(trace), "--ids", "1-9", "--warmup", "0", "--rate-scale", "0.000001")
    assert bench(server, *arguments) == 2
    assert "--trace over --duration 0.5s: no request would be sent" in capsys.readouterr().err


def test_a_chats_thoughts_are_pieces_too(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert bench(server, "--rate", "20", "--chat", "--plain", "--output-tokens", "4", "--json", str(path)) == 0
    assert all("messages" in body and "ignore_eos" not in body for body in server.bodies)
    (report,) = read_load_record(path).reports
    assert (report.whole, report.output_tokens, report.uncounted) == (report.offered, 4, 0)
    assert report.prompt_tokens == pytest.approx(512, abs=2)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_leaves_what_had_ended(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of the rate that it stops."""
    path = tmp_path / "out.json"
    arguments = ("--rate", "40", "20", "--arrivals", "even", "--ids", "1-9", "--warmup", "0", "--ttft", "9s")
    server.held = 20 + 4
    assert bench(server, *arguments, "--output-tokens", "2", "--json", str(path)) == 130
    record = read_load_record(path)
    assert (record.name, record.model) == (server.url, "served")
    whole, stopped = record.reports
    assert (whole.rate, whole.offered, whole.unended, len(whole.attainment)) == (40, 20, None, 1)
    assert (stopped.rate, stopped.offered, stopped.attainment) == (20, stopped.whole, ())
    assert 1 <= stopped.whole <= 4
    assert stopped.unended is not None
    assert stopped.unended >= 1
    text = capsys.readouterr().out
    assert "stopped at 20 req/s" in text
    assert f"95 %: {server.url} 40 req/s" in text


def test_a_plot_beside_an_earlier_run(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, plot = tmp_path / "first.json", tmp_path / "plot.svg"
    shape = ("--rate", "20", "--ids", "1-9", "--ttft", "9s")
    assert bench(server, *shape, "--as", "before", "--json", str(first)) == 0
    assert bench(server, *shape, "--as", "after", "--beside", str(first), "--plot", str(plot)) == 0
    text = capsys.readouterr().out
    assert "before 20 req/s" in text
    assert "after 20 req/s" in text
    assert plot.stat().st_size > 5_000


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--endpoint", "http://127.0.0.1:9", "--rate", "1"]) == 1
    assert "does not answer" in capsys.readouterr().err
