"""A small client of the gateway and of the processes' own HTTP pages: plain requests, and one streamed chat answer."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from baton_local.errors import LocalError

SILENCE_S = 120.0
"""Longest wait for the next bytes of an answer."""
PAGE_S = 3.0
MAX_PAGE_BYTES = 16 << 20


class AnswerError(LocalError):
    """The service refused or broke off; the message is the service's own."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a streamed answer and when it came, in seconds of the monotonic clock."""

    text: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Question:
    model: str
    text: str
    max_tokens: int | None = None
    temperature: float | None = None

    def body(self, stream: bool) -> bytes:
        fields: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.text}],
            "stream": stream,
        }
        if stream:
            fields["stream_options"] = {"include_usage": True}
        optional = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return json.dumps(fields | {name: value for name, value in optional.items() if value is not None}).encode()


class ChatStream:
    """One streamed answer: iterate over the pieces, then `completion_tokens` and `finish_reason` are known."""

    def __init__(self, endpoint: str, question: Question) -> None:
        self.completion_tokens: int | None = None
        self.finish_reason: str | None = None
        self.started_s = time.monotonic()
        self._endpoint, self._question = endpoint, question

    def __iter__(self) -> Iterator[Piece]:
        """The pieces with text, as they come. Raises AnswerError."""
        connection, response = _post(self._endpoint, self._question.body(stream=True))
        try:
            yield from self._pieces(response)
        except (OSError, http.client.HTTPException) as error:
            raise AnswerError(f"the answer broke off: {error}") from error
        finally:
            connection.close()

    def _pieces(self, response: http.client.HTTPResponse) -> Iterator[Piece]:
        for line in response:
            if not line.startswith(b"data:"):
                continue
            data = line[len(b"data:") :].strip()
            if data == b"[DONE]":
                return
            chunk = json.loads(data)
            if "error" in chunk:
                raise AnswerError(_error_message(chunk))
            if chunk.get("usage"):
                self.completion_tokens = int(chunk["usage"]["completion_tokens"])
            for choice in chunk["choices"]:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                if text := choice["delta"].get("content"):
                    yield Piece(text, time.monotonic())
        raise AnswerError("the answer broke off before its end")


def chat(endpoint: str, question: Question) -> str:
    """The whole answer. Raises AnswerError."""
    connection, response = _post(endpoint, question.body(stream=False))
    try:
        answer = json.loads(response.read(MAX_PAGE_BYTES))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise AnswerError(f"the answer broke off: {error}") from error
    finally:
        connection.close()
    return str(answer["choices"][0]["message"]["content"])


def get_page(base: str, path: str) -> bytes | None:
    """A page of a process, or None when it does not answer with one."""
    connection = _connection(base, PAGE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.read(MAX_PAGE_BYTES) if response.status == http.client.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def get_json(base: str, path: str) -> dict[str, object] | None:
    """A page that is a JSON object, or None."""
    page = get_page(base, path)
    if page is None:
        return None
    try:
        value = json.loads(page)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _post(endpoint: str, body: bytes) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = _connection(endpoint, SILENCE_S)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status == http.client.OK:
            return connection, response
        message = _error_message(json.loads(response.read(MAX_PAGE_BYTES)))
    except (OSError, ValueError, http.client.HTTPException) as error:
        connection.close()
        raise AnswerError(f"{endpoint} does not answer: {error}") from error
    connection.close()
    raise AnswerError(message)


def _connection(base: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    assert parts.hostname is not None
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)


def _error_message(answer: object) -> str:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return str(message) if message else "the service answered with an error that it did not explain"
