"""Both drivers over real sockets: KV of a fake pool moves between two of them, and every ending is told once."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_kv_transfer.decode_transfer import DecodeTransfer
from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.keys import KeyDirectory
from baton_kv_transfer.layout import KvGeometry
from baton_kv_transfer.prefill_transfer import PrefillTransfer
from baton_kv_transfer.wire.values import Address, Finish, PairFingerprint, PeerRef, Reason
from baton_testing.kv_transfer import (
    FAST,
    GEOMETRY,
    DecodeRecord,
    FakePool,
    PrefillRecord,
    eventually,
    fingerprint,
    first_tokens,
    key_directory,
)

CHUNK = 5


@dataclass
class Prefill:
    transfer: PrefillTransfer
    pool: FakePool
    record: PrefillRecord
    epoch: bytes


@dataclass
class Decode:
    transfer: DecodeTransfer
    pool: FakePool
    record: DecodeRecord
    epoch: bytes

    @property
    def ref(self) -> PeerRef:
        return PeerRef(address=Address(host="127.0.0.1", port=self.transfer.port), epoch=self.epoch)


def prefill_worker(
    keys: KeyDirectory,
    *,
    geometry: KvGeometry = GEOMETRY,
    config: TransferConfig = FAST,
    model: PairFingerprint | None = None,
    host_memory: bool = True,
) -> Prefill:
    pool, record, epoch = FakePool(geometry, 64, host_memory=host_memory), PrefillRecord(), secrets.token_bytes(16)
    transfer = PrefillTransfer(
        epoch=epoch,
        fingerprint=model or fingerprint(),
        geometry=geometry,
        keys=keys,
        source=pool,
        listener=record,
        config=config,
    )
    return Prefill(transfer, pool, record, epoch)


def decode_worker(
    keys: KeyDirectory,
    *,
    geometry: KvGeometry = GEOMETRY,
    config: TransferConfig = FAST,
    landing_bytes: int = 1 << 20,
) -> Decode:
    pool, record, epoch = FakePool(geometry, 64), DecodeRecord(), secrets.token_bytes(16)
    transfer = DecodeTransfer(
        epoch=epoch,
        fingerprint=fingerprint(),
        geometry=geometry,
        keys=keys,
        sink=pool,
        listener=record,
        host="127.0.0.1",
        landing_bytes=landing_bytes,
        config=config,
    )
    return Decode(transfer, pool, record, epoch)


Pair = Callable[..., AbstractAsyncContextManager[tuple[Prefill, Decode]]]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    keys = key_directory(tmp_path / "keys")

    @asynccontextmanager
    async def running(
        prefill: dict[str, object] | None = None, decode: dict[str, object] | None = None
    ) -> AsyncIterator[tuple[Prefill, Decode]]:
        p = prefill_worker(keys, **(prefill or {}))  # type: ignore[arg-type]
        d = decode_worker(keys, **(decode or {}))  # type: ignore[arg-type]
        await p.transfer.start()
        await d.transfer.start()
        try:
            yield p, d
        finally:
            await p.transfer.stop()
            await d.transfer.stop()

    return running


def soon() -> float:
    return time.monotonic() + 20.0


@dataclass
class Request:
    """One request between a prefill and a decode worker, driven step by step."""

    prefill: Prefill
    decode: Decode
    tokens: int
    cached: int = 0
    choices: tuple[int, ...] = (0,)
    attempt: int = 1

    def __post_init__(self) -> None:
        self.id = secrets.token_bytes(16)
        size = self.prefill.pool.geometry.block_tokens
        self.source = tuple(reversed(range(3, 3 + -(-self.tokens // size))))
        size = self.decode.pool.geometry.block_tokens
        self.target = tuple(range(7, 7 + 2 * -(-self.tokens // size), 2))
        self.prefill.pool.fill(self.source)

    @property
    def key(self) -> tuple[bytes, int]:
        return self.id, self.attempt

    def open(self) -> None:
        self.prefill.transfer.opened(*self.key, self.decode.ref, self.tokens, soon())

    def expect(self) -> None:
        self.decode.transfer.expected(
            *self.key, self.prefill.epoch, self.tokens, self.cached, self.target, self.choices, soon()
        )

    def compute(self, tokens: int) -> None:
        size = self.prefill.pool.geometry.block_tokens
        self.prefill.transfer.computed(*self.key, tokens, self.source[: -(-tokens // size)])

    def compute_all(self) -> None:
        for tokens in range(CHUNK, self.tokens, CHUNK):
            self.compute(tokens)
        self.compute(self.tokens)

    def draw(self, finish: Finish | None = None) -> None:
        self.prefill.transfer.first_tokens(*self.key, first_tokens(*self.choices, finish=finish))

    async def landed(self) -> None:
        await eventually(lambda: any(entry[:2] == self.key for entry in self.decode.record.landed))
        await eventually(lambda: self.key in self.prefill.record.released)
        assert self.decode.pool.tokens(self.target, self.cached, self.tokens) == self.prefill.pool.tokens(
            self.source, self.cached, self.tokens
        )

    async def ended(self) -> Reason:
        """Not landed, at neither side; the reason that the decode worker was told."""
        await eventually(lambda: self.key in self.prefill.record.released)
        await eventually(lambda: any(entry[:2] == self.key for entry in self.decode.record.failed))
        assert not self.decode.record.landed
        return next(entry[2] for entry in self.decode.record.failed if entry[:2] == self.key)


@pytest.mark.parametrize("order", ["reserved first", "computed first", "interleaved"])
async def test_every_token_arrives_whatever_comes_first(pair: Pair, order: str) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=23)
        steps = {
            "reserved first": [request.expect, request.open, request.compute_all, request.draw],
            "computed first": [request.open, request.compute_all, request.draw, request.expect],
            "interleaved": [
                request.open,
                lambda: request.compute(9),
                request.expect,
                request.compute_all,
                request.draw,
            ],
        }[order]
        for step in steps:
            step()
            await asyncio.sleep(0.01)
        await request.landed()
        assert d.record.landed == [(*request.key, first_tokens(0))]
        assert p.record.reports == []
        await eventually(lambda: d.transfer.stats().handovers.ended == {"landed": 1})
        stats = d.transfer.stats()
        assert stats.bytes_received == 6 * GEOMETRY.block_bytes
        assert stats.handovers.landing.free_bytes == stats.handovers.landing.total_bytes
