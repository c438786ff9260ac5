"""Reports of several ranks, put together: layers, ends of steps, drawn tokens, signs of life."""

from __future__ import annotations

import pytest

from baton_engine.collectives.collective import RankLostError
from baton_engine.ranks.rank_frames import LayersWritten, StepDone
from baton_engine.ranks.rank_processes import Ticks
from baton_engine.ranks.rank_reports import MISSED_TICKS, Heartbeats, RankReports
from baton_engine.scheduling.step_plan import SlotTokens, StepResult

RESULT = StepResult(1, (SlotTokens(0, (7,)),), 0.5)


def test_a_step_is_over_when_it_is_over_at_every_rank() -> None:
    reports = RankReports(3)
    assert not reports.is_done(1)
    assert not reports.add_done(0, StepDone(1, 99, RESULT))
    assert not reports.add_done(2, StepDone(1, 99))
    assert not reports.is_done(1)
    assert reports.add_done(1, StepDone(1, 99))
    assert reports.is_done(1)
    assert reports.take(1) == RESULT
    assert not reports.is_done(1)


def test_ranks_may_be_a_step_apart() -> None:
    reports = RankReports(2)
    reports.add_done(0, StepDone(1, 5, RESULT))
    assert not reports.add_done(0, StepDone(2, 6, StepResult(2, (), 0.1)))
    assert reports.add_done(1, StepDone(1, 5))
    assert reports.take(1) == RESULT
    assert reports.add_done(1, StepDone(2, 6))


def test_ranks_that_drew_different_tokens_are_reported_with_their_step() -> None:
    reports = RankReports(2)
    reports.add_done(1, StepDone(4, 5))
    with pytest.raises(RankLostError, match="ranks 1 and 0 drew different tokens in step 4"):
        reports.add_done(0, StepDone(4, 6, RESULT))


def test_a_result_that_is_missing_is_an_error() -> None:
    reports = RankReports(1)
    reports.add_done(0, StepDone(4, 5))
    with pytest.raises(RankLostError, match="without a result"):
        reports.take(4)


def test_layers_count_once_every_rank_has_written_them() -> None:
    reports = RankReports(2)
    assert reports.add_layers(0, LayersWritten(1, 2)) is None
    assert reports.add_layers(0, LayersWritten(1, 4)) is None
    assert reports.add_layers(1, LayersWritten(1, 2)) == 2
    assert reports.add_layers(1, LayersWritten(1, 4)) == 4
    assert reports.add_layers(1, LayersWritten(2, 2)) is None
    assert reports.add_layers(0, LayersWritten(2, 2)) == 2


def test_layers_of_stages_follow_each_other_and_steps_too() -> None:
    reports = RankReports(2, are_stages=True)
    assert reports.add_layers(0, LayersWritten(1, 2)) == 2
    assert not reports.add_done(0, StepDone(1, None))
    assert reports.add_layers(0, LayersWritten(2, 2)) is None, "the step before is not over"
    assert reports.add_layers(1, LayersWritten(1, 3)) == 3
    assert reports.add_layers(1, LayersWritten(1, 4)) == 4
    assert not reports.add_done(0, StepDone(2, None))
    assert reports.add_done(1, StepDone(1, 99, RESULT))
    assert reports.take(1) == RESULT
    assert reports.add_layers(1, LayersWritten(2, 3)) == 3


def test_the_result_of_stages_is_the_last_one_s() -> None:
    reports = RankReports(2, are_stages=True)
    reports.add_done(0, StepDone(1, None))
    assert reports.add_done(1, StepDone(1, 99, RESULT))
    assert reports.take(1) == RESULT


def test_a_rank_without_a_sign_of_life_is_found_and_one_that_never_gave_one_is_not() -> None:
    beats = Heartbeats(3)
    beats.beat(0)
    beats.beat(1)
    for _ in range(MISSED_TICKS - 1):
        assert beats.tick() is None
        beats.beat(0)
    assert beats.tick() == 1


def test_a_supervisor_that_stood_still_counts_one_tick() -> None:
    now = 0.0
    ticks = Ticks(0.25, lambda: now)
    assert (ticks.is_due(), ticks.left_s()) == (False, 0.25)
    now = 100.0
    assert ticks.left_s() == 0.0
    assert [ticks.is_due(), ticks.is_due()] == [True, False]
    assert ticks.left_s() == 0.25
