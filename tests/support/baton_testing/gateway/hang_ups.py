"""Clients that hang up at any instant of any request: while it is sent, read, prepared, waits, runs or is answered."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

from baton_testing.gateway.raw_client import LOOPBACK, encoded, posted

TEXT = "the cat sat on "
LONGEST_S = 10.0
"""The time limit of one connection: a gateway may have stopped answering."""
LATEST_S = 0.4
_RESET = struct.pack("ii", 1, 0)

Fields = dict[str, Any]
Surface = tuple[str, str, Callable[[random.Random], Fields]]


def _turns(draw: random.Random) -> list[dict[str, str]]:
    """A short chat, a long text, many turns, or a text that is far too long."""
    match draw.randrange(40):
        case 0:
            return [{"role": "user", "content": TEXT * 60_000}]
        case 1:
            return [
                {"role": ("user", "assistant")[place % 2], "content": "x"} for place in range(draw.randrange(1, 800))
            ]
        case number if number < 5:
            return [{"role": "user", "content": TEXT * draw.randrange(100, 2_000)}]
    return [{"role": "user", "content": "x"}]


def _schema(draw: random.Random) -> Fields:
    fields = {f"f{place}": {"type": "string", "pattern": f"^[a-z]{{1,{draw.randrange(2, 30)}}}$"} for place in range(6)}
    return {"title": str(draw.randrange(1 << 30)), "type": "object", "properties": fields, "required": ["f0"],
            "additionalProperties": False}  # fmt: skip


def _tools(draw: random.Random) -> Fields:
    function = {"name": "look", "description": "x" * draw.randrange(20_000), "parameters": _schema(draw)}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": draw.choice(("auto", "none"))}


def _how(draw: random.Random) -> Fields:
    return {"stream": draw.random() < 0.6, "max_tokens": draw.choice((1, 8, 64, 200))}


def _shaped(draw: random.Random) -> Fields:
    shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": _schema(draw), "strict": True}}
    return {"response_format": shape}


SURFACES: tuple[Surface, ...] = (
    ("chat", "/v1/chat/completions", lambda draw: {"messages": _turns(draw), **_how(draw)}),
    ("chat, schema", "/v1/chat/completions", lambda draw: {"messages": _turns(draw), **_how(draw), **_shaped(draw)}),
    ("chat, tools", "/v1/chat/completions", lambda draw: {"messages": _turns(draw), **_how(draw), **_tools(draw)}),
    ("chat, n and logprobs", "/v1/chat/completions",
     lambda draw: {"messages": _turns(draw), **_how(draw), "n": 8, "logprobs": True, "top_logprobs": 20}),
    ("completion", "/v1/completions", lambda draw: {"prompt": TEXT * draw.choice((1, 1, 1, 900)), **_how(draw)}),
    ("completion, regex", "/v1/completions",
     lambda draw: {"prompt": "a", **_how(draw), "guided_regex": f"(ab|c){{1,40}}{draw.randrange(1 << 30)}"}),
    ("completions, 16 prompts", "/v1/completions", lambda draw: {"prompt": ["a", "b"] * 8, "n": 2, **_how(draw)}),
    ("completion, prompt_logprobs", "/v1/completions",
     lambda draw: {"prompt": TEXT, "echo": True, "logprobs": 5, "max_tokens": 4}),
    ("messages", "/v1/messages", lambda draw: {"messages": _turns(draw), **_how(draw)}),
    ("responses", "/v1/responses",
     lambda draw: {"input": TEXT * draw.choice((1, 1, 400)), "max_output_tokens": 16, "stream": draw.random() < 0.5}),
    ("/tokenize of a text", "/tokenize", lambda draw: {"prompt": TEXT * draw.choice((1, 900))}),
    ("/tokenize of a chat", "/tokenize", lambda draw: {"messages": _turns(draw)}),
    ("count_tokens", "/v1/messages/count_tokens", lambda draw: {"messages": _turns(draw)}),
    ("/detokenize", "/detokenize", lambda draw: {"tokens": draw.choices(range(300), k=draw.choice((2, 4_000)))}),
    ("/v1/models", "/v1/models", lambda draw: {}),
)  # fmt: skip


class HangUps:
    """Endless connections that are given up, from a seed. `counts` has them by surface, and those answered before."""

    def __init__(self, port: int, model: str, key: str, seed: int) -> None:
        self._port, self._model, self._key, self._seed = port, model, key, seed
        self.counts: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        """500s, by their surface."""
        self.done = 0

    def whole(self, surface: Surface, draw: random.Random) -> bytes:
        """One request of a surface."""
        _, path, fields = surface
        if path == "/v1/models":
            return posted(path, b"", self._key).replace(b"POST", b"GET", 1)
        return posted(path, encoded(model=self._model, **fields(draw)), self._key)

    async def lane(self, number: int, until: int) -> None:
        """One connection after the other until this many were given up by all lanes."""
        draw = random.Random(f"{self._seed} {number}")
        while self.done < until:
            self.done += 1
            surface = draw.choice(SURFACES)
            self.counts[surface[0]] += 1
            try:
                async with asyncio.timeout(LONGEST_S):
                    await self._give_up(surface, draw)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.01)

    async def _give_up(self, surface: Surface, draw: random.Random) -> None:
        sent = self.whole(surface, draw)
        address = f"127.0.0.{draw.randrange(2, 250)}"  # each has few connections, and ports for those that linger
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port, local_addr=(address, 0))
        connection = writer.get_extra_info("socket")
        try:
            if draw.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            match draw.randrange(10):
                case 0:
                    writer.write(sent[: draw.randrange(1, 120)])
                case 1:
                    writer.write(sent[: draw.randrange(len(sent))])
                    await asyncio.sleep(draw.uniform(0.0, 0.02))
                case 2 | 3:
                    writer.write(sent)
                    self._note(surface, await reader.read(1 << draw.randrange(6, 16)))
                case 4:
                    writer.write(sent)
                    writer.write_eof()
                    await asyncio.sleep(draw.random() ** 3 * LATEST_S)
                case _:
                    writer.write(sent)
                    await asyncio.sleep(draw.random() ** 3 * LATEST_S)
        finally:
            writer.transport.abort()

    def _note(self, surface: Surface, answer: bytes) -> None:
        self.answered[surface[0]] += bool(answer)
        self.errors[surface[0]] += answer.startswith(b"HTTP/1.1 500")
