"""Bits flipped on every internal link of real processes: the right text or an error, and the link ends at once.

A share; the whole is `python -m campaigns.flips`.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from baton_local.client import Answer, chat, open_session, send
from baton_testing.engine import tiny_llama
from baton_testing.processes.deployment import Shape
from baton_testing.processes.tampered_deployment import TamperedDeployment
from baton_testing.processes.tampering_proxy import Flip, TamperingProxy, Way

pytestmark = pytest.mark.processes

FLIPS = 3
MAX_TOKENS = 32
CLIENTS = 3
DATA = "prefill-decode data"


def known() -> dict[str, str]:
    """Question → answer, where every step is clear."""
    texts = {}
    for question in tiny_llama.LONG_ANSWERS[:8]:
        greedy = tiny_llama.greedy(tiny_llama.chat_ids(question), MAX_TOKENS)
        if greedy.safe_tokens() == len(greedy.ids):
            texts[question] = tiny_llama.text_of(greedy.ids)
    return texts


async def ask(base_url: str, question: str) -> Answer:
    async with open_session(60.0, fresh=True) as session:
        return await send(session, base_url, chat("tiny", question, max_tokens=MAX_TOKENS, temperature=0))


async def ask_on(base_url: str, texts: dict[str, str], draw: random.Random, answers: list[tuple[str, Answer]]) -> None:
    while True:
        question = draw.choice(list(texts))
        answers.append((texts[question], await ask(base_url, question)))


async def tamper(way: Way, proxy: TamperingProxy, flips: list[Flip]) -> None:
    for _ in range(FLIPS):
        await asyncio.sleep(0.3)
        flips.append(await asyncio.wait_for(proxy.flip(way), 60.0))
        if way.link != DATA:  # KV bytes are the checksums' business: a flip in them ends the hand-over, not the link
            await asyncio.wait_for(flips[-1].judged.wait(), 60.0)


async def test_no_flipped_bit_on_any_link_changes_a_text(tmp_path: Path) -> None:
    texts, draw, answers = known(), random.Random(7), list[tuple[str, Answer]]()
    flips: list[Flip] = []
    async with TamperedDeployment(tmp_path, draw, Shape()) as tampered:
        url = tampered.service.base_url
        clients = [asyncio.create_task(ask_on(url, texts, draw, answers)) for _ in range(CLIENTS)]
        ways = {way: proxies for way, proxies in tampered.ways.items() if way.link != "gateway-operator"}
        await asyncio.gather(*(tamper(way, proxy, flips) for way, proxies in ways.items() for proxy in proxies))
        async with asyncio.timeout(60.0):  # everything that ran during the flips may have been cut
            while not any(answer.finished for _, answer in answers):  # noqa: ASYNC110 - clients append, no event
                await asyncio.sleep(0.05)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await asyncio.to_thread(tampered.service.await_routable)
        counted = await asyncio.to_thread(tampered.altered_frames)
        for _ in range(50):
            if (last := await ask(url, next(iter(texts)))).finished:
                break
            await asyncio.sleep(0.2)
    assert len(flips) == FLIPS * len(ways) == FLIPS * 8
    assert all(expected.startswith(answer.texts.get(0, "")) for expected, answer in answers)
    whole = [(expected, answer) for expected, answer in answers if answer.finished]
    assert whole
    assert all(answer.texts[0] == expected for expected, answer in whole)
    assert last.texts[0] == texts[next(iter(texts))]
    assert counted >= FLIPS
