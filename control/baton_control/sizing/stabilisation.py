"""How fast a pool may follow what it needs: upwards at once; downwards with a window and a rest that doubles with every
second turn, or to what would have been enough for the last half hour. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from baton_control.sizing.readings import PoolSeen
from baton_control.sizing.remembered import HOUR_S, PoolMemory
from baton_control.sizing.spec import SizingSpec


def stabilised(
    spec: SizingSpec,
    pool: PoolSeen,
    memory: PoolMemory,
    target: int,
    shrunk: int,
    is_late: bool,
    known_since_s: float | None,
    horizon_s: float,
    now: float,
    enough: Callable[[int], int],
) -> tuple[int, str, PoolMemory]:
    """Workers to have now, why not fewer, and the pool's memory.

    `target`: needed now, a backlog included; `shrunk`: for the forecast alone with the margin. Only the latter is
    remembered: what worked off a backlog is free as soon as that is gone. `enough`: at least so many workers, as would
    have been so for the last half hour; asked only while the pool rests for longer than a start.
    """
    memory = replace(memory, turns=tuple(at for at in memory.turns if now - at < HOUR_S))
    needs = tuple((at, need) for at, need in memory.needs if now - at < spec.stabilisation_s)
    memory = replace(memory, needs=(*needs, (now, shrunk)))
    workers = pool.workers
    if target > workers:
        return target, "", _moved(memory, 1, now)
    most = max(target, *(need for _, need in memory.needs))
    if most >= workers:
        return workers, "", memory
    if is_late:
        return workers, f"could be {most}, but requests wait", memory
    why = _obstacle(spec, pool, known_since_s, now)
    if why:
        return workers, f"could be {most}, {why}", memory
    # What takes long to come back is not sent away twice before anybody knows whether the first time was right.
    rest_s = horizon_s * 2 ** (len(memory.turns) // 2)
    rested_s = inf if memory.changed_s is None else now - memory.changed_s
    why = f"needed at most {most} for {spec.stabilisation_s:.0f} s"
    if rested_s < rest_s:
        least = workers if rested_s < horizon_s else enough(most)
        if least >= workers:
            text = f"could be {most}, but it changed {rested_s:.0f} s ago and rests for {rest_s:.0f} s"
            return workers, text, memory
        most, why = least, f"{least} would have been enough for the last half hour"
    return max(most, workers - spec.max_step_down), why, _moved(memory, -1, now)


def _obstacle(spec: SizingSpec, pool: PoolSeen, known_since_s: float | None, now: float) -> str:
    """Why the pool may not shrink now; empty when it may."""
    if pool.routable is None:
        return "but it is unknown which workers are routable"
    if known_since_s is None or now - known_since_s < spec.stabilisation_s:
        return "but arrivals have not been known for long enough"
    return ""


def _moved(memory: PoolMemory, direction: int, now: float) -> PoolMemory:
    """`direction`: 1 when it grows, -1 when it shrinks."""
    turned = memory.direction == -direction
    turns = (*memory.turns, now) if turned else memory.turns
    return replace(memory, changed_s=now, direction=direction, turns=turns)


def with_orders(memory: PoolMemory, more: int, horizon_s: float, now: float) -> PoolMemory:
    """The memory with `more` workers on their way; those that should be there by now are forgotten."""
    orders = tuple(order for order in memory.orders if order[0] + horizon_s > now)
    return replace(memory, orders=(*orders, (now + horizon_s, more)) if more > 0 else orders)
