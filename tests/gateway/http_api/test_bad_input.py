"""Bad input over HTTP: each is answered with its status, type, param and code, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import ANSWER, RunningGateway, answer, running_gateway, tokenizer
from baton_wire.messages.values import Role

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "x"}]
TEXT = {"type": "text", "text": "x"}
DEEP = '{"model":"tiny","messages":' + "[" * 70 + "]" * 70 + "}"


@dataclass(frozen=True)
class Case:
    """A body for an endpoint, raw or as fields beside good ones."""

    param: str | None
    code: str
    fields: dict[str, Any] | None = None
    raw: bytes | None = None
    path: str = CHAT
    status: int = 400
    word: str = ""
    """Something that the message says beside what `SAID` wants."""

    def body(self) -> bytes:
        if self.raw is not None:
            return self.raw
        good: dict[str, Any] = {"messages": USER} if self.path == CHAT else {"prompt": "x"}
        merged = {"model": "tiny", **good, **(self.fields or {})}
        return json.dumps({name: value for name, value in merged.items() if value is not ...}).encode()

    def __str__(self) -> str:
        return f"{self.param}-{self.code}-{str(self.fields or self.raw)[:40]}"


def field(
    name: str, value: Any, code: str, param: str | None = None, path: str = CHAT, word: str = "", **others: Any
) -> Case:
    return Case(param or name, code, {name: value, **others}, path=path, word=word)


def completion(name: str, value: Any, code: str, param: str | None = None, word: str = "", **others: Any) -> Case:
    return field(name, value, code, param, path=COMPLETIONS, word=word, **others)


def message(content: dict[str, Any], param: str, code: str) -> Case:
    return Case(param, code, {"messages": [content]})


BODIES = [
    Case(None, "invalid_json", raw=b""),
    Case(None, "invalid_json", raw=b"{"),
    Case(None, "invalid_json", raw=b"[]", word="object"),
    Case(None, "invalid_json", raw=b"7", path=COMPLETIONS, word="object"),
    Case(None, "invalid_json", raw=b'"text"'),
    Case(None, "invalid_json", raw=b'{"a": 1} {}'),
    Case(None, "invalid_json", raw=b"\xef\xbb\xbf\xef\xbb\xbf{}"),
    Case(None, "invalid_json", raw=b'{"temperature": NaN}', word="nan"),
    Case(None, "invalid_json", raw=b'{"temperature": -Infinity}', word="infinity"),
    Case(None, "invalid_json", raw=b'{"seed": ' + b"9" * 10_000 + b"}", word="number"),
    Case(None, "invalid_utf8", raw=b'{"model": "\xff"}'),
    Case(None, "invalid_utf8", raw=b'{"model": "\xed\xa0\x80"}'),
    Case("model", "duplicate_key", raw=b'{"model": "tiny", "model": "tiny"}'),
    Case("role", "duplicate_key", raw=b'{"messages": [{"role": "user", "role": "user"}]}'),
    Case("seed", "duplicate_key", raw=b'{"model": "tiny", "seed": 1, "seed": 2}'),
    Case(None, "invalid_json", raw=b'{"\\ud800": 1, "\\ud800": 2}', word="surrogate"),
    Case(None, "invalid_json", raw=b'{"metadata": "\\ud83d"}', word="surrogate"),
    Case(None, "duplicate_key", raw=b'{"user": "' + b"x" * (64 << 10) + b'", "a": 1, "a": 2}', word="twice"),
    Case(None, "too_many_values", raw=b'{"metadata": [' + b"[]," * 160_000 + b"1]}", word="values"),
    Case(None, "too_many_values", raw=b'{"metadata": [' + b'"",' * 320_000 + b"1]}", word="values"),
    Case(None, "too_many_values", raw=b'{"metadata": {' + b'"a":1,' * 20_001 + b'"b":1}}', word="keys"),
    Case(
        "metadata",
        "too_long",
        raw=b'{"model": "tiny", "prompt": "x", "metadata": [' + b"[]," * 9_000 + b"1]}",
        path=COMPLETIONS,
        word="16384",
    ),
    Case(None, "json_too_deep", raw=DEEP.encode()),
    Case(None, "json_too_deep", raw=b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
]
MODELS = [
    field("model", ..., "missing_required_parameter"),
    field("model", 7, "invalid_type"),
    field("model", "x" * 300, "too_long"),
    Case(None, "invalid_json", {"model": "\ud800"}, word="surrogate"),
    Case("model", "model_not_found", {"model": "gpt-9"}, status=404),
    Case("model", "model_not_found", {"model": ""}, status=404),
    Case("model", "model_not_found", {"model": "../tiny"}, status=404, path=COMPLETIONS),
]
MESSAGES = [
    field("messages", ..., "missing_required_parameter"),
    field("messages", [], "out_of_range"),
    field("messages", "x", "invalid_type"),
    field("messages", USER * 2_049, "out_of_range"),
    field("messages", ["x"], "invalid_type", "messages[0]"),
    message({"content": "x"}, "messages[0].role", "missing_required_parameter"),
    message({"role": "user"}, "messages[0].content", "missing_required_parameter"),
    message({"role": "robot", "content": "x"}, "messages[0].role", "invalid_value"),
    message({"role": "function", "content": "x"}, "messages[0].role", "unsupported_parameter"),
    message({"role": "tool", "content": "x"}, "messages[0].tool_call_id", "missing_required_parameter"),
    message({"role": "tool", "content": "x", "tool_call_id": "c"}, "messages[0].tool_call_id", "invalid_value"),
    message({"role": ["user"], "content": "x"}, "messages[0].role", "invalid_value"),
    message({"role": "user", "content": 1}, "messages[0].content", "invalid_type"),
    message({"role": "user", "content": []}, "messages[0].content", "invalid_value"),
    message({"role": "user", "content": "x", "colour": 1}, "messages[0].colour", "unknown_parameter"),
    message({"role": "user", "content": "x", "name": "n" * 65}, "messages[0].name", "too_long"),
    message(
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x"}}]},
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    message(
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        "messages[0].content[0].type",
        "unsupported_parameter",
    ),
    message(
        {"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text", "missing_required_parameter"
    ),
    message({"role": "user", "content": ["x"]}, "messages[0].content[0]", "invalid_type"),
    message({"role": "user", "content": [TEXT] * 1_025}, "messages[0].content", "too_long"),
    field("messages", [{"role": "user", "content": [TEXT] * 1_000}] * 9, "too_long", word="9000"),
]
UNKNOWN = [
    field("colour", "red", "unknown_parameter"),
    field("prompt", "x", "unknown_parameter"),
    field("guided_backend", "xgrammar", "unknown_parameter"),
    completion("messages", USER, "unknown_parameter"),
    field("urgency", 1, "unknown_parameter"),
]
UNSUPPORTED = [
    field("kv_transfer_params", {"remote_host": "10.0.0.1"}, "unsupported_parameter"),
    completion("use_beam_search", True, "unsupported_parameter"),
    field("tools", [{"type": "functions"}], "unsupported_parameter", "tools[0].type"),
    field("tools", [{"type": "function", "function": {"name": "f"}}], "unsupported_parameter"),
    field("functions", [{"name": "f"}], "unsupported_parameter"),
    field("function_call", {"name": "f"}, "unsupported_parameter"),
    field("modalities", ["text", "audio"], "unsupported_parameter"),
    field("audio", {"voice": "x"}, "unsupported_parameter"),
    field("chat_template", "{{ 1 }}", "unsupported_parameter"),
    field("chat_template_kwargs", {"a": 1}, "unsupported_parameter"),
    field("reasoning_effort", "high", "unsupported_parameter"),
    field("max_thinking_tokens", 5, "unsupported_parameter"),
    completion("suffix", "end", "unsupported_parameter"),
    completion("best_of", 2, "unsupported_parameter"),
    completion("prompt_embeds", "AAAA", "unsupported_parameter"),
    completion("max_tokens", 0, "out_of_range"),
]
NUMBERS = [
    *(field("n", value, "out_of_range") for value in (0, -1, 17, 10**9)),
    *(field("n", value, "invalid_type") for value in ("1", True, 1.0, [1], 1e308)),
    *(field("max_tokens", value, "out_of_range") for value in (0, -1, 10**9)),
    *(field("max_completion_tokens", value, "out_of_range") for value in (0, -5, 2**31)),
    field("max_tokens", 2_048, "context_length_exceeded", "messages"),
    completion("max_tokens", 2_047, "context_length_exceeded", "prompt"),
    field("min_tokens", 9, "invalid_value", word="max_tokens", max_tokens=8),
    field("min_tokens", 100_000, "invalid_value"),
    field("min_tokens", -1, "out_of_range"),
    *(field("temperature", value, "out_of_range") for value in (-0.1, 2.1, 10**400)),
    field("temperature", "hot", "invalid_type"),
    field("temperature", True, "invalid_type"),
    Case(
        None, "invalid_json", raw=b'{"model":"tiny","prompt":"x","temperature":1e999}', path=COMPLETIONS, word="number"
    ),
    Case(
        None,
        "invalid_json",
        raw=b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        word="range",
    ),
    *(field("top_p", value, "out_of_range") for value in (0, -1, 1.1)),
    *(field("min_p", value, "out_of_range") for value in (-0.1, 1.5)),
    *(field("top_k", value, "out_of_range") for value in (-2, 2**40)),
    field("presence_penalty", 2.5, "out_of_range"),
    field("frequency_penalty", -2.5, "out_of_range"),
    field("repetition_penalty", 0, "out_of_range"),
    field("seed", 2**63, "out_of_range"),
    field("seed", 1.5, "invalid_type"),
    field("top_logprobs", 21, "out_of_range", logprobs=True),
    field("top_logprobs", 2, "invalid_value"),
    field("logprobs", 2, "invalid_type"),
    completion("logprobs", 21, "out_of_range"),
    completion("logprobs", True, "invalid_type"),
]
OTHERS = [
    field("stop", ["x"] * 17, "too_long"),
    field("stop", "", "out_of_range"),
    Case(None, "invalid_json", {"stop": "\ud800"}, word="surrogate"),
    field("stop", ["é" * 129], "out_of_range", "stop[0]"),
    field("stop", [1], "invalid_type", "stop[0]"),
    field("stop", {"a": 1}, "invalid_type"),
    field("stop_token_ids", [-1], "out_of_range", "stop_token_ids[0]"),
    field("stop_token_ids", [1] * 65, "too_long"),
    field("stop_token_ids", [100_000], "out_of_range"),
    field("logit_bias", {"x": 1}, "invalid_value"),
    field("logit_bias", {"1": 101}, "out_of_range", word="between"),
    field("logit_bias", {"1": "a"}, "invalid_type"),
    field("logit_bias", {str(i): 1 for i in range(1_025)}, "too_long"),
    field("logit_bias", {"99999": 1}, "out_of_range", word="vocabulary"),
    field("logit_bias", [1], "invalid_type"),
    field("stream", "yes", "invalid_type"),
    field("stream_options", {"include_usage": True}, "invalid_value"),
    field("stream_options", {"colour": 1}, "unknown_parameter", "stream_options.colour", stream=True),
    field("stream_options", [], "invalid_type", stream=True),
    field("cache_salt", "s" * 65, "too_long"),
    Case(None, "invalid_json", {"cache_salt": "\udc00"}, word="surrogate"),
    field("ignore_eos", 1, "invalid_type"),
]
PROMPTS = [
    completion("prompt", ..., "missing_required_parameter"),
    completion("prompt", [], "invalid_value", word="empty"),
    completion("prompt", 5, "invalid_type"),
    completion("prompt", {"a": 1}, "invalid_type"),
    completion("prompt", [[]], "invalid_value", "prompt[0]"),
    completion("prompt", [1, "x"], "invalid_type", "prompt[1]", word="integer"),
    completion("prompt", ["x", 1], "invalid_type", "prompt[1]"),
    completion("prompt", [1, -1], "out_of_range", "prompt[1]", word="between"),
    completion("prompt", [-1], "out_of_range", "prompt[0]", word="between"),
    completion("prompt", [True], "invalid_type", "prompt[0]"),
    completion("prompt", [[1], [2.5]], "invalid_type", "prompt[1][0]"),
    completion("prompt", [100_000], "out_of_range"),
    completion("prompt", ["x"] * 65, "too_long"),
    Case(None, "invalid_json", {"prompt": "\ud800 and more"}, word="surrogate", path=COMPLETIONS),
    completion("prompt", "the " * 3_000, "context_length_exceeded"),
    completion("prompt", [1] * 2_048, "context_length_exceeded"),
    completion("prompt", [1] * 100_000, "context_length_exceeded"),
]
SAID: dict[tuple[str | None, str], str] = {
    (None, "invalid_utf8"): "utf-8", (None, "json_too_deep"): "deep", ("model", "invalid_type"): "string",
    ("messages", "out_of_range"): "entries", ("messages", "invalid_type"): "list",
    ("messages[0].role", "invalid_value"): "role", ("messages[0].content[0].type", "unsupported_parameter"): "text",
    ("tools", "unsupported_parameter"): "template",
    ("temperature", "out_of_range"): "between", ("temperature", "invalid_type"): "number",
    ("top_p", "out_of_range"): "above 0 and at most",
    ("n", "out_of_range"): "between", ("n", "invalid_type"): "integer", ("max_tokens", "out_of_range"): "between",
    ("stop", "too_long"): "at most", ("stop", "invalid_type"): "string", ("stop[0]", "out_of_range"): "bytes",
    ("seed", "out_of_range"): "between", ("presence_penalty", "out_of_range"): "between",
    ("logit_bias", "invalid_value"): "token id", ("top_logprobs", "out_of_range"): "between",
    ("top_logprobs", "invalid_value"): "logprobs", ("stream", "invalid_type"): "boolean",
    ("stream_options", "invalid_value"): "stream", ("prompt[0]", "invalid_value"): "empty",
    ("prompt", "out_of_range"): "vocabulary", ("prompt", "too_long"): "at most",
    ("best_of", "unsupported_parameter"): "n",
    ("suffix", "unsupported_parameter"): "end",
}  # fmt: skip
"""Words in the message of a refusal, in lower case, by its param and code."""
SAID_BY_CODE = {
    "missing_required_parameter": "required", "unknown_parameter": "unknown", "duplicate_key": "twice",
    "model_not_found": "exist", "context_length_exceeded": "context",
}  # fmt: skip
CASES = [*BODIES, *MODELS, *MESSAGES, *UNKNOWN, *UNSUPPORTED, *NUMBERS, *OTHERS, *PROMPTS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    """One gateway for all cases: that it still serves after each is part of what is tested."""
    pool = FakePool(tmp_path_factory.mktemp("pool"), tokenizer(), answer)
    await pool.add(Role.PREFILL)
    await pool.add(Role.DECODE)
    async with running_gateway(pool) as gateway:
        yield gateway
    await pool.stop()


async def post(gateway: RunningGateway, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Any]:
    sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.post(gateway.url(path), data=body, headers=sent) as got:
        return got.status, await got.json(), got.headers


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_bad_body_is_refused_by_field(shared: RunningGateway, case: Case) -> None:
    status, content, _ = await post(shared, case.path, case.body())
    error = content["error"]
    expected = (case.status, "invalid_request_error", case.param, case.code)
    assert (status, error["type"], error["param"], error["code"]) == expected, error
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    assert "127.0.0.1" not in error["message"]
    text = error["message"].lower()
    wanted = (case.word, SAID.get((case.param, case.code), ""), SAID_BY_CODE.get(case.code, ""))
    assert all(word in text for word in wanted), text


async def test_the_gateway_still_serves_and_holds_nothing_after_all_of_that(shared: RunningGateway) -> None:
    body = json.dumps({"model": "tiny", "messages": USER}).encode()
    assert not any(worker.received for worker in shared.pool.workers), "no worker heard of a refused request"
    status, content, _ = await post(shared, CHAT, body)
    assert status == 200
    assert content["choices"][0]["message"]["content"] == ANSWER
    assert shared.server.relay.num_live == 0
    assert all(worker.is_idle for worker in shared.pool.workers)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Content_Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"Content_Encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"Host": "evil/?x="}, 400, "bad_request"),
        ({"Host": "a b"}, 400, "bad_request"),
        ({"Upgrade": "websocket", "Connection": "Upgrade"}, 400, "bad_request"),
    ],
)
async def test_bad_headers_are_refused(shared: RunningGateway, headers: dict[str, str], status: int, code: str) -> None:
    got, content, _ = await post(shared, CHAT, b"{}", **headers)
    assert (got, content["error"]["code"]) == (status, code)


async def test_a_body_beyond_the_limit_is_refused_before_it_is_read(shared: RunningGateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    writer.write(_head("POST", CHAT, f"Content-Type: application/json\r\nContent-Length: {(8 << 20) + 1}"))
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


async def test_a_chunked_body_beyond_the_limit_is_refused(shared: RunningGateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
    writer.write(_head("POST", CHAT, "Content-Type: application/json\r\nTransfer-Encoding: chunked"))
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    try:
        for _ in range(9):
            writer.write(chunk)
            await writer.drain()
    except ConnectionError:
        pass
    assert (await reader.readline()).startswith(b"HTTP/1.1 413")
    writer.close()


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "/v1", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("GET", "/v1/models/../models", 404, "model_not_found"),
        ("GET", "//v1/models", 404, "unknown_url"),
        ("GET", "/V1/models", 404, "unknown_url"),
        ("GET", "/v1/models%2f", 404, "unknown_url"),
        ("GET", "/%76%31/models", 404, "unknown_url"),
        ("GET", "/v1/models#x", 404, "unknown_url"),
        ("GET", "http://127.0.0.1/v1/models", 404, "unknown_url"),
        ("GET", "/v1/models.", 404, "unknown_url"),
        ("GET", "/state", 404, "unknown_url"),
        ("GET", "/v1/embedding", 404, "unknown_url"),
        ("POST", "/pause", 404, "unknown_url"),
        ("POST", "/update_weights", 404, "unknown_url"),
        ("POST", "/collective_rpc", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("PUT", COMPLETIONS, 405, "method_not_allowed"),
        ("OPTIONS", CHAT, 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/tiny", 405, "method_not_allowed"),
        ("POST", "/metrics", 405, "method_not_allowed"),
    ],
)
async def test_whatever_is_not_exactly_a_known_path_does_not_exist(
    shared: RunningGateway, method: str, target: str, status: int, code: str
) -> None:
    head, body = await _raw(shared, _head(method, target, "Connection: close"))
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body)["error"]["code"] == code
    assert status != 405 or b"Allow: " in head


def _head(method: str, target: str, headers: str) -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n".encode()


async def _raw(gateway: RunningGateway, data: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to raw bytes; the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(data)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body
