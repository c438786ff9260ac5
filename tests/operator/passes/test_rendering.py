"""What follows from equal inputs is made once, and never kept past a change of any of them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from baton_control.errors import ManifestError
from baton_operator.kube.kinds import BUDGETS, OPTIONAL
from baton_operator.objects.cluster import Owner
from baton_operator.passes.rendering import KEPT, Inputs, Rendering, Renderings, render
from baton_testing.kube.world import MASTERS, PLATFORM, deployment_body, newer


def inputs(uid: str = "u1", **fields: object) -> Inputs:
    return Inputs(
        msgspec.json.encode(deployment_body(**fields)), "", Owner(uid), (), PLATFORM, dict(MASTERS), frozenset(OPTIONAL)
    )


def counting() -> tuple[Renderings, list[Inputs]]:
    made: list[Inputs] = []

    def make(given: Inputs) -> Rendering:
        made.append(given)
        return render(given)

    return Renderings(make), made


def test_equal_inputs_are_rendered_once_and_every_other_anew() -> None:
    renderings, made = counting()
    first = renderings.of(inputs())
    assert renderings.of(inputs()) is first
    changed = [
        inputs(gateway={"replicas": 2}),
        replace(inputs(), upgrade="1"),
        replace(inputs(), platform=newer(PLATFORM)),
        replace(inputs(), masters={**MASTERS, "second": b"n" * 32}),
        replace(inputs(), served=frozenset()),
    ]
    for each in changed:
        assert renderings.of(each) == render(each)
    assert made == [inputs(), *changed]


def test_a_wrong_spec_is_told_each_time_and_the_right_one_after_it_is_new() -> None:
    renderings, made = counting()
    wrong = inputs(rollout={"maxSurge": 0, "maxUnavailable": 0})
    for _ in range(2):
        with pytest.raises(ManifestError, match="maxSurge"):
            renderings.of(wrong)
    renderings.of(inputs())
    assert made == [wrong, wrong, inputs()]


def test_a_value_of_another_type_is_another_value() -> None:
    renderings, _ = counting()
    renderings.of(inputs(gateway={"replicas": 1}))
    with pytest.raises(ManifestError, match=r"spec\.gateway\.replicas"):
        renderings.of(inputs(gateway={"replicas": True}))


def test_only_the_latest_deployments_are_kept() -> None:
    example, made = render(inputs()), []

    def make(given: Inputs) -> Rendering:
        made.append(given.owner.uid)
        return example

    renderings = Renderings(make)
    for number in range(KEPT + 1):
        renderings.of(inputs(f"u{number}"))
    renderings.of(inputs(f"u{KEPT}"))
    renderings.of(inputs("u0"))
    assert made == [*(f"u{number}" for number in range(KEPT + 1)), "u0"]


def test_what_is_not_served_is_left_out_and_said() -> None:
    less = render(replace(inputs(), served=frozenset()))
    assert {each.resource for each in render(inputs()).standing} - {each.resource for each in less.standing} == {
        BUDGETS
    }
    assert less.notes == ("PodDisruptionBudgets are left out: policy/v1 is not served, or not granted",)
