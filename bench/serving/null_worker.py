"""Fake workers on a clock, in a process of their own: one token a step to everybody. For measuring the gateway alone.

Run by `bench gateway_cost`; FOLDER gets keys and discovery files, then the announce file.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeRequest
from baton_testing.gateway.made_tokenizers import byte_level, large_byte_level
from baton_wire.messages.values import Role

SERVED_NAME = "null"
REPORT_S = 0.1
FIRST_ID, IDS = 270, 120
"""Token ids of pieces of words."""


def words(request: FakeRequest) -> list[int]:
    return [FIRST_ID + (index * 7 + request.choice) % IDS for index in range(request.sampling.max_tokens)]


async def serve(folder: Path, announce: Path, options: argparse.Namespace) -> None:
    tokenizer = byte_level() if options.vocabulary is None else large_byte_level(options.vocabulary)
    tokenizer.bundle()  # now, rather than when a gateway links
    pool = FakePool(folder, tokenizer, words)
    for role in (Role.PREFILL, Role.DECODE):
        known = {"served_name": options.served_name, "step_s": options.step_ms / 1e3, "blocks_total": 1 << 16}
        await pool.add(role, max_context_tokens=options.context_tokens, takes_turns=options.takes_turns, **known)
    announce.with_suffix(".draft").write_text("{}")
    announce.with_suffix(".draft").replace(announce)
    while True:  # what tests look at would only pile up here
        await asyncio.sleep(REPORT_S)
        for worker in pool.workers:
            worker.received.clear()
            await worker.report()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--announce", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--context-tokens", type=int, default=2_048)
    parser.add_argument("--takes-turns", action="store_true", help="prompts wait in fair turns, as at a real worker")
    parser.add_argument("--served-name", default=SERVED_NAME)
    parser.add_argument("--vocabulary", type=int, help="tokens of a large tokenizer (default: a small one)")
    options = parser.parse_args()
    asyncio.run(serve(options.folder, options.announce, options))


if __name__ == "__main__":
    main()
