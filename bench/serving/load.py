"""Load on a served model: closed loops in lanes, open loops by arrival times, and what they amounted to."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.results import percentile

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer, ClientRequest, open_session, send
from baton_local.load_test.loaded_server import LoadedServer
from baton_local.load_test.open_loop import open_loop
from baton_local.load_test.prompts import IdPrompts

FIRST_TOKEN, LAST_TOKEN = 16, 499
"""Ids that prompts are made of, inside the vocabulary of the tiny model."""


@dataclass(frozen=True, slots=True)
class Load:
    """Totals of a run of requests."""

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
        wall_s=max(a.ended_s for a in answers) - min(a.sent_s for a in answers),
        ttft_p50_ms=percentile(ttft, 50),
        ttft_p95_ms=percentile(ttft, 95),
        tpot_p50_ms=percentile(tpot, 50),
        tpot_p95_ms=percentile(tpot, 95),
    )


def random_prompt(tokens: int, vocab_size: int, draw: random.Random) -> list[int]:
    """Fresh ids, so that no prefix of the prompt is cached."""
    return draw.choices(range(5, vocab_size), k=tokens)


async def closed_loop(
    endpoint: str, requests: Sequence[ClientRequest], lanes: int, timeout_s: float = 300
) -> list[Answer]:
    """All requests, `lanes` at a time: each lane sends the next one when its last has ended. Raises AnswerError."""
    pending = list(reversed(requests))
    answers: list[Answer] = []
    async with open_session(timeout_s) as session:

        async def lane() -> None:
            while pending:
                answers.append((await send(session, endpoint, pending.pop())).checked())

        await asyncio.gather(*(lane() for _ in range(lanes)))
    return answers


def drive(endpoint: str, requests: Sequence[ClientRequest], lanes: int) -> list[Answer]:
    """`closed_loop` for a program without a loop."""
    return asyncio.run(closed_loop(endpoint, requests, lanes))


async def offer_load(
    endpoint: str,
    model: str,
    workload: Workload,
    timeout_s: float,
    on_answer: Callable[[Answer], None],
    seed: int = 5,
    salt: int = 0,
) -> list[Answer]:
    """An open loop of prompts that the tiny model knows; waits for every answer. Another `salt`, other prompts: no
    worker has cached them."""
    async with open_session(timeout_s) as session:
        server = LoadedServer(session, endpoint, model, IdPrompts(FIRST_TOKEN, LAST_TOKEN, salt))
        return await open_loop(session, endpoint, server.plan(workload, seed), on_answer)
