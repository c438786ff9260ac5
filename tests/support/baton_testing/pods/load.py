"""Runs in a Pod: asks a gateway for answers, over and over, and says what came of it. Needs aiohttp alone.

`load.py URL CONCURRENCY`. Lines on standard output: `FIRST {…}` the first token ever, `FAIL {…}` each request that did
not end as it should, `STAT {…}` every second, `END {…}` after SIGTERM, when everything in flight has ended.
"""

from __future__ import annotations

import asyncio
import collections
import json
import signal
import sys
import time

import aiohttp

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
    body = {
        "model": "tiny-llama",
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": 0,
        "max_tokens": TOKENS,
    }
    started, text, finish, fingerprint, is_done = time.monotonic(), "", None, "", False
    async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
        if reply.status != 200:
            raise ValueError(f"HTTP {reply.status}: {(await reply.text())[:200]}")
        async for line in reply.content:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                is_done = True
                break
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(f"error event: {event['error']}")
            fingerprint = event.get("system_fingerprint") or fingerprint
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                finish = choice["finish_reason"] or finish
            if text and count.first is None:
                count.first = time.time()
                say("FIRST", at=count.first)
    if not is_done or finish is None:
        raise ValueError(f"the stream ended with finish_reason {finish}, [DONE] {is_done}")
    count.took.append(time.monotonic() - started)
    seen = count.answers.setdefault(f"{prompt}|{fingerprint}", {})
    seen[text] = seen.get(text, 0) + 1


async def client(number: int, session: aiohttp.ClientSession, url: str, count: Count, stop: asyncio.Event) -> None:
    turn = number
    while not stop.is_set():
        prompt, turn = PROMPTS[turn % len(PROMPTS)], turn + 1
        try:
            await ask(session, url, prompt, count)
            count.ok += 1
            await asyncio.sleep(PAUSE_S)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if count.first is None:  # nothing has ever been served: that is waiting, not failing
                count.waiting += 1
                await asyncio.sleep(0.05)
                continue
            count.failed += 1
            say("FAIL", at=time.time(), prompt=prompt, error=f"{type(error).__name__}: {error}")
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
    times = aiohttp.ClientTimeout(total=120, sock_connect=5)
    # A connection for each request, so that each meets the Service anew.
    async with aiohttp.ClientSession(timeout=times, connector=aiohttp.TCPConnector(force_close=True)) as session:
        clients = [client(number, session, url, count, stop) for number in range(concurrency)]
        await asyncio.gather(tell(count, stop), *clients)
    say("END", ok=count.ok, failed=count.failed, answers=count.answers)


if __name__ == "__main__":
    asyncio.run(main())
