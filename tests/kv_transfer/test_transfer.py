"""Both drivers over real sockets: KV of a fake pool moves between two of them, and every ending is told once."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from baton_kv_transfer.decode_transfer import DecodeTransfer
from baton_kv_transfer.discovery import Endpoint
from baton_kv_transfer.handover import TransferConfig, Verify
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
    first_block: int = 3

    def __post_init__(self) -> None:
        self.id = secrets.token_bytes(16)
        size = self.prefill.pool.geometry.block_tokens
        self.source = tuple(reversed(range(self.first_block, self.first_block + -(-self.tokens // size))))
        size = self.decode.pool.geometry.block_tokens
        start = self.first_block + 4
        self.target = tuple(range(start, start + 2 * -(-self.tokens // size), 2))
        self.prefill.pool.fill(self.source)

    @property
    def key(self) -> tuple[bytes, int]:
        return self.id, self.attempt

    @property
    def told(self) -> list[str]:
        """What the prefill worker was told of this request, in order."""
        return [call for call, *key in self.prefill.record.calls if tuple(key) == self.key]

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
        assert self.told == ["granted", "released"]
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


@pytest.mark.parametrize("cached", [0, 4, 12, 20, 23])
async def test_only_what_the_decode_worker_lacks_is_sent(pair: Pair, cached: int) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=23, cached=cached if cached < 23 else 20)
        before = bytes(d.pool.memory)
        for step in (request.open, request.expect, request.compute_all, request.draw):
            step()
        await request.landed()
        await eventually(lambda: d.transfer.stats().handovers.ended == {"landed": 1})
        units = 6 - request.cached // 4
        assert d.transfer.stats().bytes_received == units * GEOMETRY.block_bytes
        size = GEOMETRY.block_bytes
        for block in set(range(64)) - set(request.target[request.cached // 4 :]):
            assert d.pool.memory[block * size : (block + 1) * size] == before[block * size : (block + 1) * size]


async def test_a_full_prefix_hit_is_a_completed_transfer(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24, cached=24)
        for step in (request.open, request.expect, request.compute_all, request.draw):
            step()
        await request.landed()
        assert d.pool.scattered_units == 0


@pytest.mark.parametrize(("prefill_block", "decode_block"), [(4, 4), (8, 4), (4, 8), (16, 2), (2, 16), (1, 4)])
@pytest.mark.parametrize("host_memory", [True, False])
async def test_unequal_block_sizes_meet_in_the_smaller_one(
    pair: Pair, prefill_block: int, decode_block: int, host_memory: bool
) -> None:
    source = replace(GEOMETRY, block_tokens=prefill_block)
    target = replace(GEOMETRY, block_tokens=decode_block)
    async with pair({"geometry": source, "host_memory": host_memory}, {"geometry": target}) as (p, d):
        request = Request(p, d, tokens=37, cached=16 if decode_block <= 16 else 0)
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        await request.landed()


async def test_block_sizes_that_do_not_divide_never_pair(pair: Pair) -> None:
    async with pair({"geometry": replace(GEOMETRY, block_tokens=6)}) as (p, d):
        request = Request(p, d, tokens=5)
        request.open()
        request.expect()
        await eventually(lambda: p.record.reports)
        assert p.record.reports[0][2] is Reason.UNFIT_PAIR
        assert "block_tokens: 6 here and 4 there" in p.record.reports[0][3]
        assert await request.ended() is Reason.PEER_LOST


async def test_unequal_fingerprints_never_pair_and_the_field_is_named(pair: Pair) -> None:
    async with pair({"model": fingerprint(rope="d" * 64)}) as (p, d):
        request = Request(p, d, tokens=5)
        request.open()
        request.expect()
        await eventually(lambda: p.record.reports)
        assert p.record.reports[0][2] is Reason.UNFIT_PAIR
        assert "rope: dddd" in p.record.reports[0][3]
        assert await request.ended() is Reason.PEER_LOST
        assert d.transfer.stats().links == 0


async def test_several_choices_share_one_hand_over(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=10, choices=(0, 3, 5))
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        await request.landed()
        assert d.record.landed[0][2] == first_tokens(0, 3, 5)
        await eventually(lambda: d.transfer.stats().handovers.ended == {"landed": 1})
        assert d.transfer.stats().bytes_received == 3 * GEOMETRY.block_bytes


@pytest.mark.parametrize("host_memory", [True, False])
async def test_both_sides_count_the_same_bytes_of_kv(pair: Pair, host_memory: bool) -> None:
    async with pair({"host_memory": host_memory}) as (p, d):
        for tokens in (4, 21):
            request = Request(p, d, tokens=tokens)
            for step in (request.expect, request.open, request.compute_all, request.draw):
                step()
            await request.landed()
        both = 7 * GEOMETRY.block_bytes
        await eventually(lambda: p.transfer.stats().bytes_sent == d.transfer.stats().bytes_received == both)
        await d.transfer.stop()
        await eventually(lambda: p.transfer.stats().links == 0)
        assert p.transfer.stats().bytes_sent == d.transfer.stats().bytes_received == both


async def test_first_tokens_for_other_choices_than_expected_are_refused(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=10, choices=(0, 1))
        request.expect()
        request.choices = (0, 2)
        for step in (request.open, request.compute_all, request.draw):
            step()
        assert await request.ended() is Reason.BAD_REQUEST


@pytest.mark.parametrize("grant_first", [True, False])
async def test_a_request_that_ends_with_its_first_token_hands_nothing_over(pair: Pair, grant_first: bool) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=23)
        steps: list[Callable[[], None]] = [request.open, request.compute_all, lambda: request.draw(Finish.STOP)]
        steps.insert(0 if grant_first else 3, request.expect)
        for step in steps:
            step()
            await asyncio.sleep(0.01)
        assert await request.ended() is Reason.FINISHED
        assert p.record.reports == []


async def test_a_flipped_bit_is_found_and_nothing_lands(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=23)

        def flip(stream: memoryview) -> None:
            stream[len(stream) // 2] ^= 0x10

        d.pool.spoil = flip
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        assert await request.ended() is Reason.KV_CORRUPT
        assert "checksum of unit" in d.record.failed[0][3]


async def test_with_stamps_no_checksum_is_computed(pair: Pair) -> None:
    config = {"config": replace(FAST, verify=Verify.STAMPS)}
    async with pair(config, config) as (p, d):
        request = Request(p, d, tokens=23)
        p.pool.checksums = _fail  # type: ignore[method-assign, assignment]
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        await request.landed()


async def test_a_seal_without_checksums_is_refused_by_a_worker_that_verifies(pair: Pair) -> None:
    async with pair({"config": replace(FAST, verify=Verify.STAMPS)}) as (p, d):
        request = Request(p, d, tokens=23)
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        assert await request.ended() is Reason.KV_CORRUPT


async def test_a_scatter_that_raises_fails_this_hand_over_alone(pair: Pair) -> None:
    async with pair() as (p, d):
        request, next_one = Request(p, d, tokens=8), Request(p, d, tokens=8)

        def fail(stream: memoryview) -> None:
            d.pool.spoil = None
            raise RuntimeError("device lost")

        d.pool.spoil = fail
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        assert await request.ended() is Reason.INTERNAL
        assert "device lost" in d.record.failed[0][3]
        for step in (next_one.expect, next_one.open, next_one.compute_all, next_one.draw):
            step()
        await next_one.landed()


async def test_checksums_that_raise_fail_this_hand_over_alone(pair: Pair) -> None:
    async with pair({"host_memory": False}) as (p, d):
        request = Request(p, d, tokens=8)

        p.pool.pack = _fail  # type: ignore[method-assign, assignment]
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        assert await request.ended() is Reason.INTERNAL
        assert [report[2] for report in p.record.reports] == [Reason.INTERNAL]


STEPS = ["open", "expect", "compute 9", "compute all", "draw"]


@pytest.mark.parametrize("at", range(1, len(STEPS) + 1))
@pytest.mark.parametrize("who", ["prefill", "decode", "both"])
@pytest.mark.parametrize("pause_s", [0.0, 0.01])
async def test_a_cancel_at_every_step_frees_both_sides(pair: Pair, at: int, who: str, pause_s: float) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=60)
        request.open()  # so that the link is there
        await eventually(lambda: p.transfer.stats().links)
        request = Request(p, d, tokens=60)
        do = {
            "open": request.open,
            "expect": request.expect,
            "compute 9": lambda: request.compute(9),
            "compute all": request.compute_all,
            "draw": request.draw,
        }
        for step in STEPS[:at]:
            do[step]()
        await asyncio.sleep(pause_s)
        if who in ("prefill", "both"):
            p.transfer.cancelled(*request.key)
        if who in ("decode", "both"):
            d.transfer.cancelled(*request.key)
        if who == "prefill" and at == 1:
            request.expect()
        expected = at > 1 or (who == "prefill" and at == 1)
        if who == "decode" and at == 1:
            d.transfer.refused(*request.key, p.epoch, Reason.CANCELLED)
        await eventually(lambda: request.key in p.record.released)
        ends = [*d.record.landed, *d.record.failed]
        if expected:
            await eventually(lambda: [*d.record.landed, *d.record.failed])
            ends = [*d.record.landed, *d.record.failed]
        assert len(ends) == expected
        assert p.record.released.count(request.key) == 1
        assert p.record.reports == []
        await eventually(lambda: _is_idle(d))


def _fail(*arguments: object) -> bytes:
    raise RuntimeError("device lost")


def _is_idle(d: Decode) -> bool:
    seen = d.transfer.stats().handovers
    is_free = seen.landing.free_bytes == seen.landing.total_bytes
    return is_free and seen.lingering == 0 and not any(seen.by_state.values())


async def test_a_wait_is_passed_on_and_the_grant_follows_when_room_comes(pair: Pair) -> None:
    async with pair(decode={"landing_bytes": 7 * GEOMETRY.block_bytes}) as (p, d):
        first, second = Request(p, d, tokens=20), Request(p, d, tokens=24, first_block=30)
        for step in (first.open, first.expect, second.open, second.expect, second.compute_all, second.draw):
            step()
        await eventually(lambda: d.transfer.stats().handovers.by_state["waiting"] == 1)  # type: ignore[index]
        assert p.record.released == []
        first.compute_all()
        first.draw()
        await first.landed()
        await second.landed()


async def test_what_can_never_fit_the_landing_region_is_refused(pair: Pair) -> None:
    async with pair(decode={"landing_bytes": 2 * GEOMETRY.block_bytes}) as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        request.expect()
        assert await request.ended() is Reason.TOO_LONG
        assert [report[2] for report in p.record.reports] == [Reason.TOO_LONG]


async def test_a_refusal_of_the_engine_ends_the_other_side(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        await eventually(lambda: p.transfer.stats().links)
        d.transfer.queued(*request.key, p.epoch, 3, soon())
        d.transfer.refused(*request.key, p.epoch, Reason.NO_CAPACITY, "the queue is full")
        await eventually(lambda: request.key in p.record.released)
        assert p.record.reports == [(*request.key, Reason.NO_CAPACITY, "rejected by decode: the queue is full")]
        assert d.record.failed == []


async def test_a_dead_decode_worker_is_told_within_the_bound(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        request.expect()
        await eventually(lambda: p.transfer.stats().handovers.by_state["sending"] == 1)  # type: ignore[index]
        await d.transfer.stop()
        await eventually(lambda: request.key in p.record.released, timeout_s=3.0)
        assert p.record.reports[0][2] in (Reason.PEER_LOST, Reason.DRAINING)
        assert [entry[2] for entry in d.record.failed] == [Reason.DRAINING]


async def test_a_dead_prefill_worker_is_told_within_the_bound(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        request.expect()
        request.compute(9)
        await eventually(lambda: d.transfer.stats().bytes_received)
        await p.transfer.stop()
        assert p.record.released == [request.key]
        await eventually(lambda: d.record.failed, timeout_s=3.0)
        assert d.record.failed[0][2] in (Reason.PEER_LOST, Reason.DRAINING)
        await eventually(lambda: _is_idle(d))


async def test_another_process_at_the_address_is_another_worker(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        stale = PeerRef(address=d.ref.address, epoch=secrets.token_bytes(16))
        p.transfer.opened(*request.key, stale, 24, soon())
        await eventually(lambda: request.key in p.record.released, timeout_s=3.0)
        assert p.record.reports[0][2] is Reason.PEER_LOST
        assert "another process" in p.record.reports[0][3]
        again = Request(p, d, tokens=24)
        p.transfer.opened(*again.key, stale, 24, soon())
        await eventually(lambda: again.key in p.record.released, timeout_s=3.0)


async def test_nobody_at_the_address_is_told_when_the_wait_for_a_link_is_over(pair: Pair) -> None:
    config = replace(FAST, link_wait_s=0.3)
    async with pair({"config": config}, {"config": config}) as (p, d):
        request = Request(p, d, tokens=24)
        nowhere = PeerRef(address=Address(host="127.0.0.1", port=1), epoch=secrets.token_bytes(16))
        p.transfer.opened(*request.key, nowhere, 24, soon())
        d.transfer.expected(*request.key, secrets.token_bytes(16), 24, 0, request.target, (0,), soon())
        await eventually(lambda: p.record.released and d.record.failed, timeout_s=3.0)
        assert p.record.reports[0][2] is Reason.PEER_LOST
        assert d.record.failed[0][2] is Reason.PEER_LOST


async def test_links_are_made_from_discovery_and_kept_when_it_forgets(pair: Pair) -> None:
    async with pair() as (p, d):
        p.transfer.discovered([Endpoint("127.0.0.1", 9, pair_port=d.transfer.port)])
        await eventually(lambda: p.transfer.stats().links == d.transfer.stats().links == 1)
        assert p.transfer.stats().lanes == {"tcp x1": 1}
        p.transfer.discovered([Endpoint("127.0.0.1", 9, pair_port=1)])
        await asyncio.sleep(0.1)
        assert p.transfer.stats().links == 1
        request = Request(p, d, tokens=5)
        for step in (request.open, request.expect, request.compute_all, request.draw):
            step()
        await request.landed()


async def test_a_worker_with_another_key_is_not_linked(pair: Pair, tmp_path: Path) -> None:
    async with pair() as (_, d):
        stranger = prefill_worker(key_directory(tmp_path / "other"))
        await stranger.transfer.start()
        stranger.transfer.discovered([Endpoint("127.0.0.1", d.transfer.port)])
        await eventually(lambda: stranger.transfer.stats().dial_failures >= 2)
        assert d.transfer.stats().links == stranger.transfer.stats().links == 0
        assert d.transfer.stats().refused_connections >= 1
        await stranger.transfer.stop()


async def test_many_requests_at_once_all_arrive(pair: Pair) -> None:
    async with pair({"config": replace(FAST, lanes=3, max_put_bytes=256)}) as (p, d):
        requests = [Request(p, d, tokens=4) for _ in range(40)]
        block = iter(range(64))
        for request in requests:
            request.source = request.target = (next(block),)
            p.pool.fill(request.source)
            for step in (request.open, request.expect, request.compute_all, request.draw):
                step()
        for request in requests:
            await request.landed()
        assert p.transfer.stats().lanes == {"tcp x3": 1}


async def test_durations_from_grant_to_verified_are_observed(tmp_path: Path) -> None:
    seen: list[float] = []
    keys = key_directory(tmp_path / "keys")
    p = prefill_worker(keys)
    d = decode_worker(keys)
    d.transfer = DecodeTransfer(
        epoch=d.epoch,
        fingerprint=fingerprint(),
        geometry=GEOMETRY,
        keys=keys,
        sink=d.pool,
        listener=d.record,
        host="127.0.0.1",
        landing_bytes=1 << 16,
        landing=memoryview(bytearray(1 << 16)),
        config=FAST,
        observe_handover_s=seen.append,
    )
    await p.transfer.start()
    await d.transfer.start()
    request = Request(p, d, tokens=9)
    for step in (request.open, request.expect, request.compute_all, request.draw):
        step()
    await request.landed()
    assert len(seen) == 1
    assert 0 < seen[0] < 5
    await p.transfer.stop()
    await d.transfer.stop()


async def test_a_taken_port_is_an_error_at_start(pair: Pair, tmp_path: Path) -> None:
    async with pair() as (_, d):
        second = DecodeTransfer(
            epoch=secrets.token_bytes(16),
            fingerprint=fingerprint(),
            geometry=GEOMETRY,
            keys=key_directory(tmp_path / "more"),
            sink=d.pool,
            listener=d.record,
            host="127.0.0.1",
            port=d.transfer.port,
            landing_bytes=1024,
        )
        with pytest.raises(OSError, match="in use"):
            await second.start()
