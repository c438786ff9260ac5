"""What sizing remembers between decisions: a value that goes in and comes out. Safe to lose, small when saved.

Losing it costs the history behind forecast and stabilisation: nothing shrinks until a new window was seen in full.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from baton_control.sizing.capacity import Mix
from baton_control.sizing.workload import RequestShape
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
    """What arrived in one interval."""

    requests_per_s: float
    tokens_per_s: float
    """Prompt tokens that have to be computed."""


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Of one pool."""

    needs: tuple[tuple[float, int], ...] = ()
    """(when, workers that it needed with the margin for shrinking), over the stabilisation window"""
    changed_s: float | None = None
    turns: tuple[float, ...] = ()
    """When its direction changed, over an hour."""
    direction: int = 0
    orders: Orders = ()
    """Workers asked for lately and when they should be routable."""
    wanted: int | None = None
    """The last decision."""
    enough_s: float | None = None
    """Since when the pool has been as large as needed, all of it routable, without a queue."""
    correction: float = 1.0
    """How much more load a worker feels than the twin thinks; learned from what clients saw."""


@dataclass(frozen=True, slots=True)
class SizingMemory:
    """Of one deployment."""

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


def saved(memory: SizingMemory, now: float, epoch_s: float | None = None, limit: int = MAX_SAVED_BYTES) -> str:
    """The part worth keeping over a restart, as one line of JSON of at most `limit` bytes.

    Times become ages. `epoch_s` is the wall clock, which another process can compare; without it `now` has to be.
    """

    def ago(at: float | None) -> int | None:
        return None if at is None else round(now - at)

    stride = max(1, len(memory.shapes) // SAVED_SHAPES)
    fixed: dict[str, object] = {
        "v": 2,
        "at": round(now if epoch_s is None else epoch_s),
        "last": ago(memory.last_arrival_s),
        "mix": [
            [shape.prompt_tokens, shape.output_tokens, shape.cached_tokens]
            for shape in memory.shapes[::stride][:SAVED_SHAPES]
        ],
        "pools": {
            role.value: [ago(pool.changed_s), [ago(at) for at in pool.turns], pool.direction, pool.wanted]
            for role, pool in memory.pools.items()
        },
    }
    history = memory.history
    while True:
        rows = {
            "req": [float(f"{interval.requests_per_s:.3g}") for interval in history],
            "tok": [int(float(f"{interval.tokens_per_s:.3g}")) for interval in history],
        }
        text = json.dumps({**fixed, **rows}, separators=(",", ":"))
        if len(text) <= limit or not history:
            return text
        history = history[len(history) // 4 + 1 :]


def restored(text: str, now: float, epoch_s: float | None = None) -> SizingMemory:
    """A memory from `saved`; an empty one when the text is not what `saved` writes: it is safe to lose."""
    try:
        return _restored(json.loads(text), now, now if epoch_s is None else epoch_s)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return SizingMemory()


def _restored(document: dict[str, object], now: float, epoch_s: float) -> SizingMemory:
    if document["v"] != 2:
        return SizingMemory()
    gap = epoch_s - _number(document["at"])
    if not 0 <= gap < HOUR_S:
        return SizingMemory()

    def when(ago: object) -> float | None:
        return None if ago is None else now - gap - _number(ago)

    shapes = tuple(
        RequestShape(int(_number(p)), int(_number(o)), int(_number(c))) for p, o, c in _list(document["mix"])
    )
    pools = dict(SizingMemory().pools)
    for name, (changed, turns, direction, wanted) in _entries(document["pools"]):
        times = (when(at) for at in _list(turns))
        pools[Role(name)] = PoolMemory(
            changed_s=when(changed),
            turns=tuple(at for at in times if at is not None),
            direction=int(_number(direction)),
            wanted=None if wanted is None else int(_number(wanted)),
        )
    history = tuple(
        Interval(_number(requests), _number(tokens))
        for requests, tokens in zip(_list(document["req"]), _list(document["tok"]), strict=True)
    )
    return SizingMemory(
        last_arrival_s=when(document["last"]), history=history[-HISTORY:], shapes=shapes[:RECENT], pools=pools
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise TypeError("not a number")
    return float(value)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _entries(value: object) -> list[tuple[str, list[object]]]:
    if not isinstance(value, dict):
        raise TypeError("not a mapping")
    return list(value.items())
