"""The runner that only keeps time: durations by the given figures, steps in order, tokens that may be drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_engine.scheduling.step_load import StepLoad
from baton_engine.scheduling.step_plan import OpenSlot, PrefillChunk, StepPlan
from baton_wire.messages.values import SamplingParams
from baton_wire.rules.step_times import DecodeTimes, PacedTimes, PrefillTimes
from baton_worker.building.paced import FIRST_TOKEN, PacedRunner, read_times, step_s
from baton_worker.errors import ConfigError

TIMES = PacedTimes(
    label="round figures",
    prefill=PrefillTimes(fixed_s=0.01, per_token_s=0.001, per_pair_s=0.0),
    decode=DecodeTimes(0.02, per_sequence_s=0.001, over_knee_s=0.01, per_kv_token_s=0.0001, knee=8.0, pad_to=4),
    kv_capacity_tokens=4096,
)
VOCABULARY = 40


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def opened(slot: int, context: int = 0, **sampling: object) -> OpenSlot:
    params = SamplingParams(max_tokens=9, **sampling)  # type: ignore[arg-type]
    return OpenSlot(slot, params, 0, (), (), context, 1)


def runner(clock: Clock) -> PacedRunner:
    return PacedRunner(TIMES, 16, VOCABULARY, clock, clock.sleep)


def test_durations_follow_the_figures_with_padding_and_knee() -> None:
    assert step_s(TIMES, StepLoad(100, 5e3, 1, 0, 0)) == pytest.approx(0.11)
    assert step_s(TIMES, StepLoad(0, 0.0, 0, 5, 1000)) == pytest.approx(0.02 + 8 * 0.001 + 0.1)
    assert step_s(TIMES, StepLoad(0, 0.0, 0, 9, 0)) == pytest.approx(0.02 + 12 * 0.001 + 4 * 0.01)
    assert step_s(TIMES, StepLoad(0, 0.0, 0, 0, 0)) == 0.0


def test_steps_end_one_after_the_other_on_the_clock() -> None:
    clock = Clock()
    paced = runner(clock)
    chunk = PrefillChunk(0, 0, tuple(range(90)), sample=(0,))
    paced.launch(StepPlan(1, opens=(opened(0),), prefill=(chunk,)))
    paced.launch(StepPlan(2, decode=(0,)))
    assert not paced.is_done()
    first = paced.collect()
    assert first.step == 1
    assert first.duration_s == pytest.approx(0.1)
    assert clock.now == pytest.approx(100.1)
    second = paced.collect()
    assert clock.now == pytest.approx(100.1 + 0.02 + 0.004 + 91 * 0.0001)
    assert second.duration_s == pytest.approx(clock.now - 100.1)
    assert [len(result.tokens) for result in (first, second)] == [1, 1]
    with pytest.raises(RuntimeError):
        paced.collect()


def test_tokens_are_of_the_vocabulary_no_stop_ids_and_the_same_after_a_migration() -> None:
    stops = tuple(range(FIRST_TOKEN, VOCABULARY - 1))
    paced = runner(Clock())
    assert paced.execute(StepPlan(1, opens=(opened(0, 5, stop_token_ids=stops),), decode=(0,))).tokens[0].ids == (
        VOCABULARY - 1,
    )
    whole = runner(Clock())
    drawn = [whole.execute(StepPlan(1, opens=(opened(0, 5, seed=3),), decode=(0,))).tokens[0].ids[0]]
    drawn += [whole.execute(StepPlan(step, decode=(0,))).tokens[0].ids[0] for step in range(2, 6)]
    moved = runner(Clock())
    on = OpenSlot(0, SamplingParams(max_tokens=9, seed=3), 0, (), tuple(drawn[:3]), 8, drawn[2])
    assert moved.execute(StepPlan(1, opens=(on,), decode=(0,))).tokens[0].ids[0] == drawn[3]


def test_a_file_that_is_not_step_times_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "paced.json"
    path.write_text('{"label": "x", "prefill": {"fixed_s": -1}}')
    with pytest.raises(ConfigError, match="--paced"):
        read_times(path)
