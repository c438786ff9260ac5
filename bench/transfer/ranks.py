"""Hand-overs between workers of unequal numbers of ranks against equal ones: `python -m bench rank_transfer`.

Both workers are in one process, with the engine's pools on the CPU and the `tcp` transport over loopback, checksums
included. KV of `TOKENS` tokens of Llama-3.1-8B's shape is computed already when a hand-over begins; it ends when it is
verified in the decode worker's pools. Degrees take turns; a ratio is of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from bench.machine import this_machine
from bench.results import Cell, publish, spread

from baton_engine.memory.kv_pool import KvPool
from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Reservation, TransferConfig
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.ranks.tensor_parallel import rank_geometries
from baton_kv_transfer.transfer_parts import TransferParts
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.kv_shape import KvGeometry
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import WIRE_VERSION, Address, PairFingerprint, PeerRef, Reason, RequestKey

GEOMETRY = KvGeometry(layers=32, kv_heads=8, head_dim=128, element_bytes=2, block_tokens=16)
TOKENS = 512
"""64 MiB."""
DEGREES = ((1, 1), (2, 2), (1, 2), (2, 1))
CONFIG = TransferConfig(liveness=LivenessConfig(10.0, 20.0))
BLOCKS = TOKENS // GEOMETRY.block_tokens
DIGEST = "a" * 64
MODEL = PairFingerprint(WIRE_VERSION, DIGEST, "bfloat16", "bfloat16", 32, 8, 128, DIGEST, DIGEST)
WAIT_S = 60.0


class Ends:
    """Both listeners: the end of the hand-over that is under way."""

    def __init__(self) -> None:
        self.landed, self.released = asyncio.Event(), asyncio.Event()

    def on_granted(self, key: RequestKey) -> None: ...

    def on_release(self, key: RequestKey) -> None:
        self.released.set()

    def on_report(self, key: RequestKey, reason: Reason, detail: str, failed_attempt: int, kept: bool) -> None:
        raise SystemExit(f"prefill: {reason}: {detail}")

    def on_landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        self.landed.set()

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        raise SystemExit(f"decode: {reason}: {detail}")


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of one hand-over: until it is landed, and of both workers' processor time, which other work disturbs less."""

    passed: float
    processor: float


@dataclass
class RankPairing:
    """Two linked workers of some degrees."""

    prefill: PrefillTransfer
    decode: DecodeTransfer
    epochs: tuple[bytes, bytes]
    ends: Ends

    async def hand_over(self) -> Seconds:
        """One hand-over, until the prefill worker has released its blocks, too."""
        key, until = RequestKey(secrets.token_bytes(16), 1), time.monotonic() + WAIT_S
        blocks = tuple(range(BLOCKS))
        peer = PeerRef(address=Address(host="127.0.0.1", port=self.decode.port), epoch=self.epochs[1])
        self.ends.landed.clear()
        self.ends.released.clear()
        began, cpu_s = time.perf_counter(), time.process_time()
        self.decode.expected(key, self.epochs[0], Reservation(TOKENS, 0, blocks, (0,), until))
        self.prefill.opened(key, peer, TOKENS, until)
        self.prefill.computed(key, TOKENS, blocks)
        self.prefill.first_tokens(key, (FirstToken(choice=0, token=1),))
        async with asyncio.timeout(WAIT_S):
            await self.ends.landed.wait()
            seconds = time.perf_counter() - began
            await self.ends.released.wait()
        return Seconds(seconds, time.process_time() - cpu_s)


def pools(ranks: int) -> list[KvPool]:
    made = [KvPool(shape, BLOCKS, torch.bfloat16, torch.device("cpu")) for shape in rank_geometries(GEOMETRY, ranks)]
    for pool in made:
        pool.tensor.normal_()
    return made


async def pairing(degrees: tuple[int, int], keys: KeyDirectory, stack: AsyncExitStack) -> RankPairing:
    ends, epochs = Ends(), (secrets.token_bytes(16), secrets.token_bytes(16))
    p_parts, d_parts = (
        TransferParts(epoch=epoch, fingerprint=MODEL, geometry=GEOMETRY, keys=keys, config=CONFIG) for epoch in epochs
    )
    landing = LandingMemory(2 * TOKENS * GEOMETRY.token_bytes)
    prefill = PrefillTransfer(p_parts, pools(degrees[0]), ends)
    decode = DecodeTransfer(d_parts, pools(degrees[1]), ends, landing, host="127.0.0.1")
    await prefill.start()
    stack.push_async_callback(prefill.stop)
    await decode.start()
    stack.push_async_callback(decode.stop)
    return RankPairing(prefill, decode, epochs, ends)


async def measure(rounds: int, keys: KeyDirectory) -> dict[tuple[int, int], list[Seconds]]:
    seconds: dict[tuple[int, int], list[Seconds]] = {degrees: [] for degrees in DEGREES}
    async with AsyncExitStack() as stack:
        made = {degrees: await pairing(degrees, keys, stack) for degrees in DEGREES}
        for pair in made.values():
            await pair.hand_over()
        for _ in range(rounds):
            for degrees, pair in made.items():
                seconds[degrees].append(await pair.hand_over())
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    machine = this_machine()
    with tempfile.TemporaryDirectory() as folder:
        write_new_key(Path(folder), "k1")
        seconds = asyncio.run(measure(arguments.rounds, KeyDirectory(Path(folder))))
    rows: list[dict[str, Cell]] = []
    for (prefill, decode), values in seconds.items():
        row: dict[str, Cell] = {"degrees": f"P{prefill} D{decode}"}
        row["ms"] = str(spread([value.passed * 1e3 for value in values]))
        row["processor ms"] = str(spread([value.processor * 1e3 for value in values]))
        for name, others in (("of P1 D1", seconds[1, 1]), ("of P2 D2", seconds[2, 2])):
            pairs = list(zip(values, others, strict=True))
            row[f"ms {name}"] = round(median(mine.passed / other.passed for mine, other in pairs), 2)
            row[f"processor {name}"] = round(median(mine.processor / other.processor for mine, other in pairs), 2)
        rows.append(row)
    notes = [f"{TOKENS} tokens, {TOKENS * GEOMETRY.token_bytes >> 20} MiB, {arguments.rounds} rounds in turn."]
    publish("rank_transfer", machine, notes, tuple(rows[0]), rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
