"""A bad tenant's behaviours that make others suffer, by name: each is a few lanes that run until they are ended.

Everything is legal HTTP by a client with a key, or what such a client may do by accident. What is drawn comes from a
seed. Answers are counted by status; a 500 is never a client's fault.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from baton_testing.gateway.hostile_shapes import bad_shapes
from baton_testing.gateway.raw_client import LOOPBACK, encoded, error_code, exchange, got, head, posted, status_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
TEXT = "the cat sat on "
PATIENCE_S = 20.0
"""How long such a client waits for an answer, or lets others wait for it."""
PAUSE_S = 0.05
"""Between a connection that failed and the next one of its lane."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Whom they ask, and as whom."""

    port: int
    model: str
    context_tokens: int
    vocabulary: int
    key: str | None = None
    limited_key: str | None = None
    """The key of a tenant that may have one running sequence."""


@dataclass(slots=True)
class Lane:
    """One of the clients of a behaviour."""

    victim: Victim
    draw: random.Random
    answers: Counter[str] = field(default_factory=Counter)
    """Answers by status and code, shared by all lanes of a run."""
    number: int = 0
    """The number of its next request."""

    def note(self, status: int, body: bytes = b"") -> None:
        self.answers[f"{status} {error_code(body)}".strip() if status else "no answer"] += 1

    async def ask(self, path: str, *, key: str | None = None, **fields: Any) -> None:
        """Post this and read the answer."""
        body = encoded(model=self.victim.model, **fields)
        self.note(*await exchange(self.victim.port, posted(path, body, key or self.victim.key), PATIENCE_S))

    async def chat(self, content: str = "x", **fields: Any) -> None:
        await self.ask(CHAT, messages=[{"role": "user", "content": content}], **{"max_tokens": 1} | fields)

    async def connected(self, receive_bytes: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection; with `receive_bytes` little of an answer fits into the kernel."""
        connection = socket.socket()
        try:
            if receive_bytes is not None:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (LOOPBACK, self.victim.port))
            return await asyncio.open_connection(sock=connection, limit=1 << 16)
        except BaseException:
            connection.close()
            raise

    def long_text(self, share: float) -> str:
        """About so much of the context; the made tokenizers have some 2.5 characters of it a token."""
        return TEXT * max(1, int(self.victim.context_tokens * share / 8))

    def body(self, **fields: Any) -> bytes:
        return encoded(model=self.victim.model, **fields)


Step = Callable[[Lane], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Behaviour:
    name: str
    lanes: int
    step: Step
    """One connection of a lane, or what belongs together."""


# Requests that are answered ------------------------------------------------------------------------------------------


async def _many_short(lane: Lane) -> None:
    await lane.ask(COMPLETIONS, prompt="a", max_tokens=1)


async def _huge_prompt(lane: Lane) -> None:
    if lane.draw.random() < 0.5:
        await lane.ask(COMPLETIONS, prompt=lane.long_text(0.7), max_tokens=1)
    else:
        await lane.chat(TEXT * 60_000)


async def _new_grammar(lane: Lane) -> None:
    lane.number += 1
    title = f"{lane.draw.random()} {lane.number}"
    if lane.draw.random() < 0.5:
        names = [f"field_{number}" for number in range(30)]
        schema = {
            "title": title,
            "type": "object",
            "properties": {name: {"type": "string", "pattern": f"^[a-z]{{{place},20}}$"}
                           for place, name in enumerate(names, 1) if place < 20},
            "required": names[:19],
            "additionalProperties": False,
        }  # fmt: skip
        shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
        await lane.chat(response_format=shape)
    else:
        await lane.chat(guided_regex=f"(a|b)*a(a|b){{{lane.draw.randrange(4, 12)}}}{lane.draw.randrange(1 << 30)}")


async def _bad_schema(lane: Lane) -> None:
    _, fields = lane.draw.choice(bad_shapes(lane.draw.randrange(1 << 30)))
    await lane.chat(**fields)


async def _logprobs(lane: Lane) -> None:
    """Far more than an answer may tell, or as much as it may."""
    prompts, tokens = lane.draw.choice(((64, 20), (64, 5), (16, 48)))
    await lane.ask(COMPLETIONS, prompt=["a"] * prompts, n=16, logprobs=20, max_tokens=tokens, ignore_eos=True)


async def _behind_own_quota(lane: Lane) -> None:
    """Prompts of all lengths fill the line to its brim."""
    room = lane.victim.context_tokens
    prompt = lane.long_text(lane.draw.uniform(0.0, min(0.5, 500 / room)))
    fields = {"prompt": prompt, "max_tokens": min(400, room // 3), "ignore_eos": True}
    await lane.ask(COMPLETIONS, key=lane.victim.limited_key, **fields)


async def _many_messages(lane: Lane) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": "x"} for place in range(2_047)]
    await lane.ask("/tokenize", messages=messages)


async def _count_tokens(lane: Lane) -> None:
    messages = [{"role": ("user", "assistant")[place % 2], "content": "x y z"} for place in range(401)]
    await lane.ask(f"{MESSAGES}/count_tokens", messages=messages)


async def _batch(lane: Lane) -> None:
    await lane.ask(COMPLETIONS, prompt=["a"] * 64, n=16, max_tokens=64, ignore_eos=True)


async def _stop_lists(lane: Lane) -> None:
    stops = [chr(97 + place) * 256 for place in range(16)]
    ids = [place for place in range(64) if place < lane.victim.vocabulary]
    await lane.ask(COMPLETIONS, prompt="a", max_tokens=64, stop=stops, stop_token_ids=ids, stream=True)


async def _logit_bias(lane: Lane) -> None:
    bias = {str(place): lane.draw.uniform(-1, 1) for place in range(min(1_024, lane.victim.vocabulary))}
    await lane.ask(COMPLETIONS, prompt="a", max_tokens=16, logit_bias=bias)


async def _tools(lane: Lane) -> None:
    unique = lane.draw.randrange(1 << 30)
    tools = [
        {"type": "function", "function": {"name": f"f{place}", "description": f"{unique} " + "x" * 900,
         "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
        for place in range(100)
    ]  # fmt: skip
    await lane.chat(tools=tools, tool_choice=lane.draw.choice(("auto", "none", "required")))


async def _against_templates(lane: Lane) -> None:
    text = lane.draw.choice(("<|user|>", "<|end|>", "{{ 7*7 }}", "{% for x in y %}", "</tool_call>", "<think>"))
    size = lane.draw.choice((lane.victim.context_tokens // 16, 110_000 * 8 // len(text)))
    await lane.chat(text * size)


async def _bad_json(lane: Lane) -> None:
    bodies = (b"[" * 100_000, b"\xff" * 1_000, b'{"a":' * 2_000, b'"' * 50_000, b'{"model":"\\ud800"}', b"", b"1e999",
              b'{"metadata":[' + b"[]," * 90_000 + b"1]}")  # fmt: skip
    path = lane.draw.choice((CHAT, COMPLETIONS, MESSAGES, RESPONSES, "/tokenize"))
    sent = posted(path, lane.draw.choice(bodies), lane.victim.key)
    lane.note(*await exchange(lane.victim.port, sent, PATIENCE_S))


async def _refused_megabyte(lane: Lane) -> None:
    """As large as a body may be, and wrong at its very end, or a field that does not exist."""
    messages = b'{"model":"' + lane.victim.model.encode() + b'","messages":[{"role":"user","content":"x"}],'
    padding = b"[" + b"1," * 400_000 + b"1]"
    body = messages + lane.draw.choice((b'"metadata":' + padding + b"}}", b'"no_such_field":' + padding + b"}"))
    lane.note(*await exchange(lane.victim.port, posted(CHAT, body, lane.victim.key), PATIENCE_S))


async def _longest_context(lane: Lane) -> None:
    answer = min(64, lane.victim.context_tokens // 4)
    words = [lane.draw.randrange(20, lane.victim.vocabulary) for _ in range(lane.victim.context_tokens - answer - 2)]
    await lane.ask(COMPLETIONS, prompt=words, max_tokens=answer, stream=True, ignore_eos=True)


async def _detokenize(lane: Lane) -> None:
    count = min(16_000, lane.victim.context_tokens)
    await lane.ask("/detokenize", tokens=[lane.draw.randrange(lane.victim.vocabulary) for _ in range(count)])


# Connections that are not ended as they should be --------------------------------------------------------------------


async def _cancel(lane: Lane) -> None:
    reader, writer = await lane.connected()
    try:
        body = lane.body(prompt="a", max_tokens=200, stream=True, n=lane.draw.choice((1, 1, 4)))
        writer.write(posted(COMPLETIONS, body, lane.victim.key))
        async with asyncio.timeout(PATIENCE_S):
            await reader.read(1 << 12)
        lane.answers["left"] += 1
    finally:
        writer.transport.abort()


async def _leave_while_rendered(lane: Lane) -> None:
    """A chat as long as the context takes, or far longer, whose client leaves at once."""
    _, writer = await lane.connected()
    content = lane.draw.choice((lane.long_text(0.6), TEXT * 60_000))
    path = lane.draw.choice((CHAT, "/tokenize", f"{MESSAGES}/count_tokens"))
    extra = {"max_tokens": 1} if path == CHAT else {}
    try:
        body = lane.body(messages=[{"role": "user", "content": content}], **extra)
        writer.write(posted(path, body, lane.victim.key))
        async with asyncio.timeout(PATIENCE_S):
            await writer.drain()
        await asyncio.sleep(lane.draw.uniform(0.0, 0.15))
        lane.answers["left"] += 1
    finally:
        writer.transport.abort()


async def _hung_reader(lane: Lane) -> None:
    _, writer = await lane.connected(receive_bytes=4_096)
    try:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = lane.body(prompt=["a"] * 4, n=16, max_tokens=190, logprobs=20, stream=True, ignore_eos=True)
        writer.write(posted(COMPLETIONS, body, lane.victim.key))
        await asyncio.sleep(PATIENCE_S)
        lane.answers["left"] += 1
    finally:
        writer.transport.abort()


async def _slow_body(lane: Lane) -> None:
    reader, writer = await lane.connected()
    try:
        writer.write(head(CHAT, 5_000, lane.victim.key) + b"{")
        for _ in range(100):
            await asyncio.sleep(lane.draw.uniform(0.1, 0.5))
            writer.write(b" ")
            if reader.at_eof():
                break
        lane.answers["left"] += 1
    finally:
        writer.transport.abort()


async def _kept_alive(lane: Lane) -> None:
    """Small valid requests, one after another on one connection."""
    reader, writer = await lane.connected()
    body = lane.body(prompt="a", max_tokens=1)
    sent = posted(COMPLETIONS, body, lane.victim.key).replace(b"Connection: close\r\n", b"")
    try:
        for _ in range(50):
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                answer = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", answer, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length is not None else 0)
            lane.note(status_of(answer))
    except asyncio.IncompleteReadError:
        lane.answers["no answer"] += 1
    finally:
        writer.transport.abort()


async def _byte_a_second(lane: Lane) -> None:
    reader, writer = await lane.connected(receive_bytes=4_096)
    try:
        body = lane.body(prompt="a", max_tokens=400, stream=True, ignore_eos=True, logprobs=5)
        writer.write(posted(COMPLETIONS, body, lane.victim.key))
        for _ in range(int(PATIENCE_S)):
            async with asyncio.timeout(PATIENCE_S):
                if not await reader.read(1):
                    break
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(1.0)
        lane.answers["left"] += 1
    finally:
        writer.transport.abort()


async def _connection_flood(lane: Lane) -> None:
    writers = []
    try:
        for _ in range(50):
            _, writer = await lane.connected()
            writers.append(writer)
            if lane.draw.random() < 0.2:
                writer.write(b"POST /v1/chat/comp")
        lane.answers["left"] += len(writers)
    finally:
        for writer in writers:
            writer.transport.abort()


async def _idle_connections(lane: Lane) -> None:
    writers = []
    try:
        for _ in range(16):
            reader, writer = await lane.connected()
            writers.append(writer)
            writer.write(got("/health/live").replace(b"Connection: close\r\n", b""))
            async with asyncio.timeout(PATIENCE_S):
                await reader.read(1 << 12)
        await asyncio.sleep(PATIENCE_S / 2)
        lane.answers["left"] += len(writers)
    finally:
        for writer in writers:
            writer.transport.abort()


BEHAVIOURS = (
    Behaviour("many short requests", 64, _many_short),
    Behaviour("huge prompts", 4, _huge_prompt),
    Behaviour("streams cancelled", 24, _cancel),
    Behaviour("hang-ups while chats are rendered", 6, _leave_while_rendered),
    Behaviour("new grammars", 8, _new_grammar),
    Behaviour("bad schemas", 8, _bad_schema),
    Behaviour("log probabilities × n", 2, _logprobs),
    Behaviour("readers that hang", 8, _hung_reader),
    Behaviour("slow bodies", 100, _slow_body),
    Behaviour("a long queue at a quota of one", 40, _behind_own_quota),
    Behaviour("/tokenize of 2,047 messages", 30, _many_messages),
    Behaviour("count_tokens", 30, _count_tokens),
    Behaviour("64 prompts, n = 16", 2, _batch),
    Behaviour("long stop lists", 16, _stop_lists),
    Behaviour("large logit_bias", 16, _logit_bias),
    Behaviour("tools of 100 kB", 6, _tools),
    Behaviour("texts against templates", 4, _against_templates),
    Behaviour("floods of connections", 16, _connection_flood),
    Behaviour("idle connections", 64, _idle_connections),
    Behaviour("bad JSON", 16, _bad_json),
    Behaviour("the longest contexts", 24, _longest_context),
    Behaviour("/detokenize", 16, _detokenize),
    Behaviour("500 kept connections", 500, _kept_alive),
    Behaviour("readers of a byte a second", 24, _byte_a_second),
    Behaviour("refused megabytes", 8, _refused_megabyte),
)
BY_NAME = {behaviour.name: behaviour for behaviour in BEHAVIOURS}


async def misbehave(
    victim: Victim, behaviours: Iterable[Behaviour], seed: int, answers: Counter[str], share: float = 1.0
) -> None:
    """All lanes of these behaviours, or a share of them, until cancelled. Their answers are counted meanwhile."""
    lanes = [
        asyncio.create_task(_go_on(behaviour, Lane(victim, random.Random(f"{seed} {behaviour.name} {place}"), answers)))
        for behaviour in behaviours
        for place in range(max(1, round(behaviour.lanes * share)))
    ]
    try:
        await asyncio.gather(*lanes)
    finally:
        for lane in lanes:
            lane.cancel()
        await asyncio.gather(*lanes, return_exceptions=True)


async def _go_on(behaviour: Behaviour, lane: Lane) -> None:
    while True:
        try:
            await behaviour.step(lane)
        except (OSError, TimeoutError):
            lane.answers["no connection"] += 1
            await asyncio.sleep(PAUSE_S)


def server_errors(answers: Counter[str]) -> int:
    """Answers that say that the server is at fault, whatever a client sent."""
    return sum(count for answer, count in answers.items() if answer.startswith("500"))
