"""Two transfer drivers over real sockets with fake pools, and one request between them, driven step by step."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Reservation, TransferConfig
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.ranks.tensor_parallel import heads_of, rank_geometries
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.seam import Transport
from baton_testing.kv_transfer.builders import (
    FAST,
    GEOMETRY,
    DecodeRecord,
    FakePool,
    PrefillRecord,
    eventually,
    fingerprint,
    first_tokens,
    heads_from,
)
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import Address, Finish, PairFingerprint, PeerRef, Reason, RequestKey

CHUNK = 5


@dataclass
class Prefill:
    transfer: PrefillTransfer
    pool: FakePool
    """Of a worker of several ranks a pool of the whole model, which is cut into those of the ranks."""
    pools: list[FakePool]
    record: PrefillRecord
    epoch: bytes


@dataclass
class Decode:
    transfer: DecodeTransfer
    pool: FakePool
    """The first of `pools`."""
    pools: list[FakePool]
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
    transports: Sequence[Transport] | None = None,
    ranks: int = 1,
) -> Prefill:
    pool, record, epoch = FakePool(geometry, 64, host_memory=host_memory), PrefillRecord(), secrets.token_bytes(16)
    shapes = rank_geometries(geometry, ranks)
    pools = [pool] if ranks == 1 else [FakePool(shape, 64, host_memory=host_memory) for shape in shapes]
    parts = TransferParts(
        epoch=epoch,
        fingerprint=model or fingerprint(kv_heads=geometry.kv_heads),
        geometry=geometry,
        keys=keys,
        config=config,
        transports=transports,
    )
    return Prefill(PrefillTransfer(parts, pools, record), pool, pools, record, epoch)


def decode_worker(
    keys: KeyDirectory,
    *,
    geometry: KvGeometry = GEOMETRY,
    config: TransferConfig = FAST,
    landing_bytes: int = 1 << 20,
    transports: Sequence[Transport] | None = None,
    ranks: int = 1,
) -> Decode:
    record, epoch = DecodeRecord(), secrets.token_bytes(16)
    pools = [FakePool(shape, 64) for shape in rank_geometries(geometry, ranks)]
    model = fingerprint(kv_heads=geometry.kv_heads)
    parts = TransferParts(
        epoch=epoch, fingerprint=model, geometry=geometry, keys=keys, config=config, transports=transports
    )
    transfer = DecodeTransfer(parts, pools, record, LandingMemory(landing_bytes), host="127.0.0.1")
    return Decode(transfer, pools[0], pools, record, epoch)


Pair = Callable[..., AbstractAsyncContextManager[tuple[Prefill, Decode]]]


def pairs(keys: KeyDirectory) -> Pair:
    """Pairs of workers with these keys; options of `prefill_worker` and of `decode_worker`, running inside `with`."""

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


def cut_to_ranks(prefill: Prefill, blocks: Sequence[int]) -> None:
    """Give each rank its heads of these blocks of the whole model."""
    whole, ranks = prefill.pool, len(prefill.pools)
    for rank, pool in enumerate(prefill.pools if ranks > 1 else []):
        heads, size = heads_of(whole.geometry.kv_heads, ranks, rank), pool.geometry.block_bytes
        for block in blocks:
            pool.memory[block * size : (block + 1) * size] = heads_from(whole.block(block), whole.geometry, heads)


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
    first_block: int = 3

    def __post_init__(self) -> None:
        self.id = secrets.token_bytes(16)
        size = self.prefill.pool.geometry.block_tokens
        self.source = tuple(reversed(range(self.first_block, self.first_block + -(-self.tokens // size))))
        size = self.decode.pool.geometry.block_tokens
        start = self.first_block + 4
        self.target = tuple(range(start, start + 2 * -(-self.tokens // size), 2))
        self.prefill.pool.fill(self.source)
        cut_to_ranks(self.prefill, self.source)

    @property
    def key(self) -> RequestKey:
        return RequestKey(self.id, self.attempt)

    @property
    def calls(self) -> list[str]:
        """Calls that the prefill worker got for this request, in order."""
        return [call for call, key in self.prefill.record.calls if key == self.key]

    def open(self) -> None:
        self.prefill.transfer.opened(self.key, self.decode.ref, self.tokens, soon())

    def expect(self) -> None:
        reservation = Reservation(self.tokens, self.cached, self.target, self.choices, soon())
        self.decode.transfer.expected(self.key, self.prefill.epoch, reservation)

    def compute(self, tokens: int) -> None:
        size = self.prefill.pool.geometry.block_tokens
        self.prefill.transfer.computed(self.key, tokens, self.source[: -(-tokens // size)])

    def compute_all(self) -> None:
        for tokens in range(CHUNK, self.tokens, CHUNK):
            self.compute(tokens)
        self.compute(self.tokens)

    def draw(self, finish: Finish | None = None) -> None:
        self.prefill.transfer.first_tokens(self.key, first_tokens(*self.choices, finish=finish))

    async def landed(self) -> None:
        await eventually(lambda: any(entry[0] == self.key for entry in self.decode.record.landed))
        await eventually(lambda: self.key in self.prefill.record.released)
        assert self.calls == ["granted", "released"]
        self.compare()

    def compare(self) -> None:
        """Every rank of the decode worker has its heads of what the prefill worker computed, as a single rank has."""
        whole, pools = self.prefill.pool, self.decode.pools
        computed = whole.tokens(self.source, self.cached, self.tokens)
        for rank, pool in enumerate(pools):
            heads = heads_of(whole.geometry.kv_heads, len(pools), rank)
            mine = [heads_from(token, whole.geometry, heads) for token in computed]
            assert pool.tokens(self.target, self.cached, self.tokens) == mine, f"rank {rank}"

    async def ended(self) -> Reason:
        """The hand-over landed at neither side; returns the reason that the decode worker got."""
        await eventually(lambda: self.key in self.prefill.record.released)
        await eventually(lambda: any(entry[0] == self.key for entry in self.decode.record.failed))
        assert not self.decode.record.landed
        return next(entry[1] for entry in self.decode.record.failed if entry[0] == self.key)
