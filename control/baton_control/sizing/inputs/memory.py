"""The memory that one decision leaves for the next: a value, safe to lose and small when saved.

Losing it costs the history of the forecast and of stabilisation: nothing shrinks until a new window was observed in
full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Lateness
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_wire.messages.values import POOL_ROLES, Role

HISTORY = 180
"""Intervals of arrivals that are kept."""
RECENT = 256
"""Requests that are kept to draw from."""
SAVED_SHAPES = 40
MAX_SAVED_BYTES = 4096
HOUR_S = 3600.0

Orders = tuple[tuple[float, int], ...]
"""(when they should be routable, how many), in the order in which they were asked for."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The arrivals of one interval."""

    requests_per_s: float
    prefill_workers: float
    decode_workers: float
    """Workers that the interval filled, while each does as much as it can."""
    mix: Mix | None = None
    """The lengths of that time; None: they are no longer known."""

    def workers(self, role: Role) -> float:
        return self.prefill_workers if role is Role.PREFILL else self.decode_workers


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """The memory of one pool."""

    needs: tuple[tuple[float, int], ...] = ()
    """(when, workers that were needed with the margin for shrinking), over the stabilisation window"""
    changed_s: float | None = None
    orders: Orders = ()
    """Workers asked for lately and when they should be routable."""
    served: tuple[tuple[int, Lateness], ...] = ()
    """(routable workers, what clients saw) in each interval"""


@dataclass(frozen=True, slots=True)
class SizingMemory:
    """The memory of one deployment."""

    since_s: float | None = None
    """Since when arrivals have been known without a gap."""
    last_arrival_s: float | None = None
    """When a request last came or was last at work, or when watching began."""
    unknown_intervals: int = 0
    history: tuple[Interval, ...] = ()
    shapes: tuple[RequestShape, ...] = ()
    mix: Mix | None = None
    mix_s: float = 0.0
    pools: Mapping[Role, PoolMemory] = field(default_factory=lambda: {role: PoolMemory() for role in POOL_ROLES})

    def with_pool(self, role: Role, pool: PoolMemory) -> SizingMemory:
        return replace(self, pools={**self.pools, role: pool})

    def without_needs(self) -> SizingMemory:
        """The memory for a stabilisation window that starts anew."""
        return replace(self, pools={role: replace(pool, needs=()) for role, pool in self.pools.items()})


class _Saved(msgspec.Struct, frozen=True):
    """The saved part of a memory. Times are ages in seconds; names are short, because a status has little room."""

    v: Literal[5]
    at: float
    last: float | None
    mix: list[tuple[int, int, int]]
    """(prompt, output, cached) tokens"""
    pools: dict[Role, float | None]
    """Seconds since the last change."""
    req: list[float]
    work: dict[Role, list[float]]


def save(memory: SizingMemory, now: float, epoch_s: float | None = None, limit: int = MAX_SAVED_BYTES) -> str:
    """The part worth keeping over a restart, as one line of JSON of at most `limit` bytes.

    Times become ages. `epoch_s` is the wall clock, which another process can compare; without it `now` has to be.
    """

    def ago(at: float | None) -> int | None:
        return None if at is None else round(now - at)

    stride = max(1, len(memory.shapes) // SAVED_SHAPES)
    shapes = memory.shapes[::stride][:SAVED_SHAPES]
    history = memory.history
    while True:
        document = _Saved(
            v=5,
            at=round(now if epoch_s is None else epoch_s),
            last=ago(memory.last_arrival_s),
            mix=[(shape.prompt_tokens, shape.output_tokens, shape.cached_tokens) for shape in shapes],
            pools={role: ago(pool.changed_s) for role, pool in memory.pools.items()},
            req=[float(f"{interval.requests_per_s:.3g}") for interval in history],
            work={role: [float(f"{interval.workers(role):.3g}") for interval in history] for role in POOL_ROLES},
        )
        text = msgspec.json.encode(document).decode()
        if len(text) <= limit or not history:
            return text
        history = history[len(history) // 4 + 1 :]


def restore(text: str, now: float, epoch_s: float | None = None) -> SizingMemory:
    """A memory from `save`; an empty one when the text is not what `save` writes: it is safe to lose."""
    try:
        document = msgspec.json.decode(text, type=_Saved)
        work = (document.work[role] for role in POOL_ROLES)
        history = tuple(Interval(*figures) for figures in zip(document.req, *work, strict=True))
    except (ValueError, KeyError):  # msgspec's errors are of the former
        return SizingMemory()
    gap = (now if epoch_s is None else epoch_s) - document.at
    if not 0 <= gap < HOUR_S:
        return SizingMemory()
    pools = dict(SizingMemory().pools)
    for role, changed in document.pools.items():
        pools[role] = PoolMemory(changed_s=None if changed is None else now - gap - changed)
    return SizingMemory(
        last_arrival_s=None if document.last is None else now - gap - document.last,
        history=history[-HISTORY:],
        shapes=tuple(RequestShape(*lengths) for lengths in document.mix)[:RECENT],
        pools=pools,
    )
