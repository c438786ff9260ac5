"""Messages between gateway and workers that do not fit their types: they cost their request, and no link."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import msgspec
import pytest

from baton_gateway.text.generation_defaults import GenerationDefaults
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeWorker
from baton_testing.gateway.gateway_process import (
    ANSWER,
    RunningGateway,
    answer,
    ids_of,
    running_gateway,
    tokenizer,
    until,
)
from baton_wire.messages.flood import MOST_BAD_MESSAGES
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve, ToWorker
from baton_wire.messages.values import MAX_CONTEXT_TOKENS, Role, TokenEntry, num_packed

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}


async def ask(gateway: RunningGateway, **fields: Any) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as http, http.post(gateway.url(CHAT), json=BODY | fields) as got:
        return got.status, await got.json()


def epochs(gateway: RunningGateway) -> set[bytes]:
    return {worker.hello.epoch for worker in gateway.server.table.all()}


async def say(worker: FakeWorker, fields: list[Any]) -> None:
    for link in list(worker._links):
        await worker.send_frame(link, msgpack.packb(fields, use_bin_type=True))


UP: dict[str, list[Any]] = {
    "a state of nonsense": [5, False, -1, 1 << 63, 0, 0, 0, 0, 0, float("nan")],
    "a Hello of nonsense": [1, "king"],
    "tokens without entries": [3, 1, []],
    "log probabilities of no request": [7, b"x", 1, 1, []],
    "a failure without a reason": [4, bytes(16), 1, "because", ""],
    "a piece of a bundle that is too long": [2, 1 << 40, b"x"],
    "a heartbeat with more": [6, 1],
}


async def test_bad_fields_of_workers_cost_no_link(gateway: RunningGateway, pool: FakePool) -> None:
    lost: list[bytes] = []
    relay = gateway.server.relay
    lose = relay.worker_lost

    def worker_lost(epoch: bytes, is_refusal: bool = False) -> None:
        lost.append(epoch)
        lose(epoch, is_refusal)

    setattr(relay, "worker_lost", worker_lost)  # noqa: B010
    for fields in UP.values():
        for worker in pool.workers:
            await say(worker, fields)
    status, got = await ask(gateway)
    assert (status, got["choices"][0]["message"]["content"]) == (200, ANSWER)
    assert lost == []


async def test_a_worker_that_floods_bad_messages_is_hung_up_on(
    gateway: RunningGateway, pool: FakePool, caplog: pytest.LogCaptureFixture
) -> None:
    worker = pool.decode[0]
    links = set(worker._links)
    caplog.set_level("INFO")
    for _ in range(MOST_BAD_MESSAGES + 1):
        await say(worker, UP["tokens without entries"])
    await until(lambda: not links & set(worker._links))
    await until(lambda: len(epochs(gateway)) == 2)  # and dialled again
    assert (await ask(gateway))[0] == 200
    assert "more than 64 bad messages within 10 s" in caplog.text


class Poisoned(FakeWorker):
    """Says of one prompt's tokens what no message allows."""

    def _entry(self, sequence: Any, count: int) -> TokenEntry:
        entry = super()._entry(sequence, count)
        return msgspec.structs.replace(entry, first_index=1 << 40) if self.poisons else entry

    poisons = False

    async def send(self, link: Any, message: Any) -> None:
        fields = msgspec.to_builtins(message, builtin_types=(bytes,))
        await self.send_frame(link, msgpack.packb(fields, use_bin_type=True))


async def test_tokens_that_do_not_fit_end_at_their_worker_and_go_on_at_another(pool: FakePool) -> None:
    liar = Poisoned(Role.DECODE, pool.tokenizer, pool.keys, answer)
    liar.poisons = True
    await liar.start()
    pool.decode.insert(0, liar)
    for worker in pool.workers:
        worker.pool = pool.workers
    pool.announce()
    async with running_gateway(pool) as gateway:
        before = epochs(gateway)
        answers = await asyncio.gather(*(ask(gateway) for _ in range(4)))
        assert [(status, got["choices"][0]["message"]["content"]) for status, got in answers] == [(200, ANSWER)] * 4
        assert epochs(gateway) == before
        assert liar.received
    await liar.stop()


class Breaking(FakeWorker):
    """Ends its link at one kind of request, as one whose types refused the frame would."""

    async def _take(self, link: Any, message: ToWorker) -> None:
        if isinstance(message, Prefill | Reserve) and message.sampling.max_tokens == 7:
            self.received.append(message)
            await link.close(code=aiohttp.WSCloseCode.POLICY_VIOLATION, message=b"frame: no")
            return
        await super()._take(link, message)


async def test_a_request_that_ends_links_is_told_so_and_others_go_on(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), answer)
    for role, workers in ((Role.PREFILL, pool.prefill), (Role.DECODE, pool.decode)):
        for _ in range(2):
            worker = Breaking(role, pool.tokenizer, pool.keys, pool.script, step_s=0.02)
            await worker.start()
            workers.append(worker)
    for member in pool.workers:
        member.pool = pool.workers
    pool.announce()
    async with running_gateway(pool) as gateway:
        good = asyncio.create_task(ask(gateway))
        status, got = await ask(gateway, max_tokens=7)
        assert (status, got["error"]["code"]) == (502, "request_ends_links")
        received = [
            message for worker in pool.workers for message in worker.received if not isinstance(message, Cancel)
        ]
        assert max(message.attempt for message in received if message.sampling.max_tokens == 7) == 2  # type: ignore[union-attr]
        status, got = await good
        assert (status, got["choices"][0]["message"]["content"]) == (200, ANSWER)
    await pool.stop()


async def test_a_value_that_the_wire_has_no_room_for_is_refused_before_it_is_sent(
    gateway: RunningGateway, pool: FakePool
) -> None:
    """Whatever makes it: here a model whose default is not checked."""
    before = epochs(gateway)
    for worker in gateway.server.table.all():
        generation = GenerationDefaults(temperature=1e9)
        bundle = dataclasses.replace(worker.text.bundle, generation=generation)
        worker.text = dataclasses.replace(worker.text, bundle=bundle)
    status, got = await ask(gateway)
    assert (status, got["error"]["code"]) == (500, "not_sendable")
    assert "sampling" in got["error"]["message"]
    assert (await ask(gateway, temperature=0))[0] == 200
    assert epochs(gateway) == before


async def test_end_ids_that_a_model_has_not_end_nothing_and_cost_nothing(
    gateway: RunningGateway, pool: FakePool
) -> None:
    """A checkpoint whose end ids were beyond every vocabulary cost ten pairs of links a request."""
    for worker in gateway.server.table.all():
        worker.text = dataclasses.replace(worker.text, eos_ids=(*worker.text.eos_ids, 16_777_217, 1 << 70, -1))
    status, got = await ask(gateway)
    assert (status, got["choices"][0]["message"]["content"]) == (200, ANSWER)


async def test_the_longest_prompt_that_may_be_asked_for_reaches_its_worker(tmp_path: Path) -> None:
    pool = FakePool(tmp_path, tokenizer(), lambda request: ids_of(ANSWER)[:3])
    for role in (Role.PREFILL, Role.DECODE):
        await pool.add(role, max_context_tokens=MAX_CONTEXT_TOKENS, blocks_total=1 << 17)
    tokens = MAX_CONTEXT_TOKENS - 4
    body = f'{{"model":"tiny","prompt":[{"5," * (tokens - 1)}6],"max_tokens":4}}'.encode()
    url, headers = "/v1/completions", {"Content-Type": "application/json"}
    async with running_gateway(pool) as gateway, aiohttp.ClientSession() as http:
        async with http.post(gateway.url(url), data=io.BytesIO(body), headers=headers) as got:
            content = await got.json()
        assert (got.status, content["usage"]["prompt_tokens"]) == (200, tokens)
    assert {num_packed(message.tokens) for message in pool.prefill[0].of_type(Prefill)} == {tokens}  # type: ignore[union-attr]
    await pool.stop()


async def test_text_whose_tokens_a_model_has_not_is_the_clients_to_mend(
    gateway: RunningGateway, pool: FakePool
) -> None:
    """A tokenizer may have more tokens than the vocabulary of its model."""
    for worker in gateway.server.table.all():
        worker.hello = msgspec.structs.replace(worker.hello, vocab_size=5)
    status, got = await ask(gateway)
    assert (status, got["error"]["code"], got["error"]["param"]) == (400, "out_of_range", "messages")
    assert not any(worker.received for worker in pool.workers)
