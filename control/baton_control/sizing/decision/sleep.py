"""Whether pools sleep now: after a fixed quiet time, or when that is cheaper, by what is remembered of gaps. Pure.

What the quiet time is worth is `idle_gaps`' business. Here is what counts as quiet, and which requests a wake makes
late.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from baton_control.sizing.decision.idle_gaps import Prices, QuietTime, counted, ended, quiet_time
from baton_control.sizing.inputs.memory import SizingMemory
from baton_control.sizing.inputs.observations import Arrivals, Observed, ProvenZero
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_wire.messages.values import POOL_ROLES


def is_idle(seen: Observed) -> bool:
    """Proven: nothing came, nothing waits, nothing is at work."""
    return all(isinstance(each, ProvenZero) for each in (seen.arrivals, seen.queued_tokens, seen.running))


def sleeps_after(spec: SizingSpec, seen: Observed, memory: SizingMemory, epoch_s: float) -> QuietTime | None:
    """The quiet time that ends in sleep; None: while something is at work, in a schedule's window, and where nobody
    asked for sleep."""
    if not is_idle(seen) or any(spec.floor(role, epoch_s) for role in POOL_ROLES):
        return None
    if spec.scale_to_zero_after_s is not None:
        return QuietTime(spec.scale_to_zero_after_s, "")
    awake = spec.cost_per_hour(dict.fromkeys(POOL_ROLES, 1))
    if spec.cost_of_miss is None or awake is None:
        return None
    found = quiet_time(memory.gaps, Prices(awake, spec.cost_of_miss), _start_s(spec, seen), spec.stabilisation_s)
    return None if found.seconds == inf else found


def is_quiet(seen: Observed, memory: SizingMemory, after: QuietTime, now: float) -> bool:
    """Of idle pools. Anything unknown starts the wait anew, but wakes nobody: proof that nothing came is enough to
    sleep on."""
    if memory.last_arrival_s is None:
        return False
    slept = not any(seen.pool(role).workers for role in POOL_ROLES)
    return slept or now - memory.last_arrival_s >= after.seconds


def with_arrivals(spec: SizingSpec, seen: Observed, memory: SizingMemory, now: float) -> SizingMemory:
    """The memory with the gap that these arrivals ended, and with those behind one. Before they are learned from."""
    came = seen.arrivals
    if not isinstance(came, Arrivals):
        return memory
    memory = gap_ended(spec, seen, memory, now - came.seconds, now)
    return replace(memory, gaps=counted(memory.gaps, came.count, came.seconds, now))


def gap_ended(spec: SizingSpec, seen: Observed, memory: SizingMemory, began_s: float, now: float) -> SizingMemory:
    """The memory with the gap that ends now, if there was one. Requests behind it have come since `began_s`."""
    if memory.last_arrival_s is None:
        return memory
    gap_s, start_s = now - memory.last_arrival_s, _start_s(spec, seen)
    return replace(memory, gaps=ended(memory.gaps, gap_s, began_s, start_s, spec.stabilisation_s))


def _start_s(spec: SizingSpec, seen: Observed) -> float:
    """Who comes within this time of a wake cannot have a first token within the target."""
    starts = (seen.pool(role).startup_s for role in POOL_ROLES)
    slowest_s = max(spec.startup_s if each is None else each for each in starts)
    return max(0.0, slowest_s - spec.targets.ttft_s)
