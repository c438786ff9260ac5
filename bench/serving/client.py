"""A streaming load client: many requests at a fixed concurrency, every token's arrival time.

TTFT = first piece of text minus sending; TPOT = (last piece minus first) / (tokens - 1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from bench.results import percentile


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: token ids in, exactly `max_tokens` out."""

    prompt: tuple[int, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    sent_s: float
    first_s: float
    last_s: float
    tokens: int
    second_s: float
    """When the second piece of text came; the last one's time where there is none."""

    @property
    def gap_s(self) -> float:
        """From the first piece of text to the second: where a hand-over shows."""
        return self.second_s - self.first_s

    @property
    def rest_s(self) -> float:
        """Mean gap of the tokens behind the second."""
        return (self.last_s - self.second_s) / max(1, self.tokens - 2)

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> float:
        return (self.last_s - self.first_s) / max(1, self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of requests amounted to."""

    requests: int
    tokens: int
    wall_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    tpot_p50_ms: float
    tpot_p95_ms: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.wall_s

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.wall_s


def summary(answers: Sequence[Answer]) -> Load:
    ttft = [1e3 * a.ttft_s for a in answers]
    tpot = [1e3 * a.tpot_s for a in answers]
    return Load(
        requests=len(answers),
        tokens=sum(a.tokens for a in answers),
        wall_s=max(a.last_s for a in answers) - min(a.sent_s for a in answers),
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p95_ms=percentile(ttft, 95),
        tpot_p50_ms=percentile(tpot, 50),
        tpot_p95_ms=percentile(tpot, 95),
    )


async def _stream(session: aiohttp.ClientSession, url: str, model: str, ask: Ask) -> Answer:
    body = {
        "model": model,
        "prompt": list(ask.prompt),
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    sent = time.perf_counter()
    first: float | None = None
    second: float | None = None
    last = sent
    finished = False
    async with session.post(url, json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                finished = True
                continue
            last = time.perf_counter()
            if first is not None:
                second = second or last
            first = first or last
    if not finished or first is None:
        raise RuntimeError("the stream ended without [DONE]")
    return Answer(sent, first, last, ask.max_tokens, second or last)


async def drive(
    base_url: str, model: str, asks: Sequence[Ask], concurrency: int, timeout_s: float = 300
) -> list[Answer]:
    """Send all of `asks`, `concurrency` at a time; each lane takes the next one when it is free (closed loop)."""
    pending = list(reversed(asks))
    answers: list[Answer] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def lane() -> None:
            while pending:
                answers.append(await _stream(session, f"{base_url}/v1/completions", model, pending.pop()))

        await asyncio.gather(*(lane() for _ in range(concurrency)))
    return answers


async def once(base_url: str, model: str, asks: Sequence[Ask], concurrency: int, timeout_s: float = 300) -> float:
    """Send all of `asks` without streaming, `concurrency` at a time; the wall time in seconds."""
    pending = list(reversed(asks))
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def lane() -> None:
            while pending:
                ask = pending.pop()
                body = {"model": model, "prompt": list(ask.prompt), "max_tokens": ask.max_tokens, "temperature": 0}
                async with session.post(f"{base_url}/v1/completions", json=body) as response:
                    text = await response.text()
                    if response.status != 200:
                        raise RuntimeError(f"HTTP {response.status}: {text[:300]}")

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(concurrency)))
        return time.perf_counter() - began
