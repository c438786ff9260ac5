"""The runner of a worker with several ranks: it sends each plan to all of them and collects the result of one: the
first of ranks that share each layer, or the last stage of a pipeline.

A plan is the ranks' only input, so that all of them compute the same. Masks of draws are the one thing that follows a
plan: they need the tokens of the step before, and come when that step is collected, while the ranks compute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.ranks.rank_frames import RankFrame, RunStep, StepMasks, WatchLayers
from baton_engine.ranks.stage_plans import check_plan
from baton_engine.running.layer_notices import LayerListener
from baton_engine.scheduling.step_plan import SlotFailure, StepPlan, StepResult


class Ranks(Protocol):
    """The ranks as the runner needs them. Every call raises RankLostError once one of them is lost."""

    def send(self, frame: RankFrame) -> None:
        """Send a frame to every rank."""
        ...

    def is_done(self, step: int) -> bool:
        """True when every rank has carried out the step."""
        ...

    def await_result(self, step: int) -> StepResult:
        """Wait until every rank has carried out the step, and return its result, once."""
        ...

    def watch_layers(self, listener: LayerListener) -> None:
        """Call `listener`, from a thread of its own, when every rank has written a step's layers."""
        ...


@dataclass(slots=True)
class _Sent:
    """A step whose plan was sent."""

    step: int
    slots: tuple[int, ...]
    """Slots that draw."""
    closes: tuple[int, ...]
    is_whole: bool
    """True when no masks of the step are still to be sent."""
    failures: tuple[SlotFailure, ...] = ()


class RankedRunner:
    """Implements `plan.Runner`."""

    def __init__(self, ranks: Ranks, masks: RowMasks | None = None, *, are_stages: bool = False) -> None:
        self._ranks, self._masks, self._are_stages = ranks, masks, are_stages
        self._in_flight: deque[_Sent] = deque()

    def watch_layers(self, listener: LayerListener) -> None:
        """Report layers that all ranks have finished to `listener`, as `ModelRunner.watch_layers` does."""
        self._ranks.watch_layers(listener)
        self._ranks.send(WatchLayers())

    def launch(self, plan: StepPlan) -> None:
        if self._in_flight and not self._in_flight[-1].is_whole:
            raise RuntimeError("launch: the draw of the step before waits for a result to be collected")
        if self._are_stages:
            check_plan(plan)
        slots = (*plan.decode, *(slot for chunk in plan.prefill for slot in chunk.sample))
        is_masked = False
        if self._masks is not None:
            for opened in plan.opens:
                self._masks.open(opened)
            is_masked = self._masks.bind(slots)
        self._ranks.send(RunStep(plan, is_masked))
        sent = _Sent(plan.step, slots, plan.closes, is_whole=not is_masked)
        if not self._in_flight:
            self._finish(sent)
        self._in_flight.append(sent)

    def is_done(self) -> bool:
        return bool(self._in_flight) and self._ranks.is_done(self._in_flight[0].step)

    def collect(self) -> StepResult:
        if not self._in_flight:
            raise RuntimeError("collect: no step was launched")
        oldest = self._in_flight.popleft()
        result = self._ranks.await_result(oldest.step)
        tokens = result.tokens
        if oldest.failures:
            failed = {failure.slot for failure in oldest.failures}
            tokens = tuple(entry for entry in tokens if entry.slot not in failed)
        if self._masks is not None:
            self._masks.take_drawn(tokens)
            self._masks.close(oldest.closes)
        if self._in_flight:
            self._finish(self._in_flight[0])
        return StepResult(result.step, tokens, result.duration_s, result.scored, oldest.failures, result.encoded)

    def execute(self, plan: StepPlan) -> StepResult:
        if self._in_flight:
            raise RuntimeError("execute: another step is in flight")
        self.launch(plan)
        return self.collect()

    def _finish(self, sent: _Sent) -> None:
        """Send the masks of a step, all of whose earlier tokens are known."""
        if sent.is_whole or self._masks is None:
            return
        constraints = self._masks.constraints(sent.slots)
        sent.failures, sent.is_whole = constraints.failures, True
        if constraints.masks is None:
            self._ranks.send(StepMasks((), b""))
            return
        slots = tuple(sent.slots[row] for row in constraints.masks.rows.tolist())
        self._ranks.send(StepMasks(slots, constraints.masks.allowed.numpy().tobytes()))
