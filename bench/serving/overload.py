"""Overload and unfairness, as clients meet them: `baton up` with emulated workers, real gateway and protocol.

    python -m bench overload [--seconds 60]

A request of 64 prompts × n 16 next to requests of 20 tokens, one after the other. Then a few loads, of which the best
goodput is the peak, and five times as much. Workers keep time instead of computing,
so that the figures are not the machine's; TTFT counts from when a request was due.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench.machine import this_machine
from bench.results import Cell, percentile, publish
from bench.serving.load import closed_loop, offer_load, random_prompt

from baton_control.sizing.inputs.workload import Workload
from baton_local.client import Answer, AnswerEnd, ClientRequest, completion, open_session, send
from baton_testing.engine import tiny_llama
from baton_testing.processes.baton_up import Up, manifest

EMULATE = "h200:llama-3.1-8b/30@2"
NAME = "paced"
TTFT_S, TPOT_S = 2.0, 0.4
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 20
SLOTS = 64
PROMPTS, CHOICES, LONG_TOKENS = 64, 16, 400
TIMES = 5.0
RATES = 2.2, 2.6, 3.0
SWEEP_S = 20.0
PATIENCE_S = 120.0
COLUMNS = ("load", "offered", "served", "goodput/s", "ttft_p50_s", "ttft_p95_s", "refused", "refusal_p95_ms", "reasons")


def document() -> dict[str, Any]:
    pool = {"replicas": {"min": 1, "max": 1}, "engine": {"maxSequences": SLOTS}}
    return manifest(
        "overload",
        "bench",
        model={"source": f"file://{tiny_llama.FOLDER}", "servedName": NAME, "maxContextTokens": 4096},
        slo={"ttft": {"target": f"{TTFT_S:g}s"}, "tpot": {"target": f"{1000 * TPOT_S:g}ms"}},
        prefill=pool,
        decode=pool,
        routing={"disaggregation": "Always"},
        gateway={},
    )


def workload(rate: float, seconds: float) -> Workload:
    dice = np.random.default_rng(3)
    count = int(rate * seconds)
    arrivals = np.sort(dice.uniform(0.0, seconds, count))
    lengths = np.full(count, PROMPT_TOKENS), np.full(count, OUTPUT_TOKENS)
    return Workload(arrivals, *lengths, np.zeros(count, dtype=np.int64), f"{rate:.1f}/s")


def row(name: str, answers: Sequence[Answer], seconds: float) -> dict[str, Cell]:
    served = [answer for answer in answers if answer.end is AnswerEnd.WHOLE]
    refused = [answer for answer in answers if answer.end is not AnswerEnd.WHOLE]
    good = [answer for answer in served if is_good(answer)]
    ttft = [answer.ttft_s for answer in served]
    took_ms = [1e3 * (answer.ended_s - answer.sent_s) for answer in refused]
    reasons = Counter(f"{answer.failure} {answer.detail.split(' of ')[0][:40]}" for answer in refused)
    return {
        "load": name,
        "offered": len(answers),
        "served": len(served),
        "goodput/s": len(good) / seconds,
        "ttft_p50_s": percentile(ttft, 50) if ttft else None,
        "ttft_p95_s": percentile(ttft, 95) if ttft else None,
        "refused": len(refused),
        "refusal_p95_ms": percentile(took_ms, 95) if took_ms else None,
        "reasons": "; ".join(f"{count} × {reason}" for reason, count in reasons.most_common(3)) or None,
    }


async def overload(endpoint: str, seconds: float) -> list[dict[str, Cell]]:
    dice = random.Random(1)
    warm = [completion(NAME, random_prompt(PROMPT_TOKENS, 500, dice), OUTPUT_TOKENS) for _ in range(6)]
    await closed_loop(endpoint, warm, 2)  # until the gateway has seen steps of this kind
    rows, peak = [], 0.0
    for rate in RATES:
        answers = await offer_load(endpoint, NAME, workload(rate, SWEEP_S), PATIENCE_S, lambda answer: None)
        rows.append(row(f"{rate:g}/s, {SWEEP_S:g} s", answers, SWEEP_S))
        peak = max(peak, sum(is_good(answer) for answer in answers) / SWEEP_S)
    answers = await offer_load(endpoint, NAME, workload(TIMES * peak, seconds), PATIENCE_S, lambda answer: None)
    rows.append(row(f"{TIMES:g} × the peak ({TIMES * peak:.1f}/s), {seconds:g} s", answers, seconds))
    return rows


def is_good(answer: Answer) -> bool:
    return answer.end is AnswerEnd.WHOLE and answer.ttft_s <= TTFT_S and answer.tpot_s <= TPOT_S


async def afterwards(endpoint: str) -> dict[str, Cell]:
    """Requests from one second after an overload on: its arrivals are over, and its last answers still run."""
    flood = asyncio.create_task(offer_load(endpoint, NAME, workload(12.0, 10.0), PATIENCE_S, lambda answer: None))
    await asyncio.sleep(11.0)
    answers = await offer_load(endpoint, NAME, workload(1.0, 10.0), PATIENCE_S, lambda answer: None, seed=9)
    await flood
    return row("from 1 s after an overload", answers, 10.0)


async def beside(endpoint: str) -> list[dict[str, Cell]]:
    """The small requests' time to their last token, alone and next to the large one."""
    dice = random.Random(2)
    prompts = [random_prompt(16, 500, dice) for _ in range(PROMPTS)]
    body = completion(NAME, [], LONG_TOKENS).body
    large = ClientRequest("/v1/completions", {**body, "prompt": prompts, "n": CHOICES})

    async def small(count: int) -> list[Answer]:
        requests = [completion(NAME, random_prompt(16, 500, dice), 20) for _ in range(count)]
        return await closed_loop(endpoint, requests, 1)

    alone = await small(5)
    async with open_session(900) as session:
        running = asyncio.create_task(send(session, endpoint, large))
        await asyncio.sleep(8.0)
        near = await small(5)
        is_over = running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not is_over, "the large request ended before the small ones had run"
    return [latency_row("20 tokens, alone", alone), latency_row("20 tokens beside 64 prompts × n 16", near)]


def latency_row(name: str, answers: Sequence[Answer]) -> dict[str, Cell]:
    seconds = [answer.ended_s - answer.sent_s for answer in answers]
    first = [answer.ttft_s for answer in answers]
    return {
        "load": name,
        "median_s": percentile(seconds, 50),
        "max_s": max(seconds),
        "ttft_p50_s": percentile(first, 50),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--name", default="overload", help="of the result's file")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="baton-overload-") as folder,
        Up(Path(folder), document(), "--emulate", EMULATE) as up,
    ):
        endpoint = up.await_ready()
        machine = this_machine()
        fair = asyncio.run(beside(endpoint))
        rows = asyncio.run(overload(endpoint, options.seconds))
        rows.append(asyncio.run(afterwards(endpoint)))
    notes = [
        f"`baton up --emulate {EMULATE}`, one worker of each role, {PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out;",
        f"targets: TTFT {TTFT_S:g} s, TPOT {TPOT_S:g} s. Load of the machine at the end: {os.getloadavg()[0]:.1f}.",
    ]
    publish(options.name + "_beside", machine, notes, ("load", "median_s", "max_s", "ttft_p50_s"), fair)
    publish(options.name, machine, notes, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
