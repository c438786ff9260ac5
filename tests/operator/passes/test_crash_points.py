"""The operator is stopped, refused or told nonsense, and the deployment ends where it would have ended anyway.

A share of the campaign `python -m campaigns.operator_proofs crash`, which takes every call of every scenario.
"""

from __future__ import annotations

import random

import pytest

from baton_testing.kube.campaign import STREAMS, Ended, complaint, faults, run
from baton_testing.kube.faults import CALM, NO_FAULT, Plan, Streams
from baton_testing.kube.scenarios import SCENARIOS, Scenario
from baton_testing.kube.world import BrokenPromiseError

STREAMS_EVERY = 8
"""Scenarios that get a bad watch stream too."""


def points(number: int, scenario: Scenario, calm: Ended) -> list[tuple[Plan, Streams]]:
    """Which faults a scenario gets here: one, drawn from all that the campaign has for it."""
    drawn = random.Random(f"faults of {scenario.name}")
    plans = list(faults(calm, scenario.is_fresh))
    points_drawn = [(drawn.choice(plans), CALM)] if plans else []
    bad = STREAMS[list(STREAMS)[number // STREAMS_EVERY % len(STREAMS)]]
    return points_drawn + ([(NO_FAULT, bad)] if number % STREAMS_EVERY == 0 else [])


@pytest.mark.parametrize("number", range(len(SCENARIOS)), ids=lambda number: SCENARIOS[number].name.replace(" ", "-"))
def test_a_fault_changes_nothing_about_where_a_scenario_ends(number: int) -> None:
    scenario = SCENARIOS[number]
    calm = run(scenario)
    complaints = [complaint(scenario, calm, plan, streams) for plan, streams in points(number, scenario, calm)]
    assert [text for text in complaints if text is not None] == []


def scenario_named(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def test_an_operator_upgrade_with_other_images_and_flags_writes_nothing_but_its_record() -> None:
    ended = run(scenario_named("upgrade the operator"))
    assert ended.writes == 0, ended.calls[ended.first :]


def test_deleting_leaves_nothing() -> None:
    for name in ("delete", "delete midway"):
        assert run(scenario_named(name)).outcome == {"pods": {}}


def test_switching_modes_changes_no_count() -> None:
    """The autoscaler's three workers stay three when Baton takes over."""
    pods = run(scenario_named("switch to an autoscaler and back")).outcome["pods"]
    assert [count for name, count in pods.items() if name.startswith("decode")] == [3]


@pytest.mark.parametrize(
    ("name", "promise"),
    [("edit the model", {"most": 2}), ("edit without surge", {"floor": 2}), ("edit without surge", {"most": 1})],
)
def test_a_promise_that_is_not_kept_is_noticed(name: str, promise: dict[str, int]) -> None:
    """The checks themselves: with one worker more or less asked for, the same run fails."""
    scenario = scenario_named(name)
    values = {"floor": scenario.promise.floor, "most": scenario.promise.most, **promise}
    stricter = Scenario(scenario.name, scenario.script, type(scenario.promise)(**values), scenario.is_fresh)
    with pytest.raises(BrokenPromiseError):
        run(stricter)
