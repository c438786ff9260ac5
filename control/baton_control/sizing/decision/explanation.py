"""The words behind a pool's size: its target, what clients measured in the last minute, and why the pool does not grow
while the target is missed. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_control.sizing.decision.demand import DecisionInputs
from baton_control.sizing.decision.pool_sizer import PoolDecision
from baton_control.sizing.inputs.observations import Lateness
from baton_wire.messages.values import Role

HELPS = 0.01
"""The least share of requests in time that one more worker has to add to be called a help."""
OTHER_CAUSE: Final = "look for another cause"
"""The end of an explanation where the size of the pool is not why a target is missed."""


def with_explanation(
    inputs: DecisionInputs, role: Role, rate_per_s: float, decision: PoolDecision, is_cut: bool
) -> PoolDecision:
    """The decision with the measured latency in its reason. `is_cut`: the reason already says what limits the pool."""
    served = inputs.seen.served.get(role)
    if served is None or served.requests == 0:
        return decision
    text = _measured(inputs, role, served)
    if _is_missed(inputs, role, served) and not is_cut:
        is_blamed = not _is_met_by_served(inputs, role, served) or _is_too_small(inputs, role, rate_per_s, decision)
        why = _why_no_more(inputs, role, rate_per_s, decision.workers) if is_blamed else ""
        text += f": {why}" if why else ""
    return replace(decision, reason=f"{decision.reason}; {text}")


def _is_missed(inputs: DecisionInputs, role: Role, served: Lateness) -> bool:
    return served.late > (1.0 - inputs.spec.targets.share(role)) * served.requests


def _is_met_by_served(inputs: DecisionInputs, role: Role, served: Lateness) -> bool:
    """True if the target is missed by requests without an answer alone: those that were served keep it."""
    if not served.unserved:
        return False
    answered = served.requests - served.unserved
    return served.late - served.unserved <= (1.0 - inputs.spec.targets.share(role)) * answered


def _is_too_small(inputs: DecisionInputs, role: Role, rate_per_s: float, decision: PoolDecision) -> bool:
    """True if by its step times a larger pool would keep the target for more requests."""
    now = inputs.sizer.share_met(role, inputs.mix, rate_per_s, decision.workers)
    return now < inputs.sizer.reachable_share(role, inputs.mix)


def _measured(inputs: DecisionInputs, role: Role, served: Lateness) -> str:
    """The latency of the last minute next to its target."""
    targets = inputs.spec.targets
    name, limit_s = "TTFT" if role is Role.PREFILL else "TPOT", targets.limit_s(role)
    is_missed, reached_s = _is_missed(inputs, role, served), served.reached_s
    if is_missed and served.unserved:
        text = f"{served.unserved} of {served.requests} requests in the last minute were refused or failed"
        if reached_s is None:
            return text
        word = "keeps" if _is_met_by_served(inputs, role, served) else "misses"
        figure = f"{name} p{100 * targets.share(role):g} {_ms(reached_s)}"
        return f"{text}; of the others {figure} {word} the target of {_ms(limit_s)}"
    if reached_s is None or (is_missed and reached_s <= limit_s):
        missed = f"{served.late:.0f} of {served.requests} requests in the last minute missed"
        return f"{missed} {name} {_ms(limit_s)} or got no answer"
    figure = f"{name} p{100 * targets.share(role):g} {_ms(reached_s)} in the last minute"
    return f"{figure} misses the target of {_ms(limit_s)}" if is_missed else f"{figure}, target {_ms(limit_s)}"


def _why_no_more(inputs: DecisionInputs, role: Role, rate_per_s: float, workers: int) -> str:
    """Why the pool does not grow; empty when it grows."""
    pool, bounds, sizer, mix = inputs.seen.pool(role), inputs.spec.bounds_of[role], inputs.sizer, inputs.mix
    wanted = inputs.spec.targets.share(role)
    if workers > pool.workers:
        return ""
    if pool.routable is not None and pool.routable < pool.workers:
        missing = pool.workers - pool.routable
        verb = "does" if missing == 1 else "do"
        return f"{missing} of {pool.workers} workers {verb} not serve: starting, or without an answer"
    alone = sizer.reachable_share(role, mix) / wanted
    if alone < wanted:
        return f"{_percent(1.0 - alone)} of the requests are over it even when alone: more workers do not help"
    if workers >= bounds.maximum:
        return f"at spec.{role.value}.replicas.max, {workers} {'worker' if workers == 1 else 'workers'}"
    now, more = (sizer.share_met(role, mix, rate_per_s, count) for count in (workers, workers + 1))
    size = f"{workers} of at most {bounds.maximum} workers"
    if now >= sizer.reachable_share(role, mix):
        return f"by its step times {size} keep the target ({_percent(now)} in time): {OTHER_CAUSE}"
    if more - now < HELPS:
        return f"{_percent(now)} would be in time with {workers}, {_percent(more)} with {workers + 1}: no help"
    return f"one more worker would help ({_percent(now)} to {_percent(more)} in time) if this lasts"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
