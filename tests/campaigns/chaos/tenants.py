"""Traffic of a seed: an innocent tenant, one at its quota, and what must hold for both whatever is broken.

The innocent asks again what was answered 503, and what a killed gateway took with it, as any client would. It is never
refused otherwise, and each of its questions has its exact answer within `LOST_S`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.results import percentile

from baton_testing.background_tasks import cancel
from baton_testing.gateway.raw_client import exchange, got
from baton_testing.gateway.three_tenants import GOOD, LIMITED
from campaigns.chaos.harms import Harms
from campaigns.chaos.stage import Stage
from campaigns.faults.load import Ask, Judged, send_and_judge

ATTEMPT_S = 60.0
LOST_S = 120.0
RETRY_S = 0.5
GRACE_S = 20.0
"""So long after a fault an answer of 503 may be its doing."""
PROBE_S = 0.25
PROBE_WITHIN_S = 5.0
LIE_S = 30.0
"""A probe lies if it calls a gateway live for `LIE_S` while no client is served, and no fault is under way."""
DEAD_LIE_S = 3.0
"""A probe also lies if it calls a serving gateway dead for `DEAD_LIE_S`."""
INNOCENT, QUOTA = "innocent", "at its quota"
LANES = {INNOCENT: 3, QUOTA: 5}
KEYS = {INNOCENT: GOOD, QUOTA: LIMITED}


@dataclass(slots=True)
class Books:
    """The outcomes of a seed."""

    seed: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    ttft_s: list[float] = field(default_factory=list)
    """TTFT of the innocent's streams without a fault in their time."""
    violations: list[str] = field(default_factory=list)
    probes: Counter[str] = field(default_factory=Counter)
    last_answer_s: float = 0.0
    last_token_s: float = 0.0

    def violated(self, what: str) -> None:
        if len(self.violations) < 50:
            self.violations.append(what)
            print(f"seed {self.seed}: VIOLATION {what}", flush=True)


class Traffic:
    """A context: lanes of both tenants and the probes of the gateway."""

    def __init__(self, stage: Stage, harms: Harms, asks: Sequence[Ask], seed: int) -> None:
        self._stage, self._harms, self._asks, self._seed = stage, harms, asks, seed
        self._tasks: list[asyncio.Task[None]] = []
        self._is_open = asyncio.Event()
        self.books = Books(seed)

    async def __aenter__(self) -> Traffic:
        self._is_open.set()
        self.books.last_answer_s = time.monotonic()
        lanes = [(who, number) for who, count in LANES.items() for number in range(count)]
        self._tasks = [asyncio.create_task(self._lane(who, number)) for who, number in lanes]
        self._tasks.append(asyncio.create_task(self._probe()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel(self._tasks)

    async def settle(self) -> None:
        """No new questions; those that are open get their answers, or are lost."""
        self._is_open.clear()
        lanes = self._tasks[:-1]
        _, late = await asyncio.wait(lanes, timeout=LOST_S + ATTEMPT_S)
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if late:
            self.books.violated(f"{len(late)} lanes never ended")

    async def _lane(self, who: str, number: int) -> None:
        draw = random.Random(f"{self._seed} {who} {number}")
        while self._is_open.is_set():
            await self._until_exact(who, draw.choice(self._asks))
            await asyncio.sleep(draw.uniform(0.0, 0.3))

    async def _until_exact(self, who: str, ask: Ask) -> None:
        """One question, and again while the answer is one that a client asks again for."""
        began = time.monotonic()
        while True:
            attempt_s = asyncio.get_running_loop().time()
            outcome = await send_and_judge("127.0.0.1", self._stage.port, ask, api_key=KEYS[who], within_s=ATTEMPT_S)
            if self._is_over(who, outcome, attempt_s):
                return
            if time.monotonic() - began > LOST_S:
                if who == INNOCENT:
                    self.books.violated(f"lost: {ask.kind}, {LOST_S:g} s, at last {outcome.verdict} {outcome.detail}")
                return
            await asyncio.sleep(min(outcome.answer.retry_after_s or RETRY_S, 2.0))

    def _is_over(self, who: str, outcome: Judged, attempt_s: float) -> bool:
        books, answer = self.books, outcome.answer
        books.answers[f"{who}: {outcome.verdict}"] += 1
        if outcome.verdict == "exact":
            books.last_answer_s = time.monotonic()
            if who == INNOCENT and outcome.ask.kind == "streamed" and not self._harms.since(attempt_s - 2.0):
                books.ttft_s.append(answer.ttft_s)
            return True
        text = f"{who}: {outcome.ask.kind} {outcome.verdict}: {answer.failure} {outcome.detail}"[:400]
        if outcome.verdict == "wrong":
            books.violated(text)
            return True
        if outcome.verdict == "failed":
            books.answers[f"{who}: {answer.failure}"] += 1
            if answer.failure == "HTTP 429" and who == QUOTA:
                return True
            if answer.failure == "HTTP 503" and self._harms.since(attempt_s - GRACE_S):
                return False
            books.violated(text)
            return True
        died = any(death_s >= attempt_s - PROBE_S for death_s in self._stage.gateway_deaths)
        if not died and self._stage.gateway_ready_s < attempt_s:
            books.violated(text)
            return True
        return False

    # Probes -----------------------------------------------------------------------------------------------------------

    async def _probe(self) -> None:
        live_since_s, dead_since_s, is_reported = time.monotonic(), 0.0, False
        while True:
            port = self._stage.port
            live, _ = await exchange(port, got("/health/live"), PROBE_WITHIN_S)
            self.books.probes["live" if live == 200 else f"not live: {live or 'no answer'}"] += 1
            now, loop_s = time.monotonic(), asyncio.get_running_loop().time()
            if live == 200:
                dead_since_s = 0.0
            else:
                dead_since_s, live_since_s = dead_since_s or now, now
            silent_since_s = max(self.books.last_answer_s, live_since_s)
            if now - silent_since_s > LIE_S and not self._harms.since(loop_s - LIE_S) and self._is_open.is_set():
                if not is_reported:
                    self.books.violated(f"/health/live is 200 and no client got an answer for {LIE_S:g} s")
                is_reported = True
            is_serving = dead_since_s and self.books.last_answer_s > dead_since_s + DEAD_LIE_S
            if is_serving and not self._harms.since(loop_s - LIE_S):
                self.books.violated(f"/health/live is {live or 'silent'}, and requests are answered")
            await asyncio.sleep(PROBE_S)

    def ttft_s(self) -> float | None:
        """The 95th percentile; None: nothing was measured."""
        return percentile(self.books.ttft_s, 95) if self.books.ttft_s else None
