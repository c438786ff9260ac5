"""Bandwidth of a pair's link, measured when the link comes up and compared with the configured minimum.

A library's report of its lanes is not what the lanes reach: UCX falls back to TCP silently. So bytes are written to
unused memory and timed until the peer has taken them in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton_kv_transfer.transports.seam import WriteDone
from baton_wire.messages.measures import Lanes

Probe = Callable[[int, WriteDone], None]
"""Write this many bytes to unused memory, then call back as any write does."""

WARM_UP_BYTES = 64 << 10
PROBE_BYTES = 4 << 20
IN_FLIGHT = 2
MAX_PROBES = 64


@dataclass(frozen=True, slots=True)
class LinkReport:
    """One pair as its prefill worker sees it."""

    peer: str
    """Address of the decode worker's pair port."""
    transport: str
    lane: str
    """Name of the lane that the bytes take; ends in `unknown` when the transport does not say."""
    bytes_per_s: float | None
    """Measured when the link came up; None: not known (yet)."""
    below_minimum: bool | None
    """Slower than the minimum; None: no minimum, or not known."""
    recent_bytes_per_s: float | None = None
    """In the last minute, while bytes were under way; None: none were."""


def lanes(links: Sequence[LinkReport]) -> Lanes | None:
    """Summary of the links for the process that sizes the pools; None when none was measured."""
    known = [(link.bytes_per_s, link) for link in links if link.bytes_per_s is not None]
    if not known:
        return None
    rate, slowest = min(known, key=lambda measured: measured[0])
    too_slow = sum(link.below_minimum is True for _, link in known)
    return Lanes(measured=len(known), too_slow=too_slow, slowest=slowest.lane[:64], slowest_bytes_per_s=rate)


def is_below(bytes_per_s: float | None, minimum: float | None) -> bool | None:
    """True if a measured link is too slow. Unknown stays unknown."""
    return None if bytes_per_s is None or minimum is None else bytes_per_s < minimum


async def first_bytes(probe: Probe, timeout_s: float) -> str | None:
    """The reason why no bytes arrive; None when they do."""
    ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    probe(WARM_UP_BYTES, _once(ended))
    try:
        return await asyncio.wait_for(asyncio.shield(ended), timeout_s)
    except TimeoutError:
        return f"the first bytes did not arrive within {timeout_s:g} s"


async def measure(probe: Probe, budget_s: float, timeout_s: float) -> float | None:
    """Bytes per second of `PROBE_BYTES` writes, two at a time, for about `budget_s`; None when they do not end well.

    Whatever else the link carries meanwhile lowers the figure.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if await _written(probe, WARM_UP_BYTES) is not None:
                return None
            return await _timed(probe, budget_s)
    except TimeoutError:
        return None


async def _timed(probe: Probe, budget_s: float) -> float | None:
    loop = asyncio.get_running_loop()
    begun_s, count = loop.time(), 0
    while count < MAX_PROBES:
        details = await asyncio.gather(*(_written(probe, PROBE_BYTES) for _ in range(IN_FLIGHT)))
        if any(detail is not None for detail in details):
            return None
        count += IN_FLIGHT
        if loop.time() - begun_s >= budget_s:
            break
    return count * PROBE_BYTES / max(loop.time() - begun_s, 1e-9)


async def _written(probe: Probe, length: int) -> str | None:
    ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    probe(length, _once(ended))
    return await ended


def _once(future: asyncio.Future[str | None]) -> WriteDone:
    """The write may end when it is no longer awaited."""

    def done(detail: str | None) -> None:
        if not future.done():
            future.set_result(detail)

    return done
