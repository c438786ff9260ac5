"""Request ids in and out, errors that carry them, and one access log line a request, without content."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from baton_gateway.http_api.access_log import BURST, LINES_PER_S, LineAllowance, choose_request_id
from baton_testing.gateway.gateway_process import until
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, HttpClient
from baton_wire.messages.values import Reason

SECRET = "a sentence that nobody logs"


@pytest.mark.parametrize("sent", ["a", "trace-1.2:3_4", "x" * 128])
def test_a_short_plain_id_is_kept(sent: str) -> None:
    assert choose_request_id(sent) == sent


@pytest.mark.parametrize("sent", [None, "", "x" * 129, "a b", "a\tb", "é", '"', "a\r\nX-Evil: 1", "{}", "../x"])
def test_any_other_id_is_replaced(sent: str | None) -> None:
    chosen = choose_request_id(sent)
    assert chosen.startswith("req-")
    assert chosen != choose_request_id(sent)


async def exchange(client: HttpClient, path: str, sent: str | None, **body: Any) -> tuple[int, str, str]:
    """Status, the id that came back, and the body."""
    headers = {} if sent is None else {"X-Request-Id": sent}
    async with client.http.post(client.gateway.url(path), json={"model": "tiny"} | body, headers=headers) as got:
        return got.status, got.headers["X-Request-Id"], await got.text()


async def test_answers_streams_and_errors_give_the_id_back(client: HttpClient) -> None:
    assert (await exchange(client, COMPLETIONS, "mine-1", prompt="x"))[:2] == (200, "mine-1")
    assert (await exchange(client, COMPLETIONS, "mine-2", prompt="x", stream=True))[:2] == (200, "mine-2")
    status, returned_id, body = await exchange(client, COMPLETIONS, "mine-3", prompt="x", colour=1)
    assert (status, returned_id) == (400, "mine-3")
    assert json.loads(body)["error"]["request_id"] == "mine-3"
    status, returned_id, body = await exchange(client, "/nowhere", "not plain!")
    assert status == 404
    assert returned_id.startswith("req-")
    assert json.loads(body)["error"]["request_id"] == returned_id
    async with client.http.get(client.gateway.url("/health")) as got:
        assert got.headers["X-Request-Id"].startswith("req-")


async def test_a_stream_that_breaks_names_the_id_in_its_last_event(client: HttpClient) -> None:
    client.pool.decode[0].hold = True
    for worker in client.pool.workers:
        worker.fail_next = []
    headers = {"X-Request-Id": "mine-4"}
    body = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 9}
    async with client.http.post(client.gateway.url(COMPLETIONS), json=body, headers=headers) as got:
        await got.content.readuntil(b"\n\n")
        client.gateway.server.relay.end_all()
        rest = (await got.content.read()).decode()
    [event] = [json.loads(line[6:]) for line in rest.split("\n") if line.startswith('data: {"error"')]
    assert event["error"]["request_id"] == "mine-4"


async def test_each_request_has_one_line_without_content(client: HttpClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await exchange(client, COMPLETIONS, "mine-1", prompt=SECRET, max_tokens=5)
    await exchange(client, CHAT, "mine-2", messages=[{"role": "user", "content": SECRET}], stream=True)
    await exchange(client, COMPLETIONS, "mine-3", model="no-such-" + "model" * 9, prompt=SECRET)
    await exchange(client, "/" + "secret" * 9, "mine-4")
    async with client.http.get(client.gateway.url("/health")) as got:
        assert got.status == 200
    lines = await access_lines(caplog, 4)
    assert [line["id"] for line in lines] == ["mine-1", "mine-2", "mine-3", "mine-4"]
    first, second, third, fourth = lines
    assert first == {
        "id": "mine-1", "method": "POST", "path": COMPLETIONS, "status": 200, "s": first["s"], "tenant": "default",
        "model": "tiny", "stream": False, "prompt_tokens": client.prefill_of(0).prompt_tokens, "completion_tokens": 5,
        "attempts": 1, "ttft_s": first["ttft_s"], "cached_tokens": None, "lost": None, "queue_s": first["queue_s"],
        "route": "disaggregated", "workers": [worker.epoch.hex()[:8] for worker in client.pool.workers],
        "handover_s": first["handover_s"],
    }  # fmt: skip
    assert first["queue_s"] >= 0
    assert first["handover_s"] >= 0
    assert 0 <= first["ttft_s"] <= first["s"]
    assert second["stream"] is True
    assert (third["status"], third["model"]) == (404, None)
    assert (third["code"], fourth["code"]) == ("model_not_found", "unknown_url")
    assert (fourth["status"], fourth["path"]) == (404, "other")
    assert not any(word in caplog.text for word in ("nobody logs", "no-such", "secretsecret"))


async def access_lines(caplog: pytest.LogCaptureFixture, count: int) -> list[dict[str, Any]]:
    def lines() -> list[dict[str, Any]]:
        return [json.loads(record.message) for record in caplog.records if record.name == "baton.gateway.access"]

    await until(lambda: len(lines()) >= count)
    return lines()


async def test_a_failure_is_told_with_the_id(client: HttpClient, caplog: pytest.LogCaptureFixture) -> None:
    client.pool.prefill[0].fail_next = [Reason.INTERNAL] * 9
    assert (await exchange(client, COMPLETIONS, "mine-5", prompt="x"))[0] == 502
    assert any(record.name == "baton.gateway.requests" and "mine-5" in record.message for record in caplog.records)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_its_code_in_the_access_log(
    client: HttpClient, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """Found: a line of status 429 or 502 did not say which limit or failure it was."""
    caplog.set_level(logging.INFO)
    await exchange(client, COMPLETIONS, "mine-1", prompt="x", colour=1)
    client.pool.prefill[0].fail_next = [Reason.INTERNAL] * 9
    await exchange(client, COMPLETIONS, "mine-2", prompt="x", stream=stream)
    assert [line["code"] for line in await access_lines(caplog, 2)] == ["unknown_parameter", "workers_failed"]


def test_lines_come_at_a_bounded_rate_and_say_what_was_left_out() -> None:
    allowance = LineAllowance()
    taken = [allowance.take(0.0) for _ in range(BURST + 7)]
    assert taken == [0] * BURST + [None] * 7
    assert allowance.take(1.0) == 7
    assert sum(allowance.take(1.0) is not None for _ in range(1_000)) == LINES_PER_S - 1
