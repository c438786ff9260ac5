"""Garbage collections of a gateway process: full ones wait for a quiet moment.

Nobody is served during a collection. A full one visits every object that may be part of a cycle: 60 ms for the 85,000
of a busy process, 190 ms for those of 4,096 connections. Python starts one whenever the young objects that survived
are a quarter of the old ones, so most often while much arrives. They free little: nearly all garbage of requests is
freed at once, and cycles mostly by collections of young objects.
"""

from __future__ import annotations

import asyncio
import gc
import time

from baton_gateway.text.returned_memory import return_memory

YOUNG, MIDDLE, OLD = 2_000, 5, 200
"""Python collects after this many new objects, or collections of the generation before. The last one bounds what a
process that is never quiet holds: some 2,000,000 objects, the 700, 10 and 10 of Python's own 70,000."""
DUE = 10
"""A full collection is due after this many collections of the middle generation."""
QUIET_SHARE = 0.25
"""The event loop's thread is quiet if it worked for less than this share of the last interval."""
LOOK_S = 1.0


def settle() -> None:
    """Freeze the objects of start-up: a full collection would visit them again and delay every stream by 30 ms."""
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.collect()
    gc.freeze()


def is_full_collection_due(middle_collections: int, busy_share: float) -> bool:
    """Return whether to begin a full collection now.

    >>> is_full_collection_due(10, 0.1), is_full_collection_due(150, 0.9), is_full_collection_due(9, 0.1)
    (True, False, False)
    """
    return middle_collections >= DUE and busy_share < QUIET_SHARE


async def collect_when_quiet() -> None:
    """Collect, and return memory to the operating system, in quiet moments of the event loop. Never ends."""
    loop = asyncio.get_running_loop()
    looked_s, worked_s = loop.time(), time.thread_time()
    while True:
        await asyncio.sleep(LOOK_S)
        now, cpu_s = loop.time(), time.thread_time()
        if is_full_collection_due(gc.get_count()[2], (cpu_s - worked_s) / max(now - looked_s, LOOK_S)):
            gc.collect()
            await asyncio.to_thread(return_memory)
            now, cpu_s = loop.time(), time.thread_time()
        looked_s, worked_s = now, cpu_s
