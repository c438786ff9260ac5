"""Runs in a Pod: sends requests at rates that change, whoever is still waiting. Needs aiohttp and `baton_local.client`.

`changing_load.py URL SECONDS@RATE,…`: so many requests a second for so long, then the next; a rate of 0 sends none.
A refusal with Retry-After is asked again when it says, as clients of the API do. A request is lost when it broke off,
was refused otherwise, or had no answer within PATIENCE_S of its first try. `END {…}` has every request in the order in
which it was due: when, its latencies from then on, and how often it was refused before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import aiohttp

from baton_local.client import Answer, AnswerEnd, chat, open_session, send

PATIENCE_S = 90.0
TOKENS = 48
WORDS = "Tell me about the relay race, and who won it. "


async def answered(session: aiohttp.ClientSession, url: str, due_s: float) -> tuple[Answer, int]:
    """One request, asked until it is answered; how often it was refused before."""
    refused = 0
    while True:
        request = chat("paced", WORDS * 4, temperature=0, max_tokens=TOKENS, ignore_eos=True)
        answer = await send(session, url, request, due_s=due_s)
        again_s = answer.retry_after_s
        if answer.end is not AnswerEnd.REFUSED or again_s is None:
            return answer, refused
        if time.monotonic() + again_s - due_s > PATIENCE_S:
            return answer, refused
        refused += 1
        await asyncio.sleep(again_s)


async def asked(session: aiohttp.ClientSession, url: str, began_s: float, at_s: float) -> dict[str, object]:
    await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
    answer, refused = await answered(session, url, began_s + at_s)
    outcome: dict[str, object] = {"at_s": round(at_s, 2), "refused": refused}
    if answer.end is AnswerEnd.WHOLE and answer.finished:
        return outcome | {"ttft_s": round(answer.ttft_s, 4), "tpot_s": round(answer.tpot_s, 5)}
    return outcome | {"lost": f"{answer.failure or answer.end.value}: {answer.detail}"}


def due(rates: str) -> tuple[list[float], float]:
    """When requests are sent, and when the last rate ends."""
    times: list[float] = []
    begins_s = 0.0
    for part in rates.split(","):
        seconds, _, rate = part.partition("@")
        count = int(float(seconds) * float(rate))
        times += [begins_s + number / float(rate) for number in range(count)]
        begins_s += float(seconds)
    return times, begins_s


async def main() -> None:
    url, rates = sys.argv[1:]
    times, ends_s = due(rates)
    began_s = time.monotonic()
    async with open_session(PATIENCE_S, connect_s=5) as session:
        requests = [asyncio.create_task(asked(session, url, began_s, at_s)) for at_s in times]
        await asyncio.sleep(ends_s)
        answers = await asyncio.gather(*requests)
    print("END", json.dumps({"requests": answers}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
