"""A block of code that ends when the peer it listens to has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton_wire.liveness import LOOKS, Liveness, LivenessConfig, PeerState


@asynccontextmanager
async def bounded_silence(config: LivenessConfig) -> AsyncIterator[Liveness]:
    """Call `heard` of the liveness for every whole frame. Raises TimeoutError inside when the peer is dead.

    A plain time-out would hold a loop's own gap against the peer: frames that arrived meanwhile are read after the
    time-out.
    """
    now = asyncio.get_running_loop().time
    liveness = Liveness(config, now())
    async with asyncio.timeout(None) as limit:

        async def watch() -> None:
            while True:
                await asyncio.sleep(min(config.suspect_s / (2 * LOOKS), liveness.due_in(now())))
                if liveness.state(now()) is PeerState.DEAD:
                    limit.reschedule(now())
                    return

        watching = asyncio.create_task(watch())
        try:
            yield liveness
        finally:
            watching.cancel()
