"""The load of a fault campaign: requests whose whole answers are known, in lanes that a gate opens and closes.

Greedy answers come from `transformers` on the same weights; only questions whose every step leads by `SAFE_MARGIN` are
asked, so that any other text is a fault of the service. Requests are plain HTTP/1.0 over a fresh connection each, which
spreads them over the gateway's processes and makes the end of a stream visible by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton_testing.engine import tiny_llama

MAX_TOKENS = 320
REQUEST_S = 90.0
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and the texts of its choices."""

    kind: str
    body: dict[str, Any]
    expected: tuple[str, ...]


@dataclass(slots=True)
class Answer:
    """How a request went. `verdict`: exact, wrong (another text), failed (an error was told), broken (no end)."""

    ask: Ask
    sent_s: float
    port: int = 0
    """The client's end of the connection."""
    ended_s: float = 0.0
    verdict: str = "broken"
    detail: str = ""
    texts: dict[int, str] = field(default_factory=dict)
    pieces: int = 0


def asks() -> list[Ask]:
    """Requests of every kind that may be migrated: streamed and whole, n > 1, stop strings, logprobs."""
    found = []
    for question, text in _texts().items():
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        words = text.split(" ")
        stop = " ".join(words[2 * len(words) // 3 :][:3])
        found += [Ask("streamed", body, (text,))] * 5
        found += [
            Ask("whole", body | {"stream": False}, (text,)),
            Ask("n=2", body | {"n": 2}, (text, text)),
            Ask("logprobs", body | {"logprobs": True, "top_logprobs": 2}, (text,)),
            Ask("stop string", body | {"stop": stop}, (text[: text.index(stop)],)),
        ]
    return found


def _texts() -> dict[str, str]:
    """Question → whole greedy answer, where every step is clear; kept, since `transformers` takes half a minute."""
    weights = hashlib.sha256((tiny_llama.FOLDER / "model.safetensors").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "baton-bench" / f"answers-{weights}.json"
    if cache.exists():
        kept: dict[str, str] = json.loads(cache.read_text())
        return kept
    texts = {}
    for question in tiny_llama.LONG_ANSWERS[::2]:
        greedy = tiny_llama.greedy(tiny_llama.chat_ids(question), MAX_TOKENS)
        if greedy.safe_tokens() == len(greedy.ids):
            texts[question] = tiny_llama.text_of(greedy.ids)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(texts, ensure_ascii=False))
    return texts


async def send(host: str, port: int, ask: Ask, answer: Answer) -> None:
    """Carry out one request; fills `answer`. Never raises but for cancellation."""
    writer = None
    try:
        async with asyncio.timeout(REQUEST_S):
            reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
            answer.port = writer.get_extra_info("sockname")[1]
            body = json.dumps(ask.body).encode()
            head = "POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            status = int((await reader.readline()).split()[1])
            while (await reader.readline()).strip():
                pass
            if status != 200:
                answer.verdict, answer.detail = "failed", f"HTTP {status}: {(await reader.read(300)).decode()}"
            elif ask.body["stream"]:
                await _read_stream(reader, answer)
            else:
                _whole(json.loads(await reader.read()), answer)
    except (OSError, ValueError, IndexError, TimeoutError) as error:
        answer.detail = answer.detail or f"{type(error).__name__}: {error}"
    finally:
        answer.ended_s = time.monotonic()
        if writer is not None:
            writer.transport.abort()


async def _read_stream(reader: asyncio.StreamReader, answer: Answer) -> None:
    finished: set[int] = set()
    async for line in reader:
        if not line.startswith(b"data: "):
            continue
        if line.startswith(b"data: [DONE]"):
            _judge(answer, finished)
            return
        chunk = json.loads(line[6:])
        if "error" in chunk:
            answer.verdict, answer.detail = "failed", f"error event: {chunk['error']}"
            return
        for choice in chunk["choices"]:
            index, text = choice["index"], choice["delta"].get("content") or ""
            answer.texts[index] = answer.texts.get(index, "") + text
            answer.pieces += bool(text)
            if choice.get("finish_reason"):
                finished.add(index)


def _whole(reply: dict[str, Any], answer: Answer) -> None:
    for choice in reply["choices"]:
        answer.texts[choice["index"]] = choice["message"]["content"]
    _judge(answer, {choice["index"] for choice in reply["choices"] if choice["finish_reason"]})


def _judge(answer: Answer, finished: set[int]) -> None:
    got = tuple(answer.texts.get(index, "") for index in range(len(answer.ask.expected)))
    if got == answer.ask.expected and finished == set(range(len(got))):
        answer.verdict = "exact"
    else:
        answer.verdict = "wrong"
        at = [_first_difference(a, b) for a, b in zip(got, answer.ask.expected, strict=True)]
        answer.detail = f"differs at characters {at} of {[len(each) for each in answer.ask.expected]}, got {got!r}"


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class Load:
    """Lanes that ask one request after another while the gate is open."""

    def __init__(self, host: str, port: int, asks: Sequence[Ask], lanes: int, draw: random.Random) -> None:
        self._host, self._port, self._asks, self._draw = host, port, asks, draw
        self._gate = asyncio.Event()
        self._lanes = [asyncio.create_task(self._lane()) for _ in range(lanes)]
        self.open: set[int] = set()
        self._numbers: Iterator[int] = iter(range(1 << 62))
        self._idle = asyncio.Event()
        self._idle.set()
        self.answers: list[Answer] = []
        """Ended ones that nobody has taken yet."""
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        self._gate.set()

    async def settle(self) -> float:
        """Close the gate, wait for what is open; the time when the last request ended."""
        self._gate.clear()
        await self._idle.wait()
        return time.monotonic()

    def take(self) -> list[Answer]:
        """The answers since the last call."""
        taken, self.answers = self.answers, []
        return taken

    async def stop(self) -> None:
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    async def _lane(self) -> None:
        while True:
            await self._gate.wait()
            number = next(self._numbers)
            self.open.add(number)
            self._idle.clear()
            ask = self._draw.choice(self._asks)
            answer = Answer(ask, time.monotonic())
            try:
                await send(self._host, self._port, ask, answer)
            finally:
                self.answers.append(answer)
                self.counts[ask.kind] += 1
                self.open.discard(number)
                if not self.open:
                    self._idle.set()
            await asyncio.sleep(self._draw.uniform(0.02, 0.3) if answer.verdict == "exact" else 0.5)
