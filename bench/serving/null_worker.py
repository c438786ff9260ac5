"""Fake workers on a clock, in a process of their own: one token a step to everybody. For measuring the gateway alone.

Run by `bench gateway_cost`; FOLDER gets keys and discovery files, then the announce file.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.fake_worker import FakeRequest
from baton_testing.gateway.made_tokenizers import byte_level
from baton_wire.messages.values import Role

SERVED_NAME = "null"
FIRST_ID, IDS = 270, 120
"""Token ids that stand for pieces of words."""


def words(request: FakeRequest) -> list[int]:
    return [FIRST_ID + (index * 7 + request.choice) % IDS for index in range(request.sampling.max_tokens)]


async def serve(folder: Path, announce: Path, step_s: float, context_tokens: int) -> None:
    pool = FakePool(folder, byte_level(), words)
    for role in (Role.PREFILL, Role.DECODE):
        options = {"served_name": SERVED_NAME, "step_s": step_s, "blocks_total": 1 << 16}
        await pool.add(role, max_context_tokens=context_tokens, **options)
    announce.with_suffix(".draft").write_text("{}")
    announce.with_suffix(".draft").replace(announce)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--announce", type=Path, required=True)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--context-tokens", type=int, default=2_048)
    options = parser.parse_args()
    asyncio.run(serve(options.folder, options.announce, options.step_ms / 1e3, options.context_tokens))


if __name__ == "__main__":
    main()
