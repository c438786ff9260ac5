"""A decode worker's transfer in a process of its own, with a pipe that says what to expect; for tests that kill it."""

from __future__ import annotations

import asyncio
import hashlib
import multiprocessing
import secrets
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Reservation
from baton_kv_transfer.transfer_parts import TransferParts
from baton_testing.kv_transfer.builders import FAST, GEOMETRY, FakePool, fingerprint
from baton_wire.keys import KeyDirectory
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Address, PeerRef, Reason, RequestKey


@dataclass(frozen=True, slots=True)
class Expect:
    request: bytes
    prefill_epoch: bytes
    tokens: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """`digest` of the KV of all tokens when it landed, else the reason."""

    request: bytes
    digest: str | None
    reason: Reason | None


def tokens_digest(pool: FakePool, blocks: tuple[int, ...], tokens: int) -> str:
    return hashlib.sha256(b"".join(pool.tokens(blocks, 0, tokens))).hexdigest()


class _Worker:
    def __init__(self, pipe: Connection, keys: Path) -> None:
        self.pipe = pipe
        self.pool = FakePool(GEOMETRY, 64)
        self.asked: dict[bytes, Expect] = {}
        self.epoch = secrets.token_bytes(16)
        parts = TransferParts(
            epoch=self.epoch, fingerprint=fingerprint(), geometry=GEOMETRY, keys=KeyDirectory(keys), config=FAST
        )
        self.transfer = DecodeTransfer(parts, [self.pool], self, LandingMemory(1 << 20), host="127.0.0.1")

    def on_landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        asked = self.asked[key.request]
        self.pipe.send(Ended(key.request, tokens_digest(self.pool, asked.blocks, asked.tokens), None))

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        self.pipe.send(Ended(key.request, None, reason))

    async def serve(self) -> None:
        await self.transfer.start()
        self.pipe.send((self.transfer.port, self.epoch))
        while True:
            asked = await asyncio.to_thread(self.pipe.recv)
            self.asked[asked.request] = asked
            until = time.monotonic() + 20.0
            reservation = Reservation(asked.tokens, 0, asked.blocks, (0,), until)
            self.transfer.expected(RequestKey(asked.request, 1), asked.prefill_epoch, reservation)


def _main(pipe: Connection, keys: Path) -> None:
    asyncio.run(_Worker(pipe, keys).serve())


class DecodeProcess:
    """The process as its parent sees it. Use as a context manager; what still runs at the end is killed."""

    def __init__(self, keys: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, there = context.Pipe()
        self.process = context.Process(target=_main, args=(there, keys), daemon=True)
        self.process.start()
        there.close()
        self.port, self.epoch = self.pipe.recv()

    @property
    def ref(self) -> PeerRef:
        return PeerRef(address=Address(host="127.0.0.1", port=self.port), epoch=self.epoch)

    def __enter__(self) -> DecodeProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
