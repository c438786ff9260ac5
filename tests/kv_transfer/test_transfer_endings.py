"""Both drivers over real sockets: every ending of a hand-over is reported once at each side, and frees what it held."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace

import pytest

from baton_kv_transfer.handover import Reservation
from baton_testing.kv_transfer.builders import FAST, GEOMETRY, eventually
from baton_testing.kv_transfer.transfer_pair import Decode, Pair, Request, soon
from baton_wire.messages.values import Address, PeerRef, Reason

STEPS = ["open", "expect", "compute 9", "compute all", "draw"]


@pytest.mark.parametrize("at", range(1, len(STEPS) + 1))
@pytest.mark.parametrize("who", ["prefill", "decode", "both"])
@pytest.mark.parametrize("pause_s", [0.0, 0.01])
async def test_a_cancel_at_every_step_frees_both_sides(pair: Pair, at: int, who: str, pause_s: float) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=60)
        request.open()  # so that the link is up
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
            p.transfer.cancelled(request.key)
        if who in ("decode", "both"):
            d.transfer.cancelled(request.key)
        if who == "prefill" and at == 1:
            request.expect()
        expected = at > 1 or (who == "prefill" and at == 1)
        if who == "decode" and at == 1:
            d.transfer.refused(request.key, p.epoch, Reason.CANCELLED)
        await eventually(lambda: request.key in p.record.released)
        ends = [*d.record.landed, *d.record.failed]
        if expected:
            await eventually(lambda: [*d.record.landed, *d.record.failed])
            ends = [*d.record.landed, *d.record.failed]
        assert len(ends) == expected
        assert p.record.released.count(request.key) == 1
        assert p.record.reports == []
        await eventually(lambda: _is_idle(d))


def _is_idle(d: Decode) -> bool:
    seen = d.transfer.stats().handovers
    is_free = seen.landing.free_bytes == seen.landing.total_bytes
    return is_free and seen.lingering == 0 and not any(seen.by_state.values())


async def test_what_can_never_fit_the_landing_region_is_refused(pair: Pair) -> None:
    async with pair(decode={"landing_bytes": 2 * GEOMETRY.block_bytes}) as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        request.expect()
        assert await request.ended() is Reason.TOO_LONG
        assert [report[1] for report in p.record.reports] == [Reason.TOO_LONG]


async def test_a_refusal_of_the_engine_ends_the_other_side(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        await eventually(lambda: p.transfer.stats().links)
        d.transfer.queued(request.key, p.epoch, 3, soon())
        d.transfer.refused(request.key, p.epoch, Reason.NO_CAPACITY, "the queue is full")
        await eventually(lambda: request.key in p.record.released)
        assert p.record.reports == [(request.key, Reason.NO_CAPACITY, "rejected by decode: the queue is full")]
        assert d.record.failed == []


async def test_a_dead_decode_worker_is_told_within_the_bound(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        request.expect()
        await eventually(lambda: p.transfer.stats().handovers.by_state["sending"] == 1)  # type: ignore[index]
        await d.transfer.stop()
        await eventually(lambda: request.key in p.record.released, timeout_s=15.0)
        assert p.record.reports[0][1] in (Reason.PEER_LOST, Reason.DRAINING)
        assert [entry[1] for entry in d.record.failed] == [Reason.DRAINING]


async def test_a_dead_prefill_worker_is_told_within_the_bound(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        request.open()
        request.expect()
        request.compute(9)
        await eventually(lambda: d.transfer.stats().bytes_received)
        await p.transfer.stop()
        assert p.record.released == [request.key]
        await eventually(lambda: d.record.failed, timeout_s=15.0)
        assert d.record.failed[0][1] in (Reason.PEER_LOST, Reason.DRAINING)
        await eventually(lambda: _is_idle(d))


async def test_another_process_at_the_address_is_another_worker(pair: Pair) -> None:
    async with pair() as (p, d):
        request = Request(p, d, tokens=24)
        stale = PeerRef(address=d.ref.address, epoch=secrets.token_bytes(16))
        p.transfer.opened(request.key, stale, 24, soon())
        await eventually(lambda: request.key in p.record.released, timeout_s=15.0)
        assert p.record.reports[0][1] is Reason.PEER_LOST
        assert "another process" in p.record.reports[0][2]
        again = Request(p, d, tokens=24)
        p.transfer.opened(again.key, stale, 24, soon())
        await eventually(lambda: again.key in p.record.released, timeout_s=15.0)


async def test_nobody_at_the_address_is_told_when_the_wait_for_a_link_is_over(pair: Pair) -> None:
    config = replace(FAST, link_wait_s=0.3)
    async with pair({"config": config}, {"config": config}) as (p, d):
        request = Request(p, d, tokens=24)
        nowhere = PeerRef(address=Address(host="127.0.0.1", port=1), epoch=secrets.token_bytes(16))
        p.transfer.opened(request.key, nowhere, 24, soon())
        d.transfer.expected(request.key, secrets.token_bytes(16), Reservation(24, 0, request.target, (0,), soon()))
        await eventually(lambda: p.record.released and d.record.failed, timeout_s=15.0)
        assert p.record.reports[0][1] is Reason.PEER_LOST
        assert d.record.failed[0][1] is Reason.PEER_LOST
