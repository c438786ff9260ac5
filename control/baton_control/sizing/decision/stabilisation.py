"""How fast a pool may follow what it needs: upwards at once; downwards after a window and a rest, to what is enough for
the last half hour. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from baton_control.sizing.inputs.memory import PoolMemory
from baton_control.sizing.inputs.observations import PoolSeen
from baton_control.sizing.inputs.sizing_spec import SizingSpec

SPARE = 1.15
"""What is there may be so many times what would do: a smaller pool must carry this much more than the forecast, so that
it does not have to grow again at once, and another type of accelerator has to be this much cheaper."""


def stabilised(  # noqa: PLR0913
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
    remembered: what worked off a backlog is free as soon as that is gone. `enough`: at least so many workers, and as
    many as the last half hour asks for; asked only when nothing else keeps the pool.
    """
    needs = tuple((at, need) for at, need in memory.needs if now - at < spec.stabilisation_s)
    memory = replace(memory, needs=(*needs, (now, shrunk)))
    workers = pool.workers
    if target > workers:
        return target, "", replace(memory, changed_s=now)
    most = max(target, *(need for _, need in memory.needs))
    if most >= workers:
        return workers, "", memory
    if is_late:
        return workers, f"could be {most}, but requests wait", memory
    why = _obstacle(spec, pool, known_since_s, now)
    if why:
        return workers, f"could be {most}, {why}", memory
    rested_s = inf if memory.changed_s is None else now - memory.changed_s
    if rested_s < horizon_s:
        text = f"could be {most}, but it changed {rested_s:.0f} s ago and rests for {horizon_s:.0f} s"
        return workers, text, memory
    least = enough(most)
    if least >= workers:
        return workers, f"could be {most}, but fewer were too few for the last half hour", memory
    why = f"needed at most {most} for {spec.stabilisation_s:.0f} s"
    if least > most:
        why += f", {least} for the last half hour"
    return max(least, workers - spec.max_step_down), why, replace(memory, changed_s=now)


def _obstacle(spec: SizingSpec, pool: PoolSeen, known_since_s: float | None, now: float) -> str:
    """Why the pool may not shrink now; empty when it may."""
    if pool.routable is None:
        return "but it is unknown which workers are routable"
    if known_since_s is None or now - known_since_s < spec.stabilisation_s:
        return "but arrivals have not been known for long enough"
    return ""


def with_orders(memory: PoolMemory, more: int, horizon_s: float, now: float) -> PoolMemory:
    """The memory with `more` workers on their way; those that should be there by now are forgotten."""
    orders = tuple(order for order in memory.orders if order[0] + horizon_s > now)
    return replace(memory, orders=(*orders, (now + horizon_s, more)) if more > 0 else orders)
