"""The load of a step, for step-time models: prompt tokens, the positions they attend to, batch and KV tokens.

A plan holds only changes, so the meter follows the context of each slot from plan to plan.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.step_plan import StepPlan
from baton_wire.rules.step_times import attended_pairs


@dataclass(frozen=True, slots=True)
class WindowLoad:
    """The part of a step's prompts and rows that layers with a window attend to."""

    window: int
    prefill_pairs: float
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class StepLoad:
    prefill_tokens: int
    prefill_pairs: float
    """(token, attended position) pairs: t new tokens after c computed ones have t · (c + t/2)."""
    prefill_chunks: int
    decode_rows: int
    kv_tokens: int
    """Tokens whose KV the decode rows read."""
    windowed: tuple[WindowLoad, ...] = ()
    """The loads of the model's layers with a window, one for each distinct window."""

    @property
    def rows(self) -> int:
        """Number of prefill chunks and decode rows."""
        return self.prefill_chunks + self.decode_rows


class LoadMeter:
    """Measures the plans of one scheduler; call `load` once for each plan, in order."""

    def __init__(self, max_slots: int, windows: tuple[int, ...] = ()) -> None:
        """`windows`: the distinct windows of the model's layers."""
        self._contexts = [0] * max_slots
        self._windows = windows

    def load(self, plan: StepPlan) -> StepLoad:
        contexts = self._contexts
        for opened in plan.opens:
            contexts[opened.slot] = opened.context_tokens
        tokens, pairs = 0, 0.0
        window_pairs, window_tokens = [0.0] * len(self._windows), [0] * len(self._windows)
        for chunk in plan.prefill:
            count = len(chunk.tokens)
            tokens += count
            pairs += attended_pairs(count, chunk.start)
            for place, window in enumerate(self._windows):
                window_pairs[place] += windowed_pairs(count, chunk.start, window)
            contexts[chunk.slot] = chunk.start + count
            for slot in chunk.sample:
                contexts[slot] = chunk.start + count
        kv_tokens = 0
        for slot in plan.decode:
            contexts[slot] += 1
            kv_tokens += contexts[slot]
            for place, window in enumerate(self._windows):
                window_tokens[place] += min(window, contexts[slot])
        windowed = tuple(map(WindowLoad, self._windows, window_pairs, window_tokens))
        chunks = sum(bool(chunk.tokens) for chunk in plan.prefill)
        return StepLoad(tokens, pairs, chunks, len(plan.decode), kv_tokens, windowed)


def windowed_pairs(tokens: int, computed: int, window: int) -> float:
    """`attended_pairs` of a layer whose queries see the last `window` positions only."""
    growing = max(0, min(tokens, window - computed))
    return attended_pairs(growing, computed) + float(window) * (tokens - growing)
