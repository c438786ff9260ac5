"""An open-loop client: each request is sent when its time has come, whatever became of the ones before."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from baton_control.sizing.workload import Workload

FIRST_TOKEN, LAST_TOKEN = 16, 500
"""Ids that prompts are made of, inside the vocabulary of the tiny model."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as its client saw it; times are seconds since the first arrival was due."""

    due_s: float
    sent_s: float
    first_s: float | None
    """None: no token came."""
    last_s: float | None
    tokens: int
    failure: str = ""

    @property
    def ttft_s(self) -> float:
        """From the time at which it was due: a client that is late does not make the service look better."""
        return float("inf") if self.first_s is None else self.first_s - self.due_s

    @property
    def tpot_s(self) -> float:
        if self.first_s is None or self.last_s is None or self.failure:
            return float("inf")
        return (self.last_s - self.first_s) / max(1, self.tokens - 1) if self.tokens > 1 else 0.0


async def replay(
    url: str, model: str, workload: Workload, timeout_s: float, on_answer: Callable[[Seen], None], seed: int = 5
) -> list[Seen]:
    """Send the workload and wait for every answer; prompts are random, so that nothing of them is cached."""
    seen: list[Seen] = []
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def one(index: int) -> None:
            due_s = float(workload.arrival_s[index])
            body = {
                "model": model,
                "prompt": _prompt(int(workload.prompt_tokens[index]), random.Random(seed * 1_000_003 + index)),
                "max_tokens": int(workload.output_tokens[index]),
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
            }
            answer = await _ask(session, url, body, due_s, began)
            seen.append(answer)
            on_answer(answer)

        tasks = []
        for index in range(len(workload)):
            wait_s = float(workload.arrival_s[index]) - (time.monotonic() - began)
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.create_task(one(index)))
        await asyncio.gather(*tasks)
    return seen


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, object], due_s: float, began: float) -> Seen:
    sent_s = time.monotonic() - began
    first_s: float | None = None
    last_s: float | None = None
    tokens, finished = 0, False
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                return Seen(due_s, sent_s, None, None, 0, f"HTTP {response.status}")
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    finished = True
                elif line.startswith(b"data: "):
                    last_s = time.monotonic() - began
                    first_s = last_s if first_s is None else first_s
                    tokens += 1
    except (aiohttp.ClientError, TimeoutError) as error:
        return Seen(due_s, sent_s, first_s, last_s, tokens, type(error).__name__)
    asked = body["max_tokens"]
    assert isinstance(asked, int)
    return Seen(due_s, sent_s, first_s, last_s, asked if finished else tokens, "" if finished else "no [DONE]")


def _prompt(tokens: int, draw: random.Random) -> list[int]:
    return draw.choices(range(FIRST_TOKEN, LAST_TOKEN), k=tokens)
