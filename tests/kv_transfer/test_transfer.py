"""Both drivers over real sockets: KV of a fake pool moves between two pools and arrives unchanged."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Verify
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_testing.kv_transfer.builders import FAST, GEOMETRY, eventually, fingerprint, first_tokens, key_directory
from baton_testing.kv_transfer.transfer_pair import Pair, Request, decode_worker, prefill_worker
from baton_wire.discovery import Endpoint
from baton_wire.messages.values import Finish, Reason, RequestKey


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
        assert d.record.landed == [(request.key, first_tokens(0))]
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
        assert p.record.reports[0][1] is Reason.UNFIT_PAIR
        assert "block_tokens: 6 here and 4 there" in p.record.reports[0][2]
        assert await request.ended() is Reason.PEER_LOST


async def test_unequal_fingerprints_never_pair_and_the_field_is_named(pair: Pair) -> None:
    async with pair({"model": fingerprint(rope="d" * 64)}) as (p, d):
        request = Request(p, d, tokens=5)
        request.open()
        request.expect()
        await eventually(lambda: p.record.reports)
        assert p.record.reports[0][1] is Reason.UNFIT_PAIR
        assert "rope: dddd" in p.record.reports[0][2]
        assert await request.ended() is Reason.PEER_LOST
        assert d.transfer.stats().links == 0


async def test_several_choices_share_one_hand_over(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=10, choices=(0, 3, 5))
        for step in (request.expect, request.open, request.compute_all, request.draw):
            step()
        await request.landed()
        assert d.record.landed[0][1] == first_tokens(0, 3, 5)
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
        assert "checksum of unit" in d.record.failed[0][2]


async def test_with_stamps_no_checksum_is_computed(pair: Pair) -> None:
    config = {"config": replace(FAST, verify=Verify.STAMPS)}
    async with pair(config, config) as (p, d):
        request = Request(p, d, tokens=23)
        p.pool.checksums = _fail  # type: ignore[method-assign]
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
        assert "device lost" in d.record.failed[0][2]
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
        assert [report[1] for report in p.record.reports] == [Reason.INTERNAL]


def _fail(*arguments: object) -> bytes:
    raise RuntimeError("device lost")


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
        await eventually(lambda: d.transfer.stats().refused_connections >= 1)
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


async def test_durations_of_verified_handovers_are_observed_on_both_sides(tmp_path: Path) -> None:
    landed: list[tuple[RequestKey, float]] = []
    sent: list[tuple[RequestKey, float]] = []
    keys = key_directory(tmp_path / "keys")
    p = prefill_worker(keys)
    d = decode_worker(keys)

    def parts(epoch: bytes) -> TransferParts:
        return TransferParts(epoch=epoch, fingerprint=fingerprint(), geometry=GEOMETRY, keys=keys, config=FAST)

    memory = LandingMemory(1 << 16, host=memoryview(bytearray(1 << 16)))
    d.transfer = DecodeTransfer(
        parts(d.epoch), [d.pool], d.record, memory, host="127.0.0.1", observe_handover=lambda *seen: landed.append(seen)
    )
    p.transfer = PrefillTransfer(parts(p.epoch), [p.pool], p.record, observe_handover=lambda *seen: sent.append(seen))
    await p.transfer.start()
    await d.transfer.start()
    request = Request(p, d, tokens=9)
    for step in (request.open, request.expect, request.compute_all, request.draw):
        step()
    await request.landed()
    unwanted = Request(p, d, tokens=9)
    for step in (unwanted.open, unwanted.compute_all, unwanted.draw):
        step()
    p.transfer.cancelled(unwanted.key)
    await eventually(lambda: len(p.record.released) == 2)
    assert [key for key, _ in landed] == [key for key, _ in sent] == [request.key]
    assert all(0 < seconds < 5 for _, seconds in (*landed, *sent))
    await p.transfer.stop()
    await d.transfer.stop()


async def test_a_taken_port_is_an_error_at_start(pair: Pair, tmp_path: Path) -> None:
    async with pair() as (_, d):
        parts = TransferParts(
            epoch=secrets.token_bytes(16),
            fingerprint=fingerprint(),
            geometry=GEOMETRY,
            keys=key_directory(tmp_path / "more"),
        )
        port = d.transfer.port
        second = DecodeTransfer(parts, [d.pool], d.record, LandingMemory(1024), host="127.0.0.1", port=port)
        with pytest.raises(OSError, match="in use"):
            await second.start()
