"""The load of a fault campaign: requests whose whole answers are known, in lanes that a gate opens and closes.

Greedy answers come from `transformers` on the same weights; only questions whose every step leads by `SAFE_MARGIN` are
asked, so that any other text is a fault of the service. Each request has a fresh connection, which spreads requests
over the gateway's processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton_local.client import Answer, AnswerEnd, ClientRequest, chat, open_session, send
from baton_testing.engine import tiny_llama

MAX_TOKENS = 320
REQUEST_S = 90.0
MODEL = "tiny"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request and the texts of its choices."""

    kind: str
    request: ClientRequest
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """How a request went. `verdict`: exact, wrong (another text), failed (an error was returned), broken (no end)."""

    ask: Ask
    answer: Answer
    port: int
    """The client's end of the connection; 0 where there was none."""
    verdict: str
    detail: str = ""
    id: str = ""
    """Under which the gateway logs it."""


def asks() -> list[Ask]:
    """Requests of every kind that may be migrated: streamed and whole, n > 1, stop strings, logprobs."""
    choices = []
    for question, text in _texts().items():
        words = text.split(" ")
        stop = " ".join(words[2 * len(words) // 3 :][:3])
        choices += [Ask("streamed", question_of(question), (text,))] * 5
        choices += [
            Ask("whole", question_of(question, stream=False), (text,)),
            Ask("n=2", question_of(question, n=2), (text, text)),
            Ask("logprobs", question_of(question, logprobs=True, top_logprobs=2), (text,)),
            Ask("stop string", question_of(question, stop=stop), (text[: text.index(stop)],)),
        ]
    return choices


def _texts() -> dict[str, str]:
    """Question → whole greedy answer, where every step is clear; kept, since `transformers` takes half a minute."""
    weights = hashlib.sha256((tiny_llama.FOLDER / "model.safetensors").read_bytes()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "baton-bench" / f"answers-{weights}.json"
    if cache.exists():
        cached: dict[str, str] = json.loads(cache.read_text())
        return cached
    texts = {}
    for question in tiny_llama.LONG_ANSWERS[::2]:
        greedy = tiny_llama.greedy(tiny_llama.chat_ids(question), MAX_TOKENS)
        if greedy.safe_tokens() == len(greedy.ids):
            texts[question] = tiny_llama.text_of(greedy.ids)
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text(json.dumps(texts, ensure_ascii=False))
    return texts


def question_of(question: str, *, stream: bool = True, **fields: object) -> ClientRequest:
    """Greedily, as long as the known answers are."""
    return chat(MODEL, question, stream=stream, **{"max_tokens": MAX_TOKENS, "temperature": 0, **fields})


async def send_and_judge(
    host: str, port: int, ask: Ask, *, api_key: str | None = None, within_s: float = REQUEST_S
) -> Judged:
    """Carry out one request and judge what came."""
    own_port, name = 0, secrets.token_hex(8)

    def bound(info: tuple[Any, ...]) -> socket.socket:
        """Its own port is known before it is connected, so also when nothing is ever answered."""
        nonlocal own_port
        new_socket = socket.socket(*info[:3])
        new_socket.bind((host, 0))
        own_port = new_socket.getsockname()[1]
        return new_socket

    async with open_session(within_s, fresh=True, socket_factory=bound, api_key=api_key) as session:
        session.headers["X-Request-Id"] = name
        answer = await send(session, f"http://{host}:{port}", ask.request)
    if answer.end is not AnswerEnd.WHOLE:
        verdict = "failed" if answer.end is AnswerEnd.REFUSED else "broken"
        return Judged(ask, answer, own_port, verdict, f"{answer.failure}: {answer.detail}", name)
    got = choice_texts(answer, len(ask.expected))
    if got == ask.expected and set(answer.finished) == set(range(len(got))):
        return Judged(ask, answer, own_port, "exact", id=name)
    at = [_first_difference(a, b) for a, b in zip(got, ask.expected, strict=True)]
    detail = f"differs at characters {at} of {[len(text) for text in ask.expected]}, got {got!r}"
    return Judged(ask, answer, own_port, "wrong", detail, name)


def choice_texts(answer: Answer, choices: int) -> tuple[str, ...]:
    """The output of each choice: its text, then its calls."""
    return tuple(answer.texts.get(index, "") + answer.calls.get(index, "") for index in range(choices))


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
        self.answers: list[Judged] = []
        """Ended requests that were not taken yet."""
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        self._gate.set()

    async def settle(self) -> float:
        """Close the gate, wait for what is open; the time when the last request ended."""
        self._gate.clear()
        await self._idle.wait()
        return time.monotonic()

    def take(self) -> list[Judged]:
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
            try:
                outcome = await send_and_judge(self._host, self._port, ask)
                self.answers.append(outcome)
            finally:
                self.counts[ask.kind] += 1
                self.open.discard(number)
                if not self.open:
                    self._idle.set()
            await asyncio.sleep(self._draw.uniform(0.02, 0.3) if outcome.verdict == "exact" else 0.5)
