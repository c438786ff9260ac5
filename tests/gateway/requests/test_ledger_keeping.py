"""What the ledger says of requests, against what their clients received."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.ledger.request_ledger import RequestLedger
from baton_gateway.openai_api.streaming_writer import StreamingWriter
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import RunningGateway, answer, running_gateway, tokenizer, until
from baton_wire.ledger_line import LedgerLine, LineEvent, decode_line
from baton_wire.messages.encoding import EncodingLimits
from baton_wire.messages.values import Reason, Role

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "A secret question"}]}


async def closed(gateway: RunningGateway, folder: Path, count: int) -> list[LedgerLine]:
    """The closing lines, once there are this many, in the order of their requests."""
    ledger = gateway.server.ledger
    assert ledger is not None

    def read() -> list[LedgerLine]:
        content = b"".join(path.read_bytes() for path in folder.glob("*.jsonl"))
        assert b"secret" not in content
        lines = map(decode_line, content.splitlines())
        return sorted((line for line in lines if line.event is LineEvent.CLOSED), key=lambda line: line.opened_at)

    await until(lambda: ledger.num_held == 0 and len(read()) >= count)
    return read()


async def ask(gateway: RunningGateway, http: aiohttp.ClientSession, **fields: Any) -> Any:
    async with http.post(gateway.url("/v1/chat/completions"), json=CHAT | fields) as sent:
        return json.loads(await sent.read()) if not fields.get("stream") else await sent.text()


async def test_lines_have_the_counts_that_answers_report(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    for worker in pool.workers:
        worker.cached_tokens = 1
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        usages = [(await ask(gateway, http, max_tokens=5, n=n))["usage"] for n in (1, 3)]
        text = await ask(gateway, http, max_tokens=6, n=2, stream=True, stream_options={"include_usage": True})
        usages.append(json.loads(text.split("data: ")[-2])["usage"])
        lines = await closed(gateway, folder, 3)
    assert [(line.input_tokens, line.output_tokens) for line in lines] == [
        (usage["prompt_tokens"], usage["completion_tokens"]) for usage in usages
    ]
    assert {(line.tenant, line.model, line.task, line.priority, line.status) for line in lines} == {
        ("default", "tiny", "chat", "Standard", "finished")
    }
    assert [line.cached_tokens for line in lines] == [1, 1, 1]
    assert all(line.accelerator_seconds is None for line in lines), "unknown is absent"


async def test_embeddings_are_recorded_with_their_inputs(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    for role in (Role.PREFILL, Role.DECODE):
        await pool.add(role, encoding=EncodingLimits(6))
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        body = {"model": "tiny", "input": ["A secret", "and another one"]}
        async with http.post(gateway.url("/v1/embeddings"), json=body) as sent:
            usage = (await sent.json())["usage"]
        [line] = await closed(gateway, folder, 1)
    await pool.stop()
    assert (line.task, line.input_tokens, line.output_tokens) == ("embeddings", usage["prompt_tokens"], 0)


async def test_an_answer_that_never_arrived_is_not_billed_and_what_was_generated_is_named(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}", "--max-request-duration-s=1") as gateway:
        pool.decode[0].may_step = lambda last_step: last_step < 3
        failed = await ask(gateway, http, max_tokens=20)
        assert failed["error"]["code"] == "deadline_exceeded"
        [line] = await closed(gateway, folder, 1)
    assert (line.status, line.code, line.output_tokens) == ("failed", "deadline_exceeded", 0)
    assert line.generated_tokens is not None
    assert line.generated_tokens > 0


async def test_a_stream_whose_client_hangs_up_is_billed_what_it_was_sent(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        pool.decode[0].may_step = lambda last_step: last_step < 4
        body = CHAT | {"stream": True, "max_tokens": 20}
        async with http.post(gateway.url("/v1/chat/completions"), json=body) as stream:
            seen = 0
            async for row in stream.content:
                seen += b'"content":"' in row and b'"content":""' not in row
                if seen == 3:
                    break
        [line] = await closed(gateway, folder, 1)
    assert line.status == "cancelled"
    assert line.output_tokens is not None
    assert 3 <= line.output_tokens <= 6


async def test_a_request_that_other_workers_finish_counts_once(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        pool.prefill[0].fail_next = [Reason.INTERNAL]
        usage = (await ask(gateway, http, max_tokens=5))["usage"]
        [line] = await closed(gateway, folder, 1)
    assert (line.input_tokens, line.output_tokens, line.status) == (usage["prompt_tokens"], 5, "finished")


async def test_a_request_that_no_worker_was_sent_is_not_in_the_ledger(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        refused = await ask(gateway, http, max_tokens=1_000_000)
        assert refused["error"]["code"] == "context_length_exceeded"
        await ask(gateway, http, max_tokens=1)
        assert len(await closed(gateway, folder, 1)) == 1


@pytest.mark.parametrize(("policy", "status"), [("serve", 200), ("refuse", 503)])
async def test_without_room_requests_are_served_or_refused_as_the_installation_says(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession, policy: str, status: int
) -> None:
    async with running_gateway(pool, f"--ledger={tmp_path / 'ledger'}", f"--ledger-full={policy}") as gateway:
        ledger = gateway.server.ledger
        assert isinstance(ledger, RequestLedger)
        while ledger.table.num_free:
            ledger.table.take(b"{}\n")
        async with http.post(gateway.url("/v1/chat/completions"), json=CHAT | {"max_tokens": 2}) as sent:
            assert sent.status == status
            if status == 503:
                assert sent.headers["Retry-After"] == "5"
                assert (await sent.json())["error"]["code"] == "ledger_unavailable"
        async with http.get(gateway.url("/metrics")) as page:
            result = "unrecorded" if policy == "serve" else "refused"
            assert f'baton_gateway_ledger_requests_total{{result="{result}"}} 1.0' in await page.text()


async def test_tokens_are_counted_before_they_reach_the_client(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    async with running_gateway(pool, f"--ledger={tmp_path / 'ledger'}") as gateway:
        ledger = gateway.server.ledger
        assert ledger is not None
        pool.decode[0].may_step = lambda last_step: last_step < 6
        body = CHAT | {"stream": True, "max_tokens": 20}
        async with http.post(gateway.url("/v1/chat/completions"), json=body) as stream:
            seen = 0
            async for row in stream.content:
                if b'"content":"' in row and b'"content":""' not in row:
                    seen += 1
                    assert ledger.table._words[256 + 1] >= seen
                if seen == 4:
                    break
            await asyncio.sleep(0)


async def test_tokens_that_wait_for_the_connection_are_not_counted(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = StreamingWriter.attach
    waiting: list[tuple[StreamingWriter, asyncio.Transport, bool]] = []
    monkeypatch.setattr(StreamingWriter, "attach", lambda *arguments: waiting.append(arguments))
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        ledger = gateway.server.ledger
        assert ledger is not None
        body = CHAT | {"stream": True, "max_tokens": 6}
        async with http.post(gateway.url("/v1/chat/completions"), json=body) as stream:
            await until(lambda: bool(waiting) and sum(waiting[0][0]._counted) == 6)
            assert ledger.table._words[256 + 1] == 0, "a kill now would leave its client with nothing"
            attach(*waiting[0])
            await stream.read()
        [line] = await closed(gateway, folder, 1)
    assert (line.output_tokens, line.status) == (6, "finished")


async def test_a_line_has_the_time_of_devices_by_pool_as_far_as_workers_report_it(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        await ask(gateway, http, max_tokens=5)
        for worker in pool.workers:
            worker.device_s = 0.25 if worker.role is Role.DECODE else None
        await ask(gateway, http, max_tokens=5)
        for worker in pool.workers:
            worker.device_s = 0.25 if worker.role is Role.DECODE else 0.5
        await ask(gateway, http, max_tokens=5, n=2)
        lines = await closed(gateway, folder, 3)
    unknown, half, whole = (line.accelerator_seconds for line in lines)
    assert unknown is None, "what is not known is absent, and not 0"
    assert half == {"decode": 0.25 * 5}
    assert whole is not None
    assert whole["decode"] == 0.25 * 5, "each report is the total of the leg, so that reports are not added up"
    assert whole["prefill"] == 0.5
    assert list(whole) == ["decode", "prefill"]


async def test_a_cancelled_request_has_the_time_that_was_reported_until_then(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    for worker in pool.workers:
        worker.device_s, worker.step_s = 0.25, 0.01
    folder = tmp_path / "ledger"
    async with running_gateway(pool, f"--ledger={folder}") as gateway:
        body = CHAT | {"stream": True, "max_tokens": 500}
        async with http.post(gateway.url("/v1/chat/completions"), json=body) as sent:
            await sent.content.readuntil(b"data: ")
        [line] = await closed(gateway, folder, 1)
    assert line.status == "cancelled"
    assert line.accelerator_seconds is not None
    assert line.accelerator_seconds["prefill"] == 0.25
