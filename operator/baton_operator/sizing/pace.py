"""How fast a pool may follow what it needs: at once upwards, with window, cooldown and a bound on turns downwards.
Pure.
"""

from __future__ import annotations

from dataclasses import replace

from baton_operator.sizing.memory import HOUR_S, PoolMemory
from baton_operator.sizing.spec import SizingSpec
from baton_operator.sizing.telemetry import PoolSeen

SMALL_TURN = 0.25
"""A pool that would shrink by no more than this share is near a threshold; its turns are counted."""


def paced(
    spec: SizingSpec,
    pool: PoolSeen,
    memory: PoolMemory,
    target: int,
    shrunk: int,
    known_since_s: float | None,
    now: float,
) -> tuple[int, str, PoolMemory]:
    """Workers to have now, why not fewer, and the pool's memory. `target`: needed now; `shrunk`: with the margin."""
    needs = tuple((at, need) for at, need in memory.needs if now - at < spec.stabilisation_s)
    memory = replace(memory, needs=(*needs, (now, max(target, shrunk))))
    memory = replace(memory, turns=tuple(turn for turn in memory.turns if now - turn[0] < HOUR_S))
    workers = pool.workers
    if target > workers:
        after = min(target, workers + spec.max_step_up)
        return after, "", _moved(memory, +1, now)
    most = max(need for _, need in memory.needs)
    if most >= workers:
        return workers, "", memory
    why = _obstacle(spec, pool, memory, most, known_since_s, now)
    if why:
        return workers, f"could be {most}, {why}", memory
    after = max(most, workers - spec.max_step_down)
    return after, f"needed at most {most} for {spec.stabilisation_s:.0f} s", _moved(memory, -1, now)


def _obstacle(
    spec: SizingSpec, pool: PoolSeen, memory: PoolMemory, most: int, known_since_s: float | None, now: float
) -> str:
    """Why the pool may not shrink now; empty when it may."""
    if pool.routable is None:
        return "but it is unknown which workers are routable"
    if known_since_s is None or now - known_since_s < spec.stabilisation_s:
        return "but arrivals have not been known for long enough"
    if memory.changed_s is not None and now - memory.changed_s < spec.cooldown_s:
        return "but it changed a moment ago"
    small = pool.workers - most <= max(1, int(SMALL_TURN * pool.workers))
    if small and memory.direction > 0 and len(memory.turns) > spec.max_reversals_per_hour - 2:
        return f"but it turned {len(memory.turns)} times in an hour"
    return ""


def _moved(memory: PoolMemory, direction: int, now: float) -> PoolMemory:
    turned = memory.direction == -direction
    turns = (*memory.turns, (now, direction)) if turned else memory.turns
    return replace(memory, changed_s=now, direction=direction, turns=turns)
