"""Whatever fails while a request is prepared or answered ends it at once, with a reason, and holds nothing."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tokenizers import Regex, pre_tokenizers

from baton_gateway import parent_process
from baton_gateway.errors import TokenizerError, is_panic, library_error
from baton_gateway.helper_processes import piped_process
from baton_gateway.helper_processes.process_lane import NOT_READY_S, WEDGED_S
from baton_gateway.http_api import tokenising
from baton_gateway.parent_process import GatewayProcesses
from baton_gateway.reporting.state_page import ProcessReport
from baton_gateway.text.detokenizer import ByteLevelDetokenizer
from baton_gateway.text.encoding import PromptEncoder
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, answer, running_gateway, until
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient
from baton_testing.gateway.made_tokenizers import byte_level
from baton_wire.listening.sockets import bind
from baton_wire.messages.values import Role
from baton_wire.sketch import Sketch

PanicException = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
FAILURES = [PanicException("at a secret"), RuntimeError("at a secret"), asyncio.CancelledError(), MemoryError()]
TOKENIZE = "/tokenize"


async def is_idle(gateway: RunningGateway) -> None:
    """Nothing is held for any request."""
    server = gateway.server
    await until(lambda: server.relay.num_live == 0 and server._admission.num_running == 0)
    await until(lambda: not server.budget.used_bytes and not server.api._tokenising._num_running)
    locks = [
        server._templates._short.lock,
        server._templates._long.lock,
        server.relay.prompts.compiler._lane.lock,
    ]
    await until(lambda: not any(lock.held_s(time.monotonic()) for lock in locks))


def raising(error: BaseException) -> Callable[..., Any]:
    async def fail(*_: object) -> Any:
        raise error

    return fail


async def test_what_fails_while_a_prompt_is_prepared_ends_the_request_at_once(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hung until its deadline of 600 s."""
    bodies: dict[str, dict[str, Any]] = {CHAT: {}, COMPLETIONS: {}, TOKENIZE: {"prompt": "x"}}
    for error, (path, body) in itertools.product(FAILURES, bodies.items()):
        with monkeypatch.context() as patch:
            patch.setattr(PromptEncoder, "encode", raising(error))
            async with asyncio.timeout(30):
                status, content = await client.refused(path, **body)
        assert (status, content["code"], "secret" in content["message"]) == (500, "internal_error", False)
        await is_idle(client.gateway)
    await client.ask(CHAT)


async def test_what_fails_while_an_answer_is_written_ends_that_request_and_no_link(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was raised into the link's reader: all requests of that worker were lost."""
    workers = list(client.gateway.server.table.all())
    for error, stream in itertools.product(FAILURES[:2], (False, True)):

        def fail(*_: object, error: BaseException = error) -> str:
            raise error

        body = {"model": "tiny", "messages": USER, "stream": stream, "n": 2}
        with monkeypatch.context() as patch:
            patch.setattr(ByteLevelDetokenizer, "push", fail)
            async with asyncio.timeout(30), client.http.post(client.gateway.url(CHAT), json=body) as got:
                text = await got.text()
        assert "internal_error" in text
        assert "secret" not in text
        await is_idle(client.gateway)
    await client.ask(CHAT)
    assert list(client.gateway.server.table.all()) == workers


async def test_a_tokenizer_that_panics_is_told_as_such_and_its_words_are_metered(
    tmp_path: Path, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Panics are no `Exception`: a completion hung, `/tokenize` closed its connection without an answer."""
    caplog.set_level(logging.ERROR)
    made = byte_level()
    made.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("(a+)+$"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    pool = FakePool(tmp_path, made, answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    text = "a" * 200 + "!"
    async with running_gateway(pool) as gateway:
        client = HttpClient(gateway, http)
        for path in (COMPLETIONS, TOKENIZE):
            status, error = await client.refused(path, prompt=text)
            assert (status, error["param"], error["code"]) == (400, "prompt", "tokenizer_failed")
        await client.ask(COMPLETIONS, prompt="baaa")
        await is_idle(gateway)
    await pool.stop()
    assert 1 <= len(caplog.messages) <= 2
    assert all("tokenizer_main writes" in message for message in caplog.messages)


def test_a_cancellation_is_no_librarys_error() -> None:
    assert is_panic(FAILURES[0])
    assert isinstance(library_error(FAILURES[0]), TokenizerError)
    for error in (asyncio.CancelledError(), KeyboardInterrupt(), SystemExit()):
        with pytest.raises(type(error)):
            library_error(error)


async def test_without_descriptors_chats_are_told_at_once_and_probes_say_what_is_wrong(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = client.gateway.server
    lane = server._templates._short

    def refused(*_: object) -> piped_process.StartedProcess:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def probe(path: str) -> tuple[int, str]:
        async with client.http.get(client.gateway.url(path)) as got:
            return got.status, await got.text()

    with monkeypatch.context() as patch:
        patch.setattr(piped_process, "run_module", refused)
        assert lane.process.pid is not None
        os.kill(lane.process.pid, signal.SIGKILL)
        await until(lambda: not lane.process.is_running)
        for _ in range(2):
            async with asyncio.timeout(30):
                status, error = await client.refused(CHAT)
            assert (status, error["code"]) == (503, "template_unavailable")
        await client.ask(COMPLETIONS)
        paths = ("/health/live", "/health/ready", "/health/routable")
        assert [(await probe(path))[0] for path in paths] == [200, 200, 200]
        for since_s, expected in ((NOT_READY_S, [200, 503, 503]), (WEDGED_S, [503, 503, 503])):
            lane.health._fails_since_s = time.monotonic() - since_s - 1.0
            assert [(await probe(path))[0] for path in paths] == expected
        assert "chat templates: no answer (it does not start: Too many open files)" in (await probe(paths[0]))[1]
        assert "it does not start" in server.report().ailment
    await until(lambda: not lane.health.is_failing)  # it looks for itself
    assert [(await probe(path))[0] for path in paths] == [200, 200, 200]
    assert server.report().ailment == ""
    await client.ask(CHAT)


async def test_a_child_that_says_what_is_wrong_with_it_counts_as_silent() -> None:
    listening = bind("127.0.0.1", 0)
    processes = GatewayProcesses([], [listening], 0.0)
    [child] = processes._children
    empty = Sketch().data()
    for ailment, expected in (("x: no answer", False), ("", True)):
        report = ProcessReport(1, "", 0, 0, 0, 0, (), empty, empty, ailment)
        child.question = asyncio.create_task(asyncio.sleep(0, report))
        child.reader = child.writer = None
        await asyncio.wait([child.question])
        with pytest.MonkeyPatch.context() as patch:

            async def told(*_: object, report: ProcessReport = report) -> ProcessReport:
                return report

            patch.setattr(parent_process, "_put_question", told)
            patch.setattr(child, "reader", object())
            patch.setattr(child, "writer", object())
            assert await processes._answers(child, 1.0) is expected
        assert child.ailment == ailment
    processes._metrics_folder.cleanup()
    listening.close()


async def test_tokenising_is_no_way_around_a_tenants_queue(client: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenising, "MAX_AT_ONCE", 2)
    lane = client.gateway.server._templates._short
    assert lane.process.pid is not None
    os.kill(lane.process.pid, signal.SIGSTOP)
    body = {"model": "tiny", "messages": USER}

    async def tokenize() -> int:
        async with client.http.post(client.gateway.url(TOKENIZE), json=body) as got:
            return got.status

    waiting = [asyncio.create_task(tokenize()) for _ in range(2)]
    await until(lambda: sum(client.gateway.server.api._tokenising._num_running.values()) == 2)
    for path in (TOKENIZE, "/detokenize", "/v1/messages/count_tokens"):
        async with client.http.post(client.gateway.url(path), json=body | {"max_tokens": 1}) as got:
            assert (got.status, "queue_full" in await got.text() or "rate_limit" in await got.text()) == (429, True)
    os.kill(lane.process.pid, signal.SIGCONT)
    assert await asyncio.gather(*waiting) == [200, 200]
    await is_idle(client.gateway)


SURFACES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": USER, "max_tokens": 30},
    COMPLETIONS: {"prompt": "Hello " * 2_000, "truncate_prompt_tokens": 5},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x " * 9_000}]},
    TOKENIZE: {"messages": [{"role": "user", "content": "Hello " * 50}] * 20},
    "/detokenize": {"tokens": [5] * 500},
}


async def test_clients_that_hang_up_in_the_middle_of_anything_leave_nothing_held(
    gateway: RunningGateway, client: HttpClient
) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}}}}
    await client.ask(CHAT)
    pid = gateway.server._templates._short.process.pid
    await is_idle(gateway)

    async def hang_up(path: str, body: dict[str, Any], turns: int) -> None:
        content = json.dumps({"model": "tiny", **body}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n"
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(head.encode() + content)
        for _ in range(turns):
            await asyncio.sleep(0)
        writer.transport.abort()

    before = len(os.listdir("/proc/self/fd"))
    for turns in range(0, 60, 4):
        for path, body in SURFACES.items():
            await hang_up(path, body, turns)
        schema["json_schema"]["schema"]["properties"] = {f"p{turns}": {"type": "string", "pattern": "a{1,9}"}}  # type: ignore[index]
        await hang_up(CHAT, SURFACES[CHAT] | {"response_format": schema, "stream": True}, turns)
    await is_idle(gateway)
    await client.ask(CHAT)
    assert gateway.server._templates._short.process.pid == pid
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 4)  # the client's own, and the second process
    names = {str(task.get_coro()) for task in asyncio.all_tasks()}
    assert not [name for name in names if "_prepare" in name or "_render" in name or "_ask" in name]
