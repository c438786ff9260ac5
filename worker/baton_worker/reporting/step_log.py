"""The latest engine steps with what was in them, on their way from the engine thread to the gateways."""

from __future__ import annotations

from collections import deque

from baton_engine.running.step_load import StepLoad
from baton_wire.messages.gateway_link import MAX_STATE_TIMINGS
from baton_wire.messages.measures import StepTiming

KEPT = 64


class StepLog:
    """One thread adds, one other takes: a deque's ends need no lock. Old steps that nobody took are dropped."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, StepLoad, float]] = deque(maxlen=KEPT)

    def add(self, step: int, load: StepLoad, seconds: float) -> None:
        """Engine thread: a step was collected."""
        self._steps.append((step, load, seconds))

    def take(self) -> tuple[StepTiming, ...]:
        """At most `MAX_STATE_TIMINGS` of the steps since the last call, drawn evenly; steps without work left out."""
        steps = []
        while True:
            try:
                steps.append(self._steps.popleft())
            except IndexError:
                break
        steps = [entry for entry in steps if entry[1].rows and entry[2] > 0]
        stride = -(-len(steps) // MAX_STATE_TIMINGS) or 1
        return tuple(_timing(*entry) for entry in steps[::stride])


def _timing(step: int, load: StepLoad, seconds: float) -> StepTiming:
    return StepTiming(step, load.prefill_tokens, load.prefill_pairs, load.decode_rows, load.kv_tokens, seconds)
