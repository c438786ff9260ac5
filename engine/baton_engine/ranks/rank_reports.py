"""Reports of the ranks, put together: a step is over when all ranks say so, and all must have drawn the same.

Pure: the supervising thread feeds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_engine.collectives.collective import RankLostError
from baton_engine.ranks.rank_frames import LayersWritten, StepDone
from baton_engine.scheduling.step_plan import StepResult

MISSED_TICKS: Final = 8
"""A rank is lost that gives no sign of life during this number of ticks. Ticks are the supervisor's own, so that a
machine that stands still for all processes at once loses none."""


@dataclass(slots=True)
class _Step:
    drawn: dict[int, int | None] = field(default_factory=dict)
    """By rank; None: the rank is a stage that draws nothing."""
    result: StepResult | None = None
    layers: dict[int, int] = field(default_factory=dict)
    """By rank; layers that are written."""
    announced: int = 0


class RankReports:
    """Reports of the steps that are under way."""

    def __init__(self, ranks: int, *, are_stages: bool = False) -> None:
        """`are_stages`: each rank has layers of its own, and begins a step when the one before has ended it."""
        self._ranks, self._are_stages = ranks, are_stages
        self._steps: dict[int, _Step] = {}

    def add_layers(self, rank: int, report: LayersWritten) -> int | None:
        """Take a report of layers. Returns how many layers are written at all ranks that have them, if that has grown.

        Stages compute several steps at once. Nothing is announced of a step before all earlier ones are over.
        """
        step = self._steps.setdefault(report.step, _Step())
        step.layers[rank] = report.layers
        if self._are_stages:
            is_next = all(number >= report.step or self.is_done(number) for number in self._steps)
            written = max(step.layers.values()) if is_next else 0
        else:
            written = min(step.layers.values()) if len(step.layers) == self._ranks else 0
        if written <= step.announced:
            return None
        step.announced = written
        return written

    def add_done(self, rank: int, report: StepDone) -> bool:
        """Take a report of a step that is over. Returns True when it is over at all ranks. Raises RankLostError when
        two ranks drew different tokens."""
        step = self._steps.setdefault(report.step, _Step())
        step.drawn[rank] = report.drawn
        if report.result is not None:
            step.result = report.result
        for other, drawn in step.drawn.items():
            if None not in (drawn, report.drawn) and drawn != report.drawn:
                raise RankLostError(f"ranks {other} and {rank} drew different tokens in step {report.step}")
        return self.is_done(report.step)

    def is_done(self, number: int) -> bool:
        step = self._steps.get(number)
        return step is not None and len(step.drawn) == self._ranks

    def take(self, number: int) -> StepResult:
        """The result of a step that is over, once."""
        result = self._steps.pop(number).result
        if result is None:
            raise RankLostError(f"step {number} ended without a result")
        return result


class Heartbeats:
    """Signs of life of the ranks. A rank is watched from its first one on."""

    def __init__(self, ranks: int) -> None:
        self._missed: list[int | None] = [None] * ranks

    def beat(self, rank: int) -> None:
        self._missed[rank] = 0

    def tick(self) -> int | None:
        """Count one tick. Returns a rank that has given no sign for too long."""
        for rank, missed in enumerate(self._missed):
            if missed is not None:
                self._missed[rank] = missed + 1
                if missed + 1 >= MISSED_TICKS:
                    return rank
        return None
