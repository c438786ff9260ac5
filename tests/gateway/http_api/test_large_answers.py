"""Large answers: bounded by their fields before anything runs, charged to the memory budget, kept as bytes."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import aiohttp
import pytest

from baton_gateway.answers.output_parts import ContentPart
from baton_gateway.apis.messages_answer import message_error_body
from baton_gateway.apis.responses_answer import response_error_body
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.http_api import routes
from baton_gateway.openai_api.answer_bounds import MAX_ANSWER_TOKENS, MAX_ANSWER_VALUES, check_answer, max_tokens_each
from baton_gateway.openai_api.answer_writers import AnswerWriter, CollectedAnswer, CollectingWriter
from baton_gateway.openai_api.collected_message import CollectedMessage
from baton_gateway.openai_api.json_pieces import PIECE_BYTES, EncodedJson, even_pieces, json_pieces
from baton_gateway.openai_api.openai_types import ApiEndpoint, parse_completion
from baton_gateway.openai_api.response_encoding import (
    MAX_MESSAGE_CHARS,
    AnswerHead,
    FinishedChoice,
    ResponseHead,
    Usage,
    error_body,
    response_body,
)
from baton_gateway.openai_api.streaming_writer import StreamingWriter
from baton_gateway.text.choice_text import Increment, TokenInfo
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway, tokenizer, until
from baton_testing.gateway.http_client import CHAT, COMPLETIONS, USER, HttpClient
from baton_testing.gateway.made_tokenizers import bundle_hash
from baton_wire.messages.values import Finish, TokenLogprob

RESPONSES = "/v1/responses"
TOP = tuple((300 + place, -1.0 - place) for place in range(20))


@pytest.fixture(scope="module")
def text() -> TextModel:
    data = tokenizer().bundle()
    return load_text_model(data, bundle_hash(data))


def head_of(text: TextModel, endpoint: ApiEndpoint, choices: int = 1, ahead: int = 0) -> AnswerHead:
    head = ResponseHead(endpoint, "cmpl-1", 0, "tiny", "fp_1")
    return AnswerHead(head, text, choices, False, False, 1, True, True, ahead)


# Bounds by field ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": ["a"] * 64, "n": 16, "logprobs": 20, "max_tokens": 20}, "max_tokens"),
        (COMPLETIONS, {"prompt": ["a"] * 64, "n": 16, "logprobs": 20, "max_tokens": 13}, "max_tokens"),
        (COMPLETIONS, {"prompt": ["a"] * 64, "n": 16, "logprobs": 20}, "max_tokens"),
        (COMPLETIONS, {"logprobs": 0, "max_tokens": 262_145}, "max_tokens"),
        (COMPLETIONS, {"prompt": ["a"] * 64, "n": 16, "max_tokens": 16_385}, "max_tokens"),
        (CHAT, {"n": 16, "logprobs": True, "top_logprobs": 20, "max_tokens": 781}, "max_tokens"),
        (CHAT, {"n": 16, "logprobs": True, "top_logprobs": 20, "max_completion_tokens": 781}, "max_completion_tokens"),
        (RESPONSES, {"input": "x", "top_logprobs": 20, "max_output_tokens": 12_484}, "max_output_tokens"),
        (
            RESPONSES,
            {"input": "x", "top_logprobs": 20, "max_output_tokens": 12_484, "stream": True},
            "max_output_tokens",
        ),
    ],
)
async def test_an_answer_that_would_be_too_large_is_refused_by_field(
    client: HttpClient, path: str, body: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny"} | body if path == RESPONSES else client._filled(path, body)
    async with client.http.post(client.gateway.url(path), json=body) as got:
        error = (await got.json())["error"]
    assert (got.status, error["code"], error["param"]) == (400, "out_of_range", param)
    assert f"'{param}' of " in error["message"]
    assert str(MAX_ANSWER_VALUES) in error["message"] or str(MAX_ANSWER_TOKENS) in error["message"]
    assert not client.pool.prefill[0].received, "nothing has run"


@pytest.mark.parametrize("logprobs", [None, 0, 20])
def test_the_largest_answer_is_allowed_and_one_token_more_is_not(logprobs: int | None) -> None:
    for prompts, n in ((1, 1), (64, 16), (1, 16), (7, 3)):
        most = max_tokens_each(prompts * n, logprobs)
        check_answer("max_tokens", most, prompts, n, logprobs)
        with pytest.raises(RefusedError):
            check_answer("max_tokens", most + 1, prompts, n, logprobs)


def test_a_stream_may_have_as_many_log_probabilities_as_it_has_tokens() -> None:
    body = {"model": "tiny", "prompt": ["a"] * 64, "n": 16, "logprobs": 20, "max_tokens": 1_000}
    assert parse_completion(body | {"stream": True}).options.max_tokens == 1_000
    with pytest.raises(RefusedError):
        parse_completion(body)


@pytest.mark.parametrize(("stream", "n", "most"), [(False, 1, 12_483), (False, 16, 780), (True, 16, None)])
async def test_without_a_wish_an_answer_gets_what_fits_into_it(
    pool: FakePool, http: aiohttp.ClientSession, stream: bool, n: int, most: int | None
) -> None:
    for worker in pool.workers:
        worker.max_context_tokens, worker.blocks_total = 1 << 17, 1 << 13
    async with running_gateway(pool) as gateway:
        client = HttpClient(gateway, http)
        ask = client.stream if stream else client.ask
        await ask(CHAT, messages=USER, n=n, logprobs=True, top_logprobs=20)
        room = (1 << 17) - client.prefill().prompt_tokens
        assert client.sampling().max_tokens == (room if most is None else most)


async def test_log_probabilities_of_prompts_count_in_each_choice_that_tells_them(client: HttpClient) -> None:
    prompt = [5] * 900
    await client.ask(COMPLETIONS, prompt=prompt, prompt_logprobs=20, n=1, max_tokens=1)
    status, error = await client.refused(COMPLETIONS, prompt=prompt, prompt_logprobs=20, n=16, max_tokens=1)
    assert (status, error["code"], error["param"]) == (400, "out_of_range", "prompt_logprobs")
    assert "each of 16 choices ('n')" in error["message"]


# Memory ---------------------------------------------------------------------------------------------------------------


class Budget:
    """A budget of a few bytes."""

    def __init__(self, size: int) -> None:
        self.left = size

    def hold(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


async def test_an_answer_that_finds_no_memory_is_refused_before_it_begins(text: TextModel) -> None:
    writer = CollectingWriter(charge=Budget(999).hold)
    with pytest.raises(RefusedError) as refusal:
        writer.begin(head_of(text, ApiEndpoint.CHAT, ahead=1_000))
    problem = refusal.value.problem
    assert (problem.status, problem.code, problem.retry_after_s) == (503, "out_of_memory", 1)


async def test_an_answer_that_outgrows_the_memory_ends_with_a_named_error(text: TextModel) -> None:
    budget = Budget(100_000)
    writer = CollectingWriter(charge=budget.hold)
    writer.begin(head_of(text, ApiEndpoint.CHAT, ahead=1_000))
    for _ in range(1_000):
        writer.increment(0, Increment("x" * 200))
        if writer.done.done():
            break
    result = writer.done.result()
    assert isinstance(result, Problem)
    assert (result.status, result.code, result.retry_after_s) == (503, "out_of_memory", 1)
    writer.increment(0, Increment("more", finish=Finish.STOP))
    writer.end(None, Usage(1, 1))


async def test_what_an_answer_holds_is_charged_while_it_grows(text: TextModel) -> None:
    budget = Budget(1 << 30)
    writer = CollectingWriter(charge=budget.hold)
    writer.begin(head_of(text, ApiEndpoint.COMPLETIONS))
    for place in range(3_000):
        writer.increment(0, Increment("x", (TokenInfo(300, TokenLogprob(-1.0, TOP), place),)))
    writer.end(None, Usage(1, 3_000))
    answer = writer.done.result()
    assert isinstance(answer, CollectedAnswer)
    size = sum(map(len, answer.body()))
    assert size <= (1 << 30) - budget.left <= 2 * size


async def test_a_full_budget_refuses_a_large_answer_and_the_next_one_is_served(
    pool: FakePool, http: aiohttp.ClientSession
) -> None:
    async with running_gateway(pool, "--max-request-memory-mib=16") as gateway:
        client = HttpClient(gateway, http)
        large = {"prompt": ["a"] * 16, "n": 16, "logprobs": 20, "max_tokens": 40}
        async with http.post(gateway.url(COMPLETIONS), json=client._filled(COMPLETIONS, large)) as got:
            assert got.status == 503
            assert got.headers["Retry-After"] == "1"
            assert (await got.json())["error"]["code"] == "out_of_memory"
        assert (await client.ask(COMPLETIONS))["choices"]
        await until(lambda: gateway.server.budget.used_bytes == 0)


# Bytes ----------------------------------------------------------------------------------------------------------------


def reference(endpoint: ApiEndpoint, tokens: Sequence[TokenInfo], text: TextModel) -> Any:
    """The `logprobs` object as plain values."""

    def name(token: int) -> str:
        return text.token_bytes(token).decode(errors="replace")

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": name(token), "logprob": max(logprob, -9999.0), "bytes": list(text.token_bytes(token))}

    if endpoint is ApiEndpoint.CHAT:
        known = [(info.token, cast(TokenLogprob, info.logprob)) for info in tokens]
        content = [entry(t, p.logprob) | {"top_logprobs": [entry(*other) for other in p.top]} for t, p in known]
        return {"content": content, "refusal": None}
    return {
        "tokens": [name(info.token) for info in tokens],
        "token_logprobs": [info.logprob and info.logprob.logprob for info in tokens],
        "top_logprobs": [info.logprob and {name(t): p for t, p in info.logprob.top} for info in tokens],
        "text_offset": [info.text_offset for info in tokens],
    }


@pytest.mark.parametrize("endpoint", list(ApiEndpoint))
async def test_a_body_of_pieces_says_what_its_values_say(text: TextModel, endpoint: ApiEndpoint) -> None:
    tokens = [
        TokenInfo(token, TokenLogprob(-token * 1.7e-3 - 1e4 * (token % 7 == 0), TOP[: token % 21]), 3 * token)
        for token in range(1, 600)
    ]
    tokens.append(TokenInfo(5, TokenLogprob(-1.0, ((130, -1.0), (131, -2.0), (132, -0.5))), 0))
    if endpoint is ApiEndpoint.COMPLETIONS:
        tokens.insert(0, TokenInfo(7, None, 0))
    writer = CollectingWriter()
    writer.begin(head_of(text, endpoint))
    for begin in range(0, len(tokens), 7):
        writer.increment(0, Increment('a"\\\n\x00é\U0001f600', tuple(tokens[begin : begin + 7])))
    writer.increment(0, Increment("", finish=Finish.STOP))
    writer.end(None, Usage(1, len(tokens)))
    answer = writer.done.result()
    assert isinstance(answer, CollectedAnswer)
    choice = json.loads(b"".join(answer.body()))["choices"][0]
    assert choice["logprobs"] == reference(endpoint, tokens, text)
    content = choice["message"]["content"] if endpoint is ApiEndpoint.CHAT else choice["text"]
    assert content == 'a"\\\n\x00é\U0001f600' * -(-len(tokens) // 7)


@pytest.mark.parametrize("kind", [CollectingWriter, StreamingWriter])
async def test_an_answer_that_waits_keeps_no_object_a_token(text: TextModel, kind: Callable[[], AnswerWriter]) -> None:
    def count_objects() -> int:
        gc.collect()
        kinds = (TokenInfo, TokenLogprob, ContentPart)
        return sum(type(value) in kinds for value in gc.get_objects())

    writer, before = kind(), count_objects()
    writer.begin(head_of(text, ApiEndpoint.CHAT))
    for place in range(1_000):
        writer.increment(0, Increment("x", (TokenInfo(300, TokenLogprob(-1.0, TOP), place),)))
    assert count_objects() <= before + 300


def test_pieces_are_small_whatever_they_are_cut_from() -> None:
    sizes = [1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES + 5, 0, 7, PIECE_BYTES // 2, PIECE_BYTES // 2 + 1]
    parts = [bytes([65 + place]) * size for place, size in enumerate(sizes)]
    pieces = list(even_pieces(parts))
    assert b"".join(pieces) == b"".join(parts)
    assert {len(piece) for piece in pieces[:-1]} == {PIECE_BYTES}


def test_what_is_encoded_is_not_copied_into_a_body() -> None:
    large = bytearray(b'"' + b"x" * 1_000_000 + b'"')
    pieces = json_pieces({"a": "\0", "b": [EncodedJson(large), {"c": EncodedJson(b"[", b"1", b"]")}]})
    assert any(piece is large for piece in pieces)
    assert json.loads(b"".join(pieces)) == {"a": "\0", "b": ["x" * 1_000_000, {"c": [1]}]}


def test_the_body_of_a_long_answer_is_its_own_bytes() -> None:
    answer = CollectedMessage()
    answer.add([ContentPart("x" * 1_000)] * 1_000)
    head = ResponseHead(ApiEndpoint.CHAT, "chatcmpl-1", 0, "tiny", "fp_1")
    pieces = response_body(head, [FinishedChoice(answer, None, "stop")], Usage(1, 1))
    assert sum(len(piece) for piece in pieces if len(piece) < 1_000_000) < 1_000


@pytest.mark.parametrize("form", [error_body, message_error_body, response_error_body])
def test_no_error_is_long_whatever_it_quotes(form: Any) -> None:
    body = form(Problem(400, "x", "\U0001f600" * 1_000_000, "p" * 1_000_000, "c"), "req-1")
    assert len(body) < 8 * MAX_MESSAGE_CHARS
    assert json.loads(body)["error"]["message"].endswith("…")


# The connection -------------------------------------------------------------------------------------------------------


async def begun(client: HttpClient, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request whose answer nobody reads yet."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", client.gateway.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 12)
    data = json.dumps(client._filled(COMPLETIONS, body)).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)
    return reader, writer


LARGE = {"n": 16, "logprobs": 20, "max_tokens": 150}
"""About 800 kB: more than the kernel's buffers take."""


def script(client: HttpClient) -> None:
    client.say("the cat sat on the mat and " * 30)


async def test_an_answer_that_is_not_read_stays_charged_and_is_cut_in_the_end(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "STALL_S", 0.3)
    script(client)
    budget = client.gateway.server.budget
    _, writer = await begun(client, LARGE)
    await until(lambda: client.gateway.server.relay.num_live == 1)
    await until(lambda: client.gateway.server.relay.num_live == 0)
    assert budget.used_bytes > 500_000
    await until(lambda: budget.used_bytes == 0)
    writer.close()
    stalled = client.gateway.server.metrics._stalled
    assert stalled._value.get() == 1


async def test_a_large_answer_arrives_whole(client: HttpClient) -> None:
    script(client)
    got = await client.ask(COMPLETIONS, **LARGE)
    assert len(got["choices"]) == 16
    assert {len(choice["logprobs"]["tokens"]) for choice in got["choices"]} == {150}
    await until(lambda: client.gateway.server.budget.used_bytes == 0)
