"""The pools that a load of sessions needs, by arithmetic: rates of an undisturbed run, step times, and KV that is held.

Three answers are compared: a prefill and a decode pool, the same where prefill workers keep some answers, and workers
that do both. Workers that do both hold each context once, but every step of theirs has rows. Pools hold it twice, for
the cache and for the rows. Kept answers need fewer decode workers, but leave prompts only what their rows leave.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import ceil
from typing import Final

from baton_control.sizing.decision.cache_floor import CACHE_FILL, COLD_SHARE, find_cache_floor
from baton_control.sizing.inputs.context_use import ContextUse
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_simulate.sessions.prefix_cache import BeginningNumbers
from baton_simulate.sessions.session_load import IdealCache, SessionLoad
from baton_simulate.sessions.turn_order import LoopLimits, TurnOrder
from baton_wire.rules.context_reuse import WINDOWS_S, ContextReuse

UTILISATION: Final = 0.8
"""The share of a worker's rate that a plan counts on."""
LOOK_S: Final = 15.0
"""Contexts in use are counted so often; the most counts."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A plan for a load of sessions. Workers are those of pools, or of one group that does both."""

    turns_per_s: float
    prompt_tokens: float
    """Figure of a mean turn, as are the next two."""
    missing_tokens: float
    output_tokens: float
    held_tokens: int
    """KV of the contexts that sessions come back to within `window_s`."""
    window_s: float
    prefill: int
    prefill_for_compute: int
    decode: int
    decode_batch: int
    kept_share: float
    """Share of the answers that prefill workers keep."""
    aggregated: int
    aggregated_for_compute: int

    @property
    def mode(self) -> str:
        """The value of `routing.disaggregation`."""
        return "Auto" if self.prefill + self.decode <= self.aggregated else "Never"

    @property
    def reason(self) -> str:
        """Why the mode needs fewer workers."""
        pools = f"{self.prefill} + {self.decode} workers in pools, {self.aggregated} that do both"
        if self.mode == "Auto" and self.kept_share:
            pools += f"; prefill workers have time to keep {self.kept_share:.0%} of the answers"
        if self.aggregated > self.aggregated_for_compute or self.prefill > self.prefill_for_compute:
            held = f"{self.held_tokens / 1e6:.3g}M tokens of contexts are continued within {self.window_s:.0f} s"
            return f"{pools}; {held}, and their KV decides, not computing"
        if self.mode == "Never":
            return f"{pools}; so small pools would stand idle"
        return f"{pools}; without rows, prompts are computed in full steps, and rows wait for no prompts"


def plan_sessions(load: SessionLoad, limits: LoopLimits, model: WorkerModel, targets: Targets) -> SessionPlan:
    """The plan for a load, from a run in which nothing waits for anything but its own computing."""
    use, duration_s, prefill_s, context = _run(load, limits, model, targets)
    turns, rate = len(load.turns), len(load.turns) / duration_s
    output = sum(turn.output_tokens for turn in load.turns) / turns
    batch = _batch(model, context, targets.tpot_s)
    step_s = model.decode.seconds(batch, round(batch * context))
    decode = max(1, ceil(rate * output * step_s / batch / UTILISATION))
    computing = max(1, ceil(rate * prefill_s / UTILISATION))
    prompt = use.prompt_tokens / turns
    cold_s = model.prefill.fixed_s + model.prefill.prompt_s(prompt)
    floor = find_cache_floor(
        use,
        model.kv_capacity_tokens,
        computing,
        1.0 - targets.ttft_share,
        is_cold_late=cold_s > COLD_SHARE * targets.ttft_s,
    )
    held = 0 if floor is None else floor.live_tokens
    row_s = model.decode.seconds(2, round(2 * context)) - model.decode.seconds(1, round(context))
    fixed_s = model.decode.seconds(1, round(context)) - row_s
    left = max(0.05, 1.0 - fixed_s / targets.tpot_s)
    both = max(1, ceil(rate * (prefill_s + row_s * output) / left / UTILISATION))
    prefill = max(computing, 0 if floor is None else floor.workers)
    # Pieces next to a prefill worker's own rows take what these leave of a step, on all prefill workers alike.
    spare_s = prefill * left * UTILISATION - rate * prefill_s
    decode_load = rate * output * step_s / batch / UTILISATION
    most_kept = max(0.0, min(1.0, spare_s / (rate * row_s * output))) if row_s > 0 else 0.0
    fewer = max(1, ceil((1.0 - most_kept) * decode_load))
    kept_share = max(0.0, 1.0 - fewer / decode_load) if fewer < decode else 0.0
    return SessionPlan(
        turns_per_s=rate,
        prompt_tokens=prompt,
        missing_tokens=use.missing_tokens / turns,
        output_tokens=output,
        held_tokens=held,
        window_s=WINDOWS_S[0] if floor is None else floor.window_s,
        prefill=prefill,
        prefill_for_compute=computing,
        decode=min(decode, fewer),
        decode_batch=batch,
        kept_share=kept_share,
        aggregated=max(both, ceil(held / (CACHE_FILL * model.kv_capacity_tokens))),
        aggregated_for_compute=both,
    )


def _run(
    load: SessionLoad, limits: LoopLimits, model: WorkerModel, targets: Targets
) -> tuple[ContextUse, float, float, float]:
    """(use of contexts, seconds, mean seconds of prefill, mean context while decoding)"""
    order, ideal, reuse, numbers = TurnOrder(load, limits), IdealCache(), ContextReuse(), BeginningNumbers()
    events = [(at_s, place, False) for at_s, place in order.begin()]
    heapq.heapify(events)
    live, looked_s, now = [0] * len(WINDOWS_S), 0.0, 0.0
    flows = [0, 0, 0, 0]
    reused = [0] * len(WINDOWS_S)
    prefill_s = row_tokens = 0.0

    def look() -> None:
        counts = reuse.take(now)
        for place, value in enumerate(counts.live):
            live[place] = max(live[place], value)
            reused[place] += counts.reused[place]
        totals = (counts.prompt_tokens, counts.first_cached, counts.cacheable_tokens, counts.missing_tokens)
        flows[:] = [flow + value for flow, value in zip(flows, totals, strict=True)]

    while events:
        now, place, is_end = heapq.heappop(events)
        if now - looked_s >= LOOK_S:
            look()
            looked_s = now
        if is_end:
            for at_s, following in order.ended(place, now):
                heapq.heappush(events, (at_s, following, False))
            continue
        if not order.may_send(place):
            continue
        turn = load.turns[place]
        tokens, cached = turn.prompt_tokens, ideal.add(turn.prompt)
        places, end = [], 0
        for number, length in numbers.beginnings(turn.prompt):
            end += length
            places.append((number.to_bytes(8, "little"), end))
        reuse.count(reversed(places), tokens, cached, tokens - cached, now)
        own_s = model.prefill.fixed_s + model.prefill.prompt_s(tokens - cached, cached)
        prefill_s += own_s
        row_tokens += turn.output_tokens * (tokens + turn.output_tokens / 2)
        heapq.heappush(events, (now + own_s + turn.output_tokens * targets.tpot_s, place, True))
    look()
    use = ContextUse(flows[0], flows[1], flows[2], flows[3], tuple(reused), tuple(live))
    outputs = sum(turn.output_tokens for turn in load.turns)
    return use, max(1.0, now), prefill_s / len(load.turns), row_tokens / outputs


def _batch(model: WorkerModel, context: float, tpot_s: float) -> int:
    """The largest decode batch whose steps stay within the target and whose KV fits; at least 1."""
    most = min(model.max_sequences, int(model.kv_capacity_tokens / context))
    batch = 1
    while batch < most and model.decode.seconds(batch + 1, round((batch + 1) * context)) <= tpot_s:
        batch += 1
    return batch
