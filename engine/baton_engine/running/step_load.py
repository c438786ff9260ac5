"""What is in a step, for step-time models: prompt tokens, the positions they attend to, batch and KV tokens.

A plan holds only changes, so the context of each slot is followed from plan to plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.step_plan import StepPlan
from baton_wire.rules.step_times import attended_pairs


@dataclass(frozen=True, slots=True)
class StepLoad:
    prefill_tokens: int
    prefill_pairs: float
    """(token, attended position) pairs: t new tokens behind c computed ones have t · (c + t/2)."""
    prefill_chunks: int
    decode_rows: int
    kv_tokens: int
    """Tokens whose KV the decode rows read."""

    @property
    def rows(self) -> int:
        """Prefill chunks and decode rows."""
        return self.prefill_chunks + self.decode_rows


class LoadMeter:
    """Follows the plans of one scheduler; call `load` once for each, in order."""

    def __init__(self, max_slots: int) -> None:
        self._contexts = [0] * max_slots

    def load(self, plan: StepPlan) -> StepLoad:
        contexts = self._contexts
        for opened in plan.opens:
            contexts[opened.slot] = opened.context_tokens
        tokens, pairs = 0, 0.0
        for chunk in plan.prefill:
            count = len(chunk.tokens)
            tokens += count
            pairs += attended_pairs(count, chunk.start)
            contexts[chunk.slot] = chunk.start + count
            for slot in chunk.sample:
                contexts[slot] = chunk.start + count
        kv_tokens = 0
        for slot in plan.decode:
            contexts[slot] += 1
            kv_tokens += contexts[slot]
        return StepLoad(tokens, pairs, len(plan.prefill), len(plan.decode), kv_tokens)
