"""The oracle: pools that follow what the arrivals need, known beforehand, raised where a replay of it misses the SLO.

What `needs_of` says comes from mean rates and one clumping for all loads; where that is too little, hindsight adds a
worker for as long as requests missed, until the whole run meets both percentiles. A worker that will die gets its
replacement in time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from baton_simulate.baselines.signals import Sizes
from baton_simulate.policies import LOOK_S, Needs, Scripted
from baton_simulate.replay import ReplayOutcome, Scenario, replay
from baton_wire.messages.values import POOL_ROLES, Role

ROUNDS = 12
AHEAD = 1.3
"""Of a start-up: some take longer."""
AFTER = {Role.PREFILL: 1, Role.DECODE: 4}
"""Intervals behind its arrival in which what a request missed may have been decided."""


def oracle(scenario: Scenario, needs: Needs) -> ReplayOutcome:
    """The first replay within the SLO; if there is none, the one that misses least."""
    seen: list[ReplayOutcome] = []
    for _ in range(ROUNDS):
        seen.append(replay(scenario, "oracle", Scripted(_followed(scenario, needs))))
        raised = _raised(scenario, needs, seen[-1])
        if raised is None:
            return seen[-1]
        needs = raised
    return min(seen, key=lambda outcome: outcome.misses)


def _followed(scenario: Scenario, needs: Needs) -> Callable[[float], Sizes]:
    ahead_s = AHEAD * scenario.startup_s + 2 * LOOK_S

    def sizes(now: float) -> Sizes:
        found = needs.between(now, now + ahead_s)
        for at, role in scenario.deaths:
            if now < at <= now + ahead_s:
                found[role] += 1
        return {role: min(count, scenario.spec.bounds_of[role].maximum) for role, count in found.items()}

    return sizes


def _raised(scenario: Scenario, needs: Needs, outcome: ReplayOutcome) -> Needs | None:
    """One worker more wherever a pool missed more than it may; None when the run as a whole meets both percentiles."""
    targets, workload = scenario.spec.targets, scenario.workload
    alone = scenario.model.prefill
    own_s = np.array(
        [
            alone.fixed_s + alone.prompt_s(prompt - cached, cached)
            for prompt, cached in zip(workload.prompt_tokens.tolist(), workload.cached_tokens.tolist(), strict=True)
        ]
    )
    # What comes before a first order can be there nobody helps, nor what misses the target alone.
    helped = workload.arrival_s > AHEAD * scenario.startup_s + 2 * LOOK_S
    missed = {
        Role.PREFILL: helped & (outcome.ttft_s > targets.ttft_s) & (own_s <= targets.ttft_s),
        Role.DECODE: helped & (outcome.tpot_s > targets.tpot_s),
    }
    place = np.minimum((workload.arrival_s // LOOK_S).astype(np.int64), len(needs.prefill) - 1)
    raised = {Role.PREFILL: needs.prefill, Role.DECODE: needs.decode}
    short = [role for role in POOL_ROLES if float(np.mean(missed[role])) > 1.0 - targets.share(role)]
    for role in short:
        raised[role] = _more(raised[role], place, missed[role], 1.0 - targets.share(role), AFTER[role])
    return Needs(raised[Role.PREFILL], raised[Role.DECODE], needs.mean_shape) if short else None


def _more(
    needs: tuple[int, ...], place: NDArray[np.int64], missed: NDArray[np.bool_], allowed: float, after: int
) -> tuple[int, ...]:
    all_of = np.bincount(place, minlength=len(needs))
    bad = np.bincount(place, weights=missed, minlength=len(needs)) > allowed * np.maximum(1, all_of)
    for _ in range(after):
        bad[1:] |= bad[:-1]
    return tuple(need + int(more) for need, more in zip(needs, bad.tolist(), strict=True))
