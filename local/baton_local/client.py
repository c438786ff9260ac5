"""The client of a served model: plain and streamed requests, the time of each token, and how each answer ended.

`baton ask`, the benchmarks, the fault campaigns and the load generator in Pods use it. It needs only aiohttp and
`errors`. Times are seconds of the monotonic clock.
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
"""Longest wait for the next bytes of an answer that has no total timeout."""
LINGER_S = 1.0
"""Time for a server to close its answer after [DONE], so that the connection can be reused."""
MAX_LINE_BYTES = 1 << 20
NO_KEY = "HTTP 401"
_JSON = {"Content-Type": "application/json"}


class AnswerError(LocalError):
    """The service refused the request or the answer broke off; the message is the service's own."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request: the path, and the body to post."""

    path: str
    body: Mapping[str, Any]
    encoded: bytes | None = None
    """The whole body as JSON, if it was encoded ahead; `body` then lacks the prompt."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode_ahead(self) -> ClientRequest:
        """The same request with its body already JSON, so that sending it costs nothing."""
        rest = {name: value for name, value in self.body.items() if name not in ("prompt", "messages")}
        return ClientRequest(self.path, rest, json.dumps(self.body).encode(), self.headers)


def chat(model: str, text: str, *, stream: bool = True, **fields: object) -> ClientRequest:
    """A chat request with one user message; fields that are None are omitted."""
    messages = [{"role": "user", "content": text}]
    return ClientRequest(
        "/v1/chat/completions", _body({"model": model, "messages": messages, "stream": stream}, fields)
    )


def completion(model: str, prompt: Sequence[int] | str, max_tokens: int, *, stream: bool = True) -> ClientRequest:
    """A greedy completion request for exactly `max_tokens` tokens, from token ids or a text."""
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
    """The service refused: another status than 200, or an error inside the stream."""
    BROKEN = "broken"
    """There was no answer, the connection broke, or the stream stopped before its end."""


@dataclass(slots=True)
class Answer:
    """One answer as its client saw it. It is filled while the answer arrives, so a broken one keeps its beginning."""

    due_s: float
    """When the request was due: in an open loop that can be before `sent_s`."""
    sent_s: float
    times_s: list[float] = field(default_factory=list)
    """Arrival of each piece: an event with text, reasoning or a part of a call, or with the end of a choice."""
    bare_ends: int = 0
    """Pieces with nothing but the end of a choice."""
    texts: dict[int, str] = field(default_factory=dict)
    """Text of each choice."""
    calls: dict[int, str] = field(default_factory=dict)
    """Names and arguments of each choice's tool calls, concatenated."""
    finished: dict[int, str] = field(default_factory=dict)
    """The finish reason of each choice that has ended."""
    tokens: int = 0
    """Output tokens as the service counts them at the end; until then, pieces with content."""
    is_counted: bool = False
    """True: `tokens` is the service's count."""
    prompt_tokens: int | None = None
    """Prompt tokens as the service counts them at the end; None: not reported."""
    cached_tokens: int | None = None
    """Prompt tokens that the service found in a cache, as it counts them; None: not reported."""
    fingerprint: str = ""
    ended_s: float = 0.0
    end: AnswerEnd = AnswerEnd.BROKEN
    failure: str = ""
    """Kind of failure in a word; empty for a whole answer."""
    retry_after_s: float | None = None
    """The service's Retry-After of a refused request; None: it sent none."""
    detail: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to the first token from when the request was due: a late client does not make the service look better.
        Infinite: no token came."""
        return self.times_s[0] - self.due_s if self.times_s else float("inf")

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens; infinite for an answer that is not whole or has no piece, 0 for one token."""
        if self.end is not AnswerEnd.WHOLE or not self.times_s:
            return float("inf")
        return (self.times_s[-1] - self.times_s[0]) / max(1, self.tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between each piece with content and the next."""
        pieces = self.times_s[: len(self.times_s) - self.bare_ends]
        return [later - earlier for earlier, later in pairwise(pieces)]

    def checked(self) -> Answer:
        """The answer itself, if it is whole. Raises AnswerError."""
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
    """A session for `send`, without a limit on connections; `fresh` takes a new one for each request.

    `total_s` is the timeout of a whole answer. Without it only silence is bounded.
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
    """Send one request; `on_text` gets each piece of a stream. The answer says how it ended."""
    now = time.monotonic()
    answer = Answer(now if due_s is None else due_s, now)
    try:
        data = json.dumps(request.body).encode() if request.encoded is None else request.encoded
        async with session.post(endpoint + request.path, data=data, headers={**_JSON, **request.headers}) as response:
            if response.status != 200:
                _refused(answer, f"HTTP {response.status}", await response.text())
                answer.retry_after_s = _seconds(response.headers.get("Retry-After", ""))
            elif request.body.get("stream"):
                await _read_stream(response.content, answer, on_text)
            else:
                _read_whole(_object(await response.read()), answer)
    except aiohttp.ClientConnectorError as error:
        reason = error.strerror or str(error)
        _broken(answer, type(error).__name__, f"{endpoint} does not answer ({reason}): it may be down or restarting")
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
    """Send one request from a program without an event loop. Raises AnswerError."""

    async def send_request() -> Answer:
        async with open_session(api_key=api_key) as session:
            return await send(session, endpoint, request, on_text=on_text)

    return asyncio.run(send_request()).checked()


async def _read_stream(content: aiohttp.StreamReader, answer: Answer, on_text: Callable[[str], None]) -> None:
    """Read a stream of events into the answer. Raises ValueError for an event that is no object."""
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
    """Skip what follows the end of an answer; a server that keeps it open is not waited for."""
    try:
        async with asyncio.timeout(LINGER_S):
            async for _ in content:
                pass
    except TimeoutError:
        return


def _note(choice: Mapping[str, Any], answer: Answer, now: float, on_text: Callable[[str], None]) -> None:
    """Note an event of a choice as a piece, unless it is empty."""
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
    """Take the token counts of a `usage` object."""
    if not isinstance(usage, dict):
        return
    if isinstance(tokens := usage.get("completion_tokens"), int):
        answer.tokens, answer.is_counted = tokens, True
    if isinstance(tokens := usage.get("prompt_tokens"), int):
        answer.prompt_tokens = tokens
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict) and isinstance(tokens := details.get("cached_tokens"), int):
        answer.cached_tokens = tokens


def _take(choice: Mapping[str, Any], answer: Answer) -> tuple[str, bool]:
    """Add an event's or a reply's choice to the answer; returns its text, and True if it has calls or reasoning."""
    index = choice.get("index", 0)
    message = choice.get("delta") or choice.get("message")
    message = message if isinstance(message, dict) else {}
    text = str(message.get("content") or choice.get("text") or "")
    parts = [call.get("function") or {} for call in _objects(message.get("tool_calls"))]
    called = "".join(str(part.get(name) or "") for part in parts for name in ("name", "arguments"))
    answer.texts[index] = answer.texts.get(index, "") + text
    if called:
        answer.calls[index] = answer.calls.get(index, "") + called
    if reason := choice.get("finish_reason"):
        answer.finished[index] = reason
    return text, bool(called or message.get("reasoning_content") or message.get("reasoning"))


def _object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError(f"{data[:80].decode(errors='replace')} is no object")
    return value


def _objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; none for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _seconds(header: str) -> float | None:
    """The seconds of a Retry-After header; None for a date."""
    return float(header) if header.isascii() and header.isdigit() else None


def _refused(answer: Answer, failure: str, body: str) -> None:
    answer.end, answer.failure = AnswerEnd.REFUSED, failure
    try:
        answer.detail = str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        answer.detail = f"{failure}: {body[:300]}"
    if failure == NO_KEY:
        answer.detail += " (the key that is sent: the variable BATON_API_KEY)"


def _broken(answer: Answer, failure: str, detail: str) -> None:
    if answer.end is AnswerEnd.BROKEN:  # after its end nothing can break any more
        answer.failure, answer.detail = failure, detail
