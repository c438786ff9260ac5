"""One client of a served model: plain and streamed requests, when each token came, and how each answer ended.

`baton ask`, the benches, the fault campaigns and the Pods' load generator ask with it. Beside aiohttp it needs
`errors` alone. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import asyncio
import enum
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

from baton_local.errors import LocalError

SILENCE_S = 120.0
"""Longest wait for the next bytes of an answer, where no time for the whole was given."""
LINGER_S = 1.0
"""For a server to close its answer after [DONE]: then the connection can be used again."""
MAX_LINE_BYTES = 1 << 20
_JSON = {"Content-Type": "application/json"}


class AnswerError(LocalError):
    """The service refused or broke off; the message is the service's own."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What is posted where."""

    path: str
    body: Mapping[str, Any]
    encoded: bytes | None = None
    """The whole body as JSON, when it was made ahead; `body` may then lack what only the server reads."""

    def made_ahead(self) -> ClientRequest:
        """The same request, that costs nothing to send: its prompt is kept as JSON alone."""
        rest = {name: value for name, value in self.body.items() if name not in ("prompt", "messages")}
        return ClientRequest(self.path, rest, json.dumps(self.body).encode())


def chat(model: str, text: str, *, stream: bool = True, **fields: object) -> ClientRequest:
    """One message of a user; fields that are None are left out."""
    messages = [{"role": "user", "content": text}]
    return ClientRequest(
        "/v1/chat/completions", _body({"model": model, "messages": messages, "stream": stream}, fields)
    )


def completion(model: str, prompt: Sequence[int] | str, max_tokens: int, *, stream: bool = True) -> ClientRequest:
    """Token ids or a text in, exactly `max_tokens` out, greedily."""
    words = prompt if isinstance(prompt, str) else list(prompt)
    body: dict[str, object] = {
        "model": model,
        "prompt": words,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": stream,
    }
    return ClientRequest("/v1/completions", _body(body, {"ignore_eos": True}))


def _body(body: dict[str, object], fields: Mapping[str, object]) -> dict[str, object]:
    usage: dict[str, object] = {"stream_options": {"include_usage": True}} if body["stream"] else {}
    return body | usage | {name: value for name, value in fields.items() if value is not None}


class AnswerEnd(enum.Enum):
    """How an answer ended."""

    WHOLE = "whole"
    REFUSED = "refused"
    """The service said so: another status than 200, or an error inside the stream."""
    BROKEN = "broken"
    """Nobody answered, the connection broke, or the stream stopped before its end."""


@dataclass(slots=True)
class Answer:
    """One request as its client saw it. It is filled while the answer comes: what came before a break stays known."""

    due_s: float
    """When it was to be sent: in an open loop that can be before `sent_s`."""
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    """When each piece came: an event with text, thoughts or a part of a call, or with the end of a choice."""
    bare_ends: int = 0
    """Pieces that told nothing but the end of a choice."""
    texts: dict[int, str] = field(default_factory=dict)
    """By choice."""
    calls: dict[int, str] = field(default_factory=dict)
    """By choice: the names and arguments of its calls, one behind the other."""
    finished: dict[int, str] = field(default_factory=dict)
    """The finish reason of each choice that has ended."""
    tokens: int = 0
    """As the service counts them at the end; before that, pieces with something in them."""
    is_counted: bool = False
    """Whether `tokens` is the service's count."""
    prompt_tokens: int | None = None
    """As the service counts them at the end; None: it did not say."""
    fingerprint: str = ""
    ended_s: float = 0.0
    end: AnswerEnd = AnswerEnd.BROKEN
    failure: str = ""
    """In a word; empty for a whole answer."""
    retry_after_s: float | None = None
    """When a refused one is to be asked again, as the service said; None: it did not say."""
    detail: str = ""

    @property
    def ttft_s(self) -> float:
        """From when it was due: a client that is late does not make the service look better. Infinite: no token."""
        return self.times_s[0] - self.due_s if self.times_s else float("inf")

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens; infinite for an answer that is not whole or came without a piece, 0 for one
        token."""
        if self.end is not AnswerEnd.WHOLE or not self.times_s:
            return float("inf")
        return (self.times_s[-1] - self.times_s[0]) / max(1, self.tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Between one piece with something in it and the next."""
        pieces = self.times_s[: len(self.times_s) - self.bare_ends]
        return [later - earlier for earlier, later in pairwise(pieces)]

    def checked(self) -> Answer:
        """Itself, when it is whole. Raises AnswerError."""
        if self.end is not AnswerEnd.WHOLE:
            raise AnswerError(self.detail)
        return self


def open_session(
    total_s: float | None = None,
    *,
    connect_s: float | None = None,
    fresh: bool = False,
    api_key: str | None = None,
    **connector: Any,
) -> aiohttp.ClientSession:
    """For `send`, with as many connections as there are requests; `fresh` takes a new one for each.

    `total_s` bounds a whole answer. Without it only silence is bounded.
    """
    silence_s = SILENCE_S if total_s is None else None
    timeout = aiohttp.ClientTimeout(total=total_s, sock_connect=connect_s, sock_read=silence_s)
    pool = aiohttp.TCPConnector(limit=0, force_close=fresh, **connector)
    headers = None if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return aiohttp.ClientSession(connector=pool, timeout=timeout, read_bufsize=MAX_LINE_BYTES, headers=headers)


async def send(
    session: aiohttp.ClientSession,
    endpoint: str,
    request: ClientRequest,
    *,
    due_s: float | None = None,
    on_text: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Carry out one request; `on_text` hears each piece of a stream. How it ended stands in the answer."""
    now = time.monotonic()
    answer = Answer(now if due_s is None else due_s, now)
    try:
        data = json.dumps(request.body).encode() if request.encoded is None else request.encoded
        async with session.post(endpoint + request.path, data=data, headers=_JSON) as response:
            if response.status != 200:
                _refused(answer, f"HTTP {response.status}", await response.text())
                answer.retry_after_s = _seconds(response.headers.get("Retry-After", ""))
            elif request.body.get("stream"):
                await _read_stream(response.content, answer, on_text)
            else:
                _read_whole(_object(await response.read()), answer)
    except aiohttp.ClientConnectorError as error:
        _broken(answer, type(error).__name__, f"{endpoint} does not answer: {error}")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        _broken(answer, type(error).__name__, f"the answer broke off: {type(error).__name__}: {error}")
    answer.ended_s = answer.ended_s or time.monotonic()
    return answer


def ask(
    endpoint: str,
    request: ClientRequest,
    on_text: Callable[[str], None] = lambda text: None,
    api_key: str | None = None,
) -> Answer:
    """One request from a program without a loop. Raises AnswerError."""

    async def asked() -> Answer:
        async with open_session(api_key=api_key) as session:
            return await send(session, endpoint, request, on_text=on_text)

    return asyncio.run(asked()).checked()


async def _read_stream(content: aiohttp.StreamReader, answer: Answer, on_text: Callable[[str], None]) -> None:
    """Raises ValueError for an event that is no object."""
    async for line in content:
        now = time.monotonic()
        data = line.removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or not data:
            continue
        if data == b"[DONE]":
            answer.end, answer.ended_s = AnswerEnd.WHOLE, now
            return await _close(content)
        chunk = _object(data)
        if chunk.get("error"):
            return _refused(answer, "error event", data.decode())
        answer.fingerprint = chunk.get("system_fingerprint") or answer.fingerprint
        for choice in _objects(chunk.get("choices")):
            _note(choice, answer, now, on_text)
        _count(answer, chunk.get("usage"))
    _broken(answer, "no [DONE]", "the answer broke off before its end")


async def _close(content: aiohttp.StreamReader) -> None:
    """Nothing after its end belongs to an answer, and a server that keeps the connection open is not waited for."""
    try:
        async with asyncio.timeout(LINGER_S):
            async for _ in content:
                pass
    except TimeoutError:
        return


def _note(choice: Mapping[str, Any], answer: Answer, now: float, on_text: Callable[[str], None]) -> None:
    """A piece, if there is something in it."""
    text, is_more = _take(choice, answer)
    if text or is_more:
        answer.times_s.append(now)
        answer.tokens += 1
    elif choice.get("finish_reason"):
        answer.times_s.append(now)
        answer.bare_ends += 1
    if text:
        on_text(text)


def _read_whole(reply: Mapping[str, Any], answer: Answer) -> None:
    if reply.get("error"):
        return _refused(answer, "error in the answer", json.dumps(reply))
    for choice in _objects(reply.get("choices")):
        _take(choice, answer)
    answer.times_s.append(time.monotonic())
    answer.tokens = 1
    _count(answer, reply.get("usage"))
    answer.fingerprint = reply.get("system_fingerprint") or ""
    answer.end = AnswerEnd.WHOLE


def _count(answer: Answer, usage: object) -> None:
    """What a `usage` says, where it does."""
    if not isinstance(usage, dict):
        return
    if isinstance(tokens := usage.get("completion_tokens"), int):
        answer.tokens, answer.is_counted = tokens, True
    if isinstance(tokens := usage.get("prompt_tokens"), int):
        answer.prompt_tokens = tokens


def _take(choice: Mapping[str, Any], answer: Answer) -> tuple[str, bool]:
    """Note what an event or a reply says of a choice; its text, and whether it has calls or thoughts."""
    index = choice.get("index", 0)
    said = choice.get("delta") or choice.get("message")
    said = said if isinstance(said, dict) else {}
    text = str(said.get("content") or choice.get("text") or "")
    parts = [call.get("function") or {} for call in _objects(said.get("tool_calls"))]
    called = "".join(str(part.get(name) or "") for part in parts for name in ("name", "arguments"))
    answer.texts[index] = answer.texts.get(index, "") + text
    if called:
        answer.calls[index] = answer.calls.get(index, "") + called
    if reason := choice.get("finish_reason"):
        answer.finished[index] = reason
    return text, bool(called or said.get("reasoning_content") or said.get("reasoning"))


def _object(data: bytes) -> dict[str, Any]:
    """Raises ValueError."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError(f"{data[:80].decode(errors='replace')} is no object")
    return found


def _objects(value: object) -> list[dict[str, Any]]:
    """Those of a list; none of what is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _seconds(header: str) -> float | None:
    """Of a Retry-After; dates are not read."""
    return float(header) if header.isascii() and header.isdigit() else None


def _refused(answer: Answer, failure: str, body: str) -> None:
    answer.end, answer.failure = AnswerEnd.REFUSED, failure
    try:
        answer.detail = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        answer.detail = f"{failure}: {body[:300]}"


def _broken(answer: Answer, failure: str, detail: str) -> None:
    if answer.end is AnswerEnd.BROKEN:  # after its end nothing can break any more
        answer.failure, answer.detail = failure, detail
