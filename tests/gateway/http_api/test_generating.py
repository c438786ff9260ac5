"""The two generating endpoints over real HTTP, in front of workers that speak the real messages."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, ids_of, tokenizer, until
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient, finishes, streamed_text
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve
from baton_wire.messages.values import Reason, unpack_ids

# Answers --------------------------------------------------------------------------------------------------------------


async def test_a_chat_answer_has_openais_shape(client: HttpClient) -> None:
    got = await client.ask(CHAT)
    assert got["object"] == "chat.completion"
    assert got["id"].startswith("chatcmpl-")
    assert got["model"] == "tiny"
    assert got["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": ANSWER, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt, completion = got["usage"]["prompt_tokens"], got["usage"]["completion_tokens"]
    assert prompt == client.prefill().prompt_tokens
    assert completion == len(ids_of(ANSWER)) + 1, "the end token counts"
    assert got["usage"]["total_tokens"] == prompt + completion


async def test_a_completion_answer_has_openais_shape(client: HttpClient) -> None:
    got = await client.ask(COMPLETIONS, max_tokens=200)
    assert got["object"] == "text_completion"
    assert got["choices"] == [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_streamed_and_whole_answers_are_the_same_text(client: HttpClient, path: str) -> None:
    client.gateway.take_step_by_step()
    chunks = await client.stream(path, max_tokens=100)
    assert streamed_text(chunks) == ANSWER
    assert finishes(chunks) == ["stop"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:]] == [None, "stop"]
    assert path == COMPLETIONS or chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    assert len(chunks) > 5, "it was not sent in one piece"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_comes_in_a_last_chunk_of_its_own_when_asked_for(client: HttpClient, path: str) -> None:
    options = {"include_usage": True, "include_obfuscation": False}
    chunks = await client.stream(path, max_tokens=5, stream_options=options)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


async def test_the_length_is_limited(client: HttpClient) -> None:
    got = await client.ask(CHAT, max_completion_tokens=3, max_tokens=50)
    assert got["choices"][0]["finish_reason"] == "length"
    assert got["usage"]["completion_tokens"] == 3
    assert client.sampling().max_tokens == 3
    await client.ask(COMPLETIONS)
    assert client.sampling().max_tokens == 16, "as OpenAI has it"


async def test_a_chat_may_fill_the_context_by_default(client: HttpClient) -> None:
    await client.ask(CHAT)
    assert client.sampling().max_tokens == 2_048 - client.prefill().prompt_tokens


async def test_one_token_ends_at_the_prefill_worker(client: HttpClient) -> None:
    got = await client.ask(CHAT, max_tokens=1)
    assert got["usage"]["completion_tokens"] == 1
    assert got["choices"][0]["finish_reason"] == "length"


async def test_several_choices_come_from_one_prefill(client: HttpClient) -> None:
    got = await client.ask(CHAT, n=3)
    assert [choice["message"]["content"] for choice in got["choices"]] == [ANSWER, f"{ANSWER} 1", f"{ANSWER} 2"]
    assert len(client.pool.prefill[0].of_type(Prefill)) == 1
    chunks = await client.stream(CHAT, n=3)
    assert [streamed_text(chunks, index) for index in range(3)] == [ANSWER, f"{ANSWER} 1", f"{ANSWER} 2"]
    assert finishes(chunks) == ["stop"] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_batch_of_prompts_numbers_its_choices_through(client: HttpClient, stream: bool) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 100}
    if stream:
        chunks = await client.stream(COMPLETIONS, **body)
        texts = [streamed_text(chunks, index) for index in range(4)]
    else:
        got = await client.ask(COMPLETIONS, **body)
        texts = [choice["text"] for choice in got["choices"]]
        assert got["usage"]["prompt_tokens"] == sum(len(tokenizer().tokenizer.encode(t).ids) for t in ("one", "two"))
    assert texts == [ANSWER, f"{ANSWER} 1"] * 2
    echoed = await client.ask(COMPLETIONS, prompt=["a", "b"], max_tokens=50, echo=True)
    assert [choice["text"] for choice in echoed["choices"]] == ["a" + ANSWER, "b" + ANSWER]


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
async def test_prompts_may_be_token_ids(client: HttpClient, prompt: list[Any]) -> None:
    await client.ask(COMPLETIONS, prompt=prompt)
    assert unpack_ids(client.prefill().tokens) == [5, 6, 7]


@pytest.mark.parametrize("prompt", ["The baton", ids_of("The baton")])
@pytest.mark.parametrize("stream", [False, True])
async def test_echo_puts_the_prompt_before_the_answer(client: HttpClient, prompt: Any, stream: bool) -> None:
    body = {"prompt": prompt, "echo": True, "max_tokens": 100}
    if stream:
        assert streamed_text(await client.stream(COMPLETIONS, **body)) == "The baton" + ANSWER
    else:
        assert (await client.ask(COMPLETIONS, **body))["choices"][0]["text"] == "The baton" + ANSWER


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_across_token_borders_ends_the_text_before_it(client: HttpClient, stream: bool) -> None:
    if stream:
        chunks = await client.stream(CHAT, stop=["ton is", "never"])
        text, finish = streamed_text(chunks), finishes(chunks)
    else:
        got = await client.ask(CHAT, stop="ton is")
        text, finish = got["choices"][0]["message"]["content"], [got["choices"][0]["finish_reason"]]
    assert text == "Grüße, the ba"
    assert finish == ["stop"]
    await until(lambda: client.pool.decode[0].is_idle)


async def test_a_stop_string_cancels_what_still_runs(client: HttpClient) -> None:
    client.say("one END " + "more " * 100)
    got = await client.ask(CHAT, stop="END", max_tokens=400)
    assert got["choices"][0]["message"]["content"] == "one "
    assert got["usage"]["completion_tokens"] < 20
    await until(lambda: bool(client.pool.decode[0].of_type(Cancel)))
    await until(lambda: client.pool.decode[0].is_idle)


async def test_stop_token_ids_and_end_ids_are_the_workers_business(client: HttpClient) -> None:
    await client.ask(CHAT, stop_token_ids=[17])
    assert client.sampling().stop_token_ids == (tokenizer().eos_id, 17)
    got = await client.ask(CHAT, ignore_eos=True, max_tokens=60, min_tokens=3)
    assert client.sampling().stop_token_ids == ()
    assert client.sampling().min_tokens == 3
    assert got["usage"]["completion_tokens"] == 60


async def test_special_tokens_are_shown_only_when_asked_for(client: HttpClient) -> None:
    shown = await client.ask(CHAT, ignore_eos=True, max_tokens=40, skip_special_tokens=False)
    assert shown["choices"][0]["message"]["content"].startswith(ANSWER + "<|end|>")
    hidden = await client.ask(CHAT, ignore_eos=True, max_tokens=40)
    assert hidden["choices"][0]["message"]["content"] == ANSWER


async def test_every_sampling_option_reaches_both_workers(client: HttpClient) -> None:
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": -1, "frequency_penalty": 1.5,
        "repetition_penalty": 1.2, "seed": 42, "min_tokens": 2, "logit_bias": {"5": -100, "6": 1.5},
    }  # fmt: skip
    await client.ask(COMPLETIONS, **options)
    sampling = client.sampling()
    expected = options | {"presence_penalty": -1.0, "logit_bias": ((5, -100.0), (6, 1.5))}
    assert {name: getattr(sampling, name) for name in options} == expected
    reserve = client.pool.decode[0].of_type(Reserve)[-1]
    assert isinstance(reserve, Reserve)
    assert reserve.sampling == sampling


async def test_every_request_has_a_seed_of_its_own(client: HttpClient) -> None:
    seeds = set()
    for _ in range(3):
        await client.ask(COMPLETIONS)
        seeds.add(client.sampling().seed)
    assert len(seeds) == 3


async def test_text_parts_and_developer_messages_are_rendered(client: HttpClient) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await client.ask(CHAT, messages=[{"role": "developer", "content": "brief"}, {"role": "user", "content": parts}])
    text = tokenizer().tokenizer.decode(unpack_ids(client.prefill().tokens), skip_special_tokens=False)
    assert text == "<|begin|><|system|>\nbrief<|end|>\n<|user|>\none\ntwo<|end|>\n<|assistant|>\n"


async def test_fields_that_steer_the_provider_are_accepted_without_effect(client: HttpClient) -> None:
    await client.ask(CHAT, user="me", metadata={"a": "b"}, store=False, service_tier="auto", tools=[],
                     response_format={"type": "text"}, tool_choice="none", logprobs=False, stop=None)  # fmt: skip


# Logprobs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_logprobs_stand_beside_their_tokens(client: HttpClient, stream: bool) -> None:
    if stream:
        chunks = await client.stream(CHAT, logprobs=True, top_logprobs=2)
        logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
        entries = [entry for logprobs in logprobs if logprobs for entry in logprobs["content"]]
    else:
        got = await client.ask(CHAT, logprobs=True, top_logprobs=2)
        entries = got["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == ANSWER.encode()
    assert len(entries) == len(ids_of(ANSWER)), "the end token has none"
    first = entries[0]
    assert first["logprob"] == -0.25
    assert [top["logprob"] for top in first["top_logprobs"]] == [-0.25, -1.25]
    assert first["top_logprobs"][0]["token"] == first["token"]


async def test_logprobs_without_alternatives(client: HttpClient) -> None:
    got = await client.ask(CHAT, logprobs=True)
    assert got["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
    assert client.sampling().logprobs == 0


async def test_completion_logprobs_have_the_older_shape(client: HttpClient) -> None:
    client.say("fox jumps")
    logprobs = (await client.ask(COMPLETIONS, logprobs=1))["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "fox jumps"
    assert logprobs["token_logprobs"] == [-0.25] * len(logprobs["tokens"])
    assert [list(top.values()) for top in logprobs["top_logprobs"]] == [[-0.25]] * len(logprobs["tokens"])
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [sum(lengths[:place]) for place in range(len(lengths))]


# Failures -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("role", "attempt"), [("prefill", 2), ("decode", 3)])
async def test_a_failed_leg_is_tried_again_unseen(client: HttpClient, role: str, attempt: int) -> None:
    """When the decode worker failed, the second attempt asks for the KV that is kept; these workers keep none."""
    worker = getattr(client.pool, role)[0]
    worker.fail_next = [Reason.INTERNAL]
    assert (await client.ask(CHAT))["choices"][0]["message"]["content"] == ANSWER
    assert client.prefill().attempt == attempt
    await until(lambda: all(worker.is_idle for worker in client.pool.workers))


async def test_workers_without_room_are_told_as_503_with_a_time_to_come_back(client: HttpClient) -> None:
    client.pool.decode[0].fail_next = [Reason.NO_CAPACITY] * 20
    status, error = await client.refused(CHAT)
    assert (status, error["code"]) == (429, "no_capacity")


async def test_when_all_workers_leave_requests_are_refused(client: HttpClient, gateway: RunningGateway) -> None:
    for worker in client.pool.workers:
        await worker.report(draining=True)
    await until(lambda: all(view.is_draining for view in gateway.server.table.views()))
    assert (await client.refused(CHAT))[0] == 503


async def test_a_stream_that_failed_before_its_first_token_is_an_ordinary_error(
    client: HttpClient, gateway: RunningGateway
) -> None:
    client.pool.prefill[0].fail_next = [Reason.NO_CAPACITY] * 3
    status, error = await client.refused(CHAT, stream=True)
    assert (status, error["type"], error["code"]) == (429, "rate_limit_error", "no_capacity")
    assert gateway.server.report().unserved_minute == 1


async def test_a_stream_that_fails_later_ends_with_an_error_event_and_no_done(
    client: HttpClient, gateway: RunningGateway, http: aiohttp.ClientSession
) -> None:
    client.pool.decode[0].step_s = 0.05
    body = {"model": "tiny", "messages": USER, "stream": True}
    async with http.post(gateway.url(CHAT), json=body) as got:
        await got.content.readuntil(b"\n\n")
        live = next(iter(gateway.server.relay._by_ticket.values()))
        live.life.deadline_s = 0.0
        gateway.server.relay._tick(live)
        rest = (await got.text()).removesuffix("\n\n").split("\n\n")
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "deadline_exceeded"
    assert "[DONE]" not in "".join(rest)
    await until(lambda: client.pool.decode[0].is_idle)


async def test_a_killed_decode_worker_loses_and_repeats_no_token(client: HttpClient, gateway: RunningGateway) -> None:
    from baton_wire.messages.values import Role

    second = await client.pool.add(Role.DECODE)
    await gateway.until_linked(3)
    client.say("word " * 60)
    for worker in client.pool.decode:
        worker.step_s = 0.005
    body = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 60, "n": 2}
    async with client.http.post(gateway.url(COMPLETIONS), json=body) as got:
        first = await got.content.readuntil(b"\n\n")
        await until(lambda: any(worker.running for worker in client.pool.decode))
        busy = client.pool.decode[0] if client.pool.decode[0].running else second
        await busy.stop()
        events = (first + await got.read()).decode().removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    whole = tokenizer().tokenizer.decode(ids_of("word " * 60)[:60])
    for index in range(2):
        assert streamed_text(chunks, index) == whole
    assert finishes(chunks) == ["length"] * 2
    await until(lambda: all(worker.is_idle for worker in client.pool.workers))


async def test_a_restarted_worker_at_the_same_address_is_found_again(
    client: HttpClient, gateway: RunningGateway
) -> None:
    await client.pool.prefill[0].restart()

    async def ask() -> dict[str, Any]:
        return await client.ask(CHAT)

    await until(lambda: client.pool.prefill[0].epoch in [w.hello.epoch for w in gateway.server.table.all()])
    assert (await ask())["choices"][0]["message"]["content"] == ANSWER
