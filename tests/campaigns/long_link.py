"""Hand-overs without end over one link of real sockets: nothing may grow, every ledger must be empty."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import tracemalloc
from pathlib import Path

import psutil
from bench.results import Cell

from baton_kv_transfer.handover import TransferConfig
from baton_testing.kv_transfer.builders import key_directory
from baton_testing.kv_transfer.transfer_pair import Decode, Prefill, Request, pairs
from baton_wire.messages.values import Reason

Rows = list[dict[str, Cell]]
AT_ONCE = 9
CANCEL_EVERY = 50
REPORT_EVERY_S = 20.0
FORGET_S = 125.0
"""Ended attempts are remembered for 120 s: only after that has the ledger reached its steady size."""
MAX_SLOPE_BYTES = 64
CONFIG = TransferConfig(tick_s=0.05)


def transfers(count: int, seed: int) -> tuple[Rows, bool]:
    """`count` hand-overs over one link; one in `CANCEL_EVERY` is cancelled."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_run(count, Path(folder)))


async def _run(count: int, folder: Path) -> tuple[Rows, bool]:
    process, began = psutil.Process(), time.monotonic()
    samples: list[tuple[float, int, int]] = []  # seconds, hand-overs, resident bytes
    done, reported_s = 0, began
    async with pairs(key_directory(folder / "keys"))({"config": CONFIG}, {"config": CONFIG}) as (prefill, decode):
        landed = 0
        links = prefill.transfer.stats().links
        while done < count:
            landed += sum(await asyncio.gather(*(_one(prefill, decode, n, done + n) for n in range(AT_ONCE))))
            done += AT_ONCE
            _forget(prefill, decode)
            if time.monotonic() - reported_s > REPORT_EVERY_S or done >= count:
                reported_s = time.monotonic()
                samples.append((reported_s - began, done, process.memory_info().rss))
                print(f"transfers: {done:,} of {count:,}, {samples[-1][2] >> 20} MiB resident", flush=True)
        await asyncio.sleep(2 * CONFIG.tick_s)
        sent, seen = prefill.transfer.stats(), decode.transfer.stats()
        held = _held(prefill, decode)
        traced = await _traced_growth(prefill, decode)
        links = max(links, sent.links)
    steady = [sample for sample in samples if sample[0] > FORGET_S] or samples[-2:]
    slope = (steady[-1][2] - steady[0][2]) / max(1, steady[-1][1] - steady[0][1])
    rows: Rows = [
        {"what": "hand-overs", "count": done},
        {"what": "of them landed", "count": landed},
        {"what": "KV bytes sent", "count": sent.bytes_sent},
        {"what": "links at the end", "count": links},
        {"what": "open hand-overs, puts, landing bytes and lingering spans at the end", "count": held},
        {"what": "resident bytes a hand-over, in the steady part", "count": round(slope, 1)},
        {"what": "traced bytes a hand-over that stayed, over the last 400", "count": round(traced, 1)},
        {"what": "hand-overs a second", "count": round(done / (time.monotonic() - began))},
    ]
    is_good = held == 0 and landed == done - done // CANCEL_EVERY and seen.links == 1 and slope < MAX_SLOPE_BYTES
    return rows, is_good


async def _one(prefill: Prefill, decode: Decode, lane: int, number: int) -> bool:
    request = Request(prefill, decode, tokens=1 + number % 8, first_block=3 + 6 * lane)
    request.open()
    request.expect()
    request.compute(request.tokens)
    if number % CANCEL_EVERY == CANCEL_EVERY - 1:
        prefill.transfer.cancelled(request.key, Reason.CANCELLED)
        decode.transfer.cancelled(request.key, Reason.CANCELLED)
    else:
        request.draw()
    await _await_end(request, prefill, decode)
    return any(entry[0] == request.key for entry in decode.record.landed)


async def _await_end(request: Request, prefill: Prefill, decode: Decode) -> None:
    """Wait until both ends reported to their workers. Raises TimeoutError."""
    ended = decode.record.landed, decode.record.failed
    async with asyncio.timeout(60):
        while request.key not in prefill.record.released:  # noqa: ASYNC110 - a listener, no event
            await asyncio.sleep(0.003)
        while not any(entry[0] == request.key for entries in ended for entry in entries):  # noqa: ASYNC110
            await asyncio.sleep(0.003)


def _forget(prefill: Prefill, decode: Decode) -> None:
    """The test's own records are not what is measured."""
    for record in (prefill.record.calls, prefill.record.granted, prefill.record.released, prefill.record.reports):
        record.clear()
    decode.record.landed.clear()
    decode.record.failed.clear()


def _held(prefill: Prefill, decode: Decode) -> int:
    sent, seen = prefill.transfer.stats().handovers, decode.transfer.stats().handovers
    landing = seen.landing.total_bytes - seen.landing.free_bytes
    return sum(sent.by_state.values()) + sent.puts_in_flight + sum(seen.by_state.values()) + seen.lingering + landing


async def _traced_growth(prefill: Prefill, decode: Decode) -> float:
    """Bytes that Python still holds after 400 more hand-overs, a hand-over; the memory of ended attempts included."""
    tracemalloc.start()
    try:
        for _ in range(10):
            await asyncio.gather(*(_one(prefill, decode, n, n) for n in range(AT_ONCE)))
            _forget(prefill, decode)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(50):
            await asyncio.gather(*(_one(prefill, decode, n, n) for n in range(AT_ONCE)))
            _forget(prefill, decode)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / 400
    finally:
        tracemalloc.stop()
