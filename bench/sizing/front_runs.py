"""The runs that make up the fronts: every policy at every value of its knob on one load, one seed and one start-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench.sizing.front_numbers import FLIPPING
from bench.sizing.front_rows import FIXED, Row
from bench.sizing.loads import split
from bench.sizing.scenarios import Case

from baton_control.sizing.decision.capacity import SimulatedSizer
from baton_simulate.policies import Needs, Scripted, needs_of, player
from baton_simulate.replay import ReplayOutcome, Scenario, replay
from baton_wire.messages.values import Role

FLIP_S = 2.0
"""Under `FLIPPING`, mode SLO whose workers can change role in so long. It has the knob and the values of mode SLO."""
VALUES: dict[str, tuple[float | None, ...]] = {
    "slo": (None, 0.8, 0.9, 0.99),
    FIXED: (None,),
    "oracle": (None,),
    "plain": (None, 300.0, 900.0, 1800.0),
    "llmd-v1": (None, 4.0, 8.0, 16.0),
    "llmd-v2": (None, 1.5),
    "dynamo": (None, 0.5),
    "apa": (None, 0.5, 1.0, 1.5),
    "kpa": (None, 2.8),
    "hpa-queue": (None, 2.0, 4.0),
}
"""Values of the knobs; None: the default."""
TURNING = (
    "essays and papers in turns",
    "letters and books in turns",
    "chat and code in turns",
    "shifts of three kinds",
    "studios that write and read",
)
"""Loads whose ratio of pools turns: flips are played on them alone."""
MOST_FIXED, MORE_FIXED, FEW = 24, 4, 0.002
"""Fixed pools have at most `MOST_FIXED` prefill workers, and at most `MORE_FIXED` more than the load keeps busy; more
are not tried once no more than the share `FEW` misses TTFT."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs that share what a load needs."""

    split: str
    load: str
    """Its name: what draws it does not go to another process."""
    seed: int
    startup_s: float
    policies: tuple[str, ...] = (*VALUES, FLIPPING)

    def runs(self) -> Iterator[tuple[str, float | None]]:
        for policy, values in VALUES.items():
            if policy in self.policies:
                yield from ((policy, value) for value in values)
        if self.load in TURNING and FLIPPING in self.policies:
            yield from ((FLIPPING, value) for value in VALUES["slo"])


Done = frozenset[tuple[str, int, float, str, str]]


def play_cell(cell: Cell, traces: Path, done: Done) -> list[Row]:
    """The rows that are missing; none when its trace is not there."""
    load = next(candidate for candidate in split(cell.split) if candidate.name == cell.load)
    missing = [(policy, knob) for policy, knob in cell.runs() if _run(cell, policy, knob) not in done]
    if not missing:
        return []
    try:
        case = load.case(traces, cell.seed)
    except FileNotFoundError:
        return []
    needs = needs_of(case.workload, case.spec, SimulatedSizer(case.true, case.spec.targets))
    rows: list[Row] = []
    for policy, knob in missing:
        rows += (
            _fixed(cell, case)
            if policy == FIXED
            else [_row(cell, case, _play_case(cell, case, needs, policy, knob), knob)]
        )
    return rows


def _run(cell: Cell, policy: str, knob: float | None) -> tuple[str, int, float, str, str]:
    return _row_like(cell, policy, "" if knob is None or policy == FIXED else f"{knob:g}").run


def _row_like(cell: Cell, policy: str, knob: str) -> Row:
    return Row(cell.split, cell.load, 0.0, cell.seed, cell.startup_s, policy, knob, 0.0, 0.0, 0.0, 0.0, 0)


def _play_case(cell: Cell, case: Case, needs: Needs, policy: str, knob: float | None) -> ReplayOutcome:
    spec, name = (replace(case.spec, flip_s=FLIP_S), "slo") if policy == FLIPPING else (case.spec, policy)
    run = player(name, spec, case.believed, needs, cell.startup_s, knob)
    initial = needs.between(0.0, 30.0)
    return replay(Scenario(case.name, case.workload, case.true, spec, cell.startup_s, initial), policy, run)


def _fixed(cell: Cell, case: Case) -> list[Row]:
    def one(prefill: int, decode: int) -> Row:
        sizes = {Role.PREFILL: prefill, Role.DECODE: decode}
        scenario = Scenario(case.name, case.workload, case.true, case.spec, cell.startup_s, sizes)
        return _row(cell, case, replay(scenario, FIXED, Scripted(lambda now: sizes)), f"{prefill}+{decode}")

    return fixed_pools(one, _busy_prefill(case), 1.0 - case.spec.targets.tpot_share)


def fixed_pools(one: Callable[[int, int], Row], fewest: int, tpot_misses: float) -> list[Row]:
    """Pools around the fewest decode workers that keep TPOT, from prefill workers that the load keeps busy up."""
    decode = 1
    while decode < MOST_FIXED and one(MOST_FIXED, decode).tpot > tpot_misses:
        decode += 1
    rows: list[Row] = []
    for count in range(max(1, decode - 1), decode + 2):
        for prefill in range(fewest, min(MOST_FIXED, fewest + MORE_FIXED) + 1):
            rows.append(one(prefill, count))
            if rows[-1].ttft < FEW:
                break
    return rows


def _busy_prefill(case: Case) -> int:
    """Prefill workers that the whole load keeps busy, as they are believed to be; fewer never catch up."""
    load, times = case.workload, case.believed.prefill
    rows = zip((load.prompt_tokens - load.cached_tokens).tolist(), load.cached_tokens.tolist(), strict=True)
    return max(1, int(sum(times.prompt_s(new, cached) for new, cached in rows) / load.duration_s))


def _row(cell: Cell, case: Case, out: ReplayOutcome, knob: float | str | None) -> Row:
    return replace(
        _row_like(cell, out.policy, knob if isinstance(knob, str) else "" if knob is None else f"{knob:g}"),
        seconds=round(case.workload.duration_s, 1),
        ttft=round(1 - out.ttft_attainment, 5),
        tpot=round(1 - out.tpot_attainment, 5),
        misses=round(out.misses, 5),
        gpu_hours=round(out.gpu_hours, 3),
        moves=len(out.decisions),
    )
