"""Bad input over HTTP: each gets its own clear error, and afterwards the service serves and holds no block."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Deployment

pytestmark = pytest.mark.processes

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Hello!"}]
INVALID = "invalid_request_error"


@dataclass(frozen=True, slots=True)
class Case:
    """A request body that must be refused: which field it blames, and a word of the message."""

    name: str
    path: str
    body: dict[str, Any] | bytes
    param: str | None
    word: str
    status: int = 400


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, **fields}


def text(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "The wind", "max_tokens": 4, **fields}


def raw(fields: str) -> bytes:
    return b'{"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], ' + fields.encode() + b"}"


CASES = [
    Case("an empty body", CHAT, b"", None, "json"),
    Case("broken JSON", CHAT, b'{"model": "tiny", ', None, "json"),
    Case("a list for a body", CHAT, b"[]", None, "object"),
    Case("a number for a body", TEXT, b"7", None, "object"),
    Case("invalid UTF-8", CHAT, b'{"model": "ti\xff\xfe"}', None, "utf-8"),
    Case("NaN", CHAT, raw('"temperature": NaN'), None, "nan"),
    Case("Infinity", CHAT, raw('"top_p": Infinity'), None, "infinity"),
    Case("a number too large for a float", CHAT, raw('"temperature": 1e999'), "temperature", "temperature"),
    Case("a key twice", CHAT, raw('"seed": 1, "seed": 2'), "seed", "twice"),
    Case("JSON nested too deep", CHAT, b'{"model": ' + b"[" * 200 + b"]" * 200 + b"}", None, "deep"),
    Case("JSON nested absurdly deep", CHAT, b'{"a":' * 20_000, None, ""),
    Case("an integer of 10,000 digits", CHAT, raw('"seed": ' + "9" * 10_000), None, "number"),
    Case("a lone surrogate", CHAT, raw('"user": "x", "stop": "\\ud800"'), "stop", "surrogate"),
    Case("no model", CHAT, {"messages": HELLO}, "model", "required"),
    Case("model of a wrong type", CHAT, chat(model=7), "model", "string"),
    Case("an unknown model", CHAT, chat(model="gpt-9"), "model", "exist", 404),
    Case("an unknown field", CHAT, chat(tempreature=1), "tempreature", "unknown"),
    Case("no messages", CHAT, {"model": "tiny"}, "messages", "required"),
    Case("empty messages", CHAT, chat(messages=[]), "messages", "entries"),
    Case("messages as text", CHAT, chat(messages="Hello!"), "messages", "list"),
    Case("an unknown role", CHAT, chat(messages=[{"role": "wizard", "content": "x"}]), "messages[0].role", "role"),
    Case("a message without content", CHAT, chat(messages=[{"role": "user"}]), "messages[0].content", "required"),
    Case("content of a wrong type", CHAT, chat(messages=[{"role": "user", "content": 4}]), "messages[0].content", ""),
    Case(
        "an unknown field in a message",
        CHAT,
        chat(messages=[{"role": "user", "content": "x", "mood": 1}]),
        "messages[0].mood",
        "unknown",
    ),
    Case(
        "an image part",
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        "messages[0].content[0].type",
        "text",
    ),
    Case("tools", CHAT, chat(tools=[{"type": "function"}]), "tools", "tool"),
    Case("JSON mode", CHAT, chat(response_format={"type": "json_object"}), "response_format", "text"),
    Case("temperature below zero", CHAT, chat(temperature=-0.1), "temperature", "between"),
    Case("temperature as text", CHAT, chat(temperature="hot"), "temperature", "number"),
    Case("temperature as a boolean", CHAT, chat(temperature=True), "temperature", "number"),
    Case("top_p of zero", CHAT, chat(top_p=0), "top_p", "above"),
    Case("top_p above one", CHAT, chat(top_p=1.01), "top_p", "at most"),
    Case("n of zero", CHAT, chat(n=0), "n", "between"),
    Case("n of ten thousand", CHAT, chat(n=10_000), "n", "between"),
    Case("n as a fraction", CHAT, chat(n=1.5), "n", "integer"),
    Case("max_tokens of zero", CHAT, chat(max_tokens=0), "max_tokens", "between"),
    Case("negative max_tokens", CHAT, chat(max_tokens=-5), "max_tokens", "between"),
    Case("max_tokens beyond the context", CHAT, chat(max_tokens=4_000), "messages", "context"),
    Case("min_tokens over max_tokens", CHAT, chat(min_tokens=9, max_tokens=3), "min_tokens", "max_tokens"),
    Case(
        "a prompt beyond the context", CHAT, chat(messages=[{"role": "user", "content": "x " * 9_000}]), "messages", ""
    ),
    Case("too many stop strings", CHAT, chat(stop=[str(i) for i in range(99)]), "stop", "at most"),
    Case("an empty stop string", CHAT, chat(stop=[""]), "stop[0]", "bytes"),
    Case("stop as a number", CHAT, chat(stop=3), "stop", "string"),
    Case("a seed of 200 bits", CHAT, chat(seed=1 << 200), "seed", "between"),
    Case("presence_penalty of three", CHAT, chat(presence_penalty=3), "presence_penalty", "between"),
    Case("logit_bias for a word", CHAT, chat(logit_bias={"the": 1}), "logit_bias", "token id"),
    Case("logit_bias beyond the vocabulary", CHAT, chat(logit_bias={"99999": 1}), "logit_bias", "vocabulary"),
    Case("logit_bias of a million", CHAT, chat(logit_bias={"7": 1e6}), "logit_bias", "between"),
    Case("top_logprobs without logprobs", CHAT, chat(top_logprobs=2), "top_logprobs", "logprobs"),
    Case("top_logprobs of 99", CHAT, chat(logprobs=True, top_logprobs=99), "top_logprobs", "between"),
    Case("stream as text", CHAT, chat(stream="yes"), "stream", "boolean"),
    Case(
        "stream_options without stream", CHAT, chat(stream_options={"include_usage": True}), "stream_options", "stream"
    ),
    Case("no prompt", TEXT, {"model": "tiny"}, "prompt", "required"),
    Case("an empty list of prompts", TEXT, text(prompt=[]), "prompt", "empty"),
    Case("an empty list of ids", TEXT, text(prompt=[[]]), "prompt[0]", "empty"),
    Case("ids mixed with text", TEXT, text(prompt=[1, "two"]), "prompt[1]", "integer"),
    Case("a negative id", TEXT, text(prompt=[-1]), "prompt[0]", "between"),
    Case("an id beyond the vocabulary", TEXT, text(prompt=[5_000]), "prompt", "vocabulary"),
    Case("a thousand prompts", TEXT, text(prompt=["x"] * 1_000), "prompt", "at most"),
    Case("echo with logprobs", TEXT, text(echo=True, logprobs=1), "echo", "logprobs"),
    Case("best_of other than n", TEXT, text(best_of=4, n=1), "best_of", "n"),
    Case("a suffix", TEXT, text(suffix="end"), "suffix", "end"),
]


def post(deployment: Deployment, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", deployment.port, timeout=30)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def the_service_still_serves(deployment: Deployment) -> Iterator[None]:
    """After each case the blocks are back at the baseline and a good request is answered."""
    yield
    deployment.await_idle()
    question, answer = tiny_llama.GREETING
    body = {"model": "tiny", "messages": [{"role": "user", "content": question}], "temperature": 0}
    status, reply = post(deployment, CHAT, json.dumps(body).encode())
    assert status == 200
    assert json.loads(reply)["choices"][0]["message"]["content"] == answer


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_body_is_refused_by_field(deployment: Deployment, case: Case) -> None:
    body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    status, reply = post(deployment, case.path, body)
    assert status == case.status, reply
    error = json.loads(reply)["error"]
    assert error["type"] == INVALID
    assert error["param"] == case.param, error
    assert error["code"]
    assert case.word in error["message"].lower(), error


def test_a_body_over_the_limit_is_refused(deployment: Deployment) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", deployment.port, timeout=30)
    connection.putrequest("POST", CHAT)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(1 << 34))
    connection.endheaders()
    try:
        connection.send(b"{" * (1 << 16))
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"]["type"] == INVALID
    finally:
        connection.close()


def test_an_unknown_path_is_not_found(deployment: Deployment) -> None:
    status, reply = post(deployment, "/v1/embeddings", b"{}")
    assert status == 404
    assert json.loads(reply)["error"]["message"]


def test_a_wrong_method_is_refused(deployment: Deployment) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", deployment.port, timeout=30)
    connection.request("GET", CHAT)
    response = connection.getresponse()
    assert response.status == 405
    assert json.loads(response.read())["error"]["type"] == INVALID
    connection.close()


def test_bytes_that_are_not_http_close_the_connection(deployment: Deployment) -> None:
    with socket.create_connection(("127.0.0.1", deployment.port), timeout=10) as stream:
        stream.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64))
        answer = b""
        while piece := stream.recv(4096):
            answer += piece
    assert answer == b"" or b"400" in answer.split(b"\r\n", 1)[0]


def test_a_body_that_never_comes_holds_nothing(deployment: Deployment) -> None:
    with socket.create_connection(("127.0.0.1", deployment.port), timeout=10) as stream:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
        stream.sendall(head.encode() + b'{"model"')
