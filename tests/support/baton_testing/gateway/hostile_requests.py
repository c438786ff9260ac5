"""Requests of somebody who means harm, from a seed: raw bytes for one connection each, and how to judge the answer."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from baton_testing.gateway.hostile_shapes import HostileShapes

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
PATHS = (CHAT, COMPLETIONS, "/tokenize", "/detokenize", MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES)
TURNS = {CHAT: "messages", MESSAGES: "messages", f"{MESSAGES}/count_tokens": "messages", RESPONSES: "input"}
"""Where the turns of a conversation stand."""
BLOCKS = (
    "text", "input_text", "output_text", "thinking", "tool_use", "tool_result", "image", "function_call",
    "function_call_output", "reasoning", "message", "item_reference", "\ud800",
)  # fmt: skip
ANSWER_S = 60.0
LEAVES_S = 0.2
READ_OUT_BYTES = 8 << 20
"""A longer body is refused by its length, and a shorter one may be. It is read for a moment, so that its sender sees
the answer; who goes on sending for longer may find the connection closed."""
READ_OUT_S = 1.0
LARGE_BYTES = 1 << 20
"""No body up to here takes a second to send."""
STATUSES = {200, 400, 401, 404, 405, 408, 411, 413, 415, 417, 429, 431}
"""Allowed answers, besides 503 with Retry-After."""
FIELDS = (
    "model", "messages", "prompt", "n", "max_tokens", "max_completion_tokens", "min_tokens", "temperature", "top_p",
    "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "stop",
    "stop_token_ids", "ignore_eos", "skip_special_tokens", "logprobs", "top_logprobs", "stream", "stream_options",
    "echo", "best_of", "suffix", "tools", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "parallel_tool_calls", "response_format", "metadata", "user", "cache_salt", "prompt_logprobs",
    "tokens", "input", "instructions", "system", "stop_sequences", "thinking", "output_config", "tool_choice", "text",
    "reasoning", "include", "max_output_tokens", "previous_response_id", "background", "id", "call_id", "tool_use_id",
    "add_special_tokens", "return_token_strs", "chat_template", "kv_transfer_params", "priority", "__proto__", "",
)  # fmt: skip
TEXTS = (
    "",
    "x",
    "\ud800",
    "\x00",
    "é" * 300,
    "{{ 7*7 }}",
    "<|end|>",
    "../../etc",
    "a" * 9_000,
    "\u202e",
    "%s%n",
    "'\"\\",
)
NUMBERS = (0, 1, -1, 1.5, -0.0, 1e308, 1e-320, 2**31, 2**63, 2**64, -(2**63), 10**400, 1e-45, 0.1, 2, 16, 17, True)


@dataclass(frozen=True, slots=True)
class Hostile:
    """Bytes for a connection of their own. `is_whole`: they are a complete request, which needs an answer."""

    kind: str
    sent: bytes
    is_whole: bool = True


class HostileRequests:
    """Endless requests for a model of this name; equal seeds give equal ones."""

    def __init__(self, seed: int, model: str) -> None:
        self._random = random.Random(seed)
        self._model = model
        self._shapes = HostileShapes(self._random)
        self._kinds = (
            self._fields, self._values, self._bound, self._tool_turns, self._bytes, self._many, self._heads,
            self._framing, self._cut,
        )  # fmt: skip

    def draw(self) -> Hostile:
        return self._random.choice(self._kinds)()

    def _good(self, path: str) -> dict[str, Any]:
        match path:
            case "/v1/chat/completions":
                return {"model": self._model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
            case "/v1/messages":
                return {"model": self._model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
            case "/v1/messages/count_tokens":
                return {"model": self._model, "messages": [{"role": "user", "content": "x"}]}
            case "/v1/responses":
                return {"model": self._model, "input": "x", "max_output_tokens": 2}
            case "/detokenize":
                return {"model": self._model, "tokens": [1, 2]}
        return {"model": self._model, "prompt": "the cat"} | ({} if path == "/tokenize" else {"max_tokens": 2})

    def _value(self, depth: int = 0) -> Any:
        draw = self._random
        kind = draw.randrange(8 if depth < 3 else 5)
        if kind < 2:
            return draw.choice(TEXTS)
        if kind < 4:
            return draw.choice(NUMBERS)
        if kind == 4:
            return draw.choice([None, True, False, [], {}])
        if kind == 5:
            return [self._value(depth + 1) for _ in range(draw.choice([1, 2, 17, 65] if depth == 0 else [1, 2, 5]))]
        if kind == 6:
            return [draw.choice(NUMBERS)] * draw.choice([1, 100, 5_000])
        return {draw.choice(FIELDS + TEXTS): self._value(depth + 1) for _ in range(draw.randrange(1, 4))}

    def _fields(self) -> Hostile:
        """A good body with one to three fields of any name and value."""
        path = self._random.choice(PATHS)
        body = self._good(path) | {
            self._random.choice(FIELDS): self._value() for _ in range(self._random.randrange(1, 4))
        }
        return Hostile("fields", _post(path, json.dumps(body).encode()))

    def _values(self) -> Hostile:
        """A good body in which something deep inside is something else."""
        path = self._random.choice(PATHS)
        body = self._good(path)
        message = {"role": self._random.choice(["user", "system", "tool", "\ud800", ""]), "content": self._value()}
        if path in TURNS:
            message |= {self._random.choice(FIELDS): self._value()} if self._random.random() < 0.3 else {}
            if path != CHAT:
                message |= self._block()
            body[TURNS[path]] = [message] * self._random.choice([1, 2, 300 if len(json.dumps(message)) < 10_000 else 3])
        else:
            body["tokens" if path == "/detokenize" else "prompt"] = self._value()
        return Hostile("values", _post(path, json.dumps(body).encode()))

    def _block(self) -> dict[str, Any]:
        """Return the content of a turn of the other APIs, or such an item as a turn."""
        block = {"type": self._random.choice(BLOCKS)} | {
            self._random.choice(("text", "input", "content", "id", "call_id", "tool_use_id", "name", "arguments",
                                 "output", "thinking", "summary")): self._value(1)
            for _ in range(self._random.randrange(4))
        }  # fmt: skip
        return {"content": [block]} if self._random.random() < 0.6 else block

    def _bound(self) -> Hostile:
        """An answer that is bound by something, or may call tools."""
        path, shapes = (
            self._random.choice((CHAT, CHAT, COMPLETIONS, MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES)),
            self._shapes,
        )
        match path:
            case "/v1/chat/completions":
                fields = shapes.for_chat()
            case "/v1/completions":
                fields = shapes.for_completions()
            case "/v1/responses":
                fields = shapes.for_responses()
            case _:
                fields = shapes.for_messages()
        stream = {"stream": True} if self._random.random() < 0.2 and not path.endswith("count_tokens") else {}
        return Hostile("bound", _post(path, json.dumps(self._good(path) | fields | stream).encode()))

    def _tool_turns(self) -> Hostile:
        """A conversation with calls of tools and their results."""
        path = self._random.choice((CHAT, MESSAGES, f"{MESSAGES}/count_tokens", RESPONSES, "/tokenize"))
        body = self._good(path)
        body.pop("prompt", None)
        body[TURNS.get(path, "messages")] = self._shapes.turns(path.startswith(MESSAGES))
        if self._random.random() < 0.3:
            body |= self._shapes.for_messages() if path.startswith(MESSAGES) else self._shapes.for_chat()
        return Hostile("turns", _post(path, json.dumps(body).encode()))

    def _bytes(self) -> Hostile:
        """A good body with some bytes changed."""
        path = self._random.choice(PATHS)
        body = bytearray(json.dumps(self._good(path) | {"user": 'é\n"😀', "stop": ["a", "b"]}).encode())
        for _ in range(self._random.randrange(1, 6)):
            place = self._random.randrange(len(body))
            match self._random.randrange(3):
                case 0:
                    body[place] = self._random.randrange(256)
                case 1:
                    del body[place : place + self._random.randrange(1, 4)]
                case _:
                    body[place:place] = self._random.choice(
                        [b'"', b"\\", b"\\ud800", b"{", b"]", b",", b"\xff", b"1e999"]
                    )
        return Hostile("bytes", _post(path, bytes(body)))

    def _many(self) -> Hostile:
        """Many values, or deep ones."""
        piece = self._random.choice([b"[]", b"{}", b'""', b"1", b"1e-5", b'{"type":"text","text":"x"}', b'{"a":[{}]}'])
        count = self._random.choice([1, 70, 1_025, 20_001, 160_000])
        match self._random.randrange(3):
            case 0:
                filled = b"[" + b",".join([piece] * count) + b"]"
            case 1:
                filled = b"[" * count + b"]" * count
            case _:
                filled = b'{"a":' * count + b"1" + b"}" * count
        path = self._random.choice(PATHS)
        name = self._random.choice(
            ["metadata", "prompt", "messages", "logit_bias", "tokens", "input", "tools", "system"]
        )
        model = json.dumps(self._model).encode()
        return Hostile("many", _post(path, b'{"model":%b,"%b":%b}' % (model, name.encode(), filled)))

    def _heads(self) -> Hostile:
        """Odd methods, paths and headers."""
        draw = self._random
        method = draw.choice(["GET", "POST", "HEAD", "OPTIONS", "PUT", "TRACE", "CONNECT", "get", "X" * 300])
        path = draw.choice(
            [
                *PATHS,
                "/",
                "*",
                "/v1/models/\ud800x",
                "//v1/models",
                "/v1/models?" + "a" * 9_000,
                "/%ff",
                "/openapi.json",
            ]
        )
        header = draw.choice(
            [
                "X: y",
                "Host: b",
                "Content-Length: -1",
                "Content-Length: 1e3",
                "Transfer-Encoding: gzip",
                "Expect: 100-continue",
                "Expect: x",
                "Connection: upgrade\r\nUpgrade: h2c",
                "Content-Type: text/\xff",
                "X" * 9_000 + ": y",
                "X: " + "y" * 9_000,
                "Authorization: Bearer \x80",
                "Cookie: " + "a;" * 3_000,
                "Content-Encoding: br",
                "Range: bytes=0-",
                ": y",
                "X:\x00",
            ]
        )
        head = f"{method} {path} HTTP/1.{draw.choice('0119')}\r\nHost: a\r\nConnection: close\r\n{header}\r\n\r\n"
        return Hostile("heads", head.encode("utf-8", "surrogatepass" if draw.random() < 0.5 else "replace"), False)

    def _framing(self) -> Hostile:
        """Bodies whose length is told in odd ways."""
        framing = self._random.choice(
            [
                b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",
                b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
                b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n{\r\n" * 2_000 + b"0\r\n\r\n",
                b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n{}\r\n0\r\n\r\n",
                b"\r\n\r\n\x00\x01\x02",
            ]
        )
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
        return Hostile("framing", head + framing, False)

    def _cut(self) -> Hostile:
        """A request that ends in the middle, and its client with it."""
        whole = self._random.choice([self._fields, self._values, self._bound, self._many])().sent
        return Hostile("cut", whole[: self._random.randrange(1, len(whole))], False)


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass
class Verdicts:
    """The answers by kind and status, and all that should not have come."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def judge(self, hostile: Hostile, port: int) -> None:
        """Send it on a connection of its own and look at the answer."""
        began = time.monotonic()
        answer = await _answer(hostile, port)
        is_read_out = len(hostile.sent) <= LARGE_BYTES or time.monotonic() - began < READ_OUT_S
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head[9:12]) if head.startswith(b"HTTP/1.") and head[9:12].isdigit() else 0
        self.counts[hostile.kind, str(status or "closed")] += 1
        if answer == b"no answer":
            self._note(hostile, "no answer in time")
        elif status == 0 and hostile.is_whole and is_read_out and len(hostile.sent) <= READ_OUT_BYTES:
            self._note(hostile, f"closed without an answer: {answer[:80]!r}")
        elif status and status not in STATUSES and not (status == 503 and b"retry-after:" in head.lower()):
            self._note(hostile, f"{status}: {body[:200]!r}")
        elif (
            status >= 400
            and b"chunked" not in head
            and not _is_error_object(body)
            and b" HEAD " not in hostile.sent[:6]
        ):
            self._note(hostile, f"{status} without an error object: {body[:200]!r}")

    def _note(self, hostile: Hostile, what: str) -> None:
        self.wrong.append(f"{hostile.kind}: {hostile.sent[:160]!r}: {what}")


def _is_error_object(body: bytes) -> bool:
    try:
        return set(json.loads(body)["error"]) >= {"message", "type", "param", "code"}
    except (ValueError, KeyError, TypeError):
        return not body


async def _answer(hostile: Hostile, port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(hostile.sent)
            if not hostile.is_whole:
                return await _before_we_leave(reader, writer, LEAVES_S if hostile.kind != "cut" else 0.0)
            return await reader.read()
    except TimeoutError:
        return b"no answer"
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def _before_we_leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, leaves_s: float) -> bytes:
    """Read what comes within a moment, close the client's side, and read the rest."""
    reading = asyncio.ensure_future(reader.read())
    await asyncio.wait([reading], timeout=leaves_s)
    if not reading.done():
        writer.write_eof()
    return await reading
