"""Runs in a Pod: asks a gateway for answers, over and over, and says what came of it. Needs aiohttp, and
`baton_local.client` beside itself.

`load.py URL CONCURRENCY`, with an API key in the variable BATON_API_KEY where the gateway needs one. Lines on standard
output: `FIRST {…}` the first token ever, `FAIL {…}` each request that did not end as it should, `STAT {…}` every
second, `END {…}` after SIGTERM, when everything in flight has ended.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import signal
import sys
import time

import aiohttp

from baton_local.client import AnswerEnd, chat, open_session, send

PROMPTS = (
    "Why does it rain?",
    "Tell me about the relay race.",
    "Who won, the hare or the tortoise?",
    "What is a baton?",
)
TOKENS = 24
PAUSE_S = 0.4
"""Between two requests of a client: what is tested is change under load, not a machine at its limit."""


class Count:
    def __init__(self) -> None:
        self.ok = self.failed = self.waiting = 0
        self.first: float | None = None
        self.took: collections.deque[float] = collections.deque(maxlen=2000)
        self.answers: dict[str, dict[str, int]] = {}
        """How often each text came, by prompt and the fingerprint that the gateway named with it."""


def say(kind: str, **fields: object) -> None:
    print(kind, json.dumps(fields), flush=True)


async def ask(session: aiohttp.ClientSession, url: str, prompt: str, count: Count) -> None:
    """One streamed request, checked to its end. Raises ValueError for an answer that is not whole."""

    def heard(text: str) -> None:
        if count.first is None:
            count.first = time.time()
            say("FIRST", at=count.first)

    answer = await send(session, url, chat("tiny-llama", prompt, temperature=0, max_tokens=TOKENS), on_text=heard)
    if answer.end is not AnswerEnd.WHOLE or not answer.finished:
        raise ValueError(f"{answer.end.value}, {answer.failure or 'no finish_reason'}: {answer.detail}")
    count.took.append(answer.ended_s - answer.sent_s)
    seen = count.answers.setdefault(f"{prompt}|{answer.fingerprint}", {})
    seen[answer.texts[0]] = seen.get(answer.texts[0], 0) + 1


async def client(number: int, session: aiohttp.ClientSession, url: str, count: Count, stop: asyncio.Event) -> None:
    turn = number
    while not stop.is_set():
        prompt, turn = PROMPTS[turn % len(PROMPTS)], turn + 1
        try:
            await ask(session, url, prompt, count)
            count.ok += 1
            await asyncio.sleep(PAUSE_S)
        except ValueError as error:
            if count.first is None:  # nothing has ever been served: that is waiting, not failing
                count.waiting += 1
                await asyncio.sleep(0.05)
                continue
            count.failed += 1
            say("FAIL", at=time.time(), prompt=prompt, error=str(error))
            await asyncio.sleep(0.2)


async def tell(count: Count, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(1.0)
        took = sorted(count.took)
        p50, p99 = (round(took[int(len(took) * q)], 3) if took else None for q in (0.5, 0.99))
        say("STAT", at=time.time(), ok=count.ok, failed=count.failed, waiting=count.waiting, p50=p50, p99=p99)


async def main() -> None:
    url, concurrency = sys.argv[1], int(sys.argv[2])
    count, stop = Count(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    key = os.environ.get("BATON_API_KEY")
    async with open_session(
        120, connect_s=5, fresh=True, api_key=key
    ) as session:  # each request meets the Service anew
        clients = [client(number, session, url, count, stop) for number in range(concurrency)]
        await asyncio.gather(tell(count, stop), *clients)
    say("END", ok=count.ok, failed=count.failed, answers=count.answers)


if __name__ == "__main__":
    asyncio.run(main())
